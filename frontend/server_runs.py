"""Runs as an MLflow server lists them: what their tags say of them, until their archives come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from sys import intern
from typing import Any

from radt.frontend.foreign.mlflow_run import (
    RUN_ID_TAG,
    WORKLOAD_ID_TAG,
    MlflowRun,
    shown_tags,
    workload_of,
)
from radt.store.records import RunRecord, WorkloadRecord

__all__ = ["IS_RUNNING", "RUN_ID_TAG", "WORKLOAD_ID_TAG", "Listed", "ServerRun", "read_run"]

#: What MLflow's search finds runs by that may go on.
IS_RUNNING = "attributes.status = 'RUNNING'"


@dataclass(frozen=True, slots=True)
class ServerRun:
    """A run on the server; ``profiled`` is the profiler that slowed it down, empty for none."""

    record: RunRecord
    mlflow_run_id: str
    profiled: str = ""

    @property
    def workload(self) -> WorkloadRecord:
        """Its workload as far as it is known from this run."""
        return workload_of(self.record)


@dataclass(frozen=True, slots=True)
class Listed:
    """Any run of the server. ``ours`` is what radt recorded, None for others and for parents.

    ``params`` and ``tags`` are kept of others only: radt's own have them in the store.
    """

    run: MlflowRun
    ours: ServerRun | None
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        return self.run.run_status.ended


def read_run(answer: Mapping[str, Any], experiment: str, tracking_uri: str) -> Listed:
    """A run of MLflow's answer.

    Raises:
        KeyError, TypeError, ValueError: It is none.
    """
    run = MlflowRun.of_answer(answer, experiment)
    record = run.radt_run(tracking_uri)
    if record is not None:
        profiled = run.tags.get("radt.profiled", "")
        return Listed(run.lean(), ServerRun(record, run.mlflow_id, profiled))
    if run.is_of_radt:
        return Listed(run.lean(), None)
    params = answer.get("data", {}).get("params", ())
    return Listed(
        run.lean(),
        None,
        # Thousands of runs have much the same.
        {intern(str(one["key"])): intern(str(one.get("value", ""))) for one in params},
        {intern(key): intern(value) for key, value in shown_tags(run.tags).items()},
    )
