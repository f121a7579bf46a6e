"""The machine loses power while runs go on: the store is whole, and journals are read after it."""

from __future__ import annotations

import json
import platform
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from radt.clock import Clock
from radt.collector.processes import ProcessTable
from radt.collector.protocol import Registration
from radt.collector.recorder import RunRecorder
from radt.collector.recovery import REASON, recover_runs
from radt.collector.runs import RegisteredRun
from radt.delivery.archive.read import find_archive, import_archive
from radt.delivery.archive.spool import ArchiveSpool
from radt.home import Home
from radt.journal.format import EVENTS_FILE, META_FILE, RECORD_BYTES, JournalMeta
from radt.model import MarkerKind, RunStatus
from radt.procfs import boot_id
from radt.store.reader import StoreReader
from radt.store.writer import StoreWriter
from tests.collector.collector_kit import Project, Run, holder, wait_for
from tests.support.power import OTHER_BOOT, check_store, cut_off, frozen, unsettled

#: Trains for ever; after each value it notes in a shared mapping how many there are.
TRAINS = """\
import mmap, struct, sys, time
import radt
with open(sys.argv[1], "r+b") as file:
    count = mmap.mmap(file.fileno(), 8)
print("up", flush=True)
with radt.Run() as run:
    step = 0
    for epoch in run.epochs(10**9):
        for _ in range(50):
            run.log_metric("loss", step / 7, step=step)
            step += 1
            struct.pack_into("@q", count, 0, step)
        time.sleep(0.002)
"""


def counted(path: Path) -> int:
    return int.from_bytes(path.read_bytes(), "little")


def logged(reader: StoreReader, run_id: str, metric: str = "loss") -> list[int]:
    for series in reader.series([run_id]):
        if series.metric == metric:
            steps = reader.samples(run_id, series.series_no).steps
            assert steps is not None
            return [int(step) for step in steps]
    return []


@pytest.fixture
def training(project: Project, tmp_path: Path) -> tuple[Run, Path]:
    """A run that logs as fast as it can, and where it counts."""
    counter = project.home.path / "count"  # in the copy, too
    counter.write_bytes(bytes(8))
    run, _ = project.register("top")
    project.writer.put_run(replace(run.row, host=platform.node()))
    run.start(TRAINS, str(counter))
    wait_for(lambda: run.has("loss") and run.has("system.load"), "both are recorded")
    return run, counter


def moments(counter: Path, seed: int) -> None:
    """Wait for a moment that nobody has chosen."""
    until = counted(counter) + random.Random(seed).randrange(1, 30_000)
    wait_for(lambda: counted(counter) >= until, "training goes on")


def test_nothing_is_lost_or_doubled_by_a_power_cut_at_any_moment(
    project: Project, training: tuple[Run, Path], tmp_path: Path
) -> None:
    run, counter = training
    assert run.process is not None
    cuts: list[tuple[Home, int]] = []
    for number in range(4):
        moments(counter, number)
        with frozen([holder("worker")]):
            if number % 2:  # comes between two looks of the collector, however busy the machine is
                moments(counter, number)
            copy = cut_off(project.home.path, tmp_path / f"cut {number}", [run.process.pid])
        cuts.append((copy, counted(copy.path / "count")))
    before = run.counts["loss"]
    run.finish()
    assert run.counts["loss"] >= before
    unread = 0
    for home, latest in cuts:
        check_store(home.store_path)
        with closing(StoreReader(home.store_path)) as reader:
            assert reader.run(run.run_id).status is RunStatus.RUNNING
            stored = len(logged(reader, run.run_id))
        with ThreadPoolExecutor() as pool:  # two at once share the work and do not double it
            both = [pool.submit(recover_runs, home) for _ in range(2)]
            found = sum(future.result().points for future in both)
        check_store(home.store_path)
        with closing(StoreReader(home.store_path)) as reader:
            steps = logged(reader, run.run_id)
            row = reader.run(run.run_id)
            ledger = reader.ledger([run.run_id])
            epochs = reader.markers([run.run_id])
            points = {one.series.metric: one.count for one in reader.summary([run.run_id])}
        # What it had counted before the cut at least, and no more than was written before it.
        assert steps == list(range(len(steps)))
        assert latest <= len(steps) <= counted(counter)
        assert found == len(steps) - stored
        unread += found
        assert (row.status, row.end_reason) == (RunStatus.KILLED, REASON)
        assert row.ended_ns is not None
        assert {one.state for one in ledger} == {"ended"}
        spans = [one for one in epochs if one.kind is MarkerKind.EPOCH]
        assert [one.step for one in spans] == list(range(1, 1 + len(spans)))
        assert all(one.end_ns is not None and one.end_ns <= row.ended_ns for one in spans)
        assert not list(home.run_dir(run.run_id).journal.glob(f"*/{META_FILE}"))
        again = recover_runs(home)
        assert (again.ended, again.drained, again.points, again.failed) == ([], [], 0, {})
        with closing(StoreReader(home.store_path)) as reader:
            assert points == {one.series.metric: one.count for one in reader.summary([run.run_id])}
    assert unread > 0, "some cuts came between two looks of the collector"


def test_what_a_power_cut_tears_costs_only_itself(
    project: Project, training: tuple[Run, Path], tmp_path: Path
) -> None:
    """The end of the write-ahead log and pages of journals never reached the disk."""
    run, counter = training
    assert run.process is not None
    cuts = []
    for number in range(4):
        moments(counter, number + 10)
        pids = [run.process.pid, holder("worker")]
        cuts.append(cut_off(project.home.path, tmp_path / f"cut {number}", pids))
    run.finish()
    for number, home in enumerate(cuts):
        chance = random.Random(number)
        wal = home.store_path.with_name("radt.db-wal")
        place = chance.randrange(unsettled(home.store_path), wal.stat().st_size + 1)
        with wal.open("r+b") as file:
            if number % 2:
                file.truncate(place)
            else:
                file.seek(place)
                file.write(chance.randbytes(5000))
        for segment in home.path.glob("runs/*/journal/*/segment-*.bin"):
            with segment.open("r+b") as file:
                file.seek(4096 * chance.randrange(segment.stat().st_size // 4096))
                file.write(bytes(4096))
        for events in home.path.glob(f"runs/*/journal/*/{EVENTS_FILE}"):
            with events.open("ab") as file:
                file.write(bytes(chance.randrange(4096)))
        found = recover_runs(home)
        assert found.failed == {}
        check_store(home.store_path)
        with closing(StoreReader(home.store_path)) as reader:
            assert [one.status for one in reader.runs()] in ([RunStatus.KILLED], [])
            steps = logged(reader, run.run_id)
        assert steps == sorted(set(steps)), "none twice, and in their order"
        assert recover_runs(home).points == 0


def test_the_collector_reads_what_the_restart_left(
    project: Project, training: tuple[Run, Path], tmp_path: Path
) -> None:
    run, _ = training
    assert run.process is not None
    home = cut_off(
        project.home.path, tmp_path / "after the restart", [run.process.pid, holder("worker")]
    )
    latest = counted(home.path / "count")
    run.finish()
    after = Project(home.path, project.client)
    other = after.run()
    wait_for(lambda: after.reader.run(run.run_id).status.ended, "the run is ended")
    steps = logged(after.reader, run.run_id)
    assert steps == list(range(len(steps)))
    assert len(steps) >= latest
    other.finish()
    after.close()


def test_a_run_that_goes_on_is_left_alone(training: tuple[Run, Path], project: Project) -> None:
    run, counter = training
    for number in range(5):
        moments(counter, number)
        found = recover_runs(project.home)
        assert (found.ended, found.drained, found.unknown) == ([], [], [])
    run.finish()
    steps = logged(project.reader, run.run_id)
    assert steps == list(range(len(steps)))
    assert len(steps) >= counted(counter)
    assert run.row.status is RunStatus.FINISHED


#: Comes to its end, and says so; nobody records it.
ENDS = """import sys
from radt.journal.format import EventKind
from radt.journal.writer import JournalWriter
writer = JournalWriter(sys.argv[1], rank=None, warn=print)
for step in range(20_000):
    writer.scalar("loss", step, step)
writer.say(EventKind.PARAMS, values={"lr": "0.1"})
writer.say(EventKind.FINISH, status="FINISHED", reason="")
writer.close()
"""


@pytest.fixture
def unread(tmp_path: Path, quick: None) -> tuple[Home, str]:
    """A run whose journal nobody has read before the machine was restarted."""
    home = Home(tmp_path / "radt-data").create()
    client_less = Project(home.path, None)  # type: ignore[arg-type]
    row = replace(client_less.row("5" * 32), host=platform.node(), status=RunStatus.RUNNING)
    client_less.writer.put_run(row)
    client_less.close()
    journal = home.run_dir(row.run_id).journal
    subprocess.run([sys.executable, "-c", ENDS, str(journal)], check=True)
    for meta in journal.glob(f"*/{META_FILE}"):
        told = JournalMeta.from_json(json.loads(meta.read_text()))
        told = replace(told, boot_id=OTHER_BOOT, offset_ns=told.offset_ns - 10**12)
        meta.write_text(json.dumps(told.to_json()))
    return home, row.run_id


def test_what_the_script_said_before_the_restart_counts(unread: tuple[Home, str]) -> None:
    home, run_id = unread
    journal = home.run_dir(run_id).journal
    created_ns = [json.loads(p.read_text())["created_ns"] for p in journal.glob(f"*/{META_FILE}")]
    offset_ns = [json.loads(p.read_text())["offset_ns"] for p in journal.glob(f"*/{META_FILE}")]
    found = recover_runs(home)
    assert (found.ended, found.drained, found.points) == ([run_id], [run_id], 20_000)
    with closing(StoreReader(home.store_path)) as reader:
        assert reader.run(run_id).status is RunStatus.FINISHED
        assert reader.params(run_id) == {"lr": "0.1"}
        samples = reader.samples(run_id, 0)
        assert np.array_equal(samples.values, np.arange(20_000))
    # By the clock of the boot that wrote it, not of the one that reads it.
    first_ns = int(samples.times_ns[0]) - created_ns[0] - offset_ns[0]
    assert 0 <= first_ns < 60 * 10**9


def test_times_are_by_the_clock_of_the_process_that_wrote_them(unread: tuple[Home, str]) -> None:
    """The machine was not restarted, but suspended since, or its clock set right."""
    home, run_id = unread
    (path,) = home.run_dir(run_id).journal.glob(f"*/{META_FILE}")
    told = replace(JournalMeta.from_json(json.loads(path.read_text())), boot_id=boot_id())
    path.write_text(json.dumps(told.to_json()))
    with closing(StoreWriter(home.store_path)) as writer:
        assert writer.end_run(run_id, RunStatus.KILLED, time.time_ns())
    assert recover_runs(home).points == 20_000
    with closing(StoreReader(home.store_path)) as reader:
        samples = reader.samples(run_id, 0)
    first_ns = int(samples.times_ns[0]) - told.created_ns - told.offset_ns
    assert 0 <= first_ns < 60 * 10**9


def test_what_a_run_left_that_had_been_delivered_is_delivered_too(unread: tuple[Home, str]) -> None:
    home, run_id = unread
    with closing(StoreWriter(home.store_path)) as writer:
        uri = "sqlite:////data/mlflow.db"
        writer.update_run(run_id, tracking_uri=uri)
        assert writer.end_run(run_id, RunStatus.FINISHED, time.time_ns())
        writer.mark_run_delivered(run_id)
    with closing(StoreReader(home.store_path)) as reader:
        assert reader.runs_to_deliver(uri) == []
        assert recover_runs(home).points == 20_000
        assert [run.run_id for run in reader.runs_to_deliver(uri)] == [run_id]


def test_what_was_imported_is_not_read_once_more(unread: tuple[Home, str], tmp_path: Path) -> None:
    """The store was lost with the power; the run's archive is from the middle of the run."""
    home, run_id = unread
    spool = ArchiveSpool(tmp_path / "archive")
    with (
        closing(StoreWriter(home.store_path)) as writer,
        closing(StoreReader(home.store_path)) as reader,
    ):
        registration = Registration(run_id, str(home.store_path), str(home.run_dir(run_id).path))
        run = RegisteredRun(registration, None, buffered_points=0)
        with closing(
            RunRecorder(run, writer, reader, Clock.for_machine(), ProcessTable())
        ) as recorder:
            recorder.write(recorder.prepare())
        archived = sum(spool.write_bundle(reader, run_id).position.points.values())
    for file in home.path.glob("radt.db*"):
        file.unlink()
    with closing(StoreWriter(home.store_path)) as writer:
        assert import_archive(find_archive(spool.path), writer).points == archived > 0
    recover_runs(home)
    with closing(StoreReader(home.store_path)) as reader:
        assert logged(reader, run_id) == list(range(20_000))


def test_a_journal_that_lost_its_head_is_named_and_the_run_ended(unread: tuple[Home, str]) -> None:
    home, run_id = unread
    for meta in home.run_dir(run_id).journal.glob(f"*/{META_FILE}"):
        meta.write_bytes(b"")  # as some file systems leave what was not synchronised
        events = meta.with_name(EVENTS_FILE)  # which has a copy in its first line
        events.write_bytes(b"\0" * events.stat().st_size)
    with closing(StoreWriter(home.store_path)) as writer:
        writer.update_run(run_id, created_ns=1)
    found = recover_runs(home)
    assert (found.ended, found.points) == ([run_id], 0)
    assert "unreadable" in found.failed[run_id]
    assert list(home.run_dir(run_id).journal.glob(f"*/{META_FILE}")), "and kept"


def test_runs_of_other_machines_and_unknown_ones_are_left(unread: tuple[Home, str]) -> None:
    home, run_id = unread
    journal = home.run_dir(run_id).journal
    with closing(StoreWriter(home.store_path)) as writer:
        writer.update_run(run_id, host="another-machine")
    assert recover_runs(home).ended == []
    journal.parent.rename(journal.parent.with_name("7" * 32))
    found = recover_runs(home)
    assert (found.ended, found.points, found.unknown) == ([], 0, ["7" * 32])
    assert list(home.run_dir("7" * 32).journal.glob(f"*/{META_FILE}"))


def test_a_segment_is_removed_only_when_its_values_are_on_the_disk(
    unread: tuple[Home, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, run_id = unread
    journal = home.run_dir(run_id).journal
    segments = sorted(journal.glob("*/segment-*.bin"))
    assert len(segments) >= 20_000 * RECORD_BYTES // 2**18

    def refuses(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr("os.fdatasync", refuses)
        assert recover_runs(home).points == 20_000
        assert sorted(journal.glob("*/segment-*.bin")) == segments
    assert recover_runs(home).points == 0
    assert not list(journal.glob("*/segment-*.bin"))
