"""MLflow's own functions reach the run's MLflow run, and MLflow is loaded only then."""

from __future__ import annotations

import pytest
from mlflow.tracking import MlflowClient

from radt.model import RunStatus
from tests.run.conftest import Alone, Joined
from tests.support.bench import wait_until

NOT_LOADED = "import sys; assert 'mlflow' not in sys.modules\n"


@pytest.mark.long
@pytest.mark.mlflow
def test_functions_of_mlflow_wait_for_a_collector_that_starts(alone: Alone) -> None:
    alone.run(
        "import mlflow, radt\n"  # importing it takes longer than a collector's start
        "with radt.Run(listeners='none') as run:\n"
        "    run.log_dict({'a': 1}, 'a.json')\n"
    )
    (record,) = alone.reader.runs()
    files = MlflowClient(record.tracking_uri).list_artifacts(str(record.mlflow_run_id))
    assert "a.json" in {file.path for file in files}


@pytest.mark.mlflow
def test_alone_both_ways_lead_to_the_same_run(alone: Alone) -> None:
    alone.run(
        "import radt, sys\n"
        "with radt.Run('lazy', listeners='none') as run:\n"
        "    run.log_metric('loss', 1)\n"
        "    assert 'mlflow' not in sys.modules\n"
        "    run.log_dict({'a': 1}, 'a.json')\n"
        "    import mlflow\n"
        "    assert mlflow.active_run().info.run_id\n"
        "    mlflow.log_param('from', 'mlflow')\n"
        "assert mlflow.active_run() is None\n"
        "with radt.Run('second', listeners='none') as run:\n"
        "    mlflow.log_param('from', 'second')\n"  # mlflow is loaded: nothing need be asked for
    )
    client = MlflowClient(alone.reader.runs()[0].tracking_uri)
    for record in alone.reader.runs():
        assert record.mlflow_run_id is not None
        wanted = {"lazy": "mlflow", "second": "second"}[record.name]
        run = client.get_run(record.mlflow_run_id)
        assert run.data.params["from"] == wanted
        wait_until(
            lambda: client.get_run(record.mlflow_run_id).info.status == "FINISHED",  # noqa: B023
            "MLflow knows the end",
        )
    (first,) = [run for run in alone.reader.runs() if run.name == "lazy"]
    assert "a.json" in {file.path for file in client.list_artifacts(str(first.mlflow_run_id))}
    experiments = client.search_experiments()
    assert sum(len(client.search_runs([one.experiment_id])) for one in experiments) == 2
    assert not (alone.folder / "mlruns").exists()


@pytest.mark.long
@pytest.mark.mlflow
def test_failure_is_mlflows_too(alone: Alone) -> None:
    alone.run(
        "import mlflow, radt\nwith radt.Run(listeners='none'):\n"
        "    mlflow.log_param('a', 1)\n    raise ValueError('boom')\n",
        code=1,
    )
    (record,) = alone.reader.runs()
    assert record.status is RunStatus.FAILED
    client = MlflowClient(record.tracking_uri)
    wait_until(
        lambda: client.get_run(str(record.mlflow_run_id)).info.status == "FAILED", "MLflow knows"
    )


def test_inside_a_run(registered: tuple[Joined, MlflowClient, str]) -> None:
    joined, client, run_id = registered
    joined.run(
        "import radt, sys\n"
        "with radt.Run() as run:\n"
        "    run.log_metric('loss', 1)\n"
        "    assert 'mlflow' not in sys.modules\n"
        "    run.log_text('a', 'a.txt')\n"
        "    assert 'mlflow' not in sys.modules\n"
        "    run.log_dict({'a': 1}, 'a.json')\n"
        "    run.log_input\n"
        "    try: run.nonsense\n"
        "    except AttributeError as error: assert 'nonsense' in str(error)\n"
        "with radt.RADTBenchmark() as run:\n"
        "    run.log_metric('loss', 2.0, 3)\n"
        "    run.log_dict({'a': 1}, 'b.json')\n"
        "    run.log_param('a', 1)\n"
        "    assert run.run_id == sys.argv[1]\n",
        run_id,
    )
    names = {file.path for file in client.list_artifacts(run_id)}
    assert names == {"a.json", "b.json"}
    found = joined.found()
    assert found.values("loss") == [1.0, 2.0]
    assert found.batches[0].params == {"a": "1"}
    # MLflow ends what it logged to at the exit of the process; whoever delivers corrects that.


def test_what_mlflow_has_is_not_there_outside(joined: Joined) -> None:
    joined.run(
        "import copy, pickle, radt\n"
        "run = radt.Run()\n"
        "assert not hasattr(run, 'log_figure') and not hasattr(run, '_repr_html_')\n"
        "assert isinstance(pickle.loads(pickle.dumps(run)), radt.Run)\n" + NOT_LOADED
    )
