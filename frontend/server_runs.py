"""Runs as an MLflow server lists them: what their tags say of them, until their archives come."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from radt.model import RunStatus
from radt.store.records import RunRecord, WorkloadRecord

#: As `radt.tracking.registrar` sets them, which needs MLflow's package.
RUN_ID_TAG = "radt.run_id"
WORKLOAD_ID_TAG = "radt.workload_id"

#: What MLflow's search finds the runs of radt by; those of workloads have no run's id.
IS_OURS = f"tags.`{RUN_ID_TAG}` != ''"
IS_RUNNING = f"{IS_OURS} AND attributes.status = 'RUNNING'"

_STATUSES = {
    "SCHEDULED": RunStatus.SCHEDULED,
    "RUNNING": RunStatus.RUNNING,
    "FINISHED": RunStatus.FINISHED,
    "FAILED": RunStatus.FAILED,
    "KILLED": RunStatus.KILLED,
}
_IN_BRACKETS = re.compile(r"^\([^)]*\) ")
_NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class ServerRun:
    """A run on the server; ``profiled`` is the profiler that slowed it down, empty for none."""

    record: RunRecord
    mlflow_run_id: str
    profiled: str = ""

    @property
    def workload(self) -> WorkloadRecord:
        """Its workload as far as it is known from this run."""
        run = self.record
        return WorkloadRecord(
            run.workload_id,
            run.experiment,
            run.workload,
            run.created_ns,
            status=run.status,
            tracking_uri=run.tracking_uri,
            ended_ns=run.ended_ns,
        )


def read_run(answer: Mapping[str, Any], experiment: str, tracking_uri: str) -> ServerRun | None:
    """A run of MLflow's answer; None if it is not one of ours."""
    info = answer.get("info", {})
    tags = {
        str(tag.get("key")): str(tag.get("value", ""))
        for tag in answer.get("data", {}).get("tags", ())
    }
    run_id, workload_id = tags.get(RUN_ID_TAG, ""), tags.get(WORKLOAD_ID_TAG, "")
    mlflow_id = str(info.get("run_id", ""))
    if not (run_id and workload_id and mlflow_id):
        return None
    status = _STATUSES.get(str(info.get("status")), RunStatus.RUNNING)
    if status.ended and tags.get("radt.status") in set(RunStatus):
        status = RunStatus(tags["radt.status"])  # MLflow has fewer
    created_ns = int(info.get("start_time") or 0) * _NS_PER_MS
    ended_ms = info.get("end_time")
    record = RunRecord(
        run_id,
        workload_id,
        experiment,
        tags.get("radt.workload", ""),
        tags.get("radt.letter", ""),
        _IN_BRACKETS.sub("", str(info.get("run_name") or tags.get("mlflow.runName", ""))),
        created_ns,
        status=status,
        devices=tags.get("radt.devices", "cpu"),
        collocation=tags.get("radt.collocation", "-"),
        listeners=tags.get("radt.listeners", ""),
        command=tags.get("mlflow.source.name", ""),
        host=tags.get("radt.host", ""),
        tracking_uri=tracking_uri,
        mlflow_run_id=mlflow_id,
        started_ns=created_ns if status is not RunStatus.SCHEDULED else None,
        ended_ns=int(ended_ms) * _NS_PER_MS if ended_ms and status.ended else None,
        end_reason=tags.get("radt.end_reason", ""),
    )
    return ServerRun(record, mlflow_id, tags.get("radt.profiled", ""))
