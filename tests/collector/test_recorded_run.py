"""A run that is being recorded, by itself: what it keeps of readings, and for how long."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from radt.collector.protocol import Registration, RunRequest
from radt.collector.routing import SortedReadings
from radt.collector.runs import RegisteredRun, RunEnding, RunState, RunStates
from radt.errors import ListenerError
from radt.listeners.api import Metric, Occurrence, Reading
from radt.model import ListenerChoice, MissingReason, RunStatus, Scope
from radt.procfs import ProcessId
from radt.store.records import LedgerRecord

S = 10**9


@pytest.fixture
def run() -> RegisteredRun:
    run = RegisteredRun(
        Registration("r" * 32, "/store", "/spool", devices=("0",)), None, buffered_points=1000
    )
    run.expect("top", 1.0)
    run.started(1, time.monotonic_ns())
    return run


METRICS = {
    "process.memory.rss": Metric("process.memory.rss", "By", Scope.PROCESS),
    "gpu.utilization": Metric("gpu.utilization", "1", Scope.GPU),
    "gpu.mig.sm": Metric("gpu.mig.sm", "1", Scope.MIG, method="a mean"),
}


def _read(run: RegisteredRun, *readings: Reading | Occurrence, listener: str = "top") -> None:
    found = SortedReadings(readings, METRICS)
    run.record(listener, 1.0, time.monotonic_ns(), 1, found, METRICS)


def test_live_tables_show_nothing_that_is_no_longer_so(run: RegisteredRun) -> None:
    load = Reading("gpu.utilization", 0.9, "gpu0", gpu="0")
    _read(run, load, Reading("process.memory.rss", 5.0, run_id=run.run_id))
    assert (run.live().gpu_utilization, run.live().rss_bytes) == (0.9, 5.0)
    _read(run, Reading("gpu.utilization", MissingReason.LOST, "gpu0", gpu="0"))
    assert (run.live().gpu_utilization, run.live().rss_bytes) == (None, 5.0)
    run.dropped("top", "it hangs")
    assert run.live().rss_bytes is None


def test_one_listener_without_a_value_leaves_the_other_ones(run: RegisteredRun) -> None:
    run.expect("dcgm", 1.0)
    _read(run, Reading("gpu.utilization", 0.9, "gpu0", gpu="0"))
    _read(run, Reading("gpu.utilization", MissingReason.LOST, "gpu0", gpu="0"), listener="dcgm")
    assert run.live().gpu_utilization == 0.9


def test_a_card_that_a_run_has_twice_is_recorded_once() -> None:
    """Two instances of one card."""
    registration = Registration("r" * 32, "/store", "/spool", devices=("MIG-a", "MIG-b"))
    run = RegisteredRun(registration, None, buffered_points=1000)
    run.expect("top", 1.0)
    run.started(1, time.monotonic_ns())
    _read(
        run,
        *(Reading("gpu.utilization", 0.5, "gpu0", gpu=name) for name in ("MIG-a", "MIG-b")),
        Reading("gpu.mig.sm", 0.1, "gpu0/gi1", gpu="MIG-a"),
        Reading("gpu.mig.sm", 0.2, "gpu0/gi2", gpu="MIG-b"),
        *(Occurrence("XID 31", "on gpu0", gpu=name) for name in ("MIG-a", "MIG-b")),
    )
    samples = run.take()
    assert {key.entity: list(one.values) for key, one in samples.columns.items()} == {
        "gpu0": [0.5],
        "gpu0/gi1": [0.1],
        "gpu0/gi2": [0.2],
    }
    assert len(samples.events) == 1


@pytest.mark.parametrize("metric", ["gpu.utilization", "process.memory.rss"])
def test_a_reading_that_would_reach_nobody_is_a_mistake(run: RegisteredRun, metric: str) -> None:
    with pytest.raises(ListenerError, match=f"its {metric} .* comes without (gpu|run_id)"):
        _read(run, Reading(metric, 1.0))


def test_how_a_value_would_come_about_stands_with_what_is_missing(run: RegisteredRun) -> None:
    refused = Reading(
        "gpu.utilization", MissingReason.PERMISSION, "gpu0", gpu="0", method="ask root"
    )
    _read(run, refused)
    run.end(RunEnding(time.monotonic_ns()))
    (missing,) = run.take().missing
    assert (missing.reason, missing.method) == (MissingReason.PERMISSION, "ask root")


def test_what_is_missing_ends_with_the_run(run: RegisteredRun) -> None:
    """A reading can be taken between the end of the process and the report of that end."""
    _read(run, Reading("gpu.utilization", MissingReason.LOST, "gpu0", gpu="0"))
    ended_ns = time.monotonic_ns()
    _read(run, Reading("gpu.utilization", MissingReason.LOST, "gpu0", gpu="0"))
    run.end(RunEnding(ended_ns))
    (missing,) = run.take().missing
    assert missing.end_ns == ended_ns


def test_what_was_before_is_added_once(run: RegisteredRun) -> None:
    """The store's thread begins anew with a run if the store was busy half way."""
    before = {"top": (LedgerRecord(run.run_id, "top", 1.0, 6, 5, 1, 7), None)}
    run.resume(before)
    run.resume(before)
    (ledger,) = run.take().ledgers
    assert (ledger.expected, ledger.received, ledger.missed) == (6, 5, 1)


def test_a_listener_that_goes_during_the_run_is_marked(run: RegisteredRun) -> None:
    run.unavailable("top", "not here")
    assert not run.take().events  # it was never there: the ledger says so
    run.resume({"top": (LedgerRecord(run.run_id, "top", 1.0, 6, 5, 1, 7), None)})
    run.unavailable("top", "the driver is gone")
    (event,) = run.take().events
    assert (event.name, event.detail) == ("listener top unavailable", "the driver is gone")


def test_a_restarted_collector_reads_all_that_was_saved(tmp_path: Path) -> None:
    listeners = (ListenerChoice("top", 0.5, ("a",)),)
    registration = Registration("r" * 32, "/store", "/spool", "uri", listeners=listeners)
    request = RunRequest(registration, "w", "e", 7, 5, params={"lr": "0.1"}, tags={"a": "b"})
    ending = RunEnding(9, RunStatus.KILLED, -9, "killed by SIGKILL", RunStatus.FAILED)
    state = RunState(registration, ProcessId(3, 4), request, pid=7, started_ns=6, ending=ending)
    states = RunStates(tmp_path / "runs")
    states.keep(state)
    assert list(states.load()) == [state]
