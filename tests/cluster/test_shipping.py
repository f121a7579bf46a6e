"""What travels of a run, and what becomes of it, also where either side is killed on the way."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radt import __version__
from radt.cluster import collecting, shipping
from radt.cluster.collecting import Collection
from radt.cluster.shape import JobArray, Shape, WorkloadKey
from radt.cluster.shipping import Shipper, cargo_in
from radt.cluster.spool import Attempt, JobKey, Spool, Start, Submission
from radt.delivery.archive.spool import ArchiveSpool
from radt.delivery.archive.write import write_archive
from radt.home import Home
from radt.model import RunStatus
from radt.store.reader import StoreReader
from radt.store.records import RunRecord
from radt.store.writer import StoreWriter
from radt.tags import CLUSTER_ATTEMPT, CLUSTER_JOB, CLUSTER_SUBMISSION
from tests.delivery.archive import kit
from tests.support.stores import differences
from tests.support.waiting import wait_until

JOB = JobKey(0, 0)
#: Each example writes archives.
few = settings(max_examples=max(8, settings().max_examples // 3))


class InThisProcess:
    """Archives as the process makes them, without its start."""

    def __init__(self, store: Path, folder: Path) -> None:
        self._store, self._folder = store, folder

    def spool(self, run_id: str) -> ArchiveSpool:
        return ArchiveSpool(self._folder / run_id)

    def write(self, run_id: str) -> None:
        with StoreReader(self._store) as reader, self.spool(run_id).locked():
            write_archive(reader, run_id, self.spool(run_id))

    def close(self) -> None:
        pass


@dataclass
class Way:
    """A node, a shared folder and a submit host."""

    folder: Path
    arrived: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        submission = Submission(
            *("20261125-120000-abcd", "slurm", "/f/study.csv", "login", "me", __version__, "p"),
            (JobArray(Shape(), ((WorkloadKey("digits", "1"),),)),),
        )
        (self.folder / "shared").mkdir()
        self.spool = Spool.create(self.folder / "shared", submission, b"")
        self.node, self.home = Home(self.folder / "node"), Home(self.folder / "submit")
        self.node.create()
        self.writer = StoreWriter(self.node.store_path)
        self.attempt = self.spool.claim(JOB)
        self.attempt.begin(Start("node1", "1_0", 1, __version__))
        self.attempt.put_statuses({})
        self.run = self.new_run(self.attempt)
        self.shipper = self.new_shipper(self.attempt)

    def new_run(self, attempt: Attempt, run_id: str = kit.RUN_ID) -> RunRecord:
        run_dir = self.node.run_dir(run_id).create()
        run = kit.make_run(self.writer, run_dir.path, run_id, mlflow_run_id=None, tracking_uri="")
        self.writer.put_tags(
            run_id,
            {
                CLUSTER_SUBMISSION: self.spool.submission.submission_id,
                CLUSTER_JOB: str(JOB),
                CLUSTER_ATTEMPT: str(attempt.number),
            },
        )
        return run

    def new_shipper(self, attempt: Attempt) -> Shipper:
        return Shipper(self.node, attempt, 3600.0, on_arrived=self.arrived.append)

    def ship(self) -> str:
        return self.shipper._send_all()

    def finish(self) -> str:
        self.shipper.start()
        return self.shipper.finish(lambda: math.inf, lambda: False)

    def waiting(self) -> list[str]:
        return [cargo.name for cargo in cargo_in(self.attempt.run_folder(self.run.run_id))]

    def end(self) -> None:
        run_dir = self.node.run_dir(self.run.run_id)
        run_dir.output_log.write_text("the end\n")
        (run_dir.artifacts / "plots").mkdir(exist_ok=True)
        (run_dir.artifacts / "plots" / "loss #1.svg").write_text("<svg/>")
        kit.end(self.writer)

    def close(self) -> None:
        self.shipper.drop()
        self.writer.close()

    def differences(self) -> list[str]:
        """Between node and submit host, apart from what is each one's own."""
        found = differences(self.node.store_path, self.home.store_path)
        return [line for line in found if not line.startswith(("run ", "workload "))]


@pytest.fixture
def way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    monkeypatch.setattr(shipping, "_Archives", InThisProcess)
    made = Way(tmp_path)
    yield made
    made.close()


def test_each_part_has_what_is_new_and_is_gone_once_it_is_taken(way: Way) -> None:
    assert way.ship() == ""
    assert way.ship() == ""
    assert way.waiting() == ["part.1.tar"], "nothing new, nothing sent"
    kit.fill(way.writer)
    kit.add_rows(way.writer)
    assert way.ship() == ""
    assert way.waiting() == ["part.1.tar", "part.2.tar"]
    with Collection(way.spool, way.home, tracking_uri="sqlite:///m.db") as collection:
        assert collection.collect().runs == (kit.RUN_ID,)
        assert way.waiting() == []
        assert way.differences() == []
        assert collection.collect().runs == ()
        kit.add_points(way.writer, 0, [3.0], first_ns=kit.START_NS + 1)
        kit.add_rows(way.writer, closed=True)
        way.end()
        assert way.arrived == []
        assert way.ship() == ""
        assert way.arrived == [kit.RUN_ID]
        way.attempt.put_statuses({}, ended=True)
        assert collection.collect().problems == ()
        assert way.differences() == []
    run_dir = way.home.run_dir(kit.RUN_ID)
    assert run_dir.output_log.read_text() == "the end\n"
    assert (run_dir.artifacts / "plots" / "loss #1.svg").read_text() == "<svg/>"
    assert not (run_dir.path / "collected").exists()
    with StoreReader(way.home.store_path) as reader:
        run = reader.run(kit.RUN_ID)
        assert (run.status, run.spool) == (RunStatus.FAILED, str(run_dir.path))
        assert [one.run_id for one in reader.runs_to_deliver("sqlite:///m.db")] == [kit.RUN_ID]
        assert [one.label for one in reader.workloads_to_deliver("sqlite:///m.db")] == ["1"]
    assert list(way.attempt.path.rglob("*.tar")) == []


def test_what_mlflow_knows_of_a_run_stays(way: Way) -> None:
    """The deliverers of the submit host begin while more is to come."""
    way.ship()
    with Collection(way.spool, way.home, tracking_uri="sqlite:///m.db") as collection:
        collection.collect()
        with StoreWriter(way.home.store_path) as deliverer:
            deliverer.update_run(kit.RUN_ID, mlflow_run_id="m1")
            deliverer.update_workload("workload1", mlflow_experiment_id="7", mlflow_run_id="m0")
            kit.fill(way.writer)
            way.end()
            way.ship()
            collection.collect()
            # It counts as delivered, and something comes late: it is delivered once more.
            deliverer.mark_run_delivered(kit.RUN_ID)
            way.writer.put_tags(kit.RUN_ID, {"late": "tag"})
            way.ship()
            collection.collect()
    with StoreReader(way.home.store_path) as reader:
        run, workload = reader.run(kit.RUN_ID), reader.workload("workload1")
        assert run.mlflow_run_id == "m1"
        assert (workload.mlflow_experiment_id, workload.mlflow_run_id) == ("7", "m0")
        assert reader.tags(kit.RUN_ID)["late"] == "tag"
        assert [one.run_id for one in reader.runs_to_deliver("sqlite:///m.db")] == [kit.RUN_ID]


def test_where_nobody_looks_files_do_not_pile_up(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipping, "MOST_WAITING", 4)
    for value in range(11):
        kit.add_points(way.writer, 0, [float(value)])
        assert way.ship() == ""
        assert len(way.waiting()) <= 5
    assert way.waiting() == ["whole.9.tar", "part.10.tar", "part.11.tar"]
    way.end()
    assert way.finish() == ""
    assert way.waiting() == ["whole.12.tar", "files.13.tar"]
    with Collection(way.spool, way.home) as collection:
        collection.collect()
    assert way.differences() == []


def test_artifacts_that_nobody_may_read_or_that_never_end_are_left_out(way: Way) -> None:
    way.end()
    artifacts = way.node.run_dir(kit.RUN_ID).artifacts
    os.mkfifo(artifacts / "pipe")
    (artifacts / "nowhere").symlink_to("/nowhere")
    (artifacts / "link").symlink_to(artifacts / "plots" / "loss #1.svg")
    (artifacts / "folder").symlink_to("/usr")
    assert way.finish() == ""
    with Collection(way.spool, way.home) as collection:
        assert collection.collect().problems == ()
    taken = way.home.run_dir(kit.RUN_ID).artifacts
    files = {str(file.relative_to(taken)) for file in taken.rglob("*") if file.is_file()}
    assert files == {"link", "plots/loss #1.svg"}
    assert (taken / "link").read_text() == "<svg/>"


def test_a_damaged_file_is_named_and_keeps_nothing_else_from_coming(way: Way) -> None:
    kit.fill(way.writer)
    way.ship()
    other = way.new_run(way.attempt, "ff" * 16)
    way.ship()
    (file,) = way.attempt.run_folder(kit.RUN_ID).iterdir()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with Collection(way.spool, way.home) as collection:
        collected = collection.collect()
        assert other.run_id in collected.runs
        assert len(collected.problems) == 1
        assert kit.RUN_ID in collected.problems[0]
    assert file.exists()


def test_earlier_attempts_count_only_where_the_newest_goes_on_from_them(way: Way) -> None:
    """Also one that had finished before it saw that there was a newer one."""
    ids = {name: str(number) * 32 for number, name in enumerate(("kept", "late", "open"), 1)}
    for name, run_id in ids.items():
        way.new_run(way.attempt, run_id)
        if name != "open":
            way.writer.end_run(run_id, RunStatus.FINISHED, kit.START_NS, 0)
    way.writer.end_run(kit.RUN_ID, RunStatus.KILLED, kit.START_NS, None, "preempted")
    with Collection(way.spool, way.home) as collection:
        way.ship()
        collection.collect()
        newer = way.spool.claim(JOB)
        newer.begin(Start("node2", "1_0", 1, __version__))
        collection.collect()
        with StoreReader(way.home.store_path) as reader:
            assert reader.run(ids["late"]).status is RunStatus.FINISHED, "it has not said yet"
        newer.put_statuses({}, kept=[ids["kept"]])
        assert set(collection.collect().runs) == {ids["late"], ids["open"], kit.RUN_ID}
        # What the older one sends all the same changes nothing.
        way.writer.put_tags(ids["late"], {"late": "tag"})
        way.ship()
        collection.collect()
        assert collection.collect().runs == ()
    with StoreReader(way.home.store_path) as reader:
        ends = {name: reader.run(run_id) for name, run_id in ids.items()}
    assert ends["kept"].status is RunStatus.FINISHED
    for name in ("late", "open"):
        assert ends[name].status is RunStatus.KILLED
        assert ends[name].end_reason == "superseded by attempt 2"


def test_a_run_that_was_given_up_and_comes_back_has_its_own_end(way: Way) -> None:
    kit.fill(way.writer)
    way.ship()
    with Collection(way.spool, way.home) as collection:
        collection.collect()
        assert collection.end_lost(JOB, "its node failed") == (kit.RUN_ID,)
        assert collection.end_lost(JOB, "its node failed") == ()
        with StoreReader(way.home.store_path) as reader:
            assert reader.run(kit.RUN_ID).end_reason == "its node failed"
            assert reader.workload("workload1").status is RunStatus.KILLED
        kit.add_rows(way.writer, closed=True)  # markers, in a part without the run's end
        way.ship()
        way.end()
        way.ship()
        collection.collect()
    assert way.differences() == []
    with StoreReader(way.home.store_path) as reader:
        assert reader.run(kit.RUN_ID).end_reason == "exit code 3"


class Killed(BaseException):
    """The process is gone: nothing of it runs any more."""


@dataclass
class Fate:
    """Kills whoever comes to the n-th of the calls that change a disk."""

    left: int

    def passing(self, call: Callable[..., object]) -> Callable[..., object]:
        def passed(*arguments: object, **named: object) -> object:
            self.left -= 1
            if self.left == 0:
                raise Killed
            return call(*arguments, **named)

        return passed


@few
@given(seed=st.integers(0, 2**32), fates=st.lists(st.integers(1, 12), min_size=1, max_size=6))
def test_all_arrives_once_whenever_the_submit_host_is_killed(seed: int, fates: list[int]) -> None:
    draw = random.Random(seed)
    with TemporaryDirectory() as folder, ExitStack() as patches:
        patch = patches.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(shipping, "_Archives", InThisProcess)
        patch.setattr(shipping, "MOST_WAITING", 3)
        way = Way(Path(folder))
        patches.callback(way.close)
        for number, left in enumerate(fates):
            for _ in range(draw.randrange(3)):
                count = draw.randrange(1, 50)
                kit.add_points(way.writer, draw.choice([0, 1, 7]), [float(number)] * count)
                kit.add_rows(way.writer, closed=draw.random() < 0.5)
                assert way.ship() == ""
            fate = Fate(left)
            with pytest.MonkeyPatch.context() as dying:
                call = fate.passing(collecting.import_archive)
                dying.setattr(collecting, "import_archive", call)
                again = fate.passing(StoreWriter.deliver_again)
                dying.setattr(StoreWriter, "deliver_again", again)
                for method in ("unlink", "replace", "rmdir"):
                    dying.setattr(Path, method, _method(fate, getattr(Path, method)))
                try:
                    with Collection(way.spool, way.home) as collection:
                        collection.collect()
                except Killed:
                    pass
        way.end()
        assert way.finish() == ""
        with Collection(way.spool, way.home) as collection:
            assert collection.collect().problems == ()
        assert way.differences() == []
        assert way.waiting() == []
        taken = way.home.run_dir(kit.RUN_ID)
        assert taken.output_log.read_text() == "the end\n"
        assert (taken.artifacts / "plots" / "loss #1.svg").exists()


def _method(fate: Fate, method: Callable[..., object]) -> Callable[..., object]:
    def passed(self: Path, *arguments: object, **named: object) -> object:
        if "shared" in str(self) or "submit" in str(self):
            return fate.passing(method)(self, *arguments, **named)
        return method(self, *arguments, **named)

    return passed


def test_the_archive_process_is_started_again_and_ends_with_the_shipper(tmp_path: Path) -> None:
    way = Way(tmp_path)
    try:
        kit.fill(way.writer, count=10)
        assert way.ship() == ""
        process = way.shipper._archives._process
        assert process is not None
        process.kill()
        kit.add_points(way.writer, 0, [1.0])
        assert way.ship() == "the archive process has ended"
        assert way.ship() == ""
        assert way.waiting() == ["part.1.tar", "part.2.tar"]
        process = way.shipper._archives._process
        assert process is not None
        way.end()
        assert way.finish() == ""
        wait_until(lambda: process.poll() is not None, "it has ended")
        with Collection(way.spool, way.home) as collection:
            collection.collect()
        assert way.differences() == []
    finally:
        way.close()
