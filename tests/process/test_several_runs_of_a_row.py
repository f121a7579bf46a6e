"""Several blocks in one row: the first is the row's run, the others are its children."""

from __future__ import annotations

import pytest
from mlflow.tracking import MlflowClient

from radt.model import RunStatus
from tests.run import several
from tests.run.several import expected, trials
from tests.support.bench import Bench

HEADER = "Experiment,Workload,Name,Devices,Listeners,File,Status,Run\n"
SCRIPTS = {
    "threads": several.THREADS,
    "tasks": several.TASKS,
    "loop": several.LOOP,
    "trackio": several.TRACKIO,
    "wandb": several.WANDB,
    "ranks": several.RANKS,
    "starts": several.MLFLOW_LOOP,
    "starts-in-threads": several.MLFLOW_THREADS,
}


@pytest.mark.long
@pytest.mark.mlflow
def test_each_has_its_own_values(bench: Bench) -> None:
    rows = []
    for name, script in SCRIPTS.items():
        bench.script(f"{name}.py", script)
        rows.append(f"rows,{name},{name},cpu,none,{name}.py,,\n")
    bench.experiment(HEADER + "".join(rows))
    bench.radt("experiment.csv")
    bench.wait_delivered()
    reader = bench.reader
    found = [(trial.n, trial.loss) for trial in trials(reader)]
    every = [(str(n), expected(n).loss) for n in range(3) for _ in SCRIPTS]
    assert found == every
    assert {run.status for run in reader.runs()} == {RunStatus.FINISHED}
    for name in SCRIPTS:
        (workload,) = {run.workload_id for run in reader.runs() if run.workload == name}
        runs = {run.run_id: run for run in reader.runs(workload_id=workload)}
        assert len(runs) == 3, name
        letters = sorted(run.letter for run in runs.values())
        assert letters[0] == "a" and all(letter.startswith("a.") for letter in letters[1:]), name
        client = MlflowClient(next(iter(runs.values())).tracking_uri)
        for run in runs.values():
            stored = client.get_run(str(run.mlflow_run_id))
            n = int(reader.params(run.run_id)["n"])
            history = client.get_metric_history(stored.info.run_id, "loss")
            assert [(one.step, one.value) for one in history] == expected(n).loss, name
            beside = [one for one in reader.series([run.run_id]) if one.metric == "beside"]
            assert [one.entity for one in beside] == ["rank 1"] * (name == "ranks"), name
            if run.letter != "a":
                above = next(one.mlflow_run_id for one in runs.values() if one.letter == "a")
                assert stored.data.tags["mlflow.parentRunId"] == above, name
