"""Follows the rows of a workload to their ends: signals, Timeouts, devices, results."""

from __future__ import annotations

import queue
import signal
import time
from dataclasses import replace

from radt import units
from radt.lifetime import Wait
from radt.model import RunStatus
from radt.runner.active import ActiveRun, ActiveWorkload, Ended
from radt.runner.oom import OomWatch
from radt.runner.outcome import RunEnd, dismissed_end, run_end
from radt.runner.process import Exit, descendants_of_each
from radt.tags import PROFILER_PROBLEM

#: Seconds between checks of timeouts and pending signals.
TICK_S = 0.5
#: Seconds between updates of the live table, whose values are sampled once a second.
LIVE_S = 1.0
#: Seconds after which a line names rows that keep others waiting, if there is no live table.
LONG_WAIT_S = 10.0


class WorkloadFollower:
    """Follows one workload. Create it before the start: it reads the kernel's counters then."""

    def __init__(self, workload: ActiveWorkload) -> None:
        self._workload = workload
        self._memory = OomWatch()
        self._context_noted = False
        self._waiting_since_s: float | None = None
        self._wait_told = False
        self._live_at_s = 0.0
        self._activity_before: str | None = None  # the one before reports were written

    def follow(self) -> None:
        """Follow until every row has ended."""
        workload = self._workload
        next_tick_s = time.monotonic()
        while any(not row.ended for row in workload.rows):
            try:
                event = workload.events.get(timeout=max(0.0, next_tick_s - time.monotonic()))
            except queue.Empty:
                event = None
            if event is not None and not event.row.ended:
                self._ended(event)
            self._dismiss_services()
            self._end_with_others()
            self._send_signals()
            if time.monotonic() >= next_tick_s:
                next_tick_s = time.monotonic() + TICK_S
                self._tick()
        self._note_context()

    def _tick(self) -> None:
        workload = self._workload
        for row in workload.rows if not workload.stop else ():
            row.check_time()
        self._look_at_context()
        self._look_at_reports()
        self._verify_devices()
        if time.monotonic() >= self._live_at_s:
            self._live_at_s = time.monotonic() + LIVE_S
            self._show_live()

    def _show_live(self) -> None:
        workload = self._workload
        live = workload.recording.live([row.run_id for row in workload.rows])
        for row in workload.rows:
            if not row.ended and (now := live.get(row.run_id)) is not None:
                row.progress.live = now
        workload.context.console.show_live(workload.progress)

    def _look_at_reports(self) -> None:
        """Show that a report is being written, which may take longer than the run."""
        progress = self._workload.progress
        writing = [
            f"{row.letter}: {profiling.name} is writing its report"
            for row in self._workload.alive
            if (profiling := row.profiling) is not None and profiling.program_end is not None
        ]
        if writing:
            if self._activity_before is None:
                self._activity_before = progress.activity
            progress.activity = ", ".join(writing)
        elif self._activity_before is not None:
            progress.activity, self._activity_before = self._activity_before, None

    def _verify_devices(self) -> None:
        devices, alive = self._workload.provision.devices, self._workload.alive
        if devices is None or devices.plan.is_naive or not devices.verify_due:
            return
        trees = descendants_of_each([row.running for row in alive])
        pids = {row.letter: tree for row, tree in zip(alive, trees, strict=True)}
        for mismatch in devices.verify(pids):
            verdict = RunEnd(RunStatus.FAILED, f"{mismatch.key}: {mismatch.reason}")
            for row in self._workload.rows:  # the measurements are not the requested ones
                row.stop(verdict)

    # --sync context --------------------------------------------------------------------------

    def _look_at_context(self) -> None:
        barrier, rows = self._workload.context_barrier, self._workload.rows
        if barrier is None or self._context_noted:
            return
        awaited = [row.letter for row in rows if row.run_id in barrier.awaited]
        if awaited:
            text = f"waiting for {', '.join(awaited)} at `with radt.Run()`"
            self._workload.progress.activity = text
            if barrier.arrived:
                self._tell_of_wait(text)
        elif all(
            row.ended or row.run_id in barrier.released_ns for row in rows if not row.is_service
        ):
            self._note_context()

    def _tell_of_wait(self, text: str) -> None:
        """Print the text once after a long wait, if there is no live table."""
        now_s = time.monotonic()
        if self._waiting_since_s is None:
            self._waiting_since_s = now_s
        if not self._wait_told and now_s - self._waiting_since_s >= LONG_WAIT_S:
            self._wait_told = True
            self._workload.context.console.show_activity(self._workload.progress, text)

    def _note_context(self) -> None:
        """Record the time at which the blocks were entered as the start."""
        if self._workload.context_barrier is not None and not self._context_noted:
            self._context_noted = True
            self._workload.record_barrier(self._workload.context_barrier.released_ns)

    # Signals ---------------------------------------------------------------------------------

    def _dismiss_services(self) -> None:
        """Ask services to end once the rows they serve have; a user's stop asks them anyway."""
        workload = self._workload
        if workload.stop or any(not row.ended for row in workload.rows if not row.is_service):
            return
        for row in workload.rows:
            row.dismiss()

    def _end_with_others(self) -> None:
        """Begin to end the local parts of runs that have failed on another node."""
        if (multi_node := self._workload.context.multi_node) is not None:
            for row in self._workload.rows:
                if (ending := multi_node.failed.get(row.letter)) is not None:
                    row.stop(RunEnd(RunStatus.KILLED, ending.reason))

    def _send_signals(self) -> None:
        """Send the signals that the user requested, and those for rows that radt itself ends."""
        asked = self._workload.stop.escalation
        if asked is not None:
            for row in self._workload.rows:
                if row.is_prefixed and row.escalation is None:
                    row.escalate(self._workload.stop.patience_s)
        if asked is not None and (number := asked.next_signal()):
            self._workload.progress.activity = f"stopping ({number.name})"
            if self._workload.context.options.wait is not Wait.NO:
                self._workload.recording.flush()
            for row in self._workload.rows:
                if not row.is_prefixed or asked.is_hurried:
                    self._signal(row, number)
        for row in self._workload.rows:
            if row.escalation is not None and (number := row.escalation.next_signal()):
                self._signal(row, number)

    def _signal(self, row: ActiveRun, number: signal.Signals) -> None:
        if row.alive and row.is_news(number):
            self._workload.signal(row, number)

    # Ends ------------------------------------------------------------------------------------

    def _ended(self, event: Ended) -> None:
        workload, row = self._workload, event.row
        assert row.startable is not None
        program = row.startable.ended(event.exit.code)
        code, ended_ns = program.code, event.exit.ended_ns
        profiling = row.profiling
        if profiling is not None and (end := profiling.program_end) is not None:
            code, ended_ns = end.code, end.ended_ns
        how = replace(event.exit, code=code, container=program.container)
        self._say_what_was_left(row, event)
        ending = self._ending(row, how)
        if profiling is not None:
            if row.escalation is None and not workload.stop:
                ending = profiling.ending(ending, event.exit, how.tail)
            if problem := profiling.problem(event.exit, how.tail):
                workload.recording.tags(row.run_id, {PROFILER_PROBLEM: problem})
                workload.say(f"{row.letter}: {problem}", "red")
        if (devices := workload.provision.devices) is not None:
            if why := devices.verified(row.letter):
                workload.say(f"{row.letter}: {why}")
            workload.recording.tags(row.run_id, devices.final_tags(row.letter))
        workload.end(row, ending, exit_code=how.code, tail=how.tail, ended_ns=ended_ns)

    def _ending(self, row: ActiveRun, how: Exit) -> RunEnd:
        verdict = row.verdict
        # A run on the wrong device is not the requested one, whatever its exit code.
        if verdict is not None and (how.code != 0 or verdict.status is RunStatus.FAILED):
            return verdict
        if row.dismissed_ns is not None:
            ending = dismissed_end(how, row.dismissed_ns, was_killed=row.was_killed)
            if ending is not None:
                return ending
        return run_end(
            how,
            stopped=self._workload.stop.reason if self._workload.stop and not row.timed_out else "",
            timed_out_s=row.recorded.plan.timeout_s if row.timed_out else None,
            tail=how.tail,
            memory=self._memory.evidence(),
        )

    def _say_what_was_left(self, row: ActiveRun, event: Ended) -> None:
        stopped = bool(self._workload.stop) or row.escalation is not None
        if event.exit.leftovers and not stopped:
            left = units.plural(event.exit.leftovers, "process", "processes")
            self._workload.say(f"{row.letter}: stopped {left} that the run left behind")
        if event.exit.immortal:
            left = units.plural(event.exit.immortal, "process", "processes")
            self._workload.say(f"{row.letter}: {left} of the run did not end", "red")
