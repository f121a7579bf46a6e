"""What an attempt of a job has to run: the rows as they were submitted, and what became of them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from radt.cluster.spool import AttemptView, JobKey, Spool, Submission
from radt.collocation.busy import BusyPolicy
from radt.collocation.inventory import read_inventory
from radt.collocation.planner import Request, on_given_instances
from radt.devices.machine import Devices, Machine
from radt.errors import ClusterError
from radt.experiment.columns import parse_repeats, parse_repeats_asked, parse_status
from radt.experiment.files import RawFile
from radt.experiment.plan import FAILURES, ExperimentPlan, RunPlan, WorkloadPlan
from radt.experiment.source import ExperimentFile
from radt.experiment.status import RowStatus
from radt.experiment.table import parse_table
from radt.listeners import registry
from radt.model import RunStatus
from radt.runner.pending import ExperimentOptions, SyncPoint


@dataclass(frozen=True, slots=True)
class Carried:
    """What an attempt goes on from: rows as earlier ones left them, and their runs that count."""

    rows: Mapping[int, RowStatus] = field(default_factory=dict)
    kept: frozenset[str] = frozenset()

    @classmethod
    def of(cls, attempts: Sequence[AttemptView]) -> Carried:
        """Return what the newest attempt that has said anything left; it went on from the others.

        A row that was cut off runs again, with the repeat that it was at.
        """
        for view in reversed(attempts):
            if view.kept is not None:
                rows = {line: _cut_off(row, view.number) for line, row in view.statuses.items()}
                return cls({line: row for line, row in rows.items() if row is not None}, view.kept)
        return cls()


def _cut_off(row: RowStatus, attempt: int) -> RowStatus | None:
    status = parse_status(row.text)
    if status not in (RunStatus.RUNNING, RunStatus.KILLED):
        return row
    if not parse_repeats(row.text):
        return None  # as if it had not begun
    asked = parse_repeats_asked(row.text)
    done = parse_repeats(row.text)
    reason = f"attempt {attempt} was cut off"
    return replace(row, text=f"{RunStatus.KILLED} {done + 1}/{asked}: {reason}")


def planned(spool: Spool, job: JobKey, machine: Machine, carried: Carried) -> ExperimentPlan:
    """Return the plan of a job's workloads on this node.

    Files are found as beside the experiment file, which itself may have changed since.

    Raises:
        ExperimentError: The rows cannot run here.
        ClusterError: The submission's file lacks them.
        UsageError: The settings file beside the experiment file cannot be used.
        DeviceError: The driver, which says where the job's MIG instances are, does not work.
    """
    submission = spool.submission
    wanted = [(key.experiment, key.label) for key in submission.workloads(job)]
    table = parse_table(RawFile.read(spool.experiment_csv, "CSV").text)
    file = ExperimentFile(Path(submission.file), submission.file, table)
    devices = str(submission.options.get("devices", ""))
    plan = file.plan(machine, registry.load(), devices, only=wanted)
    found = {(workload.experiment, workload.label): workload for workload in plan.workloads}
    if missing := [label for label in wanted if label not in found]:
        raise ClusterError(f"{spool.experiment_csv} has no workload {missing[0][1]}")
    rerun = bool(submission.options.get("rerun", False))
    return replace(
        plan,
        workloads=tuple(
            replace(workload, runs=tuple(_as_carried(run, carried, rerun) for run in workload.runs))
            for workload in (_on_its_instances(found[key]) for key in wanted)
        ),
    )


def _on_its_instances(workload: WorkloadPlan) -> WorkloadPlan:
    """Return a workload with its rows on the GPUs whose MIG instances the job was given."""
    if all(run.collocation.mig is None for run in workload.runs):
        return workload
    requests = [Request(run.letter, run.devices.gpus, run.collocation) for run in workload.runs]
    placed = on_given_instances(requests, read_inventory())
    return replace(
        workload,
        runs=tuple(
            replace(run, devices=Devices(request.gpus))
            for run, request in zip(workload.runs, placed, strict=True)
        ),
    )


def _as_carried(run: RunPlan, carried: Carried, rerun: bool) -> RunPlan:
    row = carried.rows.get(run.line)
    if row is not None:
        return replace(
            run,
            status=parse_status(row.text),
            repeats_done=parse_repeats(row.text),
            repeats_asked=parse_repeats_asked(row.text),
            run_id=row.run_id or run.run_id,
        )
    # What failed before the submission is tried again once, and not in each attempt.
    if run.status is RunStatus.RUNNING or (rerun and run.status in FAILURES):
        return replace(run, status=RunStatus.KILLED)
    return run


def options_of(submission: Submission) -> ExperimentOptions:
    """Return the options of a start on a node: those of the submit host that concern it."""
    names = {field.name for field in fields(ExperimentOptions)}
    given: dict[str, Any] = {
        name: value for name, value in submission.options.items() if name in names
    }
    if "sync" in given:
        given["sync"] = SyncPoint(given["sync"])
    if "busy" in given:
        given["busy"] = BusyPolicy(given["busy"])
    return replace(ExperimentOptions(**given), rerun=False, only=(), notify="", yes=True)


def series_of(submission: Submission, job: JobKey) -> dict[tuple[str, str], str]:
    """Return what the repeats of each workload share, in whichever attempt they are made."""
    return {
        (key.experiment, key.label): uuid.uuid5(
            uuid.NAMESPACE_URL, f"{submission.submission_id}/{key.experiment}/{key.label}"
        ).hex
        for key in submission.workloads(job)
    }
