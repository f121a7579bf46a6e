"""What scripts log through MLflow is the run's own, once, and MLflow's loggers join its run."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import entry_points

import mlflow
import pytest
from mlflow.tracking import MlflowClient
from mlflow.tracking._tracking_service.client import TrackingServiceClient

from radt.model import SOFTWARE, THROUGH_MLFLOW, RunStatus
from radt.run.mlflow_calls import FOLLOWED, Follower, _wrapped, unknown_methods
from tests.run.conftest import Alone, Joined
from tests.support.bench import RADT, wait_until

Registered = tuple[Joined, MlflowClient, str]


def test_mlflow_has_what_is_followed() -> None:
    strange = unknown_methods(TrackingServiceClient)
    assert strange == [], (
        f"MLflow {mlflow.__version__} has renamed or moved {', '.join(strange)} of its "
        "TrackingServiceClient: change FOLLOWED and the wrappers in radt/run/mlflow_calls.py"
    )
    assert [entry.name for entry in entry_points(group="mlflow.default_experiment_provider")] == [
        "radt"
    ], "Run `pip install --editable .` again: pyproject.toml has a new entry point"


def test_what_is_missing_is_named() -> None:
    class Changed:
        def create_run(self, experiment_id, start_time=None, labels=None, run_name=None): ...
        def log_metric(self, run_id, key, value, timestamp=None, step=None, more=None): ...

    strange = unknown_methods(Changed)
    assert "create_run(tags)" in strange and "log_batch" in strange
    assert not any(name.startswith("log_metric") for name in strange)
    assert set(FOLLOWED) >= {"log_metric", "log_batch", "create_run"}


def test_a_client_that_is_not_known_is_left_alone(registered: Registered) -> None:
    """Its script trains and logs to MLflow as without radt."""
    joined, client, run_id = registered
    run_id_of_radt = joined.env.pop("RADT_RUN_ID")
    _, err = joined.run(
        "import mlflow, os, sys\n"
        "from mlflow.tracking._tracking_service.client import TrackingServiceClient as Client\n"
        "del Client.set_tag\n"
        "os.environ['RADT_RUN_ID'] = sys.argv[1]\n"
        "from radt.mlflow_plugin import RunFollower\n"
        "RunFollower()\n"
        "mlflow.log_metric('loss', 0.5)\n",
        run_id_of_radt,
    )
    (message,) = [line for line in err.splitlines() if line.startswith("radt:")]
    assert "is in MLflow only" in message and "set_tag" in message and mlflow.__version__ in message
    assert client.get_run(run_id).data.metrics == {"loss": 0.5}


def test_a_failure_says_that_mlflow_has_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no such luck")

    method = _wrapped(lambda key: f"MLflow's {key}", Follower(("key",), after=fail))
    assert method(key="loss") == "MLflow's loss"
    said = capsys.readouterr().err
    assert "logs to MLflow, which has it, did not work: ValueError: no such luck" in said


def test_without_a_run_nothing_is_wrapped() -> None:
    program = (
        "import mlflow, sys\n"
        "from mlflow.tracking._tracking_service.client import TrackingServiceClient as Client\n"
        "assert not hasattr(Client.log_batch, 'followed_by_radt')\n"
        "assert 'radt.mlflow_plugin' in sys.modules and 'radt.run' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


FOLLOWED_SCRIPT = """\
import json, subprocess, sys
import mlflow, radt
from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

mlflow.set_experiment("another")  # MLflow itself refuses to join a run after that
client = MlflowClient()
with mlflow.start_run(run_name="mine", tags={"team": "a", "by": "me"}) as run:
    assert run.info.run_id == sys.argv[1]
    mlflow.log_params({"lr": 0.1, "model": "cnn"})
    mlflow.log_param("seed", 3)
    mlflow.log_metric("loss", 0.5, step=3)
    mlflow.log_metrics({"loss": 0.25, "top1": 0.75}, step=4)
    mlflow.log_metric("plain", 7)
    mlflow.log_metric("later", 1.5, step=1, synchronous=False).wait()
    client.log_batch(sys.argv[1], [Metric("batch", 2.0, 1000, 5)], [Param("p", "q")])
    mlflow.log_metric("system/cpu_utilization_percentage", 50)
    mlflow.set_tags({"stage": "try", "mlflow.note.content": "a note"})
    with mlflow.start_run(nested=True) as nested:
        mlflow.log_metric("loss", 99)
    other = client.create_run("0", tags={"mlflow.parentRunId": sys.argv[1]}).info.run_id
    client.log_metric(other, "loss", 98)
    radt.log_metric("own", 1)
    child = (
        "import mlflow, sys\\n"
        "mlflow.log_metric('inner', 4, step=2)\\n"
        "assert mlflow.active_run().info.run_id == sys.argv[1]\\n"
    )
    subprocess.run([sys.executable, "-c", child, sys.argv[1]], check=True)
with mlflow.start_run(run_name="second") as second:
    mlflow.log_metric("loss", 97)
    assert second.info.run_id != sys.argv[1]
client.log_metric(sys.argv[1], "test", 0.125)  # a logger that knows its run
print(json.dumps([nested.info.run_id, other, second.info.run_id]))
"""


def test_what_a_row_logs_through_mlflow(registered: Registered) -> None:
    joined, client, run_id = registered
    joined.env["RADT_MLFLOW_RUN_ID"] = run_id
    out, err = joined.run(FOLLOWED_SCRIPT, run_id)
    others = json.loads(out.splitlines()[-1])
    found = joined.found()

    def of(name: str, process: str = "") -> list[tuple[int, float]]:
        return list(zip(found.steps(name, process), found.values(name, process), strict=True))

    assert of("loss") == [(3, 0.5), (4, 0.25)]
    assert of("top1") == [(4, 0.75)]
    assert of("plain") == [(0, 7.0)]
    assert of("later") == [(1, 1.5)]
    assert of("batch") == [(5, 2.0)]
    assert of("test") == [(0, 0.125)]
    assert of("inner", "child 1") == [(2, 4.0)]
    assert of("system/cpu_utilization_percentage") == []
    columns = [column for batch in found.batches for column in batch.scalars]
    methods = {column.name: column.series and column.series.method for column in columns}
    assert methods.pop("own") is None
    assert set(methods.values()) == {THROUGH_MLFLOW}
    params = {name: text for batch in found.batches for name, text in batch.params.items()}
    assert params == {"lr": "0.1", "model": "cnn", "seed": "3", "p": "q"}
    tags = {name: text for batch in found.batches for name, text in batch.tags.items()}
    assert tags == {"by": "me", "team": "a", "stage": "try"}

    # MLflow has the same, at the same millisecond.
    run = client.get_run(run_id)
    assert run.data.params == params
    assert run.data.tags["by"] == "me" and run.data.tags["mlflow.note.content"] == "a note"
    times = {
        (column.name, int(at_ns) + offset_ns)
        for column in columns
        for at_ns in column.times_ns
        for offset_ns in _offsets(joined)
    }
    for key in ("loss", "top1", "plain", "later", "test"):
        history = client.get_metric_history(run_id, key)
        assert [(m.step, m.value) for m in history] == of(key)
        assert {(key, m.timestamp * 1_000_000) for m in history} <= times
    # Others are MLflow's, too: children cannot be recorded here, where nobody described the run.
    assert [client.get_run(other).data.metrics["loss"] for other in others] == [99, 98, 97]
    messages = [line for line in err.splitlines() if line.startswith("radt:")]
    assert {"child runs are not recorded" in line for line in messages} == {True}


def _offsets(joined: Joined) -> set[int]:
    metas = joined.run_dir.journal.glob("*-*/meta.json")
    return {json.loads(meta.read_text())["offset_ns"] for meta in metas}


AUTOLOG_SCRIPT = """\
import radt, subprocess, sys
with radt.Run("sk", listeners="none", params={"kind": "tree"}) as run:
    import mlflow
    from sklearn.ensemble import RandomForestClassifier
    mlflow.sklearn.autolog(log_models=False, log_datasets=False)
    RandomForestClassifier(n_estimators=3, max_depth=2).fit([[0], [1], [0], [1]], [0, 1, 0, 1])
    run.log_metric("own", 1.5, 3)
    run.log_dict({"a": 1}, "a.json")  # autologging has ended its MLflow run by now
    child = "import mlflow; mlflow.log_metric('inner', 4, step=2)"
    subprocess.run([sys.executable, "-c", child], check=True)
print(run.id)
"""


@pytest.mark.long
@pytest.mark.mlflow
def test_autologging_in_a_block(alone: Alone) -> None:
    _, err = alone.run(AUTOLOG_SCRIPT)
    assert "radt:" not in err
    (record,) = alone.reader.runs()
    assert record.status is RunStatus.FINISHED and record.mlflow_run_id is not None
    series = {
        (one.metric, one.entity): one
        for one in alone.reader.series([record.run_id])
        if one.listener == SOFTWARE
    }
    assert series["training_score", ""].method == THROUGH_MLFLOW
    assert ("training_accuracy_score", "") in series and ("inner", "child 1") in series
    params = alone.reader.params(record.run_id)
    assert (params["n_estimators"], params["max_depth"], params["kind"]) == ("3", "2", "tree")

    client = MlflowClient(record.tracking_uri)
    wait_until(
        lambda: not alone.reader.runs_to_deliver(record.tracking_uri), "MLflow has all of the run"
    )
    for key in ("training_score", "inner", "own"):
        assert len(client.get_metric_history(record.mlflow_run_id, key)) == 1, key
    assert "inner/child 1" not in client.get_run(record.mlflow_run_id).data.metrics
    assert "a.json" in {one.path for one in client.list_artifacts(record.mlflow_run_id)}
    runs = [
        one for e in client.search_experiments() for one in client.search_runs([e.experiment_id])
    ]
    assert len(runs) == 1

    exported = subprocess.run(
        [RADT, "export", record.run_id[:8], "-m", "training_score", "-o", "score.csv"],
        cwd=alone.folder,
        env=alone.env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert exported.returncode == 0, exported.stderr
    _, *rows = (alone.folder / "score.csv").read_text().splitlines()
    assert len(rows) == 1 and "training_score" in rows[0]
