"""A run that is being recorded, by itself: what it keeps of readings, and for how long."""

from __future__ import annotations

import time

import pytest

from radt.collector.protocol import Registration
from radt.collector.runs import ActiveRun, Resumed
from radt.store.records import LedgerRecord

S = 10**9


@pytest.fixture
def run() -> ActiveRun:
    run = ActiveRun(
        Registration("r" * 32, "/store", "/spool", devices=("0",)), None, buffered_points=1000
    )
    run.expect("top", 1.0)
    run.started(1, time.monotonic_ns())
    return run


def test_what_was_before_is_added_once(run: ActiveRun) -> None:
    """The store's thread begins anew with a run if the store was busy half way."""
    before = {"top": Resumed(LedgerRecord(run.run_id, "top", 1.0, 6, 5, 1, 7), None)}
    run.resume(before)
    run.resume(before)
    (ledger,) = run.take().ledgers
    assert (ledger.expected, ledger.received, ledger.missed) == (6, 5, 1)


def test_a_listener_that_goes_during_the_run_is_marked(run: ActiveRun) -> None:
    run.unavailable("top", "not here")
    assert not run.take().events  # it was never there: the ledger says so
    run.resume({"top": Resumed(LedgerRecord(run.run_id, "top", 1.0, 6, 5, 1, 7), None)})
    run.unavailable("top", "the driver is gone")
    (event,) = run.take().events
    assert (event.name, event.detail) == ("listener top unavailable", "the driver is gone")
