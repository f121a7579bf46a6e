"""Serve the dashboard with waitress until interrupted."""

from __future__ import annotations

import errno
import gc
import logging
import re
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlencode

from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer, create_server

from radt.errors import UsageError
from radt.frontend.auth import MAX_BODY_BYTES, Auth, DashboardAccess
from radt.home import Home
from radt.store.locate import ShownStore

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

    from radt.frontend.imports import MlflowImports


#: A page requests all of its charts at once. Reading and thinning release the GIL.
THREADS = 8
#: Ten browsers with six connections each, with headroom.
_CONNECTIONS = 200
#: Enough for the longest address (`radt.frontend.view.MAX_QUERY`) and cookies.
_MAX_HEADER_BYTES = 96 * 1024
#: Time limit of a request, from its first byte to its last.
REQUEST_S = 30.0
#: A client that reads nothing of an answer for this long is considered gone.
STALLED_S = 60.0
#: Idle connections are kept open this long for the next request.
_IDLE_S = 120
_LOOK_INTERVAL_S = 5
#: Arguments of `gc.set_threshold`. The runs of a large store are millions of objects without
#: cycles. With Python's defaults, looking for cycles takes a third of the time for reading them.
_COLLECT_AFTER = (10_000, 20, 100)


class _Channel(HTTPChannel):
    """A connection that records when its request began."""

    begun_s: float | None = None

    def received(self, data: bytes) -> bool:
        taken = super().received(data)
        if self.request is None:
            self.begun_s = None
        elif self.begun_s is None:
            self.begun_s = time.time()
        return bool(taken)

    def is_too_slow(self, now_s: float) -> bool:
        sends = self.begun_s is not None and not self.requests
        if sends and now_s - (self.begun_s or now_s) > REQUEST_S:
            return True
        return bool(self.total_outbufs_len) and now_s - self.last_activity > STALLED_S


def patient_server(
    application: WSGIApplication,
    listener: socket.socket,
    max_body_bytes: int,
    sockets: dict[int, Any] | None = None,
) -> TcpWSGIServer:
    """Return a server for one bound socket; its ``run()`` serves.

    ``sockets`` holds the sockets that the server waits for. None shares those of all servers in the
    process.
    """
    # waitress's stubs disagree with its code.
    server: Any = create_server(
        application,
        sockets,
        sockets=[listener],
        threads=THREADS,
        ident=None,
        connection_limit=_CONNECTIONS,
        # select() cannot handle file descriptors above 1024.
        asyncore_use_poll=True,
        channel_timeout=_IDLE_S,
        cleanup_interval=_LOOK_INTERVAL_S,
        max_request_header_size=_MAX_HEADER_BYTES,
        max_request_body_size=max_body_bytes,
        # `radt.frontend.security.TrustedProxies` decides which proxies to trust.
        clear_untrusted_proxy_headers=False,
    )
    usual = server.maintenance

    def maintenance(now: float) -> None:
        usual(now)
        for channel in list(server.active_channels.values()):
            if isinstance(channel, _Channel) and channel.is_too_slow(now):
                # Close without an error response: sending one would wait for a client that does not
                # read.
                channel.handle_close()

    server.channel_class = _Channel
    server.maintenance = maintenance
    return cast(TcpWSGIServer, server)


DEFAULT_PORT = 8050
_WITH_PORT = re.compile(r"(\[.+\]|[^:]+):(\d+)")
_TRIED_PORTS = 50


@dataclass(frozen=True, slots=True)
class Address:
    """The dashboard's address for browsers."""

    host: str
    port: int
    token: str | None = None
    base_path: str = ""

    @property
    def url(self) -> str:
        """The address to open in a browser; loopback for a wildcard address."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104
        host = f"[{host}]" if ":" in host else host
        query = f"?{urlencode({'token': self.token})}" if self.token else ""
        return f"http://{host}:{self.port}{self.base_path}/{query}"

    def published(self, names: Sequence[str]) -> Address:
        """Return the address with the first name that has a port, else itself."""
        match = next(filter(None, map(_WITH_PORT.fullmatch, names)), None)
        if match is None:
            return self
        return replace(self, host=match[1].strip("[]"), port=int(match[2]))


def listen(host: str, port: int | None) -> socket.socket:
    """Return a bound socket: on that port, or on the first free one from 8050 if ``port`` is None.

    Raises:
        UsageError: The port is in use, or the address is not one of this machine.
    """
    candidates = range(DEFAULT_PORT, DEFAULT_PORT + _TRIED_PORTS) if port is None else (port,)
    try:
        family, _, _, _, _ = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UsageError(f"{host} is not an address: {error.strerror}", "Try 127.0.0.1") from error
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


def serve(
    view: ShownStore, access: DashboardAccess, port: int | None, ready: Callable[[Address], None]
) -> None:
    """Serve until interrupted; ``ready`` is called once the address can be opened.

    Raises:
        UsageError: As `listen`.
    """
    listener = listen(access.host, port)
    # After binding the port: the libraries behind this take a second to load.
    from radt.frontend.app import create_app
    from radt.frontend.data.cached_store import CachedStore

    gc.set_threshold(*_COLLECT_AFTER)
    # A browser requests all charts at once, so a short queue is not worth a warning.
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    source = CachedStore(view.store, _imports_of(view))
    app = create_app(source, access)
    server = patient_server(app.server, listener, MAX_BODY_BYTES)
    try:
        token = access.token if access.mode is Auth.TOKEN else None
        ready(Address(access.host, listener.getsockname()[1], token, access.base_path))
        server.run()
    except KeyboardInterrupt:
        pass
    finally:
        server.close()
        source.close()


def _imports_of(view: ShownStore) -> MlflowImports | None:
    """Return the importer from MLflow that runs with the dashboard. It needs a writable store.

    Raises:
        UsageError: The data folder cannot be created.
        StoreError: The store in it cannot be created.
    """
    if not view.import_from:
        return None
    from radt.frontend.imports import MlflowImports
    from radt.store.writer import StoreWriter

    store = view.import_into or view.store
    if store.path is not None:
        Home(store.path.parent).create()
        StoreWriter(store).close()
    return MlflowImports(view.import_from, store)
