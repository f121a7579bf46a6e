"""RunCreator and uploader against a real store and a real MLflow database."""

from __future__ import annotations

import json
import math
import os
import shutil
import sqlite3
import threading
from pathlib import Path

import pytest
from mlflow.entities import ViewType
from mlflow.tracking import MlflowClient

from radt.delivery.mlflow.artifacts import artifact_path
from radt.delivery.mlflow.points import SUMMARY_FILE
from radt.delivery.mlflow.target import DeliveryError, ErrorKind, MlflowTarget
from radt.delivery.mlflow.uploader import Uploader
from radt.home import Home, RunDir
from radt.model import NO_STEP, MarkerKind, RunStatus, SeriesKind
from radt.store.pruning import Keep, prune_run
from radt.store.records import MarkerRecord, RunRecord
from radt.tags import CLUSTER_ATTEMPT, CLUSTER_SUPERSEDED
from tests.delivery.mlflow.lab import (
    SECOND_NS,
    START_NS,
    Lab,
    closing,
    count_points,
    make_lab,
)
from tests.support.bench import mlflow_database

HOSTILE = "naïve 'quoted' \"double\"\nline, 100 % `tick` -- 精度 \\ ;DROP TABLE runs"


def experiment_runs(lab: Lab, run: RunRecord, view: int = ViewType.ACTIVE_ONLY) -> list[str]:
    workload = lab.reader.workload(run.workload_id)
    assert workload.mlflow_experiment_id is not None
    found = lab.client.search_runs([workload.mlflow_experiment_id], run_view_type=view)
    return [one.info.run_name for one in found]


def test_a_workload_is_a_parent_with_its_runs(lab: Lab) -> None:
    first, second = lab.add_workload(2, label="7", name="resnet")
    lab.writer.put_tags(first.run_id, {"radt.git.commit": "abc", "radt.devices": "0"})

    assert lab.creator().register_pending() == 2

    workload = lab.reader.workload(first.workload_id)
    assert workload.mlflow_run_id is not None
    parent = lab.client.get_run(workload.mlflow_run_id)
    assert parent.info.run_name == "workload 7"
    one, two = lab.mlflow_run(first), lab.mlflow_run(second)
    assert [one.info.run_name, two.info.run_name] == ["(7 a) resnet", "(7 b) resnet"]
    assert one.data.tags["mlflow.parentRunId"] == workload.mlflow_run_id
    assert one.data.tags["radt.run_id"] == first.run_id
    assert one.data.tags["radt.git.commit"] == "abc"
    assert one.info.status == "RUNNING"
    assert one.info.start_time == START_NS // 1_000_000
    experiment = lab.client.get_experiment(one.info.experiment_id)
    assert experiment.name == "an experiment"
    assert experiment.artifact_location == lab.home.artifacts.as_uri()
    assert lab.creator().register_pending() == 0


def test_a_run_without_a_workload_has_no_parent(lab: Lab) -> None:
    (run,) = lab.add_workload(label="", name="train")
    lab.deliver_all()
    assert experiment_runs(lab, run) == ["train"]
    assert "mlflow.parentRunId" not in lab.mlflow_run(run).data.tags
    lab.end(run)
    lab.deliver_all()
    assert lab.reader.workloads_to_deliver(lab.tracking_uri) == []


def test_other_tracking_uris_are_left_alone(lab: Lab) -> None:
    (other,) = lab.add_workload(tracking_uri="http://elsewhere.example:1")
    assert lab.creator().register_pending() == 0
    assert lab.record(other).mlflow_run_id is None


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("noted_parent", [False, True])
def test_killed_between_creating_and_noting(lab: Lab, noted_parent: bool) -> None:
    """The ids are lost, as if the process had been killed before it wrote them down."""
    runs = lab.add_workload(3)
    lab.creator().register_pending()
    before = {run.run_id: lab.mlflow_id(run) for run in runs}
    parent = lab.reader.workload(runs[0].workload_id).mlflow_run_id
    lab.writer.update_run(runs[1].run_id, mlflow_run_id=None)
    if not noted_parent:
        lab.writer.update_workload(runs[0].workload_id, mlflow_run_id=None)

    lab.creator(since_ns=START_NS + 1).register_pending()

    assert {run.run_id: lab.mlflow_id(run) for run in runs} == before
    assert lab.reader.workload(runs[0].workload_id).mlflow_run_id == parent
    assert len(experiment_runs(lab, runs[0])) == 4


def test_a_creation_whose_answer_was_lost_is_found_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = lab.add_workload(2)
    creator = lab.creator()
    create = MlflowTarget.create_run

    def create_and_lose(*arguments: object) -> str:
        create(*arguments)  # type: ignore[arg-type]
        raise DeliveryError(ErrorKind.UNREACHABLE, "connection reset")

    with monkeypatch.context() as patch:
        patch.setattr(MlflowTarget, "create_run", create_and_lose)
        with pytest.raises(DeliveryError, match="connection reset"):
            creator.register_pending()
    creator.register_pending()

    assert sorted(experiment_runs(lab, runs[0])) == ["(1 a) net", "(1 b) net", "workload 1"]


def test_numeric_experiment_is_an_id(lab: Lab) -> None:
    number = lab.client.create_experiment("made before")
    (run,) = lab.add_workload(experiment=number)
    lab.creator().register_pending()
    assert lab.mlflow_run(run).info.experiment_id == number


def test_numeric_experiment_that_is_not_there_is_a_name(lab: Lab) -> None:
    (run,) = lab.add_workload(experiment="4711")
    lab.creator().register_pending()
    experiment = lab.client.get_experiment(lab.mlflow_run(run).info.experiment_id)
    assert experiment.name == "4711"
    (again,) = lab.add_workload(experiment="4711")
    lab.creator().register_pending()
    assert lab.mlflow_run(again).info.experiment_id == experiment.experiment_id


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("numeric", [False, True])
def test_deleted_experiment_is_restored_for_a_new_run(lab: Lab, numeric: bool) -> None:
    number = lab.client.create_experiment("gone")
    lab.client.delete_experiment(number)
    (run,) = lab.add_workload(experiment=number if numeric else "gone")
    lab.creator().register_pending()
    assert lab.mlflow_run(run).info.experiment_id == number
    assert lab.client.get_experiment(number).lifecycle_stage == "active"


def test_experiment_deleted_after_it_was_looked_up(lab: Lab) -> None:
    creator = lab.creator()
    (first,) = lab.add_workload()
    creator.register_pending()
    number = lab.mlflow_run(first).info.experiment_id
    lab.client.delete_experiment(number)
    (second,) = lab.add_workload()
    with pytest.raises(DeliveryError):
        creator.register_pending()
    creator.register_pending()
    assert lab.mlflow_run(second).info.experiment_id == number
    assert lab.mlflow_run(second).info.lifecycle_stage == "active"


def test_everything_of_a_finished_run(lab: Lab) -> None:
    first, second = runs = lab.add_workload(2)
    lab.writer.update_workload(first.workload_id, start_skew_ns=2_500_000)
    for run in runs:
        lab.start(run)
    lab.writer.put_params(first.run_id, {"File": "train.py", "Params": "--lr 1", "lr": "1"})
    lab.log(first, "loss", [0.5, math.nan, math.inf, -math.inf], steps=[10, 20, 30, NO_STEP])
    lab.log(first, "power", [100.0] * 10 + [200.0] * 10, series_no=1, listener="smi", entity="gpu0")
    lab.writer.put_markers(
        [
            MarkerRecord(
                first.run_id,
                number,
                MarkerKind.EPOCH,
                "epoch",
                START_NS + number * SECOND_NS,
                START_NS + (number + 1) * SECOND_NS,
                step=number,
            )
            for number in range(3)
        ]
    )
    spool = RunDir(Path(first.spool))
    spool.output_log.write_text("what it printed\n")
    (spool.artifacts / "environment").mkdir()
    (spool.artifacts / "environment" / "packages.txt").write_text("python==3\n")
    lab.end(first)
    lab.end(second, RunStatus.FAILED, "exit code 3")

    lab.deliver_all()

    run = lab.mlflow_run(first)
    assert run.info.status == "FINISHED"
    assert run.info.end_time == START_NS // 1_000_000 + 100_000
    assert run.data.params == {"File": "train.py", "Params": "--lr 1", "lr": "1"}
    biggest = 1.7976931348623157e308  # how MLflow keeps infinity
    values = {step: repr(value) for step, value, _ in lab.history(first, "loss")}
    assert values == {10: "0.5", 20: "nan", 30: repr(biggest), 3: repr(-biggest)}
    assert [(s, v) for s, v, _ in lab.history(first, "system/power/gpu0")] == [(10, 100), (20, 200)]
    assert [(s, v) for s, v, _ in lab.history(first, "epoch/duration_s")] == [
        (0, 1),
        (1, 1),
        (2, 1),
    ]
    artifacts = Path(run.info.artifact_uri.removeprefix("file://"))
    assert run.data.metrics["summary/power/gpu0/mean"] == 150.0
    assert run.data.metrics["summary/duration_s"] == 100.0
    summary = json.loads((artifacts / "radt-summary.json").read_text())
    assert (summary["power/gpu0/max"], summary["duration_s"]) == (200.0, 100.0)
    assert (artifacts / "output.log").read_text() == "what it printed\n"
    assert (artifacts / "environment" / "packages.txt").read_text() == "python==3\n"
    failed = lab.mlflow_run(second)
    assert failed.info.status == "FAILED"
    assert failed.data.tags["radt.end_reason"] == "exit code 3"
    parent_id = lab.reader.workload(first.workload_id).mlflow_run_id
    assert parent_id is not None
    parent = lab.client.get_run(parent_id)
    assert parent.info.status == "FAILED"
    assert parent.data.metrics["summary/start_skew_s"] == 0.0025
    assert lab.reader.runs_to_deliver(lab.tracking_uri) == []
    assert lab.reader.workloads_to_deliver(lab.tracking_uri) == []


def test_a_killed_run_is_killed_and_the_workload_waits_for_all(lab: Lab) -> None:
    first, second = lab.add_workload(2)
    lab.start(first)
    lab.end(first, RunStatus.KILLED, "killed by signal 9")
    lab.deliver_all()
    parent_id = lab.reader.workload(first.workload_id).mlflow_run_id
    assert parent_id is not None
    assert lab.mlflow_run(first).info.status == "KILLED"
    assert lab.client.get_run(parent_id).info.status == "RUNNING"
    assert [run.run_id for run in lab.reader.runs_to_deliver(lab.tracking_uri)] == [second.run_id]
    lab.end(second)
    lab.deliver_all()
    assert lab.client.get_run(parent_id).info.status == "KILLED"


@pytest.mark.quick_variants(2)
@pytest.mark.parametrize(
    ("status", "in_mlflow"),
    [
        (RunStatus.OOM, "FAILED"),
        (RunStatus.TIMEOUT, "KILLED"),
        (RunStatus.SKIPPED, "KILLED"),
    ],
)
def test_states_that_mlflow_lacks_are_its_nearest_and_a_tag(
    lab: Lab, status: RunStatus, in_mlflow: str
) -> None:
    first, second = lab.add_workload(2)
    if status is not RunStatus.SKIPPED:
        lab.start(first)
    lab.end(first, status, "why")
    lab.end(second)
    lab.deliver_all()
    run = lab.mlflow_run(first)
    assert run.info.status == in_mlflow
    assert run.data.tags["radt.status"] == status
    assert run.data.tags["radt.end_reason"] == "why"
    parent_id = lab.reader.workload(first.workload_id).mlflow_run_id
    assert parent_id is not None
    parent = lab.client.get_run(parent_id)
    assert parent.info.status == in_mlflow
    assert parent.data.tags["radt.status"] == status


def test_an_attempt_that_another_one_superseded_does_not_finish_its_run(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node reaches MLflow, but does not know; it learns of it even at the last moment."""
    early, late = lab.add_workload(2)
    for run in (early, late):
        lab.start(run)
        lab.writer.put_tags(run.run_id, {CLUSTER_ATTEMPT: "1"})
    lab.deliver_all()
    home = Home(tmp_path / "submit host").create()
    with sqlite3.connect(lab.home.store_path) as node, sqlite3.connect(home.store_path) as copy:
        node.backup(copy)
    with closing(make_lab(home, lab.tracking_uri)) as submit_host:

        def supersede(run: RunRecord) -> None:
            submit_host.end(run, RunStatus.KILLED, "superseded by attempt 2")
            submit_host.writer.put_tags(run.run_id, {CLUSTER_SUPERSEDED: "2"})
            submit_host.uploader().deliver(submit_host.record(run))

        def meanwhile(uploader: Uploader, run: RunRecord, *rest: object) -> None:
            if run.run_id == late.run_id:
                patch.undo()
                supersede(run)
            send_artifacts(uploader, run, *rest)  # type: ignore[arg-type]

        send_artifacts = Uploader._send_artifacts
        supersede(early)
        for run in (early, late):
            lab.end(run)
        with monkeypatch.context() as patch:
            patch.setattr(Uploader, "_send_artifacts", meanwhile)
            for run in (early, late):
                with pytest.raises(DeliveryError, match="written during its upload"):
                    lab.deliver_all()
                assert lab.mlflow_run(run).info.status == "KILLED"
            lab.deliver_all()
    for run in (early, late):
        found = lab.mlflow_run(run)
        assert found.info.status == "KILLED"
        assert found.data.tags["radt.status"] == RunStatus.KILLED
        assert found.data.tags["radt.end_reason"] == "superseded by attempt 2"
        assert (lab.record(run).status, note_of(lab, run)) == (RunStatus.KILLED, "")
    parent_id = lab.reader.workload(early.workload_id).mlflow_run_id
    assert parent_id is not None
    assert lab.client.get_run(parent_id).info.status == "KILLED"


def test_a_workload_whose_runs_mlflow_lacks_is_not_closed(lab: Lab) -> None:
    """Runs may end while MLflow is away; their workload must wait for the creator."""
    (run,) = lab.add_workload()
    lab.end(run)
    assert not lab.uploader().close_workload(run.workload_id)
    lab.deliver_all()
    assert sorted(experiment_runs(lab, run)) == ["(1 a) net", "workload 1"]
    assert lab.reader.workloads_to_deliver(lab.tracking_uri) == []


def test_live_delivery_sends_each_point_once_even_when_times_go_back(lab: Lab) -> None:
    (run,) = lab.add_workload()
    lab.start(run)
    lab.creator().register_pending()
    uploader = lab.uploader()
    lab.log(run, "loss", [1.0, 2.0], first_ns=START_NS + 50 * SECOND_NS)
    lab.log(run, "cpu", [0.5] * 15, series_no=1, listener="top")
    uploader.deliver(lab.record(run))
    assert [point[:2] for point in lab.history(run, "loss")] == [(0, 1.0), (1, 2.0)]
    assert [point[:2] for point in lab.history(run, "system/cpu")] == [(10, 0.5)]

    lab.log(run, "loss", [3.0, 4.0], first_ns=START_NS)  # late points of another thread
    lab.log(run, "cpu", [0.7] * 6, series_no=1, listener="top", first_ns=START_NS + 15 * SECOND_NS)
    lab.writer.seal(run.run_id)  # which puts chunks together
    uploader.deliver(lab.record(run))

    assert sorted(point[:2] for point in lab.history(run, "loss")) == [
        (0, 1.0),
        (1, 2.0),
        (2, 3.0),
        (3, 4.0),
    ]
    assert [(s, round(v, 3)) for s, v, _ in lab.history(run, "system/cpu")] == [
        (10, 0.5),
        (20, 0.6),
    ]
    assert lab.mlflow_run(run).info.status == "RUNNING"


def test_many_points_in_batches_and_a_failure_in_between(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failing request was stored but not answered; what is repeated must not count twice."""
    (run,) = lab.add_workload()
    lab.start(run)
    for series_no in range(3):
        lab.log(run, f"m{series_no}", [float(i) for i in range(1500)], series_no=series_no)
    lab.creator().register_pending()
    send = MlflowTarget.log_points
    sizes: list[int] = []

    def break_once(target: MlflowTarget, run_id: str, points: list[object]) -> None:
        send(target, run_id, points)  # type: ignore[arg-type]
        sizes.append(len(points))
        if len(sizes) == 3:
            raise DeliveryError(ErrorKind.UNREACHABLE, "no answer")

    monkeypatch.setattr(MlflowTarget, "log_points", break_once)
    with pytest.raises(DeliveryError, match="no answer"):
        lab.uploader().deliver(lab.record(run))
    assert sizes == [1000, 1000, 1000]
    lab.uploader().deliver(lab.record(run))  # another process

    assert sizes == [1000, 1000, 1000, 1000, 1000, 500]
    database = lab.home.path / "mlflow.db"
    for series_no in range(3):
        assert count_points(database, lab.mlflow_id(run), f"m{series_no}") == 1500


def test_hostile_names(lab: Lab) -> None:
    (run,) = lab.add_workload(experiment=HOSTILE, label=HOSTILE, name=HOSTILE)
    lab.start(run)
    lab.writer.put_params(run.run_id, {HOSTILE: HOSTILE, "empty": "", "long": "x" * 7000})
    lab.writer.put_tags(run.run_id, {HOSTILE: HOSTILE + "y" * 9000})
    lab.log(run, HOSTILE, [1.0])
    lab.log(run, HOSTILE.replace("%", "?"), [2.0], series_no=1)
    lab.log(run, "/abs//path/../x", [3.0], series_no=2)
    spool = RunDir(Path(run.spool))
    folder = spool.artifacts / HOSTILE.replace("/", "")
    folder.mkdir()
    (folder / "#1 ?.txt").write_text("hostile")
    (folder / "_1 _.txt").write_text("its neighbour")
    lab.end(run)

    lab.deliver_all()

    found = lab.mlflow_run(run)
    assert found.info.status == "FINISHED"
    assert "\n" not in found.info.run_name
    assert "精度" in found.info.run_name
    assert found.data.params["long"] == "x" * 5999 + "…"
    assert found.data.params["empty"] == ""
    assert HOSTILE in found.data.params.values()
    keys = {tag: value for tag, value in found.data.tags.items() if tag.startswith("radt.metric.")}
    assert keys.pop("radt.metric.abs/path/__/x") == "/abs//path/../x"
    assert set(keys.values()) == {HOSTILE, HOSTILE.replace("%", "?")}
    logged = {found.data.metrics[tag.removeprefix("radt.metric.")] for tag in keys}
    assert logged == {1.0, 2.0}
    artifacts = Path(found.info.artifact_uri.removeprefix("file://"))
    delivered = artifacts / artifact_path(folder.name)
    assert (delivered / "_1 _.txt").read_text() == "hostile"
    assert (delivered / "_1 _-2.txt").read_text() == "its neighbour"
    assert lab.reader.runs_to_deliver(lab.tracking_uri) == []


def test_the_scripts_own_mlflow_params_are_never_in_its_way(lab: Lab) -> None:
    (run,) = lab.add_workload()
    lab.start(run)
    lab.writer.put_params(run.run_id, {"Params": "--lr 1e-3 --amp", "lr": "1e-3", "amp": "true"})
    lab.creator().register_pending()
    uploader = lab.uploader()
    uploader.deliver(lab.record(run))
    lab.client.log_param(lab.mlflow_id(run), "lr", 0.001)  # mlflow.log_params(vars(args))
    lab.end(run)
    uploader.deliver(lab.record(run))
    found = lab.mlflow_run(run)
    assert found.data.params == {"Params": "--lr 1e-3 --amp", "lr": "0.001", "amp": "true"}
    assert found.info.status == "FINISHED"
    assert "refused: ('lr', '1e-3')" in note_of(lab, run)


def note_of(lab: Lab, run: RunRecord) -> str:
    with sqlite3.connect(lab.home.store_path) as connection:
        query = "SELECT delivery_note FROM run WHERE run_id = ?"
        return str(connection.execute(query, (run.run_id,)).fetchone()[0])


@pytest.mark.quick_variants(2)
@pytest.mark.parametrize("deleted", ["run", "experiment"])
@pytest.mark.parametrize("ended", [False, True])
def test_deleted_in_mlflow_is_noted_and_given_up(lab: Lab, deleted: str, ended: bool) -> None:
    (run,) = lab.add_workload()
    (neighbour,) = lab.add_workload(experiment="another")
    lab.start(run)
    lab.creator().register_pending()
    lab.log(run, "loss", [1.0])
    if deleted == "run":
        lab.client.delete_run(lab.mlflow_id(run))
    else:
        lab.client.delete_experiment(lab.mlflow_run(run).info.experiment_id)
    if ended:
        lab.end(run)
    lab.end(neighbour)

    lab.deliver_all()

    assert lab.reader.runs_to_deliver(lab.tracking_uri) == []
    assert note_of(lab, run).startswith("deleted in MLflow: ")
    assert lab.mlflow_run(neighbour).info.status == "FINISHED"


def test_a_run_removed_for_good_is_given_up(lab: Lab) -> None:
    (run,) = lab.add_workload(label="")
    lab.writer.update_run(run.run_id, mlflow_run_id="0" * 32)
    lab.end(run)
    lab.uploader().deliver(lab.record(run))
    assert note_of(lab, run).startswith("deleted in MLflow: ")


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("ended", [False, True])
def test_a_server_with_another_database_is_no_reason_to_give_runs_up(lab: Lab, ended: bool) -> None:
    (run,) = lab.add_workload()
    lab.start(run)
    lab.creator().register_pending()
    lab.log(run, "loss", [1.0])
    if ended:
        lab.end(run)
    ours, target = lab.target, lab.home.path / "other.db"
    shutil.copy(mlflow_database(), target)
    lab.target = MlflowTarget(f"sqlite:///{target}", lab.home.artifacts)
    with pytest.raises(DeliveryError, match="neither the run nor its experiment") as caught:
        lab.uploader().deliver(lab.record(run))
    assert caught.value.kind is ErrorKind.BUSY
    if ended:
        with pytest.raises(DeliveryError, match="neither the run nor its experiment"):
            lab.uploader().close_workload(run.workload_id)

    lab.target = ours
    lab.deliver_all()
    assert lab.history(run, "loss") != []
    assert note_of(lab, run) == "" if ended else lab.mlflow_run(run).info.status == "RUNNING"


def test_a_run_that_is_pruned_meanwhile_comes_to_an_end(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = lab.add_workload()
    lab.start(run)
    lab.log(run, "loss", [float(i) for i in range(3000)])
    lab.end(run)
    lab.creator().register_pending()
    counted = lab.reader.point_counts

    def and_pruned(run_id: str) -> dict[int, int]:
        counts = counted(run_id)
        prune_run(lab.reader, lab.writer, run_id, Keep.SUMMARIES)
        return counts

    with monkeypatch.context() as patch, pytest.raises(DeliveryError, match="written"):
        patch.setattr(lab.reader, "point_counts", and_pruned)
        lab.uploader().deliver(lab.record(run))
    lab.uploader().deliver(lab.record(run))
    assert 0 < len(lab.history(run, "loss")) < 3000
    assert lab.reader.runs_to_deliver(lab.tracking_uri) == []


def test_files_that_cannot_be_delivered_do_not_hold_the_run_up(lab: Lab) -> None:
    (run,) = lab.add_workload()
    artifacts = RunDir(Path(run.spool)).artifacts
    os.mkfifo(artifacts / "pipe")  # opening it would block for ever
    (artifacts / "dangling").symlink_to("nowhere")
    (artifacts / "loop").symlink_to(artifacts, target_is_directory=True)
    (artifacts / os.fsdecode(b"\xff.bin")).write_bytes(b"\0\1")
    (artifacts / "model.pt").write_bytes(b"\0" * 1000)
    lab.end(run)
    lab.deliver_all()
    folder = Path(lab.mlflow_run(run).info.artifact_uri.removeprefix("file://"))
    assert sorted(os.listdir(os.fsencode(folder))) == [
        b"_.bin",
        b"model.pt",
        b"radt-summary.json",
    ]
    assert lab.reader.runs_to_deliver(lab.tracking_uri) == []


def test_full_artifact_store_ends_the_run_and_tries_again(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = lab.add_workload()
    artifacts = RunDir(Path(run.spool)).artifacts
    (artifacts / "a.txt").write_text("a")
    (artifacts / "b.txt").write_text("b")
    lab.end(run)
    lab.creator().register_pending()
    send = MlflowTarget.log_artifact

    sent: list[str] = []

    def full(target: MlflowTarget, run_id: str, file: Path, folder: str | None) -> None:
        sent.append(file.name)
        if sent == [SUMMARY_FILE, "a.txt", "b.txt"]:
            raise OSError(28, "No space left on device")
        send(target, run_id, file, folder)

    monkeypatch.setattr(MlflowTarget, "log_artifact", full)
    with pytest.raises(DeliveryError, match="No space left") as caught:
        lab.uploader().deliver(lab.record(run))
    assert caught.value.kind is ErrorKind.BUSY
    assert lab.mlflow_run(run).info.status == "FINISHED"
    assert lab.reader.delivered_artifacts(run.run_id) == {SUMMARY_FILE, "a.txt"}
    lab.uploader().deliver(lab.record(run))
    assert sent == [SUMMARY_FILE, "a.txt", "b.txt", "b.txt"]
    assert lab.reader.delivered_artifacts(run.run_id) == {SUMMARY_FILE, "a.txt", "b.txt"}
    assert lab.reader.runs_to_deliver(lab.tracking_uri) == []


def test_a_refused_item_does_not_take_the_others_down(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = lab.add_workload()
    lab.start(run)
    lab.log(run, "loss", [float(i) for i in range(100)])
    lab.creator().register_pending()
    send = MlflowTarget.log_points

    def refuse_42(target: MlflowTarget, run_id: str, points: list[object]) -> None:
        if any(getattr(point, "value", None) == 42 for point in points):
            raise DeliveryError(ErrorKind.REFUSED, "no 42")
        send(target, run_id, points)  # type: ignore[arg-type]

    monkeypatch.setattr(MlflowTarget, "log_points", refuse_42)
    lab.end(run)
    lab.uploader().deliver(lab.record(run))
    kept = [value for _, value, _ in lab.history(run, "loss")]
    assert kept == [float(i) for i in range(100) if i != 42]
    assert "refused: MlflowPoint(key='loss', value=42.0" in note_of(lab, run)


def test_a_damaged_series_does_not_take_the_others_down(lab: Lab) -> None:
    (run,) = lab.add_workload()
    lab.start(run)
    (RunDir(Path(run.spool)).artifacts / "model.pt").write_text("weights")
    lab.log(run, "loss", [1.0] * 100)
    lab.log(run, "power", [100.0] * 100, series_no=1, listener="smi")
    lab.log(run, "accuracy", [0.5] * 100, series_no=2)
    lab.end(run)
    lab.writer.seal(run.run_id)
    with lab.writer._engine.begin() as connection:
        connection.exec_driver_sql("UPDATE chunk SET value_data = X'00' WHERE series_no < 2")
    lab.deliver_all()
    assert len(lab.history(run, "accuracy")) == 100
    assert lab.mlflow_run(run).info.status == "FINISHED"
    assert "model.pt" in lab.reader.delivered_artifacts(run.run_id)
    assert lab.reader.runs_to_deliver(lab.tracking_uri) == []
    first, second = note_of(lab, run).split("; ")
    assert first.startswith("series loss: a chunk of samples is damaged")
    assert second.startswith("series system/power: a chunk of samples is damaged")


def test_requests_to_a_database_take_turns(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has one writer at a time, and a run must not get the id that was meant for another."""
    runs = lab.add_workload(2)
    lab.creator().register_pending()
    busy, most = 0, 0
    send = MlflowClient.log_batch

    def counted(client: MlflowClient, *arguments: object, **more: object) -> None:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        send(client, *arguments, **more)  # type: ignore[arg-type]
        busy -= 1

    monkeypatch.setattr(MlflowClient, "log_batch", counted)
    for run in runs:
        lab.log(run, "loss", [float(i) for i in range(3000)])
    threads = [
        threading.Thread(target=lab.uploader().deliver, args=[run]) for run in map(lab.record, runs)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert [len(lab.history(run, "loss")) for run in runs] == [3000, 3000]


def test_a_counter_comes_as_its_rate_while_it_runs_and_with_its_total_at_the_end(lab: Lab) -> None:
    """5 a second; after 15 s the counter starts again from 0."""
    (run,) = lab.add_workload()
    lab.start(run)
    lab.creator().register_pending()
    uploader = lab.uploader()

    def log(values: list[float], first_ns: int) -> None:
        counter = SeriesKind.COUNTER
        lab.log(run, "rx", values, listener="smi", entity="gpu0", kind=counter, first_ns=first_ns)
        uploader.deliver(lab.record(run))

    log([1000.0 + 5 * second for second in range(15)], START_NS)
    key = "system/rx_per_s/gpu0"
    assert [point[:2] for point in lab.history(run, key)] == [(10, 5.0)]
    log([5.0 * (second + 1) for second in range(15)], START_NS + 15 * SECOND_NS)
    lab.end(run)
    uploader.deliver(lab.record(run))
    assert [point[:2] for point in lab.history(run, key)] == [(10, 5.0), (20, 5.0), (30, 5.0)]
    assert lab.mlflow_run(run).data.metrics["summary/rx/gpu0/total"] == 5.0 * 29
