"""Assign runs of a source to experiments, workloads and letters.

A parent with nested runs becomes a workload, and the nested runs become its runs; a parent with its
own metrics is one of these runs, too. Every other run is a separate workload. A parent that is
deleted or in another experiment does not group anything. Later imports never change the workload,
label and letter of an imported run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count

from radt.importers.source import SourceRun
from radt.run_name import row_letter
from radt.store.records import RunRecord, WorkloadRecord


@dataclass(frozen=True, slots=True)
class Placed:
    """A run and its place in the store."""

    run: SourceRun
    record: RunRecord
    workload: WorkloadRecord


def place_runs(
    listing: Iterable[SourceRun],
    stored_runs: Iterable[RunRecord],
    stored_workloads: Iterable[WorkloadRecord],
) -> list[Placed]:
    """Return the places of runs, oldest first.

    Args:
        listing: Runs that radt did not record.
        stored_runs: Runs in the store, including those of the same experiments.
        stored_workloads: All workloads in the store.
    """
    known_runs = {run.run_id: run for run in stored_runs}
    workloads = {workload.workload_id: workload for workload in stored_workloads}
    used = {(workload.experiment, workload.label) for workload in workloads.values()}
    letters: dict[str, set[str]] = {}
    for run in known_runs.values():
        letters.setdefault(run.workload_id, set()).add(run.letter)
    placed: list[Placed] = []
    ordered = sorted(listing, key=lambda run: (run.started_ns, run.title, run.run_id))
    by_id = {run.run_id: run for run in ordered}
    for head, members in _groups(ordered):
        for member in members:
            record = known_runs.get(member.run_id)
            workload_id = head.run_id if record is None else record.workload_id
            workload = workloads.get(workload_id)
            if workload is None:
                label = next(
                    candidate
                    for candidate in labels(head.title)
                    if (head.experiment, candidate) not in used
                )
                used.add((head.experiment, label))
                workload = _with_status(_workload(head, label), head)
            elif (of := by_id.get(workload_id)) is not None:
                workload = _with_status(workload, of)
            workloads[workload_id] = workload
            if record is None:
                taken = letters.setdefault(workload_id, set())
                letter = next(
                    candidate for candidate in map(row_letter, count()) if candidate not in taken
                )
                taken.add(letter)
                record = _record(member, workload, letter)
            placed.append(Placed(member, record, workload))
    return placed


def _workload(run: SourceRun, label: str) -> WorkloadRecord:
    return WorkloadRecord(
        *(run.run_id, run.experiment, label, run.started_ns),
        tracking_uri=run.tracking_uri,
        mlflow_experiment_id=run.experiment_id or None,
        mlflow_run_id=run.run_id if run.tracking_uri else None,
    )


def _with_status(workload: WorkloadRecord, run: SourceRun) -> WorkloadRecord:
    if run.status is None:
        return workload
    return replace(workload, status=run.status, ended_ns=run.ended_ns)


def _record(run: SourceRun, workload: WorkloadRecord, letter: str) -> RunRecord:
    """Return a run's record in a workload. No source records the devices it ran on."""
    return RunRecord(
        *(run.run_id, workload.workload_id, workload.experiment, workload.label, letter),
        # The name of a single run is already its workload's label.
        run.name if workload.workload_id == run.run_id else run.title,
        run.started_ns,
        devices="",
        command=run.command,
        tracking_uri=workload.tracking_uri,
        mlflow_run_id=run.run_id if run.tracking_uri else None,
    )


def _groups(ordered: Sequence[SourceRun]) -> Iterable[tuple[SourceRun, Sequence[SourceRun]]]:
    """Return groups of runs that form a workload, each with the run that names it."""
    by_id = {run.run_id: run for run in ordered}
    parents: dict[str, str] = {}
    for run in ordered:
        parent = by_id.get(run.parent_id)
        if parent is not None and parent is not run:
            parents[run.run_id] = parent.run_id
    heads = set(parents.values())
    groups: dict[str, list[SourceRun]] = {}
    for run in ordered:
        if run.run_id not in heads:
            groups.setdefault(parents.get(run.run_id, run.run_id), []).append(run)
        elif run.has_series:
            groups.setdefault(run.run_id, []).append(run)
    return [(by_id[key], members) for key, members in groups.items()]


def labels(title: str) -> Iterable[str]:
    """Yield a run's name, then numbered variants: many runs are called ``train``."""
    yield title
    for number in count(2):
        yield f"{title} ({number})"
