"""``python -m radt.training.lighthouse``: the meeting point of an `ElasticAverager`'s replicas.

It is torchft's lighthouse: it knows which replicas are alive and which take part in the next round.
It keeps no state that is needed later: if it is killed, rounds wait until it is restarted. It is a
row with the role `service`, or a process that you start. Replicas on its machine find it by the
name of the group, others by its address. torchft's lighthouse has no authentication: it listens
only on this machine, unless it is given an address in a trusted network.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import time
from argparse import ArgumentParser, Namespace
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING
from urllib.parse import urlsplit

from radt.errors import MissingPackageError, RadtError, TrainingError, UsageError
from radt.files import is_open_at, lock
from radt.home import runtime_dir
from radt.lazy import skip_init
from radt.loaders.scope import scoped

if TYPE_CHECKING:
    from torchft.coordination import LighthouseServer

#: torchft's variable for the lighthouse's address.
ADDRESS_VARIABLE = "TORCHFT_LIGHTHOUSE"
#: A replica that is silent for this long is considered dead; the others continue without it.
HEARTBEAT_S = 5.0
#: How long replicas wait for a lighthouse: a service row starts at the same time as they do.
_START_S = 60.0
_POLL_S = 0.2
#: Live replicas are waited for: one may be in a long step, or validating.
_JOIN_MS = 3_600_000
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_ADDRESS = re.compile(r"http://(\[[0-9A-Fa-f:.]+\]|[^\s/:]+):\d{1,5}/?")


def address_of(group: str, given: str | None = None) -> str:
    """Return the address of a group's lighthouse, which may not answer; "" if none is known.

    Args:
        group: The group.
        given: Its address; if None, that in ``TORCHFT_LIGHTHOUSE``, or of the lighthouse of this
            group on this machine.

    Raises:
        UsageError: The given address is not valid.
    """
    fixed = given or os.environ.get(ADDRESS_VARIABLE)
    if not fixed:
        return _noted_in(_note_of(group))
    if not _ADDRESS.fullmatch(fixed):
        raise UsageError(f"the address of the lighthouse is {fixed!r}, expected http://HOST:PORT")
    return fixed


def answering(group: str, given: str | None = None) -> str:
    """Wait until a group's lighthouse answers. Return its address. Arguments as in `address_of`.

    Raises:
        TrainingError: None answers within a minute.
    """
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s:
        if (address := address_of(group, given)) and _answers(address):
            return address
        time.sleep(_POLL_S)
    where = f"at {address}" if address else "on this machine"
    raise TrainingError(
        f"no lighthouse of group {group!r} answers {where} within {_START_S:.0f} s",
        "Add a row with the role service, the file -m radt.training.lighthouse and the params "
        f"--group {group}, or start one: python -m radt.training.lighthouse --group {group}. For "
        f"one on another machine, set {ADDRESS_VARIABLE} to http://HOST:PORT",
    )


def own_address(lighthouse: str) -> str:
    """Return this machine's address as the lighthouse's network sees it."""
    with _connection(lighthouse) as connection:
        address: str = connection.getsockname()[0]
    return address


def _answers(address: str) -> bool:
    """Return True if something listens at the address."""
    try:
        with _connection(address):
            return True
    except OSError:
        return False


def _connection(address: str) -> socket.socket:
    parts = urlsplit(address)
    return socket.create_connection((parts.hostname or "", parts.port or 0), _POLL_S * 10)


def _note_of(group: str) -> Path:
    """Return the file with the address of this machine's current or last lighthouse of a group."""
    return runtime_dir() / f"lighthouse-{scoped(group)}"


def _noted_in(note: Path) -> str:
    with suppress(FileNotFoundError):
        text = note.read_text(encoding="utf-8")
        return text if _ADDRESS.fullmatch(text) else ""  # it may be half written
    return ""


# The process --------------------------------------------------------------------------------------


def main() -> int:
    """Serve until SIGTERM or Ctrl-C."""
    parser = ArgumentParser(
        prog="python -m radt.training.lighthouse",
        description="Let the replicas of ElasticAverager(..., group=GROUP) meet.",
    )
    parser.add_argument("--group", required=True, help="group of the ElasticAverager")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address of this machine where replicas on others come; default: none do",
    )
    parser.add_argument("--port", type=int, help="default: as before, or a free one")
    parser.add_argument(
        "--heartbeat", type=float, default=HEARTBEAT_S, help="replicas silent for longer are dead"
    )
    chosen = parser.parse_args()
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # before torchft starts its threads
    try:
        note = _note_of(chosen.group)
        with _claimed(note, chosen.group) as file:
            _serve(chosen, note, file)
    except RadtError as error:
        sys.stderr.write(f"radt: {error}\n")
        return error.exit_code
    return 0


def _claimed(note: Path, group: str) -> IO[str]:
    """Return the address file, locked by this process until it ends.

    Raises:
        TrainingError: Another lighthouse has it.
    """
    while True:
        file = note.open("a", encoding="utf-8")
        if not lock(file.fileno()):
            file.close()
            raise TrainingError(
                f"group {group!r} has a lighthouse on this machine already, at {_noted_in(note)}",
                "End it, or choose another name for the group",
            )
        if is_open_at(file.fileno(), note):
            return file
        file.close()  # an ending lighthouse has removed the file meanwhile


def _serve(chosen: Namespace, note: Path, file: IO[str]) -> None:
    host = f"[{chosen.host}]" if ":" in chosen.host else chosen.host
    with ExitStack() as stack:
        stack.callback(note.unlink)
        server = _server(chosen, host, urlsplit(_noted_in(note)).port)
        stack.callback(server.shutdown)
        address = f"http://{host}:{urlsplit(server.address()).port}"  # the server has a name
        file.truncate(0)
        file.write(address)
        file.flush()
        sys.stderr.write(f"radt: lighthouse of group {chosen.group!r} at {address}\n")
        signal.sigwait(_SIGNALS)


def _server(chosen: Namespace, host: str, before: int | None) -> LighthouseServer:
    """Return a listening lighthouse, if possible on the port of a killed one: replicas ask it."""
    os.environ.setdefault("RUST_LOG", "warn")  # otherwise torchft logs every request
    skip_init("torchft")  # its __init__ imports torch, which a lighthouse does not need
    try:
        from torchft.coordination import LighthouseServer
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            "the lighthouse needs torchft, which is not installed", "pip install 'radt[elastic]'"
        ) from error
    for port in [chosen.port] if chosen.port is not None else [before or 0, 0]:
        try:
            return LighthouseServer(
                bind=f"{host}:{port}",
                min_replicas=1,
                join_timeout_ms=_JOIN_MS,
                heartbeat_timeout_ms=round(chosen.heartbeat * 1000),
            )
        except RuntimeError as error:
            problem = error
    raise TrainingError(
        f"the lighthouse of group {chosen.group!r} cannot listen at {host}:{port}: {problem}",
        "Check that this machine has the address, and end the process that uses the port, or "
        "choose another one by --port",
    ) from problem


if __name__ == "__main__":
    sys.exit(main())
