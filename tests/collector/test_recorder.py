"""One run on its way into the store, without a collector around it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from radt.clock import Clock
from radt.collector.processes import ProcessTable
from radt.collector.protocol import Registration
from radt.collector.recorder import RunRecorder
from radt.collector.runs import RegisteredRun, RunEnding
from radt.errors import StoreError
from radt.journal.format import EventKind
from radt.journal.writer import JournalWriter
from radt.model import MarkerKind, RunStatus, Scope, SeriesKind
from radt.store.reader import StoreReader
from radt.store.records import (
    LedgerRecord,
    MarkerRecord,
    RunRecord,
    Samples,
    SeriesBatch,
    SeriesRecord,
    WorkloadRecord,
)
from radt.store.writer import StoreWriter
from radt.usage import CPU_TIME, usage_file
from tests.support.descriptors import no_descriptors

S = 10**9
RUN = "r" * 32


@pytest.fixture
def clock() -> Clock:
    return Clock.for_machine()


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[StoreWriter]:
    writer = StoreWriter(tmp_path / "radt.db")
    writer.put_workload(
        WorkloadRecord("w", "e", "1", created_ns=1, status=RunStatus.RUNNING, tracking_uri="")
    )
    writer.put_run(RunRecord(RUN, "w", "e", "1", "A", "", created_ns=1))
    yield writer
    writer.close()


@pytest.fixture
def recorder_of(
    writer: StoreWriter, tmp_path: Path, clock: Clock
) -> Iterator[Callable[[RegisteredRun], RunRecorder]]:
    reader = StoreReader(tmp_path / "radt.db")
    yield lambda run: RunRecorder(run, writer, reader, clock, ProcessTable())
    reader.close()


def _run(tmp_path: Path, *listeners: str) -> RegisteredRun:
    registration = Registration(RUN, str(tmp_path / "radt.db"), str(tmp_path / "spool"))
    run = RegisteredRun(registration, None, buffered_points=1000)
    for name in listeners:
        run.expect(name, 1.0)
    return run


def test_open_spans_end_with_the_run_though_the_store_failed_at_the_end(
    tmp_path: Path,
    writer: StoreWriter,
    recorder_of: Callable[[RegisteredRun], RunRecorder],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = _run(tmp_path)
    run.started(1, 10 * S)
    writer.put_markers([MarkerRecord(RUN, 0, MarkerKind.SPAN, "load", start_ns=5)])
    recorder = recorder_of(run)
    ending = RunEnding(20 * S, RunStatus.FINISHED)
    run.end(ending)

    def full(*_: object) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(writer, "end_run", full)
        with pytest.raises(StoreError):
            recorder.finish(ending)
    recorder.finish(ending)
    reader = StoreReader(tmp_path / "radt.db")
    (marker,) = reader.markers([RUN])
    reader.close()
    assert marker.end_ns is not None


def test_a_beginning_that_is_stored_late_does_not_undo_the_end(
    tmp_path: Path, writer: StoreWriter, recorder_of: Callable[[RegisteredRun], RunRecorder]
) -> None:
    """The runner ends its run where the collector could not write for a while."""
    run = _run(tmp_path)
    run.started(1, 10 * S)
    recorder = recorder_of(run)
    writer.end_run(RUN, RunStatus.FINISHED, 20 * S)
    recorder.finish(RunEnding(20 * S, RunStatus.FINISHED))
    with StoreReader(tmp_path / "radt.db") as reader:
        record = reader.run(RUN)
    assert (record.status, record.pid) == (RunStatus.FINISHED, 1)


def test_a_listener_without_values_keeps_its_account_over_a_restart(
    tmp_path: Path,
    writer: StoreWriter,
    clock: Clock,
    recorder_of: Callable[[RegisteredRun], RunRecorder],
) -> None:
    """A card that is lost is read, and there is nothing to store."""
    run = _run(tmp_path, "top", "smi")
    run.started(1, 10 * S)
    start_ns = run._accounts["top"].start_ns
    assert start_ns is not None
    last_ns = start_ns - 4 * S
    writer.add_series([SeriesRecord(RUN, 0, "top", "m", "1", Scope.HOST, SeriesKind.GAUGE)])
    points = Samples(np.array([clock.to_wall_ns(last_ns)]), np.array([1.0]))
    writer.append(RUN, [SeriesBatch(0, points)])
    for name in ("top", "smi"):
        writer.put_ledger(LedgerRecord(RUN, name, 1.0, 6, 5, 1, 7))
    recorder_of(run)
    ledgers = {ledger.listener: ledger for ledger in run.take().ledgers}
    assert ledgers["smi"].received == 5
    assert ledgers["smi"].missed == ledgers["top"].missed == 1 + 4


def test_a_run_that_ended_before_a_restart_misses_nothing_after_its_end(
    tmp_path: Path,
    writer: StoreWriter,
    clock: Clock,
    recorder_of: Callable[[RegisteredRun], RunRecorder],
) -> None:
    run = _run(tmp_path, "top")
    run.started(1, 10 * S)
    start_ns = run._accounts["top"].start_ns
    assert start_ns is not None
    writer.add_series([SeriesRecord(RUN, 0, "top", "m", "1", Scope.HOST, SeriesKind.GAUGE)])
    points = Samples(np.array([clock.to_wall_ns(start_ns - 1000 * S)]), np.array([1.0]))
    writer.append(RUN, [SeriesBatch(0, points)])
    writer.put_ledger(LedgerRecord(RUN, "top", 1.0, 5, 5, 0, 7))
    run.end(RunEnding(start_ns - 998 * S, RunStatus.FINISHED))
    recorder_of(run)
    (ledger,) = run.take().ledgers
    assert (ledger.received, ledger.missed) == (5, 2)


def test_what_the_script_said_counts_although_its_reader_died_before_it_acted(
    tmp_path: Path, recorder_of: Callable[[RegisteredRun], RunRecorder], writer: StoreWriter
) -> None:
    journal = JournalWriter(tmp_path / "spool" / "journal", rank=None, warn=pytest.fail)
    journal.scalar("loss", 1.0, 0)
    journal.say(EventKind.FINISH, status="FAILED", reason="ValueError: boom")
    journal.close()
    first = recorder_of(_run(tmp_path))
    pending = first.prepare()
    with writer.transaction():
        first.write(pending)
    first.written(pending)
    first.close()
    run = _run(tmp_path)
    ending = RunEnding(20 * S, reason="its process is gone", fallback=RunStatus.KILLED)
    run.end(ending)
    assert recorder_of(run).finish(ending) is RunStatus.FAILED
    reader = StoreReader(tmp_path / "radt.db")
    assert reader.run(RUN).end_reason == "ValueError: boom"
    reader.close()


def test_a_run_does_not_end_while_no_descriptor_is_free_to_read_its_journal(
    tmp_path: Path, recorder_of: Callable[[RegisteredRun], RunRecorder]
) -> None:
    journal = JournalWriter(tmp_path / "spool" / "journal", rank=None, warn=pytest.fail)
    journal.scalar("loss", 1.0, 0)
    journal.close()
    run = _run(tmp_path)
    recorder = recorder_of(run)
    ending = RunEnding(20 * S, RunStatus.FINISHED)
    run.end(ending)
    refused = ""
    with no_descriptors():
        try:
            recorder.finish(ending)
        except StoreError as error:
            refused = str(error)
    assert "Too many open files" in refused
    recorder.finish(ending)
    reader = StoreReader(tmp_path / "radt.db")
    assert [summary.count for summary in reader.summary([RUN])] == [1]
    reader.close()


def test_samples_wait_while_no_descriptor_is_free_to_read_the_journal(
    tmp_path: Path, recorder_of: Callable[[RegisteredRun], RunRecorder]
) -> None:
    run = _run(tmp_path, "top")
    run.started(1, 10 * S)
    recorder = recorder_of(run)
    journal = JournalWriter(tmp_path / "spool" / "journal", rank=None, warn=pytest.fail)
    journal.scalar("loss", 1.0, 0)
    run.note("noted", "while nothing could be read")
    with no_descriptors():
        try:
            recorder.prepare()
        except StoreError as error:
            refused = str(error)
    journal.close()
    assert "Too many open files" in refused
    assert [event.name for event in run.take().events] == ["noted"]


def test_totals_of_a_run_without_a_start_span_it_from_its_creation(
    tmp_path: Path, recorder_of: Callable[[RegisteredRun], RunRecorder]
) -> None:
    run = _run(tmp_path)
    (tmp_path / "spool").mkdir()
    usage_file(tmp_path / "spool").write_text(json.dumps({CPU_TIME: 5.0}))
    recorder_of(run).finish(RunEnding(20 * S, RunStatus.KILLED))
    with StoreReader(tmp_path / "radt.db") as reader:
        (series,) = reader.series([RUN])
        samples = reader.samples(RUN, series.series_no)
        ended_ns = reader.run(RUN).ended_ns
    assert list(samples.times_ns) == [1, ended_ns]
    assert list(samples.values) == [0.0, 5.0]


@pytest.mark.parametrize("more", ["", "a value", "a total"])
def test_an_ended_run_is_uploaded_again_only_if_there_is_more_of_it(
    tmp_path: Path,
    writer: StoreWriter,
    recorder_of: Callable[[RegisteredRun], RunRecorder],
    more: str,
) -> None:
    writer.end_run(RUN, RunStatus.FINISHED, 20 * S)
    writer.mark_run_delivered(RUN)
    (tmp_path / "spool").mkdir()
    if more == "a value":
        journal = JournalWriter(tmp_path / "spool" / "journal", rank=None, warn=pytest.fail)
        journal.scalar("loss", 1.0, 0)
        journal.close()
    elif more == "a total":
        usage_file(tmp_path / "spool").write_text(json.dumps({CPU_TIME: 5.0}))
    recorder_of(_run(tmp_path)).finish(RunEnding(20 * S, RunStatus.FINISHED))
    with StoreReader(tmp_path / "radt.db") as reader:
        assert bool(reader.runs_to_deliver("")) == bool(more)
