"""Runs one workload: all rows through one barrier, each to its own end, nobody left behind."""

from __future__ import annotations

import queue
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from radt import units
from radt.errors import CollectorError, LaunchError, RadtError
from radt.experiment.plan import RunPlan, WorkloadPlan
from radt.experiment.status import RowStatus
from radt.model import RunStatus
from radt.runner.console import RunView, WorkloadView
from radt.runner.outcome import RunOutcome, WorkloadOutcome
from radt.runner.preparation import PreparedRun, PreparedWorkload, prepare
from radt.runner.process import Barrier, Exit, TrainingProcess
from radt.runner.session import Session
from radt.runner.stop import StopRequest

READY_TIMEOUT_S = 60.0
RELEASE_TIMEOUT_S = 30.0
JOIN_TIMEOUT_S = 10.0
#: How often the live table is brought up to date, and pending signals are looked at.
TICK_S = 0.5
STOPPED = "stopped by the user"


#: Writes statuses back into the experiment file, by the lines the rows were planned at.
StatusSink = Callable[[Mapping[int, RowStatus]], None]

T = TypeVar("T")


@dataclass(slots=True)
class _Row:
    """A run under way."""

    prepared: PreparedRun
    view: RunView
    process: TrainingProcess | None = None
    outcome: RunOutcome | None = None

    @property
    def running(self) -> TrainingProcess:
        """The process, which has been started."""
        assert self.process is not None
        return self.process


@dataclass(frozen=True, slots=True)
class _Ended:
    row: _Row
    exit: Exit


class WorkloadRunner:
    """Runs the given rows of a workload together. One object, one call of `run`."""

    def __init__(
        self,
        session: Session,
        plan: WorkloadPlan,
        rows: Sequence[RunPlan],
        *,
        position: int,
        total: int,
        stop: StopRequest,
        write_status: StatusSink,
    ) -> None:
        self._session = session
        self._plan = plan
        self._plans = rows
        self._stop = stop
        self._write_status = write_status
        self._events: queue.SimpleQueue[_Ended | None] = queue.SimpleQueue()
        self._view = WorkloadView(
            position=position,
            total=total,
            label=plan.label or rows[0].label,
            runs=[RunView(row.letter, row.label) for row in rows],
        )
        self._rows: list[_Row] = []
        self._skew_ns: int | None = None

    def run(self) -> WorkloadOutcome:
        """Prepare, start together, follow to the end.

        Raises:
            RadtError: Preparing failed; nothing was started.
        """
        console = self._session.console
        console.show_live(self._view)
        prepared = prepare(
            self._session, self._plan, self._plans, cancelled=lambda: bool(self._stop)
        )
        for warning in prepared.warnings:
            console.say(f"  {warning}", style="dim")
        self._rows = [
            _Row(run, view) for run, view in zip(prepared.runs, self._view.runs, strict=True)
        ]
        self._stop.on_request = lambda: self._events.put(None)
        try:
            if not self._stop:
                self._write_status(
                    {
                        row.prepared.plan.line: RowStatus(RunStatus.RUNNING, row.prepared.shown_id)
                        for row in self._rows
                    }
                )
                self._start(prepared)
                self._follow()
        finally:
            self._kill_the_rest()
            self._stop.on_request = lambda: None
            outcome = self._close(prepared)
            console.hide_live()
        return outcome

    def _start(self, prepared: PreparedWorkload) -> None:
        barrier = Barrier()
        try:
            for row in self._rows:
                self._guarded(row, partial(self._spawn, barrier=barrier))
            for row in self._rows:
                self._guarded(row, _wait_ready)
            barrier.release()
            stamps = {row.prepared.run_id: self._guarded(row, _wait_released) for row in self._rows}
        finally:
            barrier.close()
        self._record_start(
            prepared, {run_id: stamp for run_id, stamp in stamps.items() if stamp is not None}
        )

    def _spawn(self, row: _Row, barrier: Barrier) -> None:
        console, run = self._session.console, row.prepared
        position = self._rows.index(row)
        row.process = TrainingProcess(
            run.command,
            run_id=run.run_id,
            cwd=run.plan.program.folder,
            env=run.env,
            barrier=barrier,
            output_log=run.run_dir.output_log,
            show=lambda line: console.output(position, run.plan.letter, line),
            on_exit=lambda exit_: self._events.put(_Ended(row, exit_)),
        )
        self._session.reaper.watch(row.process.pid, run.run_id)

    def _guarded(self, row: _Row, action: Callable[[_Row], T]) -> T | None:
        """Do it; if the row cannot be started, end that row and let its neighbours go on."""
        if row.outcome is not None:
            return None
        try:
            return action(row)
        except LaunchError as error:
            if row.process is not None:
                row.process.signal(signal.SIGKILL)
            self._end(row, RunStatus.FAILED, str(error), exit_code=None)
            return None

    def _record_start(self, prepared: PreparedWorkload, released: Mapping[str, int]) -> None:
        if not released:
            return
        session = self._session
        barrier_ns = min(released.values())
        self._view.state = ""
        if len(released) > 1:  # one run alone has no skew, rather than none of it
            self._skew_ns = max(released.values()) - barrier_ns
            self._view.state = f"barrier skew {units.duration(self._skew_ns / 1e9)}"
        with self._going_on():
            session.writer.update_workload(
                prepared.workload_id,
                status=RunStatus.RUNNING,
                barrier_ns=session.clock.to_wall_ns(barrier_ns),
                start_skew_ns=self._skew_ns,
            )
        for row in self._rows:
            run_id = row.prepared.run_id
            if run_id in released:
                with self._going_on():
                    session.client.started(run_id, row.running.pid, released[run_id])
                row.view.status = RunStatus.RUNNING
                row.view.started_monotonic_s = released[run_id] / 1e9
        self._view.started_monotonic_s = barrier_ns / 1e9

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        """Say what goes wrong with recording and go on: it must not stop training."""
        try:
            yield
        except RadtError as error:
            self._session.console.say(f"  {error}", style="red")

    def _follow(self) -> None:
        """Until every row has ended; signals pass through here."""
        next_tick_s = time.monotonic()
        while any(row.outcome is None for row in self._rows):
            try:
                event = self._events.get(timeout=max(0.0, next_tick_s - time.monotonic()))
            except queue.Empty:
                event = None
            if event is not None and event.row.outcome is None:
                self._ended(event)
            if self._stop.escalation and (number := self._stop.escalation.next_signal()):
                self._view.state = f"stopping ({number.name})"
                for row in self._rows:
                    if row.outcome is None and row.process is not None:
                        row.process.signal(number)
            if time.monotonic() >= next_tick_s:
                next_tick_s = time.monotonic() + TICK_S
                self._refresh()

    def _ended(self, event: _Ended) -> None:
        row, how = event.row, event.exit
        status, reason = how.status, how.reason
        if self._stop and status is not RunStatus.FINISHED:
            status, reason = RunStatus.KILLED, STOPPED
        if how.leftovers:
            self._session.console.say(
                f"  {row.prepared.plan.letter}: {how.leftovers} processes that the run left "
                "behind were stopped",
                style="dim",
            )
        self._end(row, status, reason, exit_code=how.code)

    def _end(self, row: _Row, status: RunStatus, reason: str, exit_code: int | None) -> None:
        """Record a row's end everywhere; what cannot be reached hears of it later."""
        run, session = row.prepared, self._session
        row.view.ended_monotonic_s = time.monotonic()
        row.view.status = status
        row.view.detail = reason
        row.outcome = RunOutcome(
            letter=run.plan.letter,
            name=run.plan.label,
            run_id=run.run_id,
            status=status,
            reason=reason,
            elapsed_s=row.view.elapsed_s,
        )
        if row.process is not None:
            session.reaper.forget(row.process.pid)
        text = f"{status}: {reason}" if reason else str(status)
        with self._going_on():  # if it cannot be written now, the next write tries again
            self._write_status({run.plan.line: RowStatus(text, run.shown_id)})
        try:
            session.client.finish(run.run_id, status, exit_code, reason)
        except CollectorError as error:
            session.console.say(f"  {run.plan.letter}: {error}", style="red")
            with self._going_on():
                session.writer.end_run(
                    run.run_id, status, session.clock.now_ns(), exit_code=exit_code, reason=reason
                )

    def _kill_the_rest(self) -> None:
        """Nothing is left running, whatever went wrong above."""
        for row in self._rows:
            if row.outcome is not None:
                continue
            if row.process is not None:
                row.process.signal(signal.SIGKILL)
                row.process.join(JOIN_TIMEOUT_S)
            reason = STOPPED if self._stop else "the runner failed"
            self._end(row, RunStatus.KILLED, reason, exit_code=None)

    def _close(self, prepared: PreparedWorkload) -> WorkloadOutcome:
        outcome = WorkloadOutcome(
            label=self._view.label,
            workload_id=prepared.workload_id,
            runs=[row.outcome for row in self._rows if row.outcome is not None],
            start_skew_s=None if self._skew_ns is None else self._skew_ns / 1e9,
        )
        with self._going_on():
            self._session.writer.update_workload(
                prepared.workload_id, status=outcome.status, ended_ns=self._session.clock.now_ns()
            )
        return outcome

    def _refresh(self) -> None:
        """Bring the live table up to date; a collector that restarts is no reason to stop."""
        try:
            live = self._session.client.live([row.prepared.run_id for row in self._rows])
        except CollectorError:
            live = {}  # the collector comes back by itself, and says so in its ledger
        for row in self._rows:
            if (now := live.get(row.prepared.run_id)) is not None and row.outcome is None:
                view = row.view
                view.epoch, view.epochs_total = now.epoch, now.epochs_total
                view.metrics = dict(now.metrics)
                view.cpu_cores, view.rss_bytes = now.cpu_cores, now.rss_bytes
                view.gpu_utilization = now.gpu_utilization
                view.gpu_memory_bytes = now.gpu_memory_bytes
        self._session.console.show_live(self._view)


def _wait_ready(row: _Row) -> None:
    row.running.wait_ready(READY_TIMEOUT_S)


def _wait_released(row: _Row) -> int:
    return row.running.wait_released(RELEASE_TIMEOUT_S)
