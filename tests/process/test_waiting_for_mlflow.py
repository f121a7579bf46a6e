"""Rows that cannot wait for MLflow themselves start when it has their runs, or time is over."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from radt.errors import CollectorError
from radt.home import Home
from radt.runner.active import StopRequest
from radt.runner.context import CollectorNotices
from radt.runner.preparation import wait_for_mlflow

WORKLOAD: Any = SimpleNamespace(
    workload_id="w",
    in_store=True,
    runs=[
        SimpleNamespace(run_id="r", plan=SimpleNamespace(program=SimpleNamespace(is_python=False)))
    ],
)


@pytest.fixture
def context(tmp_path: Path) -> Any:
    """One whose MLflow has the run from the third look on."""
    looks = iter([None, None])

    def runs(run_ids: list[str]) -> list[Any]:
        return [SimpleNamespace(run_id=run_ids[0], mlflow_run_id=next(looks, "m"))]

    return SimpleNamespace(
        home=Home(tmp_path),
        tracking_uri="http://me:secret@mlflow",
        client=SimpleNamespace(away=None, flush=lambda store: None),
        reader=SimpleNamespace(
            runs=runs, workload=lambda workload_id: SimpleNamespace(mlflow_experiment_id="7")
        ),
        stop=StopRequest(),
        mlflow_timeout_s=60.0,
    )


def test_its_ids_are_waited_for(context: Any) -> None:
    ids, warning = wait_for_mlflow(context, WORKLOAD)
    assert (ids.runs, ids.experiment, ids.pending, warning) == ({"r": "m"}, "7", False, "")


def test_a_server_that_does_not_answer_delays_the_next_workload_less(context: Any) -> None:
    context.mlflow_timeout_s = 0.0
    ids, warning = wait_for_mlflow(context, WORKLOAD)
    assert ids.runs == {}
    assert "no answer within 0 s; runs start now" in warning
    assert "secret" not in warning
    assert context.mlflow_timeout_s == 1.0


def test_who_stops_does_not_wait(context: Any) -> None:
    context.stop.request()
    ids, warning = wait_for_mlflow(context, WORKLOAD)
    assert (ids.runs, warning) == ({}, "")


@pytest.mark.parametrize("away", [CollectorError("the collector is gone"), None])
def test_a_collector_that_fails_meanwhile_is_reported_and_runs_start(
    context: Any, away: CollectorError | None
) -> None:
    def flush(_store: Path) -> None:
        context.client.away = away
        raise CollectorError("the collector does not answer")

    said: list[str] = []
    console: Any = SimpleNamespace(say=lambda text, style="", indent=0: said.append(text))
    context.notices = CollectorNotices(console)
    context.client.flush = flush
    ids, warning = wait_for_mlflow(context, WORKLOAD)
    assert (ids.runs, ids.pending, warning) == ({}, False, "")
    (line,) = said
    assert line.startswith("  the collector does not answer")
    assert ("runs continue without hardware samples" in line) == (away is not None)
