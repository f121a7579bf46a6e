"""A store's thread: what goes wrong with one run does not keep the others from the store."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from radt.clock import Clock
from radt.collector.delivery import Deliverers
from radt.collector.manifest import MANIFEST_FILE
from radt.collector.processes import ProcessTable
from radt.collector.protocol import Registration
from radt.collector.recorder import Pending, RunRecorder
from radt.collector.runs import RegisteredRun, RunEnding
from radt.collector.sink import StoreSink
from radt.errors import StoreError
from radt.model import RunStatus
from radt.store.reader import StoreReader
from radt.store.records import JournalCursor, RunRecord, WorkloadRecord
from radt.store.writer import StoreWriter
from tests.support.disk import SmallDisk
from tests.support.waiting import wait_until

#: Has a store open.
HOLDS = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
print(connection.execute("SELECT count(*) FROM run").fetchone(), flush=True)
sys.stdin.read()
"""
BAD, GOOD = "b" * 32, "g" * 32


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "radt.db"
    writer = StoreWriter(path)
    writer.put_workload(WorkloadRecord("w", "e", "1", created_ns=1))
    for run_id, letter in ((BAD, "A"), (GOOD, "B")):
        writer.put_run(RunRecord(run_id, "w", "e", "1", letter, "", created_ns=1))
    writer.close()
    return path


@pytest.fixture
def sink(path: Path) -> Iterator[StoreSink]:
    sink = StoreSink(path, Clock.for_machine, 0.02, ProcessTable(), Deliverers(), lambda run: None)
    yield sink
    sink.stop(180)


def _started(sink: StoreSink, run_id: str) -> RegisteredRun:
    registration = Registration(run_id, str(sink.path), str(sink.path.parent / run_id))
    run = RegisteredRun(registration, None, buffered_points=1000)
    run.started(1, 1)
    sink.add(run)
    return run


def test_one_that_cannot_be_ended_does_not_keep_the_others(
    sink: StoreSink, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish, broken = RunRecorder.finish, [True]

    def unless_bad(recorder: RunRecorder, ending: RunEnding) -> RunStatus:
        if recorder.run.run_id == BAD and broken:
            raise ValueError("out of order")
        return finish(recorder, ending)

    monkeypatch.setattr(RunRecorder, "finish", unless_bad)
    bad, good = _started(sink, BAD), _started(sink, GOOD)
    assert bad.recorded.wait(180)
    assert good.recorded.wait(180)
    for run in (bad, good):
        run.end(RunEnding(10**12, RunStatus.FINISHED))
    sink.wake()
    assert good.done.wait(180)
    assert not good.failure
    assert not bad.done.is_set()
    broken.clear()
    assert bad.done.wait(180), "it is tried again"
    reader = StoreReader(path)
    assert {reader.run(one).status for one in (BAD, GOOD)} == {RunStatus.FINISHED}
    reader.close()


def test_one_whose_journals_another_process_has_read_ends_as_do_the_others(
    sink: StoreSink, path: Path
) -> None:
    bad, good = _started(sink, BAD), _started(sink, GOOD)
    assert bad.recorded.wait(180)
    assert good.recorded.wait(180)
    with StoreWriter(path) as other:
        other.put_cursors(BAD, [JournalCursor("another", slot=1)])
    for run in (bad, good):
        run.end(RunEnding(10**12, RunStatus.FINISHED))
    sink.wake()
    for run in (good, bad):
        assert run.done.wait(180)
        assert not run.failure


def test_one_that_another_collector_records_does_not_keep_the_others(
    sink: StoreSink, path: Path
) -> None:
    folder = path.parent / BAD
    folder.mkdir()
    (folder / MANIFEST_FILE).touch()
    with (folder / MANIFEST_FILE).open() as manifest:
        fcntl.flock(manifest, fcntl.LOCK_EX)
        bad, good = _started(sink, BAD), _started(sink, GOOD)
        assert good.recorded.wait(180)
        good.end(RunEnding(10**12, RunStatus.FINISHED))
        sink.wake()
        assert good.done.wait(180)
        assert not bad.recorded.is_set()
    sink.wake()
    assert bad.recorded.wait(180)


def test_a_store_that_was_opened_on_a_read_only_disk_is_written_once_the_disk_can_be(
    small_disk: SmallDisk,
) -> None:
    path = small_disk.path / "radt.db"
    with StoreWriter(path) as runner:
        runner.put_workload(WorkloadRecord("w", "e", "1", created_ns=1))
        runner.put_run(RunRecord(GOOD, "w", "e", "1", "A", "", created_ns=1))
        other = subprocess.Popen(  # as the runner: with nobody, SQLite opens nothing there
            [sys.executable, "-c", HOLDS, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert other.stdout is not None
        other.stdout.readline()
    with ExitStack() as stack:
        stack.enter_context(other)
        stack.callback(other.kill)
        with small_disk.read_only():
            sink = StoreSink(
                path, Clock.for_machine, 0.02, ProcessTable(), Deliverers(), lambda run: None
            )
            stack.callback(sink.stop, 180)
            run = _started(sink, GOOD)
            wait_until(lambda: "does not allow writing" in sink.problem, "a failed write")
        run.end(RunEnding(10**12, RunStatus.FINISHED))
        sink.wake()
        assert run.done.wait(180)
        with closing(StoreReader(path)) as reader:
            assert reader.run(GOOD).status is RunStatus.FINISHED


def test_one_that_cannot_be_prepared_does_not_keep_the_others(
    sink: StoreSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = RunRecorder.prepare

    def unless_bad(recorder: RunRecorder, **options: bool) -> Pending:
        if recorder.run.run_id == BAD:
            raise ValueError("out of order")
        return prepare(recorder, **options)

    monkeypatch.setattr(RunRecorder, "prepare", unless_bad)
    bad, good = _started(sink, BAD), _started(sink, GOOD)
    assert good.recorded.wait(180)
    assert not good.failure
    assert bad.done.wait(180)
    assert "out of order" in bad.failure


def test_a_store_that_is_half_open_is_opened_again(
    path: Path, sink: StoreSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = []

    def fails_once(opened: Path) -> StoreReader:
        if not failed:
            failed.append(opened)
            raise StoreError("Too many open files")
        return StoreReader(opened)

    monkeypatch.setattr("radt.collector.sink.StoreReader", fails_once)
    assert _started(sink, GOOD).recorded.wait(180)
    assert failed == [path]


@pytest.mark.parametrize("disk_sync_s", [0.0, 0.001])
def test_the_disk_is_waited_for_as_often_as_asked(
    path: Path, monkeypatch: pytest.MonkeyPatch, disk_sync_s: float
) -> None:
    """What fdatasync does cannot be seen without a power cut; that it is called can."""
    synced: list[str] = []
    fdatasync = os.fdatasync

    def noted(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fdatasync(descriptor)

    monkeypatch.setattr(os, "fdatasync", noted)
    sink = StoreSink(
        path,
        Clock.for_machine,
        0.02,
        ProcessTable(),
        Deliverers(),
        lambda run: None,
        disk_sync_s=disk_sync_s,
    )
    try:
        run = _started(sink, GOOD)
        assert run.recorded.wait(180)
    finally:
        sink.stop(180)
    assert set(synced) == ({f"{path}-wal"} if disk_sync_s else set())
