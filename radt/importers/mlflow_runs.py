"""Map runs of MLflow to experiments, workloads and runs of the store.

Runs with nested runs become workloads, and the nested runs their runs; a parent with its own
metrics is one of these runs, too. Every other run is a separate workload. A parent that is deleted,
or in another experiment, does not form a workload. An imported run keeps its workload, label and
letter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from radt.model import RunStatus
from radt.store.records import RunRecord, WorkloadRecord
from radt.tags import MLFLOW_PARENT_RUN_ID, MLFLOW_SOURCE_NAME, RUN_ID, WORKLOAD_ID

_KNOWN_TAGS = (RUN_ID, WORKLOAD_ID, MLFLOW_PARENT_RUN_ID, MLFLOW_SOURCE_NAME)
_SHORT_ID = 8
_STATUSES = {
    "SCHEDULED": RunStatus.SCHEDULED,
    "RUNNING": RunStatus.RUNNING,
    "FINISHED": RunStatus.FINISHED,
    "FAILED": RunStatus.FAILED,
    "KILLED": RunStatus.KILLED,
}


@dataclass(frozen=True, slots=True)
class MlflowRun:
    """A run of MLflow, without its large data.

    ``digest`` changes with the run's status, parameters, tags and last points. ``tags`` are only
    those read here.
    """

    mlflow_id: str
    experiment: str
    name: str
    status: str
    started_ns: int = 0
    ended_ns: int | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()
    digest: str = ""
    experiment_id: str = ""

    @staticmethod
    def known_tags(tags: Mapping[str, str]) -> dict[str, str]:
        """Return the tags that `MlflowRun` reads."""
        return {key: str(tags[key]) for key in _KNOWN_TAGS if key in tags}

    @property
    def is_of_radt(self) -> bool:
        """Return whether radt recorded it, as a run or as a workload (the parent of its runs)."""
        return bool(self.tags.get(RUN_ID) or self.tags.get(WORKLOAD_ID))

    @property
    def radt_run_id(self) -> str:
        """Return radt's id of the run; empty if radt did not record it."""
        return self.tags.get(RUN_ID, "")

    @property
    def parent_id(self) -> str:
        return self.tags.get(MLFLOW_PARENT_RUN_ID, "")

    @property
    def title(self) -> str:
        return self.name or self.mlflow_id[:_SHORT_ID]

    @property
    def run_status(self) -> RunStatus:
        return _STATUSES.get(self.status, RunStatus.RUNNING)

    @property
    def end_ns(self) -> int | None:
        """Return the time when it ended, as far as known; None while it runs."""
        if not self.run_status.ended:
            return None
        return self.started_ns if self.ended_ns is None else self.ended_ns

    def workload(self, label: str, tracking_uri: str) -> WorkloadRecord:
        """Return the workload that it represents."""
        return WorkloadRecord(
            self.mlflow_id,
            self.experiment,
            label,
            self.started_ns,
            status=self.run_status,
            tracking_uri=tracking_uri,
            mlflow_experiment_id=self.experiment_id,
            mlflow_run_id=self.mlflow_id,
            ended_ns=self.end_ns,
        )

    def run(self, workload: WorkloadRecord, letter: str) -> RunRecord:
        """Return its record in a workload. MLflow does not know the devices it ran on."""
        command = self.tags.get(MLFLOW_SOURCE_NAME, "")
        # A single run's name is its workload's label; its script is more informative.
        is_head = workload.workload_id == self.mlflow_id
        record = RunRecord(
            self.mlflow_id,
            workload.workload_id,
            workload.experiment,
            workload.label,
            letter,
            command.rpartition("/")[2] if is_head else self.title,
            self.started_ns,
            devices="",
            command=command,
            tracking_uri=workload.tracking_uri,
            mlflow_run_id=self.mlflow_id,
        )
        return self.updated(record)

    def updated(self, record: RunRecord) -> RunRecord:
        """Return a record of this run in its current state."""
        status = self.run_status
        return replace(
            record,
            status=status,
            started_ns=self.started_ns if status is not RunStatus.SCHEDULED else None,
            ended_ns=self.end_ns,
        )


@dataclass(frozen=True, slots=True)
class Placed:
    """A run of MLflow and its place in the store."""

    mlflow: MlflowRun
    record: RunRecord
    workload: WorkloadRecord


def place_runs(
    listing: Iterable[MlflowRun],
    stored_runs: Iterable[RunRecord],
    stored_workloads: Iterable[WorkloadRecord],
    tracking_uri: str,
) -> list[Placed]:
    """Return where the runs of one experiment belong, the oldest first.

    Args:
        listing: Runs of MLflow that radt did not record.
        stored_runs: Runs in the store, including those of this experiment.
        stored_workloads: All workloads of the store.
        tracking_uri: Source of the runs, without password.
    """
    known_runs = {run.run_id: run for run in stored_runs}
    workloads = {workload.workload_id: workload for workload in stored_workloads}
    used = {(workload.experiment, workload.label) for workload in workloads.values()}
    letters: dict[str, set[str]] = {}
    for run in known_runs.values():
        letters.setdefault(run.workload_id, set()).add(run.letter)
    placed: list[Placed] = []
    ordered = sorted(listing, key=lambda run: (run.started_ns, run.mlflow_id))
    by_id = {run.mlflow_id: run for run in ordered}
    for head, members in _groups(ordered):
        for member in members:
            known = known_runs.get(member.mlflow_id)
            workload_id = head.mlflow_id if known is None else known.workload_id
            workload = workloads.get(workload_id)
            if workload is None:
                label = next(
                    label for label in labels(head.title) if (head.experiment, label) not in used
                )
                used.add((head.experiment, label))
                workload = head.workload(label, tracking_uri)
            elif (of := by_id.get(workload_id)) is not None:
                workload = replace(workload, status=of.run_status, ended_ns=of.end_ns)
            workloads[workload_id] = workload
            if known is None:
                taken = letters.setdefault(workload_id, set())
                letter = next(
                    candidate for candidate in map(letter_of, count()) if candidate not in taken
                )
                taken.add(letter)
                record = member.run(workload, letter)
            else:
                record = member.updated(known)
            placed.append(Placed(member, record, workload))
    return placed


def _groups(ordered: Sequence[MlflowRun]) -> Iterable[tuple[MlflowRun, Sequence[MlflowRun]]]:
    """Return the runs that form a workload, each group with the run that names it."""
    by_id = {run.mlflow_id: run for run in ordered}
    parents: dict[str, str] = {}
    for run in ordered:
        parent = by_id.get(run.parent_id)
        if parent is not None and parent is not run:
            parents[run.mlflow_id] = parent.mlflow_id
    heads = set(parents.values())
    groups: dict[str, list[MlflowRun]] = {}
    for run in ordered:
        if run.mlflow_id not in heads:
            groups.setdefault(parents.get(run.mlflow_id, run.mlflow_id), []).append(run)
        elif run.metrics:
            groups.setdefault(run.mlflow_id, []).append(run)
    return [(by_id[key], members) for key, members in groups.items()]


def labels(title: str) -> Iterable[str]:
    """Yield a run's name, then the name with numbers, as many runs are called ``train``."""
    yield title
    for number in count(2):
        yield f"{title} ({number})"


def letter_of(index: int) -> str:
    """Return the letter of a run by its position in the workload: a … z, aa, ab …

    >>> [letter_of(index) for index in (0, 25, 26, 701, 702)]
    ['a', 'z', 'aa', 'zz', 'aaa']
    """
    letters = ""
    index += 1
    while index:
        index, rest = divmod(index - 1, 26)
        letters = chr(ord("a") + rest) + letters
    return letters
