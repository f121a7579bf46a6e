"""Serve the dashboard with waitress until interrupted."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from radt.errors import UsageError
from radt.frontend.access import Access, Auth
from radt.home import Home
from radt.store.locate import View

if TYPE_CHECKING:
    from radt.frontend.foreign.beside import Beside
    from radt.frontend.server import Server

DEFAULT_PORT = 8050
_TRIED_PORTS = 50


@dataclass(frozen=True, slots=True)
class Address:
    """Where the dashboard can be opened."""

    host: str
    port: int
    token: str | None = None

    @property
    def url(self) -> str:
        """What to open in a browser; a wildcard address is reached through the loopback one."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104
        host = f"[{host}]" if ":" in host else host
        query = f"?{urlencode({'token': self.token})}" if self.token else ""
        return f"http://{host}:{self.port}/{query}"


def listen(host: str, port: int | None) -> socket.socket:
    """A bound socket: on that port, or on the first free one from 8050 if ``port`` is None.

    Raises:
        UsageError: The port is taken, or the address is none of this machine's.
    """
    candidates = range(DEFAULT_PORT, DEFAULT_PORT + _TRIED_PORTS) if port is None else (port,)
    try:
        family, _, _, _, _ = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UsageError(f"{host} is no address: {error.strerror}", "Try 127.0.0.1") from error
    for candidate in candidates:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, candidate))
        except OSError as error:
            listener.close()
            if error.errno == errno.EADDRINUSE and port is None:
                continue
            remedy = "Choose another with --port, or leave it out to take a free one"
            raise UsageError(
                f"port {candidate} of {host} cannot be used: {error.strerror}", remedy
            ) from error
        return listener
    raise UsageError(
        f"ports {candidates[0]} to {candidates[-1]} of {host} are all taken",
        "Choose one with --port",
    )


def serve(view: View, access: Access, port: int | None, ready: Callable[[Address], None]) -> None:
    """Serve until interrupted; ``ready`` is called once, when the address can be opened.

    Raises:
        UsageError: As `listen`, or the users of ``access`` cannot be read any longer.
    """
    listener = listen(access.host, port)
    # Not before the port is sure: the libraries behind this take a second to load.
    from radt.frontend.access.guard import MAX_BODY_BYTES
    from radt.frontend.app import create_app
    from radt.frontend.patience import patient_server
    from radt.frontend.source import Source

    # A browser asks for all charts at once; that some wait a moment is no news for a terminal.
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    source = Source(view.store, _server_of(view), _beside_of(view))
    app = create_app(source, access)
    server = patient_server(app.server, listener, MAX_BODY_BYTES)
    try:
        token = access.token if access.mode is Auth.TOKEN else None
        ready(Address(access.host, listener.getsockname()[1], token))
        server.run()
    except KeyboardInterrupt:
        pass
    finally:
        server.close()
        source.close()


def _beside_of(view: View) -> Beside | None:
    """Runs of an MLflow database that radt never saw; those of a server it has itself."""
    if view.server:
        return None
    from radt.frontend.foreign.places import beside_of

    return beside_of(view.store, view.mlflow)


def _server_of(view: View) -> Server | None:
    """The MLflow server that is shown, too; there is a store then to load its runs into.

    Raises:
        UsageError: The data folder cannot be made.
        StoreError: The store in it cannot.
    """
    if not view.server:
        return None
    from radt.frontend.server import Server

    if view.store.path is not None:
        from radt.store.writer import StoreWriter

        Home(view.store.path.parent).create()
        StoreWriter(view.store).close()
    return Server(view.server, view.load_into or view.store)
