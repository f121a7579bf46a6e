"""Imports from MLflow: what its own client logged is in the store, once."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from mlflow.entities import Metric

from radt.errors import TrackingError, UsageError
from radt.importers import mlflow, run_import
from radt.model import SOFTWARE, RunStatus, Scope
from radt.store.pruning import Keep, prune_run
from radt.store.reader import StoreReader
from radt.store.records import RunRecord, WorkloadRecord
from radt.store.writer import StoreWriter
from radt.tags import IMPORTED
from tests.importers.mlflow_support import (
    BEGAN_MS,
    HOSTILE,
    Study,
    contents,
    history,
    import_all,
    mlflow_history,
    revisions,
)

NS_PER_MS = 1_000_000
LIGHTNING_TAGS = {"mlflow.source.name": "/home/me/train.py", "mlflow.user": "me", "team": "vision"}


def test_runs_become_workloads(study: Study, store: Path) -> None:
    alone = study.run(
        "alone", loss=[1.0], params={"lr": "0.1", "html": HOSTILE}, tags=LIGHTNING_TAGS
    )
    sweep = study.run("sweep", start_ms=BEGAN_MS + 100_000, took_ms=300_000)
    trials = [
        study.run(f"trial {n}", parent=sweep, start_ms=BEGAN_MS + 110_000 + n * 1000, loss=[1.0])
        for n in range(3)
    ]
    search = study.run("search", start_ms=BEGAN_MS + 400_000, best=[0.5])
    child = study.run("child", parent=search, start_ms=BEGAN_MS + 410_000, loss=[1.0])
    bad = study.run("bad", "FAILED", start_ms=BEGAN_MS + 500_000)
    again = study.run("bad", "KILLED", start_ms=BEGAN_MS + 550_000)
    now = study.run(HOSTILE, "RUNNING", start_ms=BEGAN_MS + 600_000, loss=[1.0])
    gone = study.run("gone", loss=[1.0])
    orphan = study.run("orphan", parent=gone, start_ms=BEGAN_MS + 700_000)
    study.client.delete_run(gone)

    result = import_all(study.uri, store)
    assert (result.imported, result.updated, result.unchanged, result.failed) == (10, 0, 0, [])
    with StoreReader(store) as reader:
        (summary,) = reader.experiments()
        assert (summary.name, summary.run_count) == ("study", 10)
        labels = [(one.label, one.status) for one in reader.workloads()]
        runs = {run.run_id: run for run in reader.runs()}
        places = [(run.run_id, run.workload, run.letter, run.name) for run in runs.values()]
        assert reader.params(alone) == {"lr": "0.1", "html": HOSTILE}
        assert reader.tags(alone).items() >= LIGHTNING_TAGS.items()
        assert reader.unended_runs() == [runs[now]]
        uri = runs[now].tracking_uri
        assert reader.runs_to_deliver(uri) == reader.workloads_to_deliver(uri) == []
    assert labels == [
        ("alone", RunStatus.FINISHED),
        ("sweep", RunStatus.FINISHED),
        ("search", RunStatus.FINISHED),
        ("bad", RunStatus.FAILED),
        ("bad (2)", RunStatus.KILLED),
        (HOSTILE, RunStatus.RUNNING),
        ("orphan", RunStatus.FINISHED),
    ]
    assert places == [
        (alone, "alone", "a", "train.py"),
        *((run_id, "sweep", "abc"[n], f"trial {n}") for n, run_id in enumerate(trials)),
        (search, "search", "a", "train.py"),
        (child, "search", "b", "child"),
        (bad, "bad", "a", "train.py"),
        (again, "bad (2)", "a", "train.py"),
        (now, HOSTILE, "a", "train.py"),
        (orphan, "orphan", "a", "train.py"),
    ]
    first = runs[alone]
    assert (first.started_ns, first.ended_ns) == (
        BEGAN_MS * NS_PER_MS,
        (BEGAN_MS + 60_000) * NS_PER_MS,
    )
    assert first.is_from_mlflow
    assert runs[now].ended_ns is None

    # Later runs of a workload get the next letters; nothing else moves, whatever is deleted.
    study.client.delete_run(trials[0])
    later = study.run("later", parent=sweep, start_ms=BEGAN_MS + 105_000)
    third = study.run("bad", start_ms=BEGAN_MS)
    result = import_all(study.uri, store)
    assert (result.imported, result.updated, result.unchanged) == (2, 0, 9)
    with StoreReader(store) as reader:
        assert (reader.run(later).workload, reader.run(later).letter) == ("sweep", "d")
        assert reader.run(third).workload == "bad (3)"
        assert all(reader.run(one) == run for one, run in runs.items())


def test_points_are_those_that_were_logged(study: Study, store: Path) -> None:
    run_id = study.run("run", "RUNNING")
    largest = 2**63 - 1
    study.client.log_batch(
        run_id,
        metrics=[
            Metric("odd/names are.kept-as_they:are", 0.1, BEGAN_MS, 1),
            *(
                Metric("m", value, BEGAN_MS + at, at)
                for at, value in enumerate([1.0, -2.5, 1e-300])
            ),
            Metric("m", math.nan, BEGAN_MS + 5, 5),
            Metric("m", math.inf, BEGAN_MS + 6, 6),
            Metric("m", -math.inf, BEGAN_MS + 7, 7),
            Metric("m", 9.0, BEGAN_MS + 1, largest),
            Metric("m", 8.0, BEGAN_MS + 9, -3),
            Metric("late", 3.0, 2_000_000_000_000_000_000, 1),
            Metric("early", 3.0, 0, 0),
        ],
    )
    study.log(run_id, "without steps", [1.0, 2.0], step_ms=10)
    study.client.log_batch(
        run_id,
        metrics=[Metric("plain", value, BEGAN_MS + at, 0) for at, value in enumerate([1, 2])],
    )
    study.client.set_terminated(run_id, end_time=BEGAN_MS + 10)
    import_all(study.uri, store)
    with StoreReader(store) as reader:
        found = history(reader, run_id)
        plain = next(one for one in reader.series([run_id]) if one.metric == "plain")
        assert reader.samples(run_id, plain.series_no).steps is None
    logged = mlflow_history(study.client, run_id)
    text = {repr(1.7976931348623157e308): "inf", repr(-1.7976931348623157e308): "-inf"}
    late = logged.pop("late")
    assert {key: value for key, value in found.items() if key != "late"} == {
        key: [(time, text.get(value, value), step) for time, value, step in points]
        for key, points in logged.items()
    }
    # Nanoseconds for milliseconds: as late as a time can be.
    assert [(value, step) for _, value, step in late] == [
        (value, step) for _, value, step in found["late"]
    ]


def test_system_metrics_say_what_they_are(study: Study, store: Path) -> None:
    run_id = study.run(
        "run",
        **{
            "system/cpu_utilization_percentage": [50.0],
            "system/gpu_1_power_usage_watts": [250.0],
            "system/node-7/gpu_0_memory_usage_megabytes": [9.0],
            "system/something_new": [1.0],
            "loss": [1.0],
        },
    )
    sweep = study.run("sweep")
    child = study.run("child", parent=sweep, **{"system/gpu_0_power_usage_watts": [1.0]})
    import_all(study.uri, store)
    with StoreReader(store) as reader:
        found = {
            (one.metric, one.listener, one.scope, one.unit, one.entity)
            for one in reader.series([run_id])
        }
        (of_child,) = reader.series([child])
    assert found == {
        ("system/cpu_utilization_percentage", "mlflow", Scope.HOST, "%", ""),
        ("system/gpu_power_usage_watts", "mlflow", Scope.GPU, "W", "gpu1"),
        ("system/gpu_memory_usage_megabytes", "mlflow", Scope.GPU, "MB", "node-7 gpu0"),
        ("system/something_new", SOFTWARE, Scope.RUN, "", ""),
        ("loss", SOFTWARE, Scope.RUN, "", ""),
    }
    # Runs of a workload may be on several machines.
    assert of_child.entity == "gpu0 a"


def test_a_second_import_writes_nothing(study: Study, store: Path) -> None:
    for number in range(5):
        study.run(f"run {number}", loss=[1.0, 2.0], acc=[0.5])
    study.run("going on", "RUNNING", loss=[1.0, 2.0])
    import_all(study.uri, store)
    before, there = revisions(store), contents(store)
    result = import_all(study.uri, store)
    assert (result.imported, result.updated, result.unchanged) == (0, 0, 6)
    assert revisions(store) == before
    assert contents(store) == there


def test_a_running_run_is_read_from_where_it_was(
    study: Study, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow, "POINTS_PER_PAGE", 4)
    run_id = study.run("run", "RUNNING", loss=[float(n) for n in range(10)], best=[0.5])
    import_all(study.uri, store)
    asked: list[tuple[str, int]] = []
    read = mlflow.MlflowSource.history

    def noting(self: mlflow.MlflowSource, run: str, metric: str, first: int) -> object:
        asked.append((metric, first))
        return read(self, run, metric, first)

    monkeypatch.setattr(mlflow.MlflowSource, "history", noting)
    study.log(run_id, "loss", [7.0, 8.0], BEGAN_MS + 10_000, 10)
    study.log(run_id, "new", [1.0], BEGAN_MS + 10_000)
    result = import_all(study.uri, store)
    assert (result.updated, result.unchanged) == (1, 0)
    assert sorted(asked) == [("loss", 9), ("new", 0)]
    # Points that come late, and whose step is none of the highest, are found at the end.
    study.log(run_id, "loss", [70.0, 80.0], BEGAN_MS + 2500, 0)
    study.log(run_id, "best", [0.4], BEGAN_MS - 5000)
    study.client.set_terminated(run_id, "FINISHED", BEGAN_MS + 30_000)
    import_all(study.uri, store)
    with StoreReader(store) as reader:
        found = {key: sorted(points) for key, points in history(reader, run_id).items()}
        assert reader.run(run_id).status is RunStatus.FINISHED
    assert found == {
        key: sorted(points) for key, points in mlflow_history(study.client, run_id).items()
    }
    before = revisions(store)
    assert import_all(study.uri, store).unchanged == 1
    assert revisions(store) == before


def test_params_tags_and_the_status_of_an_ended_run_may_change(study: Study, store: Path) -> None:
    parent = study.run("sweep", "RUNNING")
    run_id = study.run("run", parent=parent, loss=[1.0])
    import_all(study.uri, store)
    with StoreReader(store) as reader:
        assert reader.workload(parent).ended_ns is None  # it says so, although its run has ended
    study.client.set_tag(run_id, "reviewed", "yes")
    study.client.set_terminated(run_id, "FAILED", BEGAN_MS + 99_000)
    study.client.set_terminated(parent, "FINISHED", BEGAN_MS + 99_000)
    import_all(study.uri, store)
    with StoreReader(store) as reader:
        assert reader.tags(run_id)["reviewed"] == "yes"
        assert reader.run(run_id).status is RunStatus.FAILED
        assert reader.workload(parent).ended_ns == (BEGAN_MS + 99_000) * NS_PER_MS
    for one in (run_id, parent):
        study.client.update_run(one, "RUNNING")
    import_all(study.uri, store)
    with StoreReader(store) as reader:
        assert (reader.run(run_id).status, reader.run(run_id).ended_ns) == (RunStatus.RUNNING, None)
        assert reader.workload(parent).ended_ns is None


def test_a_large_metric_comes_in_several_transactions(
    study: Study, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow, "POINTS_PER_PAGE", 100)
    monkeypatch.setattr(run_import, "_BATCH_POINTS", 150)
    values = [float(n % 17) for n in range(1000)]
    ids = [study.run("run", a=values, b=values, c=[1.0]), study.run("short", a=[1.0], c=[2.0])]
    import_all(study.uri, store)
    with StoreReader(store) as reader:
        for run_id in ids:
            assert history(reader, run_id) == mlflow_history(study.client, run_id)


def test_runs_that_radt_recorded_are_left_alone(study: Study, store: Path) -> None:
    recorded = study.run(
        "ours", tags={"radt.run_id": "a" * 32, "radt.workload_id": "w"}, loss=[1.0]
    )
    study.run("workload", tags={"radt.workload_id": "w"})
    elsewhere = study.run(
        "far", tags={"radt.run_id": "b" * 32, "radt.workload_id": "v"}, loss=[1.0]
    )
    renamed = study.run("their tags are gone", loss=[1.0])
    with StoreWriter(store) as writer:
        writer.put_workload(WorkloadRecord("w", "study", "ours", 1))
        for run_id, mlflow_id in (("a" * 32, recorded), ("c" * 32, renamed)):
            writer.put_run(
                RunRecord(run_id, "w", "study", "ours", "a", "n", 1, mlflow_run_id=mlflow_id)
            )
    before = revisions(store)
    result = import_all(study.uri, store)
    # What only MLflow has of the run of another machine is no archive.
    assert (result.done, result.without_archive) == (1, 1)
    assert elsewhere
    assert revisions(store) == before


def test_what_was_pruned_does_not_come_back(study: Study, store: Path) -> None:
    run_id = study.run("run", loss=[1.0, 2.0])
    thinned = study.run("thinned", loss=[float(n) for n in range(900)])
    import_all(study.uri, store)
    with StoreReader(store) as reader, StoreWriter(store) as writer:
        prune_run(reader, writer, run_id, Keep.NOTHING)
        prune_run(reader, writer, thinned, Keep.SUMMARIES)
    study.client.set_tag(thinned, "a", "b")
    before = revisions(store)
    assert import_all(study.uri, store).done == 0
    assert revisions(store) == before


def test_experiments_are_chosen_by_name(study: Study, store: Path) -> None:
    study.run("run", loss=[1.0])
    other = Study(study.uri, HOSTILE)
    other.run("run", loss=[1.0])
    deleted = Study(study.uri, "deleted")
    deleted.run("run", loss=[1.0])
    deleted.client.delete_experiment(deleted.experiment_id)
    assert import_all(study.uri, store, HOSTILE).imported == 1
    assert import_all(study.uri, store).imported == 1
    with StoreReader(store) as reader:
        assert {one.name for one in reader.experiments()} == {"study", HOSTILE}


def test_two_importers_at_once_do_no_harm(
    study: Study, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = study.run("run", "RUNNING", loss=[1.0, 2.0, 3.0])
    details = mlflow.MlflowSource.details
    nested = False

    def with_another(self: mlflow.MlflowSource, run: str, experiment: str) -> object:
        nonlocal nested
        answer = details(self, run, experiment)
        if not nested:
            nested = True
            study.log(run_id, "best", [3.0], BEGAN_MS)  # its number is that of "loss" here
            import_all(study.uri, store)  # between this one's counting and writing
        return answer

    monkeypatch.setattr(mlflow.MlflowSource, "details", with_another)
    import_all(study.uri, store)
    with StoreReader(store) as reader:
        assert history(reader, run_id) == mlflow_history(study.client, run_id)
        assert len(reader.series([run_id])) == 2
        assert reader.tags(run_id)[IMPORTED]


def test_what_is_not_there_is_not_created(tmp_path: Path, store: Path) -> None:
    for uri in (f"sqlite:///{tmp_path / 'none.db'}", str(tmp_path / "none"), "sqlite://"):
        with pytest.raises(UsageError, match="does not exist"):
            import_all(uri, store)
    with pytest.raises(TrackingError, match=r"http://\*\*\*@127.0.0.1:1: no connection") as caught:
        import_all("http://me:secret@127.0.0.1:1", store)
    assert "secret" not in str(caught.value)
    assert not store.exists()
    assert sorted(tmp_path.iterdir()) == []
