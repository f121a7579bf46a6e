"""The process that brings a store to Postgres: ``python -m radt.replication.replicate``.

The collector starts one for each store and address, writes a newline to its standard input when
there is something new, and closes it when the process shall finish up and end. All it works on is
in the two stores, so it can be killed at any time.

The address comes from ``RADT_STORE_URI``: it may hold a password, which a list of processes would
show.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import logging.handlers
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from radt.backoff import Backoff
from radt.errors import RadtError, StoreError
from radt.home import STORE_VARIABLE, runtime_dir
from radt.lifeline import Heard, listen, take_turn
from radt.replication.pace import INTERVAL_VARIABLE, Pace

log = logging.getLogger("radt.replication")

#: How often the store is looked at without being told to.
_POLL_S = 10.0
#: How often a failing turn is tried once more after the order to finish up.
_LAST_TRIES = 5
_LAST_PAUSE_S = 1.0
_FIRST_BACKOFF_S = 1.0
_LONGEST_BACKOFF_S = 60.0
_LOG_LIMIT_BYTES = 2_000_000


@dataclass(frozen=True, slots=True)
class Order:
    """What this process is to bring, and where to."""

    store: Path
    uri: str
    pace: Pace

    @property
    def name(self) -> str:
        """Tells the replicators of one user apart."""
        text = f"{self.store}\n{self.uri}"
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def main(arguments: Sequence[str] | None = None) -> int:
    """Bring until standard input is closed; returns the exit code, 0 if everything is there."""
    order = _parse(arguments)
    _log_to(runtime_dir() / f"replicate-{order.name}.log")
    # Ctrl-C is for the runner; the end of standard input tells us what to do about it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with (runtime_dir() / f"replicate-{order.name}.lock").open("a") as lock:
        if not take_turn(lock.fileno()):
            return 0
        try:
            return _replicate(order)
        except RadtError:
            log.exception("the store cannot be brought to Postgres")
            return 1


def _log_to(path: Path) -> None:
    """Send what is logged to a file that does not grow without end, and is the user's only."""
    os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600))
    handler = logging.handlers.RotatingFileHandler(
        path, maxBytes=_LOG_LIMIT_BYTES, backupCount=1, encoding="utf-8"
    )
    handler.setFormatter(
        logging.Formatter("%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("radt").setLevel(logging.INFO)


def _parse(arguments: Sequence[str] | None) -> Order:
    parser = argparse.ArgumentParser(prog="python -m radt.replication.replicate")
    parser.add_argument("--store", type=Path, required=True)
    given = parser.parse_args(arguments)
    uri = os.environ.get(STORE_VARIABLE)
    if not uri:
        parser.error(f"{STORE_VARIABLE} is needed")
    try:
        pace = Pace.from_environment()
    except ValueError as error:
        # A slip of the pen must not keep the runs of weeks on one disk.
        log.warning("%s; the usual pace is taken instead of %s", error, INTERVAL_VARIABLE)
        pace = Pace()
    return Order(given.store.absolute(), uri, pace)


def _replicate(order: Order) -> int:
    # Only now: whoever waits for the lock needs none of this.
    from radt.replication.replicator import GoneError, Replicator
    from radt.store.address import StoreAddress

    replicator = Replicator(order.store, StoreAddress.of(order.uri), order.pace)
    backoff = Backoff(_FIRST_BACKOFF_S, _LONGEST_BACKOFF_S)
    tries = _LAST_TRIES
    closed = False
    try:
        while True:
            try:
                wait_s = replicator.turn(everything=closed)
                if closed and not replicator.left:
                    return 0
                backoff.reset()
                failed = False
            except GoneError:
                return 0
            except StoreError:
                failed = True  # written down by the replicator
            if closed:
                tries -= 1
                if not tries:
                    return 1
                time.sleep(min(backoff.next_s(), _LAST_PAUSE_S))
            elif failed:
                # News does not count: it comes every second and would defeat the back-off.
                closed = _pause(backoff.next_s())
            else:
                heard = listen(_POLL_S if wait_s is None else min(wait_s, _POLL_S))
                closed = heard is Heard.CLOSED
                if heard is Heard.NEWS:
                    closed = _pause(replicator.look_after_s - time.monotonic())
    finally:
        replicator.close()


def _pause(seconds: float) -> bool:
    """Wait whatever the news; whether standard input was closed."""
    deadline_s = time.monotonic() + seconds
    while (left_s := deadline_s - time.monotonic()) > 0:
        heard = listen(left_s)
        if heard is Heard.CLOSED:
            return True
        if heard is Heard.NEWS:
            # Read one by one they would keep us busy; many at once cost as much as one.
            time.sleep(min(left_s, 0.1))
    return False


if __name__ == "__main__":
    sys.exit(main())
