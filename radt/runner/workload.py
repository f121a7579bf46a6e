"""Runs one workload: set-up, start, following, clean-up; no process is left behind."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from radt.errors import LaunchError, RowsChangedError
from radt.experiment.status import StatusSink
from radt.model import RunStatus, short_id
from radt.runner.active import ActiveRun, ActiveWorkload, Ended, StopRequest
from radt.runner.barrier import Barrier, ContextBarrier
from radt.runner.command import Limits
from radt.runner.file_wait import FileWait
from radt.runner.follow import Follower
from radt.runner.live import RunView, WorkloadView
from radt.runner.outcome import RunEnd, WorkloadOutcome
from radt.runner.pending import ExperimentOptions, PendingWorkload, SyncPoint
from radt.runner.preparation import (
    MlflowIds,
    RecordedWorkload,
    record_workload,
    wait_for_mlflow,
)
from radt.runner.process import TrainingProcess
from radt.runner.provision import Provision, SetUpError
from radt.runner.recording import Recording, Session
from radt.tags import PROFILER_NOTICE
from radt.usage import usage_file

READY_TIMEOUT_S = 60.0
RELEASE_TIMEOUT_S = 30.0
#: A sleep ends so much too late: the rest of the time until nodes let go is waited without one.
_SPIN_NS = 500_000
#: Who ends a whole job tells its processes one by one, and the runner so long after the first.
_TOLD_S = 1.0

T = TypeVar("T")


def start_together(workload: ActiveWorkload) -> None:
    """Start all rows; one that cannot be started ends, and its neighbours go on."""
    released = _through_the_barrier(workload)
    workload.view.state = ""
    setup = workload.provision.devices
    for row in workload.rows:
        if row.run_id in released:
            workload.recording.started(
                row.run_id,
                row.running.pid,
                released[row.run_id],
                setup.devices(row.letter) if setup is not None else None,
            )
            row.view.status = RunStatus.RUNNING
            row.started_monotonic_s = released[row.run_id] / 1e9
            row.view.started_monotonic_s = row.started_monotonic_s
    everywhere: Mapping[str, int] = released
    if (spread := workload.session.spread) is not None:
        everywhere = spread.released(released)
        for row in workload.rows:
            workload.recording.tags(row.run_id, dict(spread.tags))
    if workload.context is None:
        workload.record_barrier(everywhere)


def _through_the_barrier(workload: ActiveWorkload) -> dict[str, int]:
    """When each row went on, by run id; monotonic ns."""
    barrier = Barrier()
    try:
        for row in workload.rows:
            _guarded(workload, row, partial(_spawn, workload, barrier))
        for row in workload.rows:
            _guarded(workload, row, lambda active: active.running.wait_ready(READY_TIMEOUT_S))
        # What is to end already ends where it stands: Ctrl-C, or a failed start with --fail-fast.
        spread = workload.session.spread
        opens_ns = None if spread is None else spread.meet()
        is_off = spread is not None and opens_ns is None
        if is_off or workload.stop or any(row.verdict is not None for row in workload.rows):
            workload.kill_all()
            return {}
        while opens_ns is not None and (left_ns := opens_ns - time.monotonic_ns()) > 0:
            time.sleep(max(0, left_ns - _SPIN_NS) / 1e9)
        barrier.release()
        stamps = {
            row.run_id: _guarded(
                workload, row, lambda active: active.running.wait_released(RELEASE_TIMEOUT_S)
            )
            for row in workload.rows
        }
    except BaseException:
        workload.kill_all()  # before the barrier opens
        raise
    finally:
        barrier.close()
    return {run_id: stamp for run_id, stamp in stamps.items() if stamp is not None}


def _spawn(workload: ActiveWorkload, barrier: Barrier, row: ActiveRun) -> None:
    console, run = workload.session.console, row.startable
    assert run is not None
    position = workload.rows.index(row)
    row.process = TrainingProcess(
        run.command,
        run_id=row.run_id,
        cwd=row.recorded.plan.program.folder,
        env=run.env,
        barrier=barrier,
        output_log=row.recorded.run_dir.output_log,
        show=lambda line: console.output(position, row.letter, line),
        on_exit=lambda exit_: workload.events.put(Ended(row, exit_)),
        cpus=run.cpus,
        kill_command=run.kill_command,
        # What a container's client used is not what the run did.
        usage_file=None if run.kill_command else usage_file(row.recorded.run_dir.path),
    )


def _guarded(
    workload: ActiveWorkload, row: ActiveRun, action: Callable[[ActiveRun], T]
) -> T | None:
    """Do it; if the row cannot be started, end that row and let its neighbours go on."""
    if row.outcome is not None:
        return None
    try:
        return action(row)
    except (LaunchError, OSError) as error:  # the latter: too many open files
        if row.process is not None:
            row.process.signal(signal.SIGKILL)
        ending = RunEnd(RunStatus.FAILED, str(error))
        if workload.stop.wait(_TOLD_S if row.process is not None else 0.0):
            ending = RunEnd(RunStatus.KILLED, workload.stop.reason)
        workload.end(row, ending)
        return None


class WorkloadRunner:
    """Runs the rows of a workload together. One object, one call of `run`.

    Args:
        series_id: The same for all repeats of the workload.
        position: Its place among the ``total`` that this start runs, from 1.
        statuses: Writes them into the experiment file; None where there is none.
        file_wait: Waits for the file.
    """

    def __init__(
        self,
        session: Session,
        pending: PendingWorkload,
        options: ExperimentOptions,
        *,
        series_id: str,
        position: int,
        total: int,
        stop: StopRequest,
        statuses: StatusSink | None,
        file_wait: FileWait,
    ) -> None:
        self._session = session
        self._pending = pending
        self._options = options
        self._series_id = series_id
        self._stop = stop
        self._statuses = statuses
        self._file_wait = file_wait
        self._on_cpu_s = 0.0
        self._view = WorkloadView(
            position=position,
            total=total,
            label=pending.plan.label or pending.plan.runs[0].label,
            runs=[RunView(row.letter, row.label, role=row.role) for row in pending.plan.runs],
            repeat=pending.repeat,
            repeats=pending.repeats,
        )

    def run(self) -> WorkloadOutcome:
        """Run it.

        Raises:
            RadtError: The runs' folders cannot be made; nothing was started.
        """
        started_s = time.monotonic()
        self._session.console.show_live(self._view)
        recorded = record_workload(self._session, self._pending, self._series_id)
        folders = {run.run_id: run.run_dir.path for run in recorded.runs}
        if not self._pending.plan.label:
            self._announce(recorded)
        with Recording(self._session, folders, in_store=recorded.in_store) as recording:
            active = self._active(recorded, recording)
            for warning in recorded.warnings:
                if warning not in self._session.shown_warnings:
                    self._session.shown_warnings.add(warning)
                    active.say(warning)
            self._stop.on_request = active.wake
            if self._session.spread is not None:
                self._session.spread.on_news = active.wake
            problem = ""
            try:
                self._run(active, recorded)
            except Exception as error:
                problem = f"radt stopped on an error: {error}"
                raise
            finally:
                self._clean_up(active, problem or self._stop.reason)
        return WorkloadOutcome(
            label=self._view.label,
            workload_id=recorded.workload_id,
            runs=[row.outcome for row in active.rows if row.outcome is not None],
            start_skew_s=None if active.skew_ns is None else active.skew_ns / 1e9,
            repeat=self._pending.repeat,
            repeats=self._pending.repeats,
            elapsed_s=time.monotonic() - started_s,
            on_cpu_s=self._on_cpu_s,
        )

    def _announce(self, recorded: RecordedWorkload) -> None:
        """Print name and id of a script that is run by itself: no file will have them."""
        (run,) = recorded.runs
        self._view.label = self._view.runs[0].name = run.plan.label
        line = f"  run {short_id(run.run_id)} ({run.plan.label})"
        self._session.console.say(line, "dim", indent=2)

    def _active(self, recorded: RecordedWorkload, recording: Recording) -> ActiveWorkload:
        return ActiveWorkload(
            session=self._session,
            pending=self._pending,
            options=self._options,
            stop=self._stop,
            statuses=self._statuses,
            workload_id=recorded.workload_id,
            rows=[
                ActiveRun(run, view)
                for run, view in zip(recorded.runs, self._view.runs, strict=True)
            ],
            view=self._view,
            provision=Provision(
                self._session,
                recorded,
                self._options.busy,
                say=lambda text: self._session.console.progress(self._view, text),
                cancelled=lambda: bool(self._stop),
            ),
            recording=recording,
        )

    def _run(self, active: ActiveWorkload, recorded: RecordedWorkload) -> None:
        try:
            mlflow = self._set_up(active, recorded)
            if self._stop:
                return
            # A service need not enter a `with radt.Run()`, and the others may wait for it there.
            run_ids = [row.run_id for row in active.rows if not row.is_service]
            if self._options.sync is SyncPoint.CONTEXT and len(run_ids) > 1:
                active.context = ContextBarrier(run_ids, on_release=active.wake)
            self._make_startable(active, mlflow)
        except SetUpError as error:
            _give_up(active, error)
            return
        if not self._note_running(active):
            return
        follower = Follower(active)
        began_s = time.process_time()
        start_together(active)
        follower.follow()
        self._on_cpu_s = time.process_time() - began_s

    def _note_running(self, active: ActiveWorkload) -> bool:
        """Note in the file that the rows run; False if that cannot be done, and they may not.

        The next start would run them a second time.
        """
        running = dict.fromkeys(active.rows, RunEnd(RunStatus.RUNNING))
        problem = self._file_wait.write(lambda: active.write(running))
        if problem is None or self._stop:
            return True  # the start sees to a stop
        reason = f"could not be recorded in the experiment file: {problem.message}"
        edited: tuple[int, ...] = ()
        if isinstance(problem, RowsChangedError):
            edited = problem.lines
            lines = "line" if len(edited) == 1 else "lines"
            reason = (
                f"{lines} {', '.join(map(str, edited))} changed since this start; "
                "the change takes effect at the next start"
            )
        for row in active.rows:
            in_file = row.recorded.plan.line not in edited
            active.end(row, RunEnd(RunStatus.SKIPPED, reason), in_file=in_file)
        return False

    def _set_up(self, active: ActiveWorkload, recorded: RecordedWorkload) -> MlflowIds:
        """Environments, devices, CPUs, and MLflow's ids, which rows that fail here have, too.

        Raises:
            SetUpError: The workload cannot be set up.
        """
        try:
            active.provision.set_up()
        finally:
            mlflow, warning = wait_for_mlflow(
                self._session, recorded, cancelled=lambda: bool(self._stop)
            )
            for row in active.rows:
                row.mlflow_run_id = mlflow.runs.get(row.run_id)
            if warning:
                active.say(warning)
        return mlflow

    def _make_startable(self, active: ActiveWorkload, mlflow: MlflowIds) -> None:
        limits = Limits(self._options.max_time_s, self._options.max_epoch).variables()
        for row in active.rows:
            # Limits are of training; a service goes on as long as somebody trains.
            own = {} if row.is_service else limits
            barrier = active.context.variables(row.run_id) if active.context else {}
            spread = self._session.spread
            nodes = dict(spread.variables(row.letter)) if spread is not None else {}
            row.startable = active.provision.startable(row.recorded, mlflow, own | barrier | nodes)
            tags = active.provision.tags(row.letter)
            if (profiling := row.startable.profiling) is not None and profiling.notices:
                tags[PROFILER_NOTICE] = "; ".join(profiling.notices)
                active.say(f"{row.letter} {tags[PROFILER_NOTICE]}")
            active.recording.tags(row.run_id, tags)

    def _clean_up(self, active: ActiveWorkload, reason: str) -> None:
        """Nothing is left running, or set up, whatever went wrong."""
        active.kill_all()
        for row in active.rows:
            if row.outcome is None:
                active.end(row, RunEnd(RunStatus.KILLED, reason))
        active.settle()
        if active.context is not None:
            active.context.close()
        for problem in active.provision.tear_down():
            active.say(problem, "red")
        self._stop.on_request = lambda: None
        status = RunStatus.worst(row.outcome.status for row in active.rows if row.outcome)
        active.recording.workload_ended(active.workload_id, status)
        self._session.console.hide_live()


def _give_up(active: ActiveWorkload, error: SetUpError) -> None:
    """The workload cannot be set up: whose fault it is FAILED, the others are SKIPPED."""
    culprits = ", ".join(sorted(error.reasons))
    for row in active.rows:
        reason = error.reasons.get(row.letter)
        if reason is not None:
            active.end(row, RunEnd(RunStatus.FAILED, reason))
        else:
            active.end(row, RunEnd(RunStatus.SKIPPED, f"{culprits} could not be set up"))
