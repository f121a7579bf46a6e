"""The process that copies a store to Postgres: ``python -m radt.delivery.postgres``.

The collector starts one for each store and address, writes a newline to its standard input for new
data, and closes it to make the process finish and exit. All its state is in the two stores, so it
can be killed at any time.

The address comes from ``RADT_STORE_URI``, because process lists would show a password in an
argument.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from radt.delivery.problems import destination_name
from radt.delivery.process import give_way, last_tries, run_alone
from radt.errors import RadtError, StoreError
from radt.home import STORE_VARIABLE
from radt.lazy import large_import
from radt.processes import Backoff, ParentMessage, wait_for_parent

log = logging.getLogger("radt.delivery.postgres")

#: How often to check the store without a notification.
_POLL_S = 10.0
_FIRST_BACKOFF_S = 1.0
_LONGEST_BACKOFF_S = 60.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Copy until standard input is closed; return the exit code, 0 for a complete copy."""
    parser = argparse.ArgumentParser(prog="python -m radt.delivery.postgres")
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--give-way-s", type=float, default=0.0)
    order = parser.parse_args(arguments)
    uri = os.environ.get(STORE_VARIABLE)
    if not uri:
        parser.error(f"Expected {STORE_VARIABLE}")
    store = order.store.absolute()

    def deliver() -> int:
        if order.give_way_s:
            give_way()
        try:
            return _replicate(store, uri)
        except RadtError:
            log.exception("the store cannot be copied to Postgres")
            return 1

    return run_alone(f"replicate-{destination_name(store, uri)}", deliver)


def _replicate(store: Path, uri: str) -> int:
    with large_import():  # here, because a process that waits for its turn does not need these
        from radt.delivery.postgres.replicator import GoneError, Replicator
        from radt.delivery.postgres.run_copy import Pace
        from radt.store.backend import StoreAddress

    replicator = Replicator(store, StoreAddress.of(uri), Pace.from_environment())
    backoff = Backoff(_FIRST_BACKOFF_S, _LONGEST_BACKOFF_S)
    closed = False
    try:
        while not closed:
            try:
                wait_s = replicator.turn()
            except GoneError:
                return 0
            except StoreError:  # recorded by the replicator
                # New data does not count: it arrives every second and would defeat the back-off.
                closed = _pause(backoff.next_s())
                continue
            backoff.reset()
            message = wait_for_parent(_POLL_S if wait_s is None else min(wait_s, _POLL_S))
            closed = message is ParentMessage.CLOSED
            if message is ParentMessage.NEWS:
                closed = _pause(replicator.look_after_s - time.monotonic())
        for _ in last_tries():
            try:
                replicator.turn(everything=True)
            except GoneError:
                return 0
            except StoreError:
                continue
            if not replicator.left:
                return 0
        return 1
    finally:
        replicator.close()


def _pause(seconds: float) -> bool:
    """Wait regardless of new data; return whether standard input was closed."""
    deadline_s = time.monotonic() + seconds
    while (left_s := deadline_s - time.monotonic()) > 0:
        message = wait_for_parent(left_s)
        if message is ParentMessage.CLOSED:
            return True
        if message is ParentMessage.NEWS:
            # Reading notifications one by one would take all the time; reading many costs as much
            # as one.
            time.sleep(min(left_s, 0.1))
    return False


if __name__ == "__main__":
    sys.exit(main())
