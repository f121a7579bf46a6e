"""Starts the rows of a workload together: each in its keeper, all through one barrier."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from radt.errors import LaunchError
from radt.model import RunStatus
from radt.runner.active import ActiveWorkload, Ended
from radt.runner.ending import Ending
from radt.runner.process import Barrier, TrainingProcess
from radt.runner.row import Row

READY_TIMEOUT_S = 60.0
RELEASE_TIMEOUT_S = 30.0

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
    if workload.context is None:
        workload.record_barrier(released)


def _through_the_barrier(workload: ActiveWorkload) -> dict[str, int]:
    """When each row went on, by run id; monotonic ns."""
    barrier = Barrier()
    try:
        for row in workload.rows:
            _guarded(workload, row, partial(_spawn, workload, barrier))
        for row in workload.rows:
            _guarded(workload, row, lambda one: one.running.wait_ready(READY_TIMEOUT_S))
        # What is to end already ends where it stands: Ctrl-C, or a failed start with --fail-fast.
        if workload.stop or any(row.verdict is not None for row in workload.rows):
            workload.kill_all()
            return {}
        barrier.release()
        stamps = {
            row.run_id: _guarded(
                workload, row, lambda one: one.running.wait_released(RELEASE_TIMEOUT_S)
            )
            for row in workload.rows
        }
    except BaseException:
        workload.kill_all()  # before the barrier opens
        raise
    finally:
        barrier.close()
    return {run_id: stamp for run_id, stamp in stamps.items() if stamp is not None}


def _spawn(workload: ActiveWorkload, barrier: Barrier, row: Row) -> None:
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
    )


def _guarded(workload: ActiveWorkload, row: Row, action: Callable[[Row], T]) -> T | None:
    """Do it; if the row cannot be started, end that row and let its neighbours go on."""
    if row.outcome is not None:
        return None
    try:
        return action(row)
    except (LaunchError, OSError) as error:  # the latter: too many open files
        if row.process is not None:
            row.process.signal(signal.SIGKILL)
        workload.end(row, Ending(RunStatus.FAILED, str(error)))
        return None
