"""A whole experiment while the way to MLflow fails: training does not notice, nothing is lost."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from tests.support.bench import Bench, bench_in, has_store, wait_until
from tests.support.links import Link
from tests.support.mlflow_server import MlflowServer

SCRIPT = """
import radt

with radt.Run() as run:
    for step in range(300):
        if step == 100:
            open("go").read()  # until the test says so
        run.log_metric("loss", 1.0 / (step + 1), step=step)
    open("done", "a").write("x")
"""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with bench_in(tmp_path, columns=100, RADT_ARCHIVE_S="0") as made:
        yield made


@pytest.mark.long
def test_a_link_that_stalls_and_refuses_in_mid_run(
    bench: Bench, mlflow_server: MlflowServer
) -> None:
    name = uuid.uuid4().hex
    with Link(mlflow_server.port) as link:
        bench.env["RADT_TRACKING_URI"] = link.uri
        bench.env["MLFLOW_HTTP_REQUEST_TIMEOUT"] = "10"
        bench.script("train.py", SCRIPT)
        go = bench.signal_ready("go")
        table = bench.experiment(
            "Experiment,Workload,Status,Run,Devices,Collocation,Listeners,File,Params\n"
            f"{name},1,,,cpu,,none,train.py,\n"
        )
        runner = bench.start(str(table))
        wait_until(lambda: has_store(bench.home), "the store is there")
        wait_until(lambda: [run for run in bench.reader.runs() if run.mlflow_run_id], "created")
        wait_until(lambda: [run for run in bench.reader.runs() if run.started_ns], "started")
        link.stall()
        go.write_text("on")
        output, _ = runner.communicate(timeout=180)
        assert runner.returncode == 0, output
        assert [row["Status"] for row in bench.rows(table)] == ["FINISHED"]
        assert (bench.folder / "done").read_text() == "x"
        link.refuse()
        link.pass_through()
        client = MlflowClient(mlflow_server.uri)

        def brought() -> bool:
            runs = bench.reader.runs()
            return all(
                run.mlflow_run_id and client.get_run(run.mlflow_run_id).info.status == "FINISHED"
                for run in runs
            )

        wait_until(brought, "MLflow has it")
        for run in bench.reader.runs():
            assert run.mlflow_run_id is not None
            points = client.get_metric_history(run.mlflow_run_id, "loss")
            assert [(one.step, one.value) for one in points] == [
                (step, 1.0 / (step + 1)) for step in range(300)
            ]
        experiment = client.get_experiment_by_name(name)
        assert experiment is not None
        assert len(client.search_runs([experiment.experiment_id])) == 2, "the workload's, and one"
