"""MLflow's runs as experiments, workloads and runs.

Runs that have others nested in them are workloads, and those nested in them their runs; a parent
with metrics of its own is one of these runs, too. Every other run is a workload of its own. A
parent that is deleted, or in another experiment, groups nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from radt.frontend.foreign.mlflow_run import MlflowRun, workload_of
from radt.model import RunStatus
from radt.store.records import ExperimentSummary, RunRecord, WorkloadRecord

#: So many runs are listed, the newest.
MAX_RUNS = 20_000


@dataclass(frozen=True)
class Listing:
    """All runs and workloads by id, the oldest first."""

    runs: Mapping[str, RunRecord] = field(default_factory=dict)
    workloads: Mapping[str, WorkloadRecord] = field(default_factory=dict)

    @cached_property
    def of_radt(self) -> frozenset[str]:
        """Ids of runs that radt has recorded, so that a store may have them."""
        return frozenset(key for key, run in self.runs.items() if key != run.mlflow_run_id)

    @cached_property
    def by_experiment(self) -> Mapping[str, Sequence[RunRecord]]:
        """Runs by the name of their experiment."""
        found: dict[str, list[RunRecord]] = {}
        for run in self.runs.values():
            found.setdefault(run.experiment, []).append(run)
        return found

    @cached_property
    def workloads_by_experiment(self) -> Mapping[str, Sequence[WorkloadRecord]]:
        """Workloads by the name of their experiment."""
        found: dict[str, list[WorkloadRecord]] = {}
        for workload in self.workloads.values():
            found.setdefault(workload.experiment, []).append(workload)
        return found

    def alone_in_workload(self, run_id: str) -> bool:
        """Whether the run's workload has no other."""
        return self._sizes[self.runs[run_id].workload_id] == 1

    @cached_property
    def _sizes(self) -> Mapping[str, int]:
        sizes: dict[str, int] = {}
        for run in self.runs.values():
            sizes[run.workload_id] = sizes.get(run.workload_id, 0) + 1
        return sizes

    def without(self, run_ids: Iterable[str]) -> Listing:
        """Without these runs, and without workloads that have no others."""
        gone = self.runs.keys() & set(run_ids)
        if not gone:
            return self
        runs = {run_id: run for run_id, run in self.runs.items() if run_id not in gone}
        left = {run.workload_id for run in runs.values()}
        return Listing(runs, {key: one for key, one in self.workloads.items() if key in left})

    def experiments(self) -> list[ExperimentSummary]:
        """One line for each experiment that has runs."""
        found = []
        for name, runs in self.by_experiment.items():
            statuses: dict[RunStatus, int] = {}
            for run in runs:
                statuses[run.status] = statuses.get(run.status, 0) + 1
            last_ns = max(run.ended_ns or run.created_ns for run in runs)
            count = len(self.workloads_by_experiment.get(name, ()))
            found.append(ExperimentSummary(name, count, len(runs), statuses, last_ns))
        return found


def listed(found: Iterable[MlflowRun], tracking_uri: str) -> Listing:
    """Sort runs into workloads; ``tracking_uri`` is what is shown of it, without password."""
    ordered = sorted(found, key=lambda run: (run.created_ns, run.mlflow_id))
    runs: dict[str, RunRecord] = {}
    workloads: dict[str, WorkloadRecord] = {}
    labels: dict[tuple[str, str], int] = {}
    for head, members in _groups([run for run in ordered if not run.is_of_radt]):
        label = _label(head, labels)
        workload = workloads[head.mlflow_id] = head.workload(label, tracking_uri)
        for place, member in enumerate(members):
            # The name of one that is alone is its workload's already.
            name = member.title if len(members) > 1 else member.script
            runs[member.mlflow_id] = member.run(workload, letter(place), name)
    for run in ordered:
        if run.is_of_radt and (record := run.radt_run(tracking_uri)) is not None:
            runs[record.run_id] = record
            workloads.setdefault(record.workload_id, workload_of(record))
    in_order = sorted(runs.values(), key=lambda run: run.created_ns)
    return Listing({run.run_id: run for run in in_order}, workloads)


def _groups(ordered: Sequence[MlflowRun]) -> Iterable[tuple[MlflowRun, Sequence[MlflowRun]]]:
    """Runs that form a workload, each group with the run that gives it its name."""
    there = {run.mlflow_id: run for run in ordered}
    parents: dict[str, str] = {}
    for run in ordered:
        parent = there.get(run.parent_id)
        if parent is not None and parent is not run and parent.experiment == run.experiment:
            parents[run.mlflow_id] = parent.mlflow_id
    heads = set(parents.values())
    groups: dict[str, list[MlflowRun]] = {}
    for run in ordered:
        if run.mlflow_id not in heads:
            groups.setdefault(parents.get(run.mlflow_id, run.mlflow_id), []).append(run)
        elif run.has_metrics:
            groups.setdefault(run.mlflow_id, []).append(run)
    return ((there[key], members) for key, members in groups.items())


def _label(head: MlflowRun, taken: dict[tuple[str, str], int]) -> str:
    """Its name; with a number where older ones have the same: many runs are called ``train``."""
    key = (head.experiment, head.title)
    taken[key] = taken.get(key, 0) + 1
    return head.title if taken[key] == 1 else f"{head.title} ({taken[key]})"


def letter(index: int) -> str:
    """The letter of a run by its place in the workload, as in experiments: a … z, aa, ab …

    >>> [letter(index) for index in (0, 25, 26, 701, 702)]
    ['a', 'z', 'aa', 'zz', 'aaa']
    """
    letters = ""
    index += 1
    while index:
        index, rest = divmod(index - 1, 26)
        letters = chr(ord("a") + rest) + letters
    return letters
