"""A workload's first step: give its runs ids, folders, and rows in store, collector and MLflow.

Training needs only the folders. If the store or the collector does not work now, it later reads
the runs' folders (`radt.collector.manifest`).
"""

from __future__ import annotations

import os
import platform
import shlex
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from radt.collector.manifest import Manifest
from radt.collector.protocol import Registration, RunRequest, delivery_env
from radt.collocation.ledger import ProcessOwner
from radt.delivery.problems import EVERYTHING, MLFLOW, read_problems
from radt.environments.spec import LOCAL
from radt.errors import CollectorError, StoreError, UsageError
from radt.experiment.plan import RunPlan
from radt.experiment.program import ProgramKind, launched_script
from radt.home import REPORTS, RunDir
from radt.listeners.registry import load
from radt.masking import masked
from radt.params import command_params
from radt.paths import is_database
from radt.provenance import Provenance, collect_provenance
from radt.run_name import script_name
from radt.runner.command import Profilers, program_command, workload_tags
from radt.runner.context import RunnerContext
from radt.runner.options import PendingWorkload
from radt.tags import (
    COLLOCATION,
    DEVICES,
    GROUPED_BY,
    LETTER,
    LISTENERS,
    REPEAT,
    ROLE,
    RUNNER,
    SERIES,
    START,
    WORKLOAD,
)
from radt.units import seconds_text

_POLL_S = 0.01
#: Seconds to wait for MLflow when it is known to be failing; a link that dropped one connection
#: has made the next one by then.
_LITTLE_PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run that is recorded and not started yet."""

    plan: RunPlan
    run_id: str
    run_dir: RunDir
    profilers: Profilers
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class RecordedWorkload:
    """A workload whose runs are recorded. ``warnings`` are for the user.

    ``in_store`` is False while only the runs' folders have them.
    """

    workload_id: str
    runs: Sequence[RecordedRun]
    warnings: Sequence[str]
    in_store: bool = True


@dataclass(frozen=True, slots=True)
class MlflowIds:
    """MLflow's ids of the runs it has, keyed by radt's ids, and of their experiment.

    With ``pending``, the rows wait for MLflow by themselves, when they first use it.
    """

    runs: dict[str, str]
    experiment: str | None = None
    pending: bool = False


def record_workload(
    context: RunnerContext, pending: PendingWorkload, series_id: str
) -> RecordedWorkload:
    """Record the rows of a workload and register them with the collector.

    Args:
        series_id: Shared by all repeats of one workload.

    Raises:
        StoreError: The runs' folders cannot be made.
        ClusterError: The first of several nodes is gone.
    """
    rows, registry = pending.plan.runs, load()
    if context.multi_node is None:
        workload_id, run_ids = uuid.uuid4().hex, {row.letter: uuid.uuid4().hex for row in rows}
    else:
        shared = context.multi_node.begin([row.letter for row in rows])
        workload_id, run_ids = shared.workload_id, dict(shared.run_ids)
    runs: Sequence[RecordedRun] = [
        _with_folder(context, row, run_ids[row.letter], Profilers.of(row, registry)) for row in rows
    ]
    requests = _requests(context, pending, runs, workload_id, series_id)
    runs, problem = _record(context, runs, requests)
    # Mostly the same for each row; the dict serves as an ordered set.
    warnings = dict.fromkeys(text for run in runs for text in run.provenance.problems)
    warnings |= dict.fromkeys(_register(context, requests))
    if problem is not None:
        context.notices.note_problem(problem.message)
    return RecordedWorkload(workload_id, runs, list(warnings), in_store=problem is None)


def _is_numbered(row: RunPlan) -> bool:
    """Return True for a script run without a file, whose run names are told apart by numbers."""
    return not (row.name or row.model or row.workload)


def _launched(row: RunPlan) -> tuple[str, tuple[str, ...]]:
    """Return the script and its arguments; for a launcher, those of the script it launches."""
    launched = launched_script(row.params) if row.program.kind is ProgramKind.COMMAND else None
    return launched or (row.program.label, row.params)


def _with_folder(
    context: RunnerContext, row: RunPlan, run_id: str, profilers: Profilers
) -> RecordedRun:
    folder = context.home.run_dir(run_id)
    try:
        provenance = collect_provenance(row.program.folder, folder.create().artifacts)
        run = RecordedRun(row, run_id, folder, profilers, provenance)
        if profilers.chosen:
            (folder.artifacts / REPORTS).mkdir(exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"cannot create the run's folder {folder.path}: {error.strerror}",
            "Free disk space, or check the permissions of its parent folders",
        ) from error
    return run


def wait_for_mlflow(context: RunnerContext, workload: RecordedWorkload) -> tuple[MlflowIds, str]:
    """Wait for MLflow ids; return those known by the deadline, and a warning if some are missing.

    Waits only for rows whose MLflow may not know radt: those in other environments, and programs.
    Without MLflow, returns no ids and no warning.
    """
    if not context.tracking_uri or not workload.in_store or context.client.away is not None:
        return MlflowIds({}), ""  # without a collector nothing uploads
    run_ids = [run.run_id for run in workload.runs]
    # The script's own MLflow waits for its run (`radt.run.mlflow_calls`).
    if all(run.plan.program.is_python and run.plan.environment == LOCAL for run in workload.runs):
        # In a database backend radt chooses the ids (`MlflowTarget.create_run`).
        chosen = run_ids if is_database(context.tracking_uri) else []
        return MlflowIds(dict(zip(chosen, chosen, strict=True)), pending=True), ""
    try:
        context.client.flush(context.home.store_path)
    except CollectorError as error:
        context.notices.note(error, refused=context.client.away is None)
        return MlflowIds({}), ""
    since_ns, began_s = time.time_ns(), time.monotonic()
    known = _known_to_mlflow(context, run_ids)
    trouble = ""
    while len(known) < len(run_ids) and not context.stop:
        waited_s = time.monotonic() - began_s
        if waited_s >= min(_LITTLE_PATIENCE_S, context.mlflow_timeout_s):
            trouble = _trouble(context, since_ns)
            if trouble or waited_s >= context.mlflow_timeout_s:
                break
        time.sleep(_POLL_S)
        known = _known_to_mlflow(context, run_ids)
    warning = ""
    if not context.stop:
        if missed := len(known) < len(run_ids):
            why = trouble or f"no answer within {context.mlflow_timeout_s:.0f} s"
            warning = (
                f"MLflow at {masked(context.tracking_uri)}: {why}; runs start now and are "
                "uploaded when it answers"
            )
        # A server that has failed once delays the next workload less.
        context.mlflow_timeout_s = 1.0 if missed else 60.0
    experiment = context.reader.workload(workload.workload_id).mlflow_experiment_id
    return MlflowIds(known, experiment), warning


def _known_to_mlflow(context: RunnerContext, run_ids: Sequence[str]) -> dict[str, str]:
    """Return MLflow's ids of the runs that it has."""
    runs = context.reader.runs(run_ids=list(run_ids))
    return {run.run_id: run.mlflow_run_id for run in runs if run.mlflow_run_id}


def _trouble(context: RunnerContext, since_ns: int) -> str:
    """Return the MLflow deliverer's problem since `since_ns`; "" if there is none."""
    problems = read_problems(context.home.store_path, MLFLOW, context.tracking_uri)
    problem = problems.get(EVERYTHING)
    return problem.text if problem is not None and problem.last_ns >= since_ns else ""


def _requests(
    context: RunnerContext,
    pending: PendingWorkload,
    runs: Sequence[RecordedRun],
    workload_id: str,
    series_id: str,
) -> list[RunRequest]:
    """Return all data for the rows of the runs."""
    now_ns = time.monotonic_ns()
    profiled = workload_tags({run.plan.letter: run.profilers for run in runs})
    requests = []
    for run in runs:
        row = run.plan
        tags = _tags(context, pending, row, series_id) | profiled[row.letter]
        registration = Registration(
            run_id=run.run_id,
            store_path=str(context.home.store_path),
            spool=str(run.run_dir.path),
            tracking_uri=context.tracking_uri,
            store_uri=context.store_uri,
            listeners=run.profilers.sampled,
            devices=tuple(str(index) for index in row.devices.gpus),
            env=delivery_env(os.environ),
            profiler=run.profilers.on_counters,
        )
        request = RunRequest(
            registration=registration,
            workload_id=workload_id,
            experiment=row.experiment,
            pid=os.getpid(),
            started_monotonic_ns=now_ns,
            workload=row.workload,
            letter=row.letter,
            name=script_name(*_launched(row)) if _is_numbered(row) else row.label,
            is_numbered=_is_numbered(row),
            command=command_text(row),
            host=platform.node(),
            devices=str(row.devices),
            collocation=str(row.collocation),
            has_runner=True,
            params=_params(row),
            tags=tags | run.provenance.tags,
        )
        requests.append(request)
    return requests


def _record(
    context: RunnerContext, runs: Sequence[RecordedRun], requests: Sequence[RunRequest]
) -> tuple[Sequence[RecordedRun], StoreError | None]:
    """Write the rows of all runs, and each run's own manifest.

    Returns the runs with their final names, and the reason why there are no rows, if so.

    Raises:
        StoreError: Neither can be written, so the runs would be lost.
    """
    unwritten: OSError | None = None
    for request in requests:
        try:
            Manifest.of_this_process(request).write()
        except OSError as error:
            unwritten = error
    try:
        names = context.client.record(requests)
    except CollectorError:
        try:
            from radt.collector.rows import record_runs  # needs SQLAlchemy, see `radt.store.peek`

            names = record_runs(context.writer, context.reader, requests, context.clock)
        except StoreError as error:
            if unwritten is not None:
                raise
            return runs, error
    return [
        replace(run, plan=replace(run.plan, name=name)) if _is_numbered(run.plan) else run
        for run, name in zip(runs, names, strict=True)
    ], None


def command_text(row: RunPlan) -> str:
    """Return the command of a row, as it is recorded."""
    try:
        return shlex.join(program_command(row, Path(sys.executable)))
    except UsageError:  # the MLproject file has changed meanwhile: set-up reports what is wrong
        return shlex.join([str(row.program.path), *row.params])


def _params(row: RunPlan) -> dict[str, str]:
    """Return the command line's parameters, and every column that describes the run."""
    params = command_params(row.program.recorded, row.arguments, _launched(row)[1])
    columns = {
        "Environment": str(row.environment),
        "Cpus": str(row.cpus) if row.cpus.count or row.cpus.cpus else "",
        "Timeout": f"{seconds_text(row.timeout_s)} s" if row.timeout_s is not None else "",
        **row.columns,
    }
    # The script's parameters win: a column of the same name is mostly where they came from.
    return {name: value for name, value in columns.items() if value} | params


def _tags(
    context: RunnerContext, pending: PendingWorkload, row: RunPlan, series_id: str
) -> dict[str, str]:
    tags = {
        WORKLOAD: row.workload,
        LETTER: row.letter,
        DEVICES: str(row.devices),
        COLLOCATION: str(row.collocation),
        LISTENERS: "+".join(map(str, row.listeners)),
        RUNNER: str(ProcessOwner.me()),
        **context.tags,
    }
    if row.is_service:
        tags[ROLE] = str(row.role)
    if pending.grouped_by:
        tags[GROUPED_BY] = pending.grouped_by
    if context.resume_options:
        tags[START] = context.resume_options
    if pending.repeats > 1:
        tags |= {REPEAT: f"{pending.repeat}/{pending.repeats}", SERIES: series_id}
    return tags


def _register(context: RunnerContext, requests: Sequence[RunRequest]) -> list[str]:
    """Register the runs; return the collector's warnings. If it is away, it finds them later."""
    warnings: list[str] = []
    for request in requests:
        try:
            warnings += context.client.register(request.registration)
        except CollectorError as error:
            context.notices.note(error, refused=context.client.away is None)
        else:
            context.notices.note(None)
    return warnings
