"""What a node sends of its runs, and what becomes of it; `tests/copy` tests the bundles."""

from __future__ import annotations

import errno
import math
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from radt import __version__
from radt.cluster import shipping
from radt.cluster.attempt import AttemptStart, JobAttempt
from radt.cluster.collecting import Collection
from radt.cluster.engine import Shape
from radt.cluster.shipping import Shipper, archives_in, bundles_in
from radt.cluster.spool import Spool
from radt.cluster.submission import JobArray, JobKey, Submission
from radt.experiment.plan import WorkloadKey
from radt.home import Home
from radt.model import RunStatus
from radt.store.reader import StoreReader
from radt.store.records import RunRecord
from radt.store.writer import StoreWriter
from radt.tags import CLUSTER_ATTEMPT, CLUSTER_JOB, CLUSTER_SUBMISSION
from tests.copy import kit
from tests.support.stores import differences

JOB = JobKey(0, 0)


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
        self.attempt.begin(AttemptStart("node1", "1_0", 1, __version__))
        self.attempt.put_statuses({})
        self.run = self.new_run(self.attempt)
        self.shipper = self.new_shipper(self.attempt)

    def new_run(self, attempt: JobAttempt, run_id: str = kit.RUN_ID) -> RunRecord:
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

    def new_shipper(self, attempt: JobAttempt) -> Shipper:
        return Shipper(self.node, attempt, 3600.0, on_arrived=self.arrived.append)

    def ship(self) -> str:
        return self.shipper._send_all()

    def finish(self) -> str:
        self.shipper.start()
        return self.shipper.finish(lambda: math.inf, lambda: False)

    def waiting(self) -> list[str]:
        folder = self.attempt.run_folder(self.run.run_id)
        return [file.name for file in (*bundles_in(folder), *archives_in(folder))]

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
def way(tmp_path: Path) -> Iterator[Way]:
    made = Way(tmp_path)
    yield made
    made.close()


def test_a_run_is_gone_from_the_folder_once_it_is_taken(way: Way) -> None:
    """With its files, and the submit host delivers it."""
    kit.fill(way.writer)
    way.end()
    assert way.arrived == []
    assert way.ship() == way.ship() == ""
    assert way.arrived == [kit.RUN_ID]
    assert way.waiting() == [f"{kit.RUN_ID}.1.radt", "files.2.tar"]
    way.attempt.put_statuses({}, ended=True)
    with Collection(way.spool, way.home, tracking_uri="sqlite:///m.db") as collection:
        collected = collection.collect()
        assert (list(collected.runs), list(collected.problems)) == ([kit.RUN_ID], [])
        assert not collection.collect().runs
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
    assert not any(file.is_file() for file in (way.attempt.path / "runs").rglob("*"))


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
    kit.fill(way.writer, count=10)
    way.ship()
    with Collection(way.spool, way.home) as collection:
        collection.collect()
    for value in range(11):
        kit.add_points(way.writer, 0, [float(value)])
        assert way.ship() == ""
        assert len(way.waiting()) <= 5
    assert way.waiting() == [f"{kit.RUN_ID}.{number}.radt" for number in (10, 11, 12)]
    # What takes the place of others is all of the run: this host may have lost its store.
    way.home.store_path.unlink()
    with Collection(way.spool, way.home) as collection:
        assert not collection.collect().problems
    assert way.differences() == []
    for value in range(3):
        kit.add_points(way.writer, 0, [float(value)])
        assert way.ship() == ""
    way.end()
    assert way.finish() == ""
    assert way.waiting() == [f"{kit.RUN_ID}.16.radt", "files.17.tar"]
    with Collection(way.spool, way.home) as collection:
        assert not collection.collect().problems
    assert way.differences() == []


def test_a_number_is_used_once(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network file system may report a failure with the file in place."""
    fsync = os.fsync

    def failing(descriptor: int) -> None:
        fsync(descriptor)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        assert "Input/output error" in way.ship()
    kit.fill(way.writer, count=10)
    assert way.ship() == ""
    assert way.waiting() == [f"{kit.RUN_ID}.{number}.radt" for number in (1, 2)]
    with Collection(way.spool, way.home) as collection:
        assert not collection.collect().problems
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
        assert not collection.collect().problems
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
        assert kit.RUN_ID in next(iter(collected.problems))
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
        newer.begin(AttemptStart("node2", "1_0", 1, __version__))
        collection.collect()
        with StoreReader(way.home.store_path) as reader:
            assert reader.run(ids["late"]).status is RunStatus.FINISHED, "it has not said yet"
        newer.put_statuses({}, kept=[ids["kept"]])
        assert set(collection.collect().runs) == {ids["late"], ids["open"], kit.RUN_ID}
        # What the older one sends all the same changes nothing.
        way.writer.put_tags(ids["late"], {"late": "tag"})
        way.ship()
        collection.collect()
        assert not collection.collect().runs
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
