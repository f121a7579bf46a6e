"""A workload's first step: its runs get ids, folders, store rows, collector and MLflow.

None of these but the folders is needed to train: a store or a collector that does not work now gets
from the runs' folders (`radt.collector.manifest`) what it has missed.
"""

from __future__ import annotations

import os
import platform
import shlex
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import distribution
from pathlib import Path

from radt.collector.manifest import Manifest
from radt.collector.protocol import Registration, StandaloneRun, delivery_env
from radt.collocation.ledger import Owner
from radt.delivery.problems import EVERYTHING, problem_file, read_problems
from radt.environments.spec import LOCAL
from radt.errors import CollectorError, StoreError, UsageError
from radt.experiment.plan import RunPlan
from radt.experiment.program import ProgramKind, launched_script
from radt.home import RunDir
from radt.inventory import Inventory, collect_inventory
from radt.listeners.registry import load
from radt.masking import masked
from radt.params import command_params
from radt.paths import is_database
from radt.run_name import script_name
from radt.runner.command import Profilers, program_command, workload_tags
from radt.runner.pending import PendingWorkload
from radt.runner.recording import Session
from radt.tags import (
    COLLOCATION,
    DEVICES,
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
    inventory: Inventory


@dataclass(frozen=True, slots=True)
class RecordedWorkload:
    """A workload whose runs are recorded. ``warnings`` are for the user.

    ``in_store`` is False while only the runs' folders know of them.
    """

    workload_id: str
    runs: Sequence[RecordedRun]
    warnings: Sequence[str]
    in_store: bool = True


@dataclass(frozen=True, slots=True)
class MlflowIds:
    """MLflow's ids: of the runs that it has, by ours, and of their experiment.

    ``pending`` is whether the rows wait for MLflow by themselves, and only when they use it.
    """

    runs: dict[str, str]
    experiment: str | None = None
    pending: bool = False


def record_workload(session: Session, pending: PendingWorkload, series_id: str) -> RecordedWorkload:
    """Record the rows of a workload and register them with the collector.

    Args:
        series_id: The same for all repeats of one workload.

    Raises:
        StoreError: The runs' folders cannot be made.
        ClusterError: The first of several nodes is gone.
    """
    rows, registry = pending.plan.runs, load()
    if session.spread is None:
        workload_id, run_ids = uuid.uuid4().hex, {row.letter: uuid.uuid4().hex for row in rows}
    else:
        shared = session.spread.begin([row.letter for row in rows])
        workload_id, run_ids = shared.workload_id, dict(shared.run_ids)
    runs: Sequence[RecordedRun] = [
        _with_folder(session, row, run_ids[row.letter], Profilers.of(row, registry)) for row in rows
    ]
    runs, problem = _record(session, pending, runs, workload_id, series_id)
    # The same for each row mostly; an ordered set.
    warnings = dict.fromkeys(text for run in runs for text in run.inventory.problems)
    warnings |= dict.fromkeys(_register(session, runs))
    if problem is not None:
        session.presence.note_problem(problem.message)
    return RecordedWorkload(workload_id, runs, list(warnings), in_store=problem is None)


def _is_numbered(row: RunPlan) -> bool:
    """Whether the row is a script run by itself, whose name tells its runs apart."""
    return not (row.name or row.model or row.workload)


def _launched(row: RunPlan) -> tuple[str, tuple[str, ...]]:
    """Return the script and its arguments; those of a launcher's script, not of the launcher."""
    launched = launched_script(row.params) if row.program.kind is ProgramKind.COMMAND else None
    return launched or (row.program.label, row.params)


def _with_folder(session: Session, row: RunPlan, run_id: str, profilers: Profilers) -> RecordedRun:
    folder = session.home.run_dir(run_id)
    try:
        inventory = collect_inventory(
            row.program.folder, folder.create().artifacts, interpreter=sys.executable
        )
        run = RecordedRun(row, run_id, folder, profilers, inventory)
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

    Only rows wait whose MLflow need not know radt: those of other environments and programs. None
    are known, without a warning, where runs are recorded without MLflow.
    """
    if not session.tracking_uri or not workload.in_store or session.client.away is not None:
        return MlflowIds({}), ""  # without a collector nobody uploads
    run_ids = [run.run_id for run in workload.runs]
    if all(_can_wait_itself(run.plan) for run in workload.runs):
        # A database gives runs the ids that we choose (`MlflowTarget.create_run`).
        chosen = run_ids if is_database(session.tracking_uri) else []
        return MlflowIds(dict(zip(chosen, chosen, strict=True)), pending=True), ""
    session.client.hurry(session.home.store_path)
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


def _can_wait_itself(row: RunPlan) -> bool:
    """Whether a script's own MLflow waits for its run (`radt.run.mlflow_calls`)."""
    return row.program.is_python and row.environment == LOCAL and _has_plugin()


@cache
def _has_plugin() -> bool:
    """Whether MLflow finds it; not so where an installation in place is older than the plug-in."""
    group = "mlflow.default_experiment_provider"
    return any(point.group == group for point in distribution("radt").entry_points)


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


def _record(
    session: Session,
    pending: PendingWorkload,
    runs: Sequence[RecordedRun],
    workload_id: str,
    series_id: str,
) -> tuple[Sequence[RecordedRun], StoreError | None]:
    """Write the rows of all runs, and what each says of itself.

    Returns the runs with the names that they got, and why there are no rows.

    Raises:
        StoreError: Neither can be written: nobody would ever know of the runs.
    """
    now_ns = time.monotonic_ns()
    profiled = workload_tags({run.plan.letter: run.profilers for run in runs})
    descriptions = [
        _description(
            session,
            run,
            workload_id,
            now_ns,
            _tags(session, pending, run.plan, series_id) | profiled[run.plan.letter],
        )
        for run in runs
    ]
    unwritten: OSError | None = None
    for description in descriptions:
        try:
            Manifest.of_this_process(description).write()
        except OSError as error:
            unwritten = error
    try:
        names = session.client.record(descriptions)
    except CollectorError:
        try:
            names = _write_rows(session, descriptions)
        except StoreError as error:
            if unwritten is not None:
                raise
            return runs, error
    return [
        replace(run, plan=replace(run.plan, name=name)) if _is_numbered(run.plan) else run
        for run, name in zip(runs, names, strict=True)
    ], None


def _write_rows(session: Session, descriptions: Sequence[StandaloneRun]) -> list[str]:
    """Write the rows of runs without the collector; return the runs' names."""
    from radt.collector.rows import put_rows  # needs SQLAlchemy, see `radt.store.peek`

    with session.writer.transaction():
        return [
            put_rows(session.writer, session.reader, description, session.clock)
            for description in descriptions
        ]


def _description(
    session: Session, run: RecordedRun, workload_id: str, now_ns: int, tags: Mapping[str, str]
) -> StandaloneRun:
    row = run.plan
    return StandaloneRun(
        registration=_registration(session, run),
        workload_id=workload_id,
        experiment=row.experiment,
        pid=os.getpid(),
        started_monotonic_ns=now_ns,
        workload=row.workload,
        letter=row.letter,
        name=script_name(*_launched(row)) if _is_numbered(row) else row.label,
        is_numbered=_is_numbered(row),
        command=_command_text(row),
        host=platform.node(),
        devices=str(row.devices),
        collocation=str(row.collocation),
        has_runner=True,
        params=_params(row),
        tags=dict(tags) | run.inventory.tags,
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


def _tags(
    session: Session, pending: PendingWorkload, row: RunPlan, series_id: str
) -> dict[str, str]:
    tags = {
        WORKLOAD: row.workload,
        LETTER: row.letter,
        DEVICES: str(row.devices),
        COLLOCATION: str(row.collocation),
        LISTENERS: _listeners(row),
        RUNNER: str(Owner.me()),
        **session.tags,
    }
    if row.is_service:
        tags[ROLE] = str(row.role)
    if session.start_options:
        tags[START] = session.start_options
    if pending.repeats > 1:
        tags |= {REPEAT: f"{pending.repeat}/{pending.repeats}", SERIES: series_id}
    return tags


def _listeners(row: RunPlan) -> str:
    return "+".join(map(str, row.listeners))


def _registration(session: Session, run: RecordedRun) -> Registration:
    return Registration(
        run_id=run.run_id,
        store_path=str(session.home.store_path),
        spool=str(run.run_dir.path),
        tracking_uri=session.tracking_uri,
        store_uri=session.store_uri,
        listeners=run.profilers.sampled,
        devices=tuple(str(index) for index in run.plan.devices.gpus),
        env=delivery_env(os.environ),
        profiler=run.profilers.on_counters,
    )


def _register(session: Session, runs: Sequence[RecordedRun]) -> list[str]:
    """Tell the collector of the runs; one that is away joins when it can."""
    warnings: list[str] = []
    for run in runs:
        try:
            warnings += session.client.register(_registration(session, run))
        except CollectorError as error:
            session.presence.note(error, refused=session.client.away is None)
        else:
            session.presence.note(None)
    return warnings
