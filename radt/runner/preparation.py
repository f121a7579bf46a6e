"""A workload's first step: its runs get ids, folders, store rows, collector and MLflow."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from radt.collector.protocol import Registration, delivery_env
from radt.collocation.ledger import Owner
from radt.delivery.problems import EVERYTHING, problem_file, read_problems
from radt.errors import RadtError, StoreError, UsageError
from radt.experiment.plan import RunPlan
from radt.experiment.program import ProgramKind, launched_script
from radt.home import RunDir
from radt.inventory import collect_inventory
from radt.listeners.registry import load
from radt.masking import masked
from radt.model import RunStatus
from radt.params import command_params
from radt.run_name import script_name
from radt.runner.command import Profilers, program_command, workload_tags
from radt.runner.pending import PendingWorkload
from radt.runner.recording import Session
from radt.store.records import RunRecord, WorkloadRecord
from radt.tags import COLLOCATION, DEVICES, LETTER, LISTENERS, REPEAT, RUNNER, SERIES, WORKLOAD
from radt.units import seconds_text

_POLL_S = 0.01
#: How long MLflow is waited for that is known not to work; a link that dropped one connection
#: has brought the next one by then.
_LITTLE_PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run that is recorded, and not started yet."""

    plan: RunPlan
    run_id: str
    run_dir: RunDir
    profilers: Profilers


@dataclass(frozen=True, slots=True)
class RecordedWorkload:
    """A workload whose runs are recorded. ``warnings`` are for the user."""

    workload_id: str
    runs: Sequence[RecordedRun]
    warnings: Sequence[str]


@dataclass(frozen=True, slots=True)
class MlflowIds:
    """MLflow's ids: of the runs that it has, by ours, and of their experiment."""

    runs: dict[str, str]
    experiment: str | None


def record_workload(session: Session, pending: PendingWorkload, series_id: str) -> RecordedWorkload:
    """Record the rows of a workload and register them with the collector.

    Args:
        series_id: The same for all repeats of one workload.

    Raises:
        RadtError: The store or the collector refuses; what was recorded is ended as FAILED.
    """
    workload_id = uuid.uuid4().hex
    registry = load()
    with session.writer.transaction():
        rows = [_named(session, row) for row in pending.plan.runs]
        runs = [_with_folder(session, row, Profilers.of(row, registry)) for row in rows]
        _record(session, pending, runs, workload_id, series_id)
    try:
        warnings = _register(session, runs)
    except RadtError as error:
        _abandon(session, workload_id, runs, str(error))
        raise
    return RecordedWorkload(workload_id, runs, warnings)


def _named(session: Session, row: RunPlan) -> RunPlan:
    """Return the row with a name that tells it apart if it is a script run by itself."""
    if row.name or row.model or row.workload:
        return row
    name = script_name(*_launched(row))
    return replace(row, name=session.writer.numbered_name(name, row.experiment))


def _launched(row: RunPlan) -> tuple[str, tuple[str, ...]]:
    """Return the script and its arguments; those of a launcher's script, not of the launcher."""
    at = launched_script(row.params) if row.program.kind is ProgramKind.COMMAND else None
    if at is None:
        return row.program.label, row.params
    return Path(row.params[at]).stem, row.params[at + 1 :]


def _with_folder(session: Session, row: RunPlan, profilers: Profilers) -> RecordedRun:
    run_id = uuid.uuid4().hex
    folder = session.home.run_dir(run_id)
    try:
        run = RecordedRun(row, run_id, folder.create(), profilers)
        profilers.make_folder(folder)
    except OSError as error:
        raise StoreError(
            f"cannot create the run's folder {folder.path}: {error.strerror}",
            "Free disk space, or check the permissions of its parent folders",
        ) from error
    return run


def wait_for_mlflow(
    session: Session, workload: RecordedWorkload, cancelled: Callable[[], bool]
) -> tuple[MlflowIds, str]:
    """MLflow's ids as soon as all are known or the time is over, and a warning in that case.

    None are known, without a warning, where runs are recorded without MLflow.
    """
    if not session.tracking_uri:
        return MlflowIds({}, None), ""
    run_ids = [run.run_id for run in workload.runs]
    trouble = _Trouble(session)
    known = _wait_for_runs(session, run_ids, lambda: cancelled() or trouble.lasts)
    warning = ""
    if not cancelled():
        if missed := len(known) < len(run_ids):
            why = trouble.text or f"no answer within {session.mlflow_patience.timeout_s:.0f} s"
            warning = (
                f"MLflow at {masked(session.tracking_uri)}: {why}; runs start now and are "
                "uploaded when it answers"
            )
        session.mlflow_patience.answered(in_time=not missed)
    experiment = session.reader.workload(workload.workload_id).mlflow_experiment_id
    return MlflowIds(known, experiment), warning


class _Trouble:
    """What keeps MLflow away, as far as its deliverer has found out since we wait."""

    def __init__(self, session: Session) -> None:
        self._file = problem_file(session.home.store_path, session.tracking_uri)
        self._since_ns = time.time_ns()
        self._patient_until_s = time.monotonic() + _LITTLE_PATIENCE_S

    @property
    def text(self) -> str:
        """Empty if nothing is known."""
        problem = read_problems(self._file).get(EVERYTHING)
        return problem.text if problem is not None and problem.last_ns >= self._since_ns else ""

    @property
    def lasts(self) -> bool:
        """Whether waiting any longer is vain."""
        return time.monotonic() >= self._patient_until_s and bool(self.text)


def _wait_for_runs(
    session: Session, run_ids: Sequence[str], cancelled: Callable[[], bool]
) -> dict[str, str]:
    deadline = time.monotonic() + session.mlflow_patience.timeout_s
    while True:
        known = {
            run.run_id: run.mlflow_run_id
            for run in session.reader.runs(run_ids=list(run_ids))
            if run.mlflow_run_id
        }
        if len(known) == len(run_ids) or time.monotonic() >= deadline or cancelled():
            return known
        time.sleep(_POLL_S)


def _abandon(session: Session, workload_id: str, runs: Sequence[RecordedRun], reason: str) -> None:
    """Nothing was started, and nothing of it may look as if it were about to run."""
    now_ns = session.clock.now_ns()
    with session.writer.transaction():
        for run in runs:
            session.writer.end_run(run.run_id, RunStatus.FAILED, now_ns, reason=reason)
        session.writer.update_workload(workload_id, status=RunStatus.FAILED, ended_ns=now_ns)


def _record(
    session: Session,
    pending: PendingWorkload,
    runs: Sequence[RecordedRun],
    workload_id: str,
    series_id: str,
) -> None:
    now_ns = session.clock.now_ns()
    profiled = workload_tags({run.plan.letter: run.profilers for run in runs})
    with session.writer.transaction():
        session.writer.put_workload(
            WorkloadRecord(
                workload_id=workload_id,
                experiment=pending.plan.experiment,
                label=pending.plan.label,
                created_ns=now_ns,
                tracking_uri=session.tracking_uri,
            )
        )
        for run in runs:
            session.writer.put_run(_run_record(session, run, workload_id, now_ns))
            session.writer.put_params(run.run_id, _params(run.plan))
            inventory = collect_inventory(
                run.plan.program.folder, run.run_dir.artifacts, interpreter=sys.executable
            )
            tags = _tags(pending, run.plan, series_id) | profiled[run.plan.letter]
            session.writer.put_tags(run.run_id, tags | inventory.tags)


def _run_record(session: Session, run: RecordedRun, workload_id: str, now_ns: int) -> RunRecord:
    row = run.plan
    return RunRecord(
        run_id=run.run_id,
        workload_id=workload_id,
        experiment=row.experiment,
        workload=row.workload,
        letter=row.letter,
        name=row.label,
        created_ns=now_ns,
        status=RunStatus.SCHEDULED,
        devices=str(row.devices),
        collocation=str(row.collocation),
        listeners=_listeners(row),
        command=_command_text(row),
        host=platform.node(),
        spool=str(run.run_dir.path),
        tracking_uri=session.tracking_uri,
    )


def _command_text(row: RunPlan) -> str:
    try:
        return shlex.join(program_command(row, Path(sys.executable)))
    except UsageError:  # an MLproject file that was changed meanwhile: set-up says what is wrong
        return shlex.join([str(row.program.path), *row.params])


def _params(row: RunPlan) -> dict[str, str]:
    """The command line, and every column that says what the run is."""
    params = command_params(row.program.recorded, row.arguments, _launched(row)[1])
    columns = {
        "Environment": str(row.environment),
        "Cpus": str(row.cpus) if row.cpus.count or row.cpus.cpus else "",
        "Timeout": f"{seconds_text(row.timeout_s)} s" if row.timeout_s is not None else "",
        **row.columns,
    }
    # What the script is called with wins: a column of the same name is mostly where it came from.
    return {name: value for name, value in columns.items() if value} | params


def _tags(pending: PendingWorkload, row: RunPlan, series_id: str) -> dict[str, str]:
    tags = {
        WORKLOAD: row.workload,
        LETTER: row.letter,
        DEVICES: str(row.devices),
        COLLOCATION: str(row.collocation),
        LISTENERS: _listeners(row),
        RUNNER: str(Owner.me()),
    }
    if pending.repeats > 1:
        tags |= {REPEAT: f"{pending.repeat}/{pending.repeats}", SERIES: series_id}
    return tags


def _listeners(row: RunPlan) -> str:
    return "+".join(map(str, row.listeners))


def _register(session: Session, runs: Sequence[RecordedRun]) -> list[str]:
    env = delivery_env(os.environ)
    warnings: dict[str, None] = {}  # the same for each row mostly; an ordered set
    for run in runs:
        answer = session.client.register(
            Registration(
                run_id=run.run_id,
                store_path=str(session.home.store_path),
                spool=str(run.run_dir.path),
                tracking_uri=session.tracking_uri,
                store_uri=session.store_uri,
                listeners=run.profilers.sampled,
                devices=tuple(str(index) for index in run.plan.devices.gpus),
                env=env,
                profiler=run.profilers.on_counters,
            )
        )
        warnings |= dict.fromkeys(answer)
    return list(warnings)
