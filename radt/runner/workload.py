"""Runs one workload: all rows through one barrier, each to its own end, nobody left behind."""

from __future__ import annotations

import queue
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from radt import units
from radt.errors import LaunchError, RadtError
from radt.experiment.status import RowStatus, StatusSink
from radt.model import RunStatus
from radt.runner.console import RunView, WorkloadView
from radt.runner.due import Due
from radt.runner.ending import Ending, MemoryWatch, ending_of
from radt.runner.environment import Limits
from radt.runner.options import ExperimentOptions, SyncPoint
from radt.runner.outcome import RunOutcome, WorkloadOutcome
from radt.runner.preparation import (
    MlflowIds,
    RecordedWorkload,
    record_workload,
    wait_for_mlflow,
)
from radt.runner.process import Barrier, Exit, TrainingProcess
from radt.runner.provision import Provision, SetUpError
from radt.runner.recording import Recording
from radt.runner.rendezvous import ContextBarrier
from radt.runner.row import Row
from radt.runner.session import Session
from radt.runner.stop import StopRequest

READY_TIMEOUT_S = 60.0
RELEASE_TIMEOUT_S = 30.0
JOIN_TIMEOUT_S = 10.0
#: How often the live table is brought up to date, and clocks and pending signals are looked at.
TICK_S = 0.5
STOPPED = "stopped by the user"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Ended:
    """A process has ended."""

    row: Row
    exit: Exit


class WorkloadRunner:
    """Runs the rows of a workload together. One object, one call of `run`.

    Args:
        position: Its place among the ``total`` that this start runs, from 1.
        statuses: Writes them into the experiment file; None where there is none.
    """

    def __init__(
        self,
        session: Session,
        due: Due,
        options: ExperimentOptions,
        *,
        series_id: str,
        position: int,
        total: int,
        stop: StopRequest,
        statuses: StatusSink | None,
    ) -> None:
        self._session = session
        self._due = due
        self._options = options
        self._series_id = series_id
        self._stop = stop
        self._statuses = statuses
        self._events: queue.SimpleQueue[_Ended | None] = queue.SimpleQueue()
        self._view = WorkloadView(
            position=position,
            total=total,
            label=due.plan.label or due.plan.runs[0].label,
            runs=[RunView(row.letter, row.label) for row in due.plan.runs],
            repeat=due.repeat,
            repeats=due.repeats,
        )
        self._rows: list[Row] = []
        self._skew_ns: int | None = None
        self._memory = MemoryWatch()
        self._context: ContextBarrier | None = None
        self._context_noted = False

    def run(self) -> WorkloadOutcome:
        """Set up, start together, follow to the end, clean up.

        Raises:
            RadtError: The store or the collector refuses, or the file cannot be written; nothing
                was started.
        """
        started_s = time.monotonic()
        self._session.console.show_live(self._view)
        recorded = record_workload(self._session, self._due, self._series_id)
        self._say_all(recorded.warnings)
        self._rows = [
            Row(run, view) for run, view in zip(recorded.runs, self._view.runs, strict=True)
        ]
        self._provision = Provision(
            self._session,
            recorded,
            self._options.busy,
            say=self._progress,
            cancelled=lambda: bool(self._stop),
        )
        with Recording(self._session) as self._recording:
            self._stop.on_request = lambda: self._events.put(None)
            try:
                self._run(recorded)
            finally:
                self._kill_the_rest()
                self._say_all(self._provision.tear_down(), style="red")
                self._stop.on_request = lambda: None
                status = RunStatus.worst(row.outcome.status for row in self._rows if row.outcome)
                self._recording.workload_ended(recorded.workload_id, status)
                self._session.console.hide_live()
        return WorkloadOutcome(
            label=self._view.label,
            workload_id=recorded.workload_id,
            runs=[row.outcome for row in self._rows if row.outcome is not None],
            start_skew_s=None if self._skew_ns is None else self._skew_ns / 1e9,
            repeat=self._due.repeat,
            repeats=self._due.repeats,
            elapsed_s=time.monotonic() - started_s,
        )

    def _run(self, recorded: RecordedWorkload) -> None:
        failure: SetUpError | None = None
        try:
            self._provision.set_up()
        except SetUpError as error:
            failure = error
        mlflow, warning = wait_for_mlflow(
            self._session, recorded, cancelled=lambda: bool(self._stop)
        )
        self._say_all([warning] if warning else [])
        for row in self._rows:
            row.mlflow_run_id = mlflow.runs.get(row.run_id)
        if failure is not None:
            self._give_up(failure)
            return
        if self._stop:
            return
        if self._options.sync is SyncPoint.CONTEXT and len(self._rows) > 1:
            self._context = ContextBarrier(
                [row.run_id for row in self._rows], on_release=lambda: self._events.put(None)
            )
        try:
            self._make_startable(mlflow)
            running = status_text(
                Ending(RunStatus.RUNNING, ""), self._due.repeat, self._due.repeats
            )
            self._write(dict.fromkeys(self._rows, running))
            self._start(recorded.workload_id)
            self._follow(recorded.workload_id)
            self._note_context(recorded.workload_id)
        except SetUpError as error:
            self._give_up(error)
        finally:
            if self._context is not None:
                self._context.close()

    def _make_startable(self, mlflow: MlflowIds) -> None:
        limits = Limits(self._options.max_time_s, self._options.max_epoch).variables()
        for row in self._rows:
            extra = limits | (self._context.variables(row.run_id) if self._context else {})
            row.startable = self._provision.startable(row.recorded, mlflow, extra)
            self._recording.tags(row.run_id, self._provision.tags(row.letter))

    # Start -----------------------------------------------------------------------------------

    def _start(self, workload_id: str) -> None:
        barrier = Barrier()
        try:
            for row in self._rows:
                self._guarded(row, partial(self._spawn, barrier=barrier))
            for row in self._rows:
                self._guarded(row, lambda one: one.running.wait_ready(READY_TIMEOUT_S))
            barrier.release()
            released = {
                row.run_id: stamp
                for row in self._rows
                if (stamp := self._guarded(row, _wait_released)) is not None
            }
        finally:
            barrier.close()
        self._view.state = ""
        for row in self._rows:
            if row.run_id in released:
                self._recording.started(row.run_id, row.running.pid, released[row.run_id])
                row.view.status = RunStatus.RUNNING
                row.started_monotonic_s = released[row.run_id] / 1e9
                row.view.started_monotonic_s = row.started_monotonic_s
        if self._context is None:
            self._record_barrier(workload_id, released)
        else:
            self._view.state = "waiting for each other at `with radt.Run()`"

    def _spawn(self, row: Row, barrier: Barrier) -> None:
        console, run = self._session.console, row.startable
        assert run is not None
        position = self._rows.index(row)
        row.process = TrainingProcess(
            run.command,
            run_id=row.run_id,
            cwd=row.recorded.plan.program.folder,
            env=run.env,
            barrier=barrier,
            output_log=row.recorded.run_dir.output_log,
            show=lambda line: console.output(position, row.letter, line),
            on_exit=lambda exit_: self._events.put(_Ended(row, exit_)),
            cpus=run.cpus,
            kill_command=run.kill_command,
        )

    def _guarded(self, row: Row, action: Callable[[Row], T]) -> T | None:
        """Do it; if the row cannot be started, end that row and let its neighbours go on."""
        if row.outcome is not None:
            return None
        try:
            return action(row)
        except LaunchError as error:
            if row.process is not None:
                row.process.signal(signal.SIGKILL)
            self._end(row, Ending(RunStatus.FAILED, str(error)))
            return None

    def _record_barrier(self, workload_id: str, released: Mapping[str, int]) -> None:
        if not released:
            return
        barrier_ns = min(released.values())
        if len(released) > 1:  # one run alone has no skew, rather than none of it
            self._skew_ns = max(released.values()) - barrier_ns
            self._view.state = f"barrier skew {units.duration(self._skew_ns / 1e9)}"
        self._view.started_monotonic_s = barrier_ns / 1e9
        self._recording.barrier(workload_id, barrier_ns, self._skew_ns)

    def _note_context(self, workload_id: str) -> None:
        """With ``--sync context``, the start is where the blocks were entered."""
        if self._context is not None and not self._context_noted:
            self._context_noted = True
            self._record_barrier(workload_id, self._context.released_ns)

    # Follow ----------------------------------------------------------------------------------

    def _follow(self, workload_id: str) -> None:
        """Until every row has ended; signals pass through here."""
        next_tick_s = time.monotonic()
        while any(row.outcome is None for row in self._rows):
            try:
                event = self._events.get(timeout=max(0.0, next_tick_s - time.monotonic()))
            except queue.Empty:
                event = None
            if event is not None and event.row.outcome is None:
                self._ended(event)
            self._send_signals()
            if time.monotonic() >= next_tick_s:
                next_tick_s = time.monotonic() + TICK_S
                self._look_at_context(workload_id)
                self._tick()

    def _look_at_context(self, workload_id: str) -> None:
        if self._context is None or self._context_noted:
            return
        awaited = self._context.awaited
        letters = [row.letter for row in self._rows if row.run_id in awaited]
        if letters:
            self._view.state = f"waiting for {', '.join(letters)} at `with radt.Run()`"
        elif all(
            row.outcome is not None or row.run_id in self._context.released_ns for row in self._rows
        ):
            self._note_context(workload_id)

    def _tick(self) -> None:
        for row in self._rows:
            row.check_time()
        self._verify_devices()
        live = self._recording.live([row.run_id for row in self._rows])
        for row in self._rows:
            if row.outcome is None and (now := live.get(row.run_id)) is not None:
                row.view.update(now)
        self._session.console.show_live(self._view)

    def _verify_devices(self) -> None:
        devices = self._provision.devices
        if devices is not None and not devices.plan.is_naive:
            pids = {row.letter: row.running.descendants() for row in self._rows if row.alive}
            for mismatch in devices.verify(pids):
                self._fail_all(f"{mismatch.key}: {mismatch.reason}")

    def _send_signals(self) -> None:
        """Pass on what the user asked for, and what is due to rows that radt itself ends."""
        if self._stop.escalation is not None:
            number = self._stop.escalation.next_signal()
            if number is not None:
                self._view.state = f"stopping ({number.name})"
                for row in self._rows:
                    self._signal(row, number)
        for row in self._rows:
            number = row.escalation.next_signal() if row.escalation is not None else None
            if number is not None:
                row.view.detail = f"stopping ({number.name})"
                self._signal(row, number)

    def _signal(self, row: Row, number: signal.Signals) -> None:
        if not row.alive:
            return
        devices = self._provision.devices
        if number == signal.SIGKILL and devices is not None and not devices.plan.is_naive:
            self._say_all(devices.about_to_kill(row.running.descendants()))
        row.running.signal(number)

    def _fail_all(self, reason: str) -> None:
        """End the whole workload: what it measures is not what was asked for."""
        for row in self._rows:
            row.stop(Ending(RunStatus.FAILED, reason))

    # End -------------------------------------------------------------------------------------

    def _ended(self, event: _Ended) -> None:
        row = event.row
        assert row.startable is not None
        how = replace(event.exit, code=row.startable.exit_code(event.exit.code))
        if how.leftovers:
            self._session.console.say(
                f"  {row.letter}: {units.plural(how.leftovers, 'process', 'processes')} that the "
                "run left behind were stopped",
                style="dim",
            )
        if row.verdict is not None and how.code != 0:
            ending = row.verdict
        else:
            ending = ending_of(
                how,
                stopped=STOPPED if self._stop else "",
                timed_out_s=row.exceeded_s,
                tail=how.tail,
                memory=self._memory.evidence(),
            )
        if self._provision.devices is not None:
            if why := self._provision.devices.verified(row.letter):
                self._say_all([f"{row.letter}: {why}"])
            self._recording.tags(row.run_id, self._provision.devices.final_tags(row.letter))
        self._end(row, ending, exit_code=how.code, tail=how.tail)
        if self._options.fail_fast and ending.status is not RunStatus.FINISHED and not self._stop:
            why = f"row {row.letter} is {ending.status} (--fail-fast)"
            for other in self._rows:
                other.stop(Ending(RunStatus.KILLED, why))

    def _end(
        self, row: Row, ending: Ending, exit_code: int | None = None, tail: Sequence[str] = ()
    ) -> None:
        """Record a row's end everywhere; what cannot be reached hears of it later."""
        row.view.ended_monotonic_s = time.monotonic()
        row.view.status = ending.status
        row.view.detail = ending.reason
        row.outcome = RunOutcome(
            letter=row.letter,
            name=row.recorded.plan.label,
            run_id=row.run_id,
            status=ending.status,
            reason=ending.reason,
            elapsed_s=row.view.elapsed_s,
            tail=tail,
            log=row.recorded.run_dir.output_log if row.process is not None else None,
        )
        text = status_text(ending, self._due.repeat, self._due.repeats)
        try:
            self._write({row: text})
        except RadtError as error:  # the next write tries again
            self._session.console.say(f"  {error}", style="red")
        self._recording.finished(row.run_id, ending.status, exit_code, ending.reason)
        if self._context is not None:
            self._context.gone(row.run_id)

    def _give_up(self, error: SetUpError) -> None:
        """The workload cannot be set up: whose fault it is FAILED, the others are SKIPPED."""
        for row in self._rows:
            if row.letter in error.reasons:
                self._end(row, Ending(RunStatus.FAILED, error.reasons[row.letter]))
        culprits = ", ".join(sorted(error.reasons))
        for row in self._rows:
            if row.outcome is None:
                self._end(row, Ending(RunStatus.SKIPPED, f"{culprits} could not be set up"))

    def _kill_the_rest(self) -> None:
        """Nothing is left running, whatever went wrong above."""
        for row in self._rows:
            if row.outcome is None:
                if row.process is not None:
                    row.process.signal(signal.SIGKILL)
                    row.process.join(JOIN_TIMEOUT_S)
                reason = STOPPED if self._stop else "the runner failed"
                self._end(row, Ending(RunStatus.KILLED, reason))

    def _write(self, texts: Mapping[Row, str]) -> None:
        if self._statuses is not None:
            self._statuses.set_many(
                {
                    row.recorded.plan.line: RowStatus(text, row.shown_id)
                    for row, text in texts.items()
                }
            )

    def _progress(self, text: str) -> None:
        """What set-up is at: in the live table, and as a line for logs."""
        self._view.state = text
        self._session.console.progress(self._view, text)

    def _say_all(self, texts: Sequence[str], style: str = "dim") -> None:
        for text in texts:
            self._session.console.say(f"  {text}", style=style)


def status_text(ending: Ending, repeat: int, repeats: int) -> str:
    """What the Status cell says: ``FINISHED``, ``KILLED 2/3: stopped by the user``."""
    count = f" {repeat}/{repeats}" if repeats > 1 else ""
    return (
        f"{ending.status}{count}: {ending.reason}" if ending.reason else f"{ending.status}{count}"
    )


def _wait_released(row: Row) -> int:
    return row.running.wait_released(RELEASE_TIMEOUT_S)
