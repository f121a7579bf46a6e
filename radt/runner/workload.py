"""Runs one workload: set-up, start, following, clean-up. No process is left behind."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from radt.errors import LaunchError, RowsChangedError
from radt.experiment.status import StatusSink
from radt.model import RunStatus, short_id
from radt.runner.active import ActiveRun, ActiveWorkload, Ended, FileWait
from radt.runner.barrier import Barrier, ContextBarrier
from radt.runner.command import limit_variables
from radt.runner.context import RunnerContext
from radt.runner.follow import WorkloadFollower
from radt.runner.options import PendingWorkload, SyncPoint
from radt.runner.outcome import RunEnd
from radt.runner.preparation import MlflowIds, record_workload, wait_for_mlflow
from radt.runner.process import TrainingProcess
from radt.runner.progress import WorkloadProgress
from radt.runner.provision import Provision, SetUpError, blame
from radt.runner.recording import RecordingThread
from radt.tags import PROFILER_NOTICE
from radt.usage import usage_file

READY_TIMEOUT_S = 60.0
RELEASE_TIMEOUT_S = 30.0
#: `sleep` overshoots by up to this much, so spin for the last part of the wait for the barrier.
_SPIN_NS = 500_000
#: When a whole job is cancelled, its processes get the signal one after the other; the runner may
#: be this much later than the first.
_TOLD_S = 1.0

T = TypeVar("T")


def start_together(workload: ActiveWorkload) -> None:
    """Start all rows; one that cannot be started ends, and the others continue."""
    released = _through_the_barrier(workload)
    workload.progress.activity = ""
    setup = workload.provision.devices
    for row in workload.rows:
        if row.run_id in released:
            workload.recording.started(
                row.run_id,
                row.running.pid,
                released[row.run_id],
                setup.devices(row.letter) if setup is not None else None,
            )
            row.progress.status = RunStatus.RUNNING
            row.progress.started_monotonic_s = released[row.run_id] / 1e9
    everywhere: Mapping[str, int] = released
    if (multi_node := workload.context.multi_node) is not None:
        everywhere = multi_node.released(released)
        for row in workload.rows:
            workload.recording.tags(row.run_id, dict(multi_node.tags))
    if workload.context_barrier is None:
        workload.record_barrier(everywhere)


def _through_the_barrier(workload: ActiveWorkload) -> dict[str, int]:
    """Start the rows and open the barrier; return when each passed it, by run id, monotonic ns."""
    barrier = Barrier()
    try:
        for row in workload.rows:
            _guarded(workload, row, partial(_spawn, workload, barrier))
        for row in workload.rows:
            _guarded(workload, row, lambda active: active.running.wait_ready(READY_TIMEOUT_S))
        # With a stop pending (Ctrl-C, or a failed start and --fail-fast), kill behind the barrier.
        multi_node = workload.context.multi_node
        opens_ns = None if multi_node is None else multi_node.meet()
        is_off = multi_node is not None and opens_ns is None
        if multi_node is not None and is_off and not workload.stop:
            _end_with_failed(workload, multi_node.failed)
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


def _end_with_failed(workload: ActiveWorkload, failed: Mapping[str, RunEnd]) -> None:
    """Note why rows end behind the barrier: a part of a run failed, here or on another node."""
    culprit = next((f"row {letter}" for letter in failed), "another row")
    for row in workload.rows:
        own = failed.get(row.letter)
        reason = f"{culprit} did not start" if own is None else own.reason
        row.stop(RunEnd(RunStatus.KILLED, reason))


def _spawn(workload: ActiveWorkload, barrier: Barrier, row: ActiveRun) -> None:
    console, run = workload.context.console, row.startable
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
        # The usage of a container's client is not that of the run.
        usage_file=None if run.kill_command else usage_file(row.recorded.run_dir.path),
    )


def _guarded(
    workload: ActiveWorkload, row: ActiveRun, action: Callable[[ActiveRun], T]
) -> T | None:
    """Call `action`; if the row cannot be started, end that row only."""
    if row.ended:
        return None
    try:
        return action(row)
    except (LaunchError, OSError) as error:  # OSError: too many open files
        if row.process is not None:
            row.process.signal(signal.SIGKILL)
        ending = RunEnd(RunStatus.FAILED, str(error))
        if workload.stop.wait(_TOLD_S if row.process is not None else 0.0):
            ending = RunEnd(RunStatus.KILLED, workload.stop.reason)
        workload.end(row, ending)
        return None


def run_workload(
    context: RunnerContext,
    pending: PendingWorkload,
    *,
    series_id: str,
    statuses: StatusSink | None,
    file_wait: FileWait,
) -> WorkloadProgress:
    """Run the rows of a workload together; return how they ended.

    Args:
        context: The context of this start.
        pending: The workload.
        series_id: Shared by all repeats of the workload.
        statuses: Writes them into the experiment file; None if there is no file.
        file_wait: Waits for the file.

    Raises:
        RadtError: The runs' folders cannot be made; nothing was started.
    """
    started_s = time.monotonic()
    progress = pending.progress()
    progress.activity = "preparing"
    context.console.show_live(progress)
    recorded = record_workload(context, pending, series_id)
    for run, shown in zip(recorded.runs, progress.runs, strict=True):
        shown.run_id = run.run_id
    if not pending.plan.label:  # a script run directly: no file will have its name and id
        (run,) = recorded.runs
        progress.label = progress.runs[0].name = run.plan.label
        line = f"  run {short_id(run.run_id)} ({run.plan.label})"
        context.console.say(line, "dim", indent=2)
    folders = {run.run_id: run.run_dir.path for run in recorded.runs}
    with RecordingThread(context, folders, in_store=recorded.in_store) as recording:
        provision = Provision(
            context, recorded, say=lambda text: context.console.show_activity(progress, text)
        )
        active = ActiveWorkload(
            context, pending, statuses, progress, recorded, recording, provision
        )
        for warning in recorded.warnings:
            if warning not in context.shown_warnings:
                context.shown_warnings.add(warning)
                active.say(warning)
        context.stop.on_request = active.wake
        if context.multi_node is not None:
            context.multi_node.on_news = active.wake
        problem = ""
        try:
            _run(active, file_wait)
        except Exception as error:
            problem = f"radt stopped on an error: {error}"
            raise
        finally:
            _clean_up(active, problem or context.stop.reason)
    progress.elapsed_s = time.monotonic() - started_s
    return progress


def _run(active: ActiveWorkload, file_wait: FileWait) -> None:
    try:
        mlflow = _set_up(active)
        if active.stop:
            return
        # A service need not enter a `with radt.Run()`, and the others may depend on it there.
        run_ids = [row.run_id for row in active.rows if not row.is_service]
        if active.context.options.sync is SyncPoint.CONTEXT and len(run_ids) > 1:
            active.context_barrier = ContextBarrier(run_ids, on_release=active.wake)
        _make_startable(active, mlflow)
    except SetUpError as error:
        _give_up(active, error)
        return
    if not _note_running(active, file_wait):
        return
    follower = WorkloadFollower(active)
    start_together(active)
    follower.follow()


def _note_running(active: ActiveWorkload, file_wait: FileWait) -> bool:
    """Write RUNNING into the file; return False if that fails and the rows must not run.

    Otherwise the next start would run them a second time.
    """
    running = dict.fromkeys(active.rows, RunEnd(RunStatus.RUNNING))
    problem = file_wait.write(lambda: active.write(running))
    if problem is None or active.stop:
        return True  # `start_together` handles the stop
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


def _set_up(active: ActiveWorkload) -> MlflowIds:
    """Set up environments, devices and CPUs; return MLflow's ids, also for rows that fail here.

    Raises:
        SetUpError: The workload cannot be set up.
    """
    try:
        active.provision.set_up()
    finally:
        mlflow, warning = wait_for_mlflow(active.context, active.recorded)
        if warning:
            active.say(warning)
    return mlflow


def _make_startable(active: ActiveWorkload, mlflow: MlflowIds) -> None:
    limits, multi_node = limit_variables(active.context.options), active.context.multi_node
    for row in active.rows:
        # Limits apply to training; a service runs as long as a row trains.
        extra = {} if row.is_service else dict(limits)
        extra |= active.context_barrier.variables(row.run_id) if active.context_barrier else {}
        extra |= multi_node.variables(row.letter) if multi_node is not None else {}
        with blame(row.letter):
            row.startable = active.provision.startable(row.recorded, mlflow, extra)
        tags = active.provision.tags(row.letter)
        if (profiling := row.startable.profiling) is not None and profiling.notices:
            tags[PROFILER_NOTICE] = "; ".join(profiling.notices)
            active.say(f"{row.letter} {tags[PROFILER_NOTICE]}")
        active.recording.tags(row.run_id, tags)


def _clean_up(active: ActiveWorkload, reason: str) -> None:
    """End all remaining processes and rows, and undo the set-up; also after errors."""
    active.kill_all()
    for row in active.rows:
        if not row.ended:
            active.end(row, RunEnd(RunStatus.KILLED, reason))
    active.settle()
    if active.context_barrier is not None:
        active.context_barrier.close()
    for problem in active.provision.tear_down():
        active.say(problem, "red")
    active.stop.on_request = lambda: None
    status = RunStatus.worst(row.progress.status for row in active.rows)
    active.recording.workload_ended(active.recorded.workload_id, status)
    active.context.console.hide_live()


def _give_up(active: ActiveWorkload, error: SetUpError) -> None:
    """End a workload that cannot be set up: rows at fault are FAILED, the others SKIPPED."""
    culprits = ", ".join(sorted(error.reasons))
    for row in active.rows:
        reason = error.reasons.get(row.letter)
        if reason is not None:
            active.end(row, RunEnd(RunStatus.FAILED, reason))
        else:
            active.end(row, RunEnd(RunStatus.SKIPPED, f"{culprits} could not be set up"))
