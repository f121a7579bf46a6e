"""``python -m radt.training.lighthouse``: where the replicas of an `ElasticAverager` meet.

It is torchft's lighthouse: it knows who is alive and who takes part in the next round. It keeps
nothing that is needed later: kill it and start it again, and rounds wait meanwhile. As a row with
the role `service` it starts and ends with its workload. For trusted networks only: it listens on
all interfaces and knows no passwords.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import socket
import sys
import time
from argparse import ArgumentParser
from pathlib import Path
from urllib.parse import urlsplit

from radt.errors import MissingPackageError, RadtError, TrainingError, UsageError
from radt.home import HOME_VARIABLE, runtime_dir

#: torchft's name for the lighthouse's address.
ADDRESS_VARIABLE = "TORCHFT_LIGHTHOUSE"
#: A replica that is silent for so long is dead; the others go on without it.
HEARTBEAT_S = 5.0
#: Replicas that live are waited for: one may be at a long step, or validate.
_JOIN_MS = 3_600_000
#: The rows of a workload start together, the lighthouse among them.
_START_S = 60.0
_POLL_S = 0.2
_ADDRESS = re.compile(r"http://(\[[0-9A-Fa-f:.]+\]|[^\s/:]+):\d{1,5}/?")
#: A workload's rows meet at one lighthouse, those of another workload do not.
_SCOPE_VARIABLES = (HOME_VARIABLE, "RADT_EXPERIMENT", "RADT_WORKLOAD")


def main() -> int:
    """Serve until SIGTERM or Ctrl-C."""
    parser = ArgumentParser(
        prog="python -m radt.training.lighthouse",
        description="Let the replicas of ElasticAverager(..., group=GROUP) meet.",
    )
    parser.add_argument("--group", required=True, help="group of the ElasticAverager")
    parser.add_argument("--port", type=int, help="default: as before, or a free one")
    parser.add_argument(
        "--heartbeat", type=float, default=HEARTBEAT_S, help="replicas silent for longer are dead"
    )
    chosen = parser.parse_args()
    try:
        return _serve(chosen.group, chosen.port, chosen.heartbeat)
    except RadtError as error:
        sys.stderr.write(f"radt: {error}\n")
        return error.exit_code


def _serve(group: str, port: int | None, heartbeat_s: float) -> int:
    os.environ.setdefault("RUST_LOG", "warn")  # torchft's notes on each request otherwise
    try:
        from torchft.coordination import LighthouseServer
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            "the lighthouse needs torchft, which is not installed", "pip install 'radt[elastic]'"
        ) from error
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # before torchft's threads begin
    file = _address_file(group)
    if port is None:
        port = _port_before(file)
    try:
        server = LighthouseServer(
            bind=f"[::]:{port}",
            min_replicas=1,
            join_timeout_ms=_JOIN_MS,
            heartbeat_timeout_ms=round(heartbeat_s * 1000),
        )
    except RuntimeError as error:
        raise TrainingError(
            f"the lighthouse of group {group!r} cannot listen on port {port}: {error}",
            "End the process that uses the port, or choose another one by --port",
        ) from error
    try:
        address = server.address()
        temporary = file.with_suffix(f".{os.getpid()}")
        # Replicas on this machine; on others they are given http://HOST:PORT.
        temporary.write_text(f"http://localhost:{urlsplit(address).port}\n")
        temporary.replace(file)
        sys.stderr.write(f"radt: lighthouse of group {group!r} at {address}\n")
        signal.sigwait(signals)
    finally:
        server.shutdown()
    file.unlink(missing_ok=True)
    return 0


def lighthouse_address(group: str, given: str | None) -> str:
    """Return the address of a group's lighthouse, once it answers.

    Args:
        group: The group.
        given: Its address; if None, that of ``TORCHFT_LIGHTHOUSE``, or of the lighthouse of this
            group on this machine.

    Raises:
        UsageError: The given address is none.
        TrainingError: None answers within a minute.
    """
    fixed = given or os.environ.get(ADDRESS_VARIABLE)
    if fixed is not None and not _ADDRESS.fullmatch(fixed):
        raise UsageError(f"the address of the lighthouse is {fixed!r}, expected http://HOST:PORT")
    file = _address_file(group)
    deadline_s = time.monotonic() + _START_S
    address = None
    while time.monotonic() < deadline_s:
        address = fixed or _read(file)
        if address is not None and _answers(address):
            return address
        time.sleep(_POLL_S)
    where = "was started on this machine" if address is None else f"answers at {address}"
    raise TrainingError(
        f"no lighthouse of group {group!r} {where} within {_START_S:.0f} s",
        f"Start it: python -m radt.training.lighthouse --group {group}, or as a row of the "
        "workload with the role service; for several machines set lighthouse= to http://HOST:PORT",
    )


def _answers(address: str) -> bool:
    """Return whether something listens at the address."""
    parts = urlsplit(address)
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 0), _POLL_S * 10):
            return True
    except OSError:
        return False


def own_address(lighthouse: str) -> str:
    """Return this machine's address as the lighthouse's network sees it."""
    parts = urlsplit(lighthouse)
    with socket.create_connection((parts.hostname or "", parts.port or 0)) as connection:
        address: str = connection.getsockname()[0]
    return address


def _address_file(group: str) -> Path:
    scope = [group, *(os.environ.get(variable, "") for variable in _SCOPE_VARIABLES)]
    name = hashlib.sha256(json.dumps(scope).encode()).hexdigest()[:16]
    return runtime_dir() / f"lighthouse-{name}"


def _read(file: Path) -> str | None:
    try:
        return file.read_text().strip() or None
    except FileNotFoundError:
        return None


def _port_before(file: Path) -> int:
    """Return the port of a lighthouse that was killed, which replicas still ask; 0 if none was."""
    address = _read(file)
    return 0 if address is None else urlsplit(address).port or 0


if __name__ == "__main__":
    sys.exit(main())
