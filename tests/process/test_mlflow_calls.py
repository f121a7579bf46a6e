"""What scripts log through MLflow in whole runs of radt."""

from __future__ import annotations

import shutil

import pytest

from radt.model import RunStatus
from radt.store.records import RunRecord
from tests.support.bench import Bench, mlflow_database

SCRIPT = """\
import mlflow
with mlflow.start_run() as run:
    for step in range(3):
        mlflow.log_metric("train_loss", 1 / (step + 1), step=step)
    mlflow.log_param("optimizer", "adam")
"""


def _losses(bench: Bench, run: RunRecord) -> list[tuple[int, float]]:
    (series,) = [one for one in bench.reader.series([run.run_id]) if one.metric == "train_loss"]
    samples = bench.reader.samples(run.run_id, series.series_no)
    assert samples.steps is not None
    return list(zip(samples.steps.tolist(), samples.values.tolist(), strict=True))


LOSSES = [(0, 1.0), (1, 0.5), (2, 1 / 3)]


@pytest.mark.mlflow
def test_scripts_and_rows_that_log_through_mlflow_alone(bench: Bench) -> None:
    """`radt train.py`, and two rows that run together; nothing is in MLflow twice."""
    bench.script("train.py", SCRIPT)
    bench.script(
        "wandb_train.py", "import radt as wandb\nwandb.init()\nprint('id', wandb.run.id)\n"
    )
    path = bench.experiment(
        "Workload,Name,File,Listeners\n1,a,train.py,none\n1,b,wandb_train.py,none\n"
    )
    bench.radt("train.py")
    bench.radt(path.name)
    bench.wait_delivered()
    runs = {run.name: run for run in bench.reader.runs()}
    assert {run.status for run in runs.values()} == {RunStatus.FINISHED}
    assert len(runs) == 3
    shown = [row["Run"] for row in bench.rows(path)]
    for run in runs.values():
        if run.name == "b":
            output = (bench.home / "runs" / run.run_id / "output.log").read_text()
            assert output == f"id {shown[1]}\n"
            continue
        assert _losses(bench, run) == LOSSES
        assert bench.reader.params(run.run_id)["optimizer"] == "adam"
        assert run.mlflow_run_id is not None
        history = bench.mlflow.get_metric_history(run.mlflow_run_id, "train_loss")
        assert [(metric.step, metric.value) for metric in history] == LOSSES
    bench.shown("export", shown[0], "-m", "train_loss", "-o", "loss.csv")
    assert (bench.folder / "loss.csv").read_text().count("train_loss") == 3


@pytest.mark.long
def test_without_radts_mlflow_the_first_run_of_the_scripts_own_is_followed(bench: Bench) -> None:
    bench.script("train.py", SCRIPT + "with mlflow.start_run():\n    mlflow.log_metric('x', 1)\n")
    shutil.copy(mlflow_database(), bench.folder / "own.db")
    bench.env["MLFLOW_TRACKING_URI"] = f"sqlite:///{bench.folder / 'own.db'}"
    bench.radt("train.py")
    run, child = sorted(bench.reader.runs(), key=lambda run: run.letter)
    assert _losses(bench, run) == LOSSES
    assert [
        one.method for one in bench.reader.series([run.run_id]) if one.metric == "train_loss"
    ] == [""]
    assert "x" not in {one.metric for one in bench.reader.series([run.run_id])}
    assert "x" in {one.metric for one in bench.reader.series([child.run_id])}
