"""Runs as an MLflow server lists them: what their tags say of them, until their archives come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from radt.frontend.foreign.mlflow_run import (
    RUN_ID_TAG,
    WORKLOAD_ID_TAG,
    MlflowRun,
    workload_of,
)
from radt.store.records import RunRecord, WorkloadRecord

__all__ = ["IS_OURS", "IS_RUNNING", "RUN_ID_TAG", "WORKLOAD_ID_TAG", "ServerRun", "read_run"]

#: What MLflow's search finds the runs of radt by; those of workloads have no run's id.
IS_OURS = f"tags.`{RUN_ID_TAG}` != ''"
IS_RUNNING = f"{IS_OURS} AND attributes.status = 'RUNNING'"


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


def read_run(answer: Mapping[str, Any], experiment: str, tracking_uri: str) -> ServerRun | None:
    """A run of MLflow's answer; None if it is not one of ours."""
    run = MlflowRun.of_answer(answer, experiment)
    record = run.radt_run(tracking_uri)
    if record is None:
        return None
    return ServerRun(record, run.mlflow_id, run.tags.get("radt.profiled", ""))
