"""Delivery over HTTP to a real ``mlflow server``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from radt.delivery.backlog import mlflow_backlogs
from radt.delivery.mlflow.artifacts import artifact_path
from radt.delivery.mlflow.errors import DeliveryError, ErrorKind
from radt.delivery.mlflow.target import MlflowTarget
from radt.home import Home, RunDir
from radt.model import RunStatus
from tests.delivery.mlflow.lab import Lab, closing, finish, make_lab, notify, wait_until
from tests.support.links import Link
from tests.support.mlflow_server import MlflowServer


@pytest.fixture
def remote(tmp_path: Path, mlflow_server: MlflowServer) -> Iterator[Lab]:
    """A data folder whose runs go to the server."""
    home = Home(tmp_path / "radt-data").create()
    with closing(make_lab(home, mlflow_server.uri)) as lab:
        yield lab


def test_server_down_at_the_start_then_up(tmp_path: Path, mlflow_server: MlflowServer) -> None:
    home = Home(tmp_path / "radt-data").create()
    with Link(mlflow_server.port, refusing=True) as link, closing(make_lab(home, link.uri)) as lab:
        (early,) = lab.add_workload()
        finish(lab.start_deliverer())  # gives up in the end: its collector has gone
        assert lab.record(early).mlflow_run_id is None
        assert lab.log_text().count("no connection: connection refused") == 1
        (left,) = mlflow_backlogs(lab.reader)
        assert left.problem == "no connection: connection refused"
        assert "1 run is not complete in MLflow at" in left.sentence()

        process = lab.start_deliverer()
        wait_until(
            lambda: f" {process.pid} WARNING radt.delivery: " in lab.log_text(),
            "it met nobody",
        )
        (late,) = lab.add_workload(label="2")
        notify(process)
        lab.log(early, "loss", [1.0, 2.0])
        lab.end(early, RunStatus.KILLED)
        link.pass_through()

        wait_until(lambda: lab.record(late).mlflow_run_id, "the server has the runs")
        wait_until(
            lambda: (
                [run.run_id for run in lab.reader.runs_to_deliver(lab.tracking_uri)]
                == [late.run_id]
            ),
            "delivered",
        )
        finish(process)
        assert lab.mlflow_run(early).info.status == "KILLED"
        assert [value for _, value, _ in lab.history(early, "loss")] == [1.0, 2.0]
        assert lab.mlflow_run(late).info.status == "RUNNING"
        (rest,) = mlflow_backlogs(lab.reader)
        assert not rest.waiting
        assert rest.running == 1
        assert "delivery to MLflow resumed after" in lab.log_text()


def test_everything_of_a_run_over_http(remote: Lab) -> None:
    hostile = "ünï 'q' \"d\"\nx, 精度 100 % #1?"
    (run,) = remote.add_workload(experiment=hostile, label="7", name=hostile)
    remote.start(run)
    remote.writer.put_params(run.run_id, {hostile: hostile, "long": "x" * 7000})
    remote.log(run, hostile, [0.5, float("nan"), float("inf"), float("-inf")])
    remote.log(run, "many", [float(i) for i in range(2500)], series_no=1, interval_ns=1000)
    remote.log(run, "cpu", [0.5] * 25, series_no=2, listener="top")
    spool = RunDir(Path(run.spool))
    folder = spool.artifacts / hostile.replace("/", "").replace("\n", " ")
    folder.mkdir()
    (folder / "a file.txt").write_text("content")
    spool.output_log.write_text("printed\n")
    remote.end(run, RunStatus.FAILED, "exit code 1")

    finish(remote.start_deliverer())

    found = remote.mlflow_run(run)
    assert remote.reader.runs_to_deliver(remote.tracking_uri) == [], remote.log_text()
    assert found.info.status == "FAILED"
    assert hostile in found.data.params.values()
    (key,) = {tag for tag in found.data.tags if tag.startswith("radt.metric.")}
    assert found.data.tags[key] == hostile
    biggest = 1.7976931348623157e308
    values = [repr(v) for _, v, _ in remote.history(run, key.removeprefix("radt.metric."))]
    assert values == ["0.5", "nan", repr(biggest), repr(-biggest)]
    assert len(remote.history(run, "many")) == 2500
    assert len(remote.history(run, "system/cpu")) == 3
    paths = {
        file.path
        for folder in remote.client.list_artifacts(remote.mlflow_id(run))
        for file in (
            remote.client.list_artifacts(remote.mlflow_id(run), folder.path)
            if folder.is_dir
            else [folder]
        )
    }
    assert "output.log" in paths
    assert f"{artifact_path(folder.name)}/a file.txt" in paths, remote.log_text()


def test_at_an_address_that_is_no_mlflow_nothing_is_given_up(
    remote: Lab, mlflow_server: MlflowServer
) -> None:
    with pytest.raises(DeliveryError) as caught:
        MlflowTarget(f"{remote.tracking_uri}/static-files").connect()
    assert caught.value.kind in (ErrorKind.UNREACHABLE, ErrorKind.BUSY)
