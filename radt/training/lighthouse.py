"""``python -m radt.training.lighthouse``: where the replicas of an `ElasticAverager` meet.

It is torchft's lighthouse: it knows who is alive and who takes part in the next round. It keeps
nothing that is needed later: kill it and start it again, and rounds wait meanwhile. The first
replica on a machine starts it, and it ends when nobody is left. As a row with the role `service` it
takes the place of that one, and starts and ends with its workload. torchft's lighthouse knows no
passwords: it listens for this machine alone, unless it is given an address in a trusted network.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from radt.errors import MissingPackageError, RadtError, TrainingError
from radt.training.lighthouse_place import Known, Place

if TYPE_CHECKING:
    from torchft.coordination import LighthouseServer

#: For this machine's replicas alone.
LOCAL = "127.0.0.1"
#: A replica that is silent for so long is dead; the others go on without it.
HEARTBEAT_S = 5.0
#: Replicas that live are waited for: one may be at a long step, or validate.
_JOIN_MS = 3_600_000
#: One that a replica has started makes room within this time.
_ROOM_S = 60.0
_POLL_S = 0.2
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def main() -> int:
    """Serve until SIGTERM or Ctrl-C; if a replica has started this, until no replica is left."""
    parser = ArgumentParser(
        prog="python -m radt.training.lighthouse",
        description="Let the replicas of ElasticAverager(..., group=GROUP) meet.",
    )
    parser.add_argument("--group", required=True, help="group of the ElasticAverager")
    parser.add_argument(
        "--host", help="address of this machine where replicas on others come; default: none do"
    )
    parser.add_argument("--port", type=int, help="default: as before, or a free one")
    parser.add_argument(
        "--heartbeat", type=float, default=HEARTBEAT_S, help="replicas silent for longer are dead"
    )
    parser.add_argument("--place", type=int, help="for replicas: a descriptor of the group's place")
    chosen = parser.parse_args()
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # before torchft's threads begin
    try:
        place = Place(chosen.group, chosen.place)
        if chosen.place is None:
            return _serve_as_service(place, chosen)
        return _serve_replicas(place, chosen)
    except RadtError as error:
        sys.stderr.write(f"radt: {error}\n")
        return error.exit_code


def _serve_as_service(place: Place, chosen: Namespace) -> int:
    group = chosen.group
    deadline_s = time.monotonic() + _ROOM_S
    while not (place.want() and place.serve()):
        known = place.known()
        if (known is not None and known.is_service) or time.monotonic() > deadline_s:
            raise TrainingError(
                f"group {group!r} has a lighthouse on this machine already",
                "End it, or choose another name for the group",
            )
        if signal.sigtimedwait(_SIGNALS, _POLL_S) is not None:
            return 0
    host, port = _in_url(chosen.host or LOCAL), chosen.port
    if port is None:  # that of one that was killed: replicas still ask there
        known = place.known()
        port = 0 if known is None else known.port
    place.tell(None)  # until it listens
    try:
        server = _server(host, port, chosen.heartbeat)
    except RuntimeError as error:
        raise TrainingError(
            f"the lighthouse of group {group!r} cannot listen at {host}:{port}: {error}",
            "Check that this machine has the address, and end the process that uses the port, or "
            "choose another one by --port",
        ) from error
    try:
        _tell(place, group, Known(host, _port(server), is_service=True))
        signal.sigwait(_SIGNALS)
        if place.is_unused():
            place.remove()
    finally:
        server.shutdown()
    return 0


def _serve_replicas(place: Place, chosen: Namespace) -> int:
    host = _in_url(chosen.host or LOCAL)
    try:
        server = _server(host, chosen.port or 0, chosen.heartbeat)
    except RuntimeError:
        server = _server(host, 0, chosen.heartbeat)  # the port is another program's by now
    try:
        _tell(place, chosen.group, Known(host, _port(server), is_service=False))
        while signal.sigtimedwait(_SIGNALS, _POLL_S) is None:
            if place.is_unused():
                place.remove()
                break
            if place.is_wanted():
                break
    finally:
        server.shutdown()
    return 0


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _port(server: LighthouseServer) -> int:
    return urlsplit(server.address()).port or 0  # the host there is the machine's name


def _server(host: str, port: int, heartbeat_s: float) -> LighthouseServer:
    os.environ.setdefault("RUST_LOG", "warn")  # torchft's notes on each request otherwise
    try:
        from torchft.coordination import LighthouseServer
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            "the lighthouse needs torchft, which is not installed", "pip install 'radt[elastic]'"
        ) from error
    return LighthouseServer(
        bind=f"{host}:{port}",
        min_replicas=1,
        join_timeout_ms=_JOIN_MS,
        heartbeat_timeout_ms=round(heartbeat_s * 1000),
    )


def _tell(place: Place, group: str, known: Known) -> None:
    """Let replicas on this machine find it, and say where it is."""
    place.tell(known)
    whose = "" if known.host != LOCAL else ", for this machine's replicas"
    sys.stderr.write(f"radt: lighthouse of group {group!r} at {known.address}{whose}\n")


if __name__ == "__main__":
    sys.exit(main())
