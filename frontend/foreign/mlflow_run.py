"""A run as MLflow describes it, and what it becomes in the dashboard."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from radt.model import RunStatus
from radt.store.records import RunRecord, WorkloadRecord

#: As `radt.tracking.registrar` sets them, which needs MLflow's package.
RUN_ID_TAG = "radt.run_id"
WORKLOAD_ID_TAG = "radt.workload_id"

PARENT_TAG = "mlflow.parentRunId"
NAME_TAG = "mlflow.runName"
_SOURCE_TAG = "mlflow.source.name"
#: All tags that are read here, and no other; a run without a name has it in another one.
READ_TAGS = (
    *(RUN_ID_TAG, WORKLOAD_ID_TAG, PARENT_TAG, _SOURCE_TAG),
    *("radt.workload", "radt.letter", "radt.host", "radt.devices", "radt.collocation"),
    *("radt.listeners", "radt.status", "radt.end_reason", "radt.profiled"),
)
NS_PER_MS = 1_000_000
_SHORT_ID = 8

_STATUSES = {
    "SCHEDULED": RunStatus.SCHEDULED,
    "RUNNING": RunStatus.RUNNING,
    "FINISHED": RunStatus.FINISHED,
    "FAILED": RunStatus.FAILED,
    "KILLED": RunStatus.KILLED,
}
_EXACT = frozenset(status.value for status in RunStatus)
_IN_BRACKETS = re.compile(r"^\([^)]*\) ")


@dataclass(frozen=True, slots=True)
class MlflowRun:
    """A run of MLflow; times in milliseconds since the epoch, None where it has none.

    ``has_metrics`` need only be right for runs that others are nested in.
    """

    mlflow_id: str
    experiment: str
    name: str
    status: str
    start_ms: int | None = None
    end_ms: int | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    has_metrics: bool = True

    @classmethod
    def of_answer(cls, answer: Mapping[str, Any], experiment: str) -> Self:
        """From a run in an answer of the REST API.

        Raises:
            KeyError, TypeError, ValueError: It is none.
        """
        info, data = answer["info"], answer.get("data", {})
        tags = {str(tag["key"]): str(tag.get("value", "")) for tag in data.get("tags", ())}
        start, end = info.get("start_time"), info.get("end_time")
        return cls(
            str(info["run_id"]),
            experiment,
            str(info.get("run_name") or ""),
            str(info.get("status", "")),
            int(start) if start else None,
            int(end) if end else None,
            tags,
            bool(data.get("metrics")),
        )

    def lean(self) -> Self:
        """With those tags only that are read here."""
        return replace(
            self, tags={key: self.tags[key] for key in (*READ_TAGS, NAME_TAG) if key in self.tags}
        )

    @property
    def is_of_radt(self) -> bool:
        """Whether radt made it: for a run or, as the parent of its runs, for a workload."""
        return bool(self.tags.get(RUN_ID_TAG) or self.tags.get(WORKLOAD_ID_TAG))

    @property
    def parent_id(self) -> str:
        """MLflow's id of the run that it is nested in; empty for none."""
        return self.tags.get(PARENT_TAG, "")

    @property
    def title(self) -> str:
        """Its name, or what there is instead of one."""
        return self.name or self.tags.get(NAME_TAG, "") or self.mlflow_id[:_SHORT_ID]

    @property
    def run_status(self) -> RunStatus:
        """MLflow knows fewer; of runs of radt it is the exact one."""
        status = _STATUSES.get(self.status, RunStatus.RUNNING)
        exact = self.tags.get("radt.status")
        return RunStatus(exact) if exact in _EXACT and status.ended else status

    @property
    def created_ns(self) -> int:
        return (self.start_ms or 0) * NS_PER_MS

    @property
    def ended_ns(self) -> int | None:
        ended = self.end_ms is not None and self.run_status.ended
        return self.end_ms * NS_PER_MS if ended and self.end_ms is not None else None

    def workload(self, label: str, tracking_uri: str) -> WorkloadRecord:
        """The workload that it stands for."""
        return WorkloadRecord(
            self.mlflow_id,
            self.experiment,
            label,
            self.created_ns,
            status=self.run_status,
            tracking_uri=tracking_uri,
            mlflow_run_id=self.mlflow_id,
            ended_ns=self.ended_ns,
        )

    def run(self, workload: WorkloadRecord, letter: str, name: str) -> RunRecord:
        """The run of a workload that it is. On which devices it ran MLflow does not say."""
        status = self.run_status
        return RunRecord(
            self.mlflow_id,
            workload.workload_id,
            self.experiment,
            workload.label,
            letter,
            name,
            self.created_ns,
            status=status,
            devices="",
            command=self.tags.get(_SOURCE_TAG, ""),
            tracking_uri=workload.tracking_uri,
            mlflow_run_id=self.mlflow_id,
            started_ns=self.created_ns if status is not RunStatus.SCHEDULED else None,
            ended_ns=self.ended_ns,
        )

    @property
    def script(self) -> str:
        """The name of the file that was started, without its folder; empty if nobody knows."""
        return self.tags.get(_SOURCE_TAG, "").rpartition("/")[2]

    def radt_run(self, tracking_uri: str) -> RunRecord | None:
        """The run that radt recorded, as far as its tags say; None if it is none."""
        tags, status = self.tags, self.run_status
        run_id, workload_id = tags.get(RUN_ID_TAG, ""), tags.get(WORKLOAD_ID_TAG, "")
        if not (run_id and workload_id and self.mlflow_id):
            return None
        return RunRecord(
            run_id,
            workload_id,
            self.experiment,
            tags.get("radt.workload", ""),
            tags.get("radt.letter", ""),
            _IN_BRACKETS.sub("", self.name or tags.get(NAME_TAG, "")),
            self.created_ns,
            status=status,
            devices=tags.get("radt.devices", "cpu"),
            collocation=tags.get("radt.collocation", "-"),
            listeners=tags.get("radt.listeners", ""),
            command=tags.get(_SOURCE_TAG, ""),
            host=tags.get("radt.host", ""),
            tracking_uri=tracking_uri,
            mlflow_run_id=self.mlflow_id,
            started_ns=self.created_ns if status is not RunStatus.SCHEDULED else None,
            ended_ns=self.ended_ns,
            end_reason=tags.get("radt.end_reason", ""),
        )


def is_of_mlflow_alone(run: RunRecord) -> bool:
    """Whether radt never saw the run: it has no id but MLflow's."""
    return run.run_id == run.mlflow_run_id


#: Tags that say nothing that is not shown elsewhere, or only programs can read.
_HIDDEN_TAGS = frozenset(
    {
        *(NAME_TAG, PARENT_TAG, "mlflow.log-model.history"),
        *("mlflow.loggedArtifacts", "mlflow.runColor", "mlflow.datasets"),
    }
)


def shown_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Those that say something to people."""
    return {key: value for key, value in tags.items() if key not in _HIDDEN_TAGS}


def workload_of(run: RunRecord) -> WorkloadRecord:
    """The workload of a run of radt, as far as it is known from this run."""
    return WorkloadRecord(
        run.workload_id,
        run.experiment,
        run.workload,
        run.created_ns,
        status=run.status,
        tracking_uri=run.tracking_uri,
        ended_ns=run.ended_ns,
    )
