"""Children of rows: they end as their row does, and MLflow nests them below it."""

from __future__ import annotations

import pytest

from radt.model import RunStatus
from tests.support.bench import Bench

HEADER = "Experiment,Workload,Name,Devices,Listeners,File,Status,Run\n"
ROW = "jobs,all,many,cpu,none,many.py,,\n"


def statuses(bench: Bench) -> dict[str, list[RunStatus]]:
    found: dict[str, list[RunStatus]] = {}
    for run in bench.reader.runs():
        found.setdefault(run.letter, []).append(run.status)
    return found


@pytest.mark.mlflow
def test_children_of_a_row_are_nested_below_it_in_mlflow(bench: Bench) -> None:
    bench.script(
        "many.py",
        "import radt\n"
        "with radt.Run() as run:\n"
        "    with run.child('lenet', {'lr': 0.1}) as child: child.log_metric('loss', 0.5, 3)\n"
        "    try:\n"
        "        with run.child('broken'): raise ValueError('no data')\n"
        "    except ValueError: pass\n"
        "    with radt.active_run().child('open') as child: child.set_tag('kind', 'small')\n",
    )
    bench.experiment(HEADER + ROW)
    bench.radt("experiment.csv")
    bench.wait_delivered()
    assert not any(run.is_from_mlflow for run in bench.reader.runs()), "they have a machine"
    runs = bench.mlflow_runs("jobs")
    assert set(runs) == {"workload all", "(all a) many", "lenet", "broken", "open"}
    parent = runs["(all a) many"]
    assert parent.data.tags["mlflow.parentRunId"] == runs["workload all"].info.run_id
    for name, status in (("lenet", "FINISHED"), ("broken", "FAILED"), ("open", "FINISHED")):
        assert runs[name].data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert runs[name].info.status == status
    assert runs["broken"].data.tags["radt.end_reason"] == "ValueError: no data"
    assert runs["lenet"].data.params["lr"] == "0.1"
    assert runs["lenet"].data.metrics["loss"] == 0.5
    assert runs["open"].data.tags["kind"] == "small"


@pytest.mark.long
def test_children_without_an_end_get_their_rows_and_a_resumed_row_has_new_ones(
    bench: Bench,
) -> None:
    bench.script(
        "many.py",
        "import os, pathlib, radt\n"
        "first = not pathlib.Path('again').exists()\n"
        "pathlib.Path('again').touch()\n"
        "with radt.Run() as run:\n"
        "    with run.child('done') as done: done.log_metric('loss', 1.0)\n"
        "    child = run.child('open'); child.log_metric('loss', 0.5)\n"
        "    if first: os.kill(os.getpid(), 9)\n",
    )
    path = bench.experiment(HEADER + ROW)
    bench.radt("experiment.csv", code=1)
    assert statuses(bench) == {
        "a": [RunStatus.KILLED],
        "a.done": [RunStatus.FINISHED],
        "a.open": [RunStatus.KILLED],
    }
    reasons = {run.letter: run.end_reason for run in bench.reader.runs()}
    assert reasons["a.open"] == reasons["a"] != ""
    bench.radt("experiment.csv")
    assert bench.rows(path)[0]["Status"] == "FINISHED"
    both = [RunStatus.FINISHED, RunStatus.FINISHED]
    assert statuses(bench) == {
        "a": [RunStatus.KILLED, RunStatus.FINISHED],
        "a.done": both,
        "a.open": [RunStatus.KILLED, RunStatus.FINISHED],
    }
    assert not list(bench.home.glob("runs/*/run.json"))
