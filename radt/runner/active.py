"""A running workload, each of its runs, and how they are stopped.

The first Ctrl-C asks the training processes to end, the second kills them. The terminal does not
deliver Ctrl-C to them (each has its own session): the runner decides which signal to send, and
when.
"""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from radt import units
from radt.errors import RadtError, RowsChangedError, StatusError
from radt.experiment.status import RowStatus, StatusSink
from radt.model import RunStatus
from radt.runner.barrier import ContextBarrier
from radt.runner.command import PATIENCE_S, Profiling
from radt.runner.context import RunnerContext
from radt.runner.options import PendingWorkload
from radt.runner.outcome import STOPPED, RunEnd
from radt.runner.preparation import RecordedRun, RecordedWorkload
from radt.runner.process import Exit, TrainingProcess
from radt.runner.progress import RowProgress, WorkloadProgress
from radt.runner.provision import LaunchSpec, Provision
from radt.runner.recording import RecordingThread

#: Seconds from the polite signal to SIGTERM, and from there to SIGKILL.
INTERRUPT_GRACE_S = 10.0
TERMINATE_GRACE_S = 5.0

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(slots=True)
class Escalation:
    """Decides which signal to send next: the first one, then SIGTERM, then SIGKILL.

    One object escalates for all runs when the user stops them, another for a single run that radt
    ends (because of its Timeout, or another run's failure). ``patience_s`` delays the second signal
    for programs that need longer to end cleanly. ``is_hurried`` is set once SIGKILL was requested.
    """

    first: signal.Signals
    patience_s: float = 0.0
    is_hurried: bool = field(default=False, init=False)
    _due: list[tuple[float, signal.Signals]] = field(init=False)

    def __post_init__(self) -> None:
        now_s = time.monotonic()
        self._due = [(now_s, self.first)]
        second_s = now_s + INTERRUPT_GRACE_S + self.patience_s
        if self.first == signal.SIGINT:
            self._due.append((second_s, signal.SIGTERM))
            self._due.append((second_s + TERMINATE_GRACE_S, signal.SIGKILL))
        else:
            self._due.append((second_s, signal.SIGKILL))

    def kill_now(self) -> None:
        """Skip to SIGKILL."""
        self.is_hurried = True
        self._due = [(0.0, signal.SIGKILL)]

    def next_signal(self) -> signal.Signals | None:
        """Return the signal to send now, if any; each is returned once."""
        if self._due and time.monotonic() >= self._due[0][0]:
            return self._due.pop(0)[1]
        return None


class StopRequest:
    """A stop requested by the user: whether there is one and how urgent it is. Thread-safe.

    ``reason`` is recorded for the runs that it ends; ``patience_s`` is the time that a profiler
    gets to write its report.
    """

    patience_s = PATIENCE_S

    def __init__(self) -> None:
        self.escalation: Escalation | None = None
        #: Number of requests by SIGINT, as Ctrl-C sends it.
        self.interrupts = 0
        self.reason = STOPPED
        self.on_request: Callable[[], None] = lambda: None
        # A signal handler can interrupt any line. Unlike events and locks, a SimpleQueue is
        # reentrant and safe to use in a handler.
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()

    def __bool__(self) -> bool:
        return self.escalation is not None

    @property
    def number(self) -> signal.Signals | None:
        """Return the first signal that requested the stop; None if there was no request."""
        return self.escalation.first if self.escalation is not None else None

    @property
    def is_hurried(self) -> bool:
        """Return True if the stop was requested a second time."""
        return self.escalation is not None and self.escalation.is_hurried

    @property
    def exit_code(self) -> int:
        """Return 128 plus the signal's number, as shells do."""
        return 128 + (self.number or signal.SIGINT)

    def request(self, number: int = signal.SIGINT) -> None:
        """Ask to stop as signal `number` does. A second request kills the runs."""
        self.interrupts += number == signal.SIGINT
        if self.escalation is None:
            self.escalation = Escalation(signal.Signals(number))
        else:
            self.escalation.kill_now()
        self._wake.put(None)
        self.on_request()

    def request_once(self, reason: str) -> None:
        """Ask to stop as Ctrl-C does, for a reason of radt's own. Repeated calls have no effect."""
        if self.escalation is None:
            self.reason = reason
            self.request()

    def wait(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` for a stop request; return True if there is one."""
        if not self:
            try:
                self._wake.get(timeout=timeout_s)
            except queue.Empty:
                return bool(self)
            self._wake.put(None)  # wake the next waiting thread, too
        return True

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle SIGINT, SIGTERM and SIGHUP within the context.

        A signal that was ignored when radt started (nohup, a shell's background job) stays ignored.
        Only the main thread may install handlers; from any other thread, use `request`.
        """
        previous: dict[signal.Signals, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in _STOP_SIGNALS:
                # None means a handler not installed from Python, which could not be restored.
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    previous[number] = signal.signal(number, self._handle)
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.request(number)


#: Urgency of the signals that end runs; all others are as polite as SIGINT (1).
_URGENCY: Mapping[int, int] = {signal.SIGTERM: 2, signal.SIGKILL: 3}


@dataclass(slots=True, eq=False)
class ActiveRun:
    """A run that was started, or is about to be.

    ``verdict`` is set when radt itself ends the run, and becomes its result unless the program
    succeeds nevertheless; ``timed_out`` is set when its Timeout passed. ``dismissed_ns`` is the
    monotonic time at which a service was asked to end after all other runs.
    """

    recorded: RecordedRun
    progress: RowProgress
    startable: LaunchSpec | None = None
    process: TrainingProcess | None = None
    escalation: Escalation | None = None
    verdict: RunEnd | None = None
    timed_out: bool = False
    dismissed_ns: int | None = None
    exit_code: int | None = None
    _urgency: int = 0

    @property
    def letter(self) -> str:
        return self.recorded.plan.letter

    @property
    def run_id(self) -> str:
        return self.recorded.run_id

    @property
    def running(self) -> TrainingProcess:
        """Return the process; the run must have been started."""
        assert self.process is not None
        return self.process

    @property
    def is_service(self) -> bool:
        """Return True for a service: it serves the other runs and ends after them."""
        return self.recorded.plan.is_service

    @property
    def was_killed(self) -> bool:
        """Return True if the run got SIGKILL because it ignored earlier requests to end."""
        return self._urgency >= _URGENCY[signal.SIGKILL]

    @property
    def ended(self) -> bool:
        """Return True if the run has ended, or will not be started."""
        return self.progress.status.ended

    @property
    def alive(self) -> bool:
        """Return True if the process was started and has not been seen to end."""
        return self.process is not None and not self.ended

    @property
    def profiling(self) -> Profiling | None:
        """Return the profilers of the run."""
        return self.startable.profiling if self.startable is not None else None

    @property
    def is_prefixed(self) -> bool:
        """Return True if a profiler is the parent process and writes a report after the program."""
        return self.profiling is not None and bool(self.profiling.prefix)

    def stop(self, verdict: RunEnd) -> None:
        """Begin to end the run, escalating up to SIGKILL. The first verdict counts."""
        if self.escalation is None and not self.ended:
            self.escalate()
            self.verdict = verdict

    def dismiss(self) -> None:
        """Begin to end a service that no run needs any more."""
        if self.escalation is None and not self.ended:
            self.escalate()
            self.dismissed_ns = time.monotonic_ns()

    def escalate(self, patience_s: float = PATIENCE_S) -> None:
        """Begin to end the run. If a profiler has to write a report, it gets `patience_s` for it.

        The first signal is SIGINT rather than SIGTERM: it leaves alone the processes that the
        profiler put into other process groups.
        """
        self.escalation = Escalation(
            signal.SIGINT, patience_s=patience_s if self.is_prefixed else 0.0
        )

    def is_news(self, number: int) -> bool:
        """Return True if the run has not yet been asked to end this urgently, and note it as asked.

        The user and radt may both ask, and many programs take a second Ctrl-C as permission to drop
        what they are saving. SIGKILL may be sent repeatedly.
        """
        urgency = _URGENCY.get(number, 1)
        news = urgency > self._urgency or number == signal.SIGKILL
        self._urgency = max(self._urgency, urgency)
        return news

    def check_time(self) -> None:
        """Begin to stop the run if its Timeout has passed. Writing a report does not count."""
        timeout_s, started_s = self.recorded.plan.timeout_s, self.progress.started_monotonic_s
        if timeout_s is None or started_s is None or not self.alive or self.escalation is not None:
            return
        has_ended_in_time = self.profiling is not None and self.profiling.program_end is not None
        if time.monotonic() >= started_s + timeout_s and not has_ended_in_time:
            self.timed_out = True
            self.escalate()


#: Seconds to wait for a killed process to disappear.
JOIN_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Ended:
    """A process has ended."""

    row: ActiveRun
    exit: Exit


@dataclass(slots=True)
class ActiveWorkload:
    """A workload whose rows are being run.

    ``events`` wakes the follower of the workload: with an `Ended`, or with None to check all rows.
    ``context_barrier`` is set with ``--sync context`` only.
    """

    context: RunnerContext
    pending: PendingWorkload
    statuses: StatusSink | None
    progress: WorkloadProgress
    recorded: RecordedWorkload
    recording: RecordingThread
    provision: Provision
    rows: Sequence[ActiveRun] = field(init=False)
    context_barrier: ContextBarrier | None = None
    events: queue.SimpleQueue[Ended | None] = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        self.rows = list(map(ActiveRun, self.recorded.runs, self.progress.runs))

    @property
    def stop(self) -> StopRequest:
        return self.context.stop

    @property
    def alive(self) -> list[ActiveRun]:
        """Return the rows whose process was started and has not been seen to end."""
        return [row for row in self.rows if row.alive]

    def wake(self) -> None:
        """Wake the follower of the workload so that it checks all rows."""
        self.events.put(None)

    def record_barrier(self, released_ns: Mapping[str, int]) -> None:
        """Record when the runs passed the barrier, by run id, in monotonic ns."""
        if not released_ns:
            return
        barrier_ns, skew_ns = min(released_ns.values()), None
        if len(released_ns) > 1:  # the skew of a single run is undefined, not zero
            skew_ns = max(released_ns.values()) - barrier_ns
            self.progress.start_skew_s = skew_ns / 1e9
            self.progress.activity = f"barrier skew {units.duration(skew_ns / 1e9)}"
        self.progress.started_monotonic_s = barrier_ns / 1e9
        self.recording.barrier(self.recorded.workload_id, barrier_ns, skew_ns)

    def end(
        self,
        row: ActiveRun,
        ending: RunEnd,
        exit_code: int | None = None,
        tail: Sequence[str] = (),
        *,
        in_file: bool = True,
        ended_ns: int | None = None,
    ) -> None:
        """Record a row's end in the store, the file and the notifications.

        Destinations that cannot be reached now get it later. With several nodes, this is the end of
        one part; `settle` records that of the whole run.

        Args:
            in_file: False if the experiment file lacks the row.
            ended_ns: The monotonic time at which its process ended; None for now.
        """
        ended_ns = time.monotonic_ns() if ended_ns is None else ended_ns
        progress = row.progress
        progress.ended_monotonic_s = ended_ns / 1e9
        progress.status, progress.reason, progress.tail = ending.status, ending.reason, tail
        progress.log = row.recorded.run_dir.output_log if row.process is not None else None
        row.exit_code = exit_code
        if self.context.multi_node is None:
            self._record_end(row, ending, ended_ns, in_file=in_file)
        else:
            self.context.multi_node.ended(row.letter, ending)
        if self.context_barrier is not None:
            self.context_barrier.gone(row.run_id)
        # If the user has stopped everything, all rows have been asked to end already.
        fail_fast = self.context.options.fail_fast and not self.stop
        is_final = ending.status is not RunStatus.FINISHED and not self.pending.runs_again(ending)
        if fail_fast and is_final:
            for other in self.rows:
                why = f"row {row.letter} is {ending.status} (--fail-fast)"
                other.stop(RunEnd(RunStatus.KILLED, why))

    def settle(self) -> None:
        """Record the ends of runs that span several nodes, once all their parts have ended."""
        if (multi_node := self.context.multi_node) is None:
            return
        endings = multi_node.settle()
        for row in self.rows:
            ending, progress = endings[row.letter], row.progress
            if RunEnd(progress.status, progress.reason) != ending:
                # The end is that of another node's part, whose exit code is unknown here.
                row.exit_code = None
            progress.status, progress.reason = ending.status, ending.reason
            self.recording.tags(row.run_id, dict(multi_node.tags))
            self._record_end(row, ending, time.monotonic_ns())

    def _record_end(
        self, row: ActiveRun, ending: RunEnd, ended_ns: int, *, in_file: bool = True
    ) -> None:
        try:
            self.write({row: ending} if in_file else {})
        except RadtError as error:  # the next write includes these statuses
            self.context.console.say(f"  {error}", style="red")
        self.recording.finished(row.run_id, ending.status, row.exit_code, ending.reason, ended_ns)

    def signal(self, row: ActiveRun, number: signal.Signals) -> None:
        """Send a signal to a row's processes; disconnect an MPS client from its server first."""
        devices = self.provision.devices
        if number == signal.SIGKILL and devices is not None and not devices.plan.is_naive:
            for problem in devices.about_to_kill(row.running.descendants()):
                self.say(f"{row.letter}: {problem}")
        row.running.signal(number)

    def kill_all(self) -> None:
        """Kill all remaining processes of all rows; return when they are gone."""
        started = [row for row in self.rows if row.process is not None]
        for row in started:
            if not row.running.join(0.0):
                self.signal(row, signal.SIGKILL)
        for row in started:
            if not row.running.join(JOIN_TIMEOUT_S):
                self.say(f"{row.letter}: its processes did not end", "red")

    def write(self, statuses: Mapping[ActiveRun, RunEnd]) -> None:
        """Write statuses into the experiment file.

        Raises:
            StatusError: They could not be written; the next write includes them.
        """
        if self.statuses is not None:
            self.statuses.set_many(
                {
                    row.recorded.plan.line: RowStatus(
                        self.pending.in_file(ending).text(
                            self.pending.repeat, self.pending.repeats
                        ),
                        row.run_id,
                    )
                    for row, ending in statuses.items()
                }
            )

    def say(self, text: str, style: str = "dim") -> None:
        """Print a line below the workload."""
        self.context.console.say(f"  {text}", style=style, indent=2)


PAUSE_S = 0.5
#: How long to retry for rows that are missing from an existing file. An editor that saves it in
#: pieces is done by then; rows that the user has changed stay changed.
CHANGED_ROWS_S = 2.0


class FileWait:
    """Retries writing statuses while the user restores a missing or invalid file.

    If the file was not restored within that time, later writes do not wait until it is back.

    Args:
        longest_s: How long the file may be missing.
        stop: Ends the wait.
        say: Called once, when the wait begins.
    """

    def __init__(self, longest_s: float, stop: StopRequest, say: Callable[[str], None]) -> None:
        self._longest_s = longest_s
        self._left_s = longest_s
        self._stop = stop
        self._say = say

    def write(
        self, write: Callable[[], None], *, changed_rows_s: float = CHANGED_ROWS_S
    ) -> StatusError | None:
        """Write; return the error if it did not succeed in time, or before radt has to stop.

        Args:
            write: Raises `StatusError`.
            changed_rows_s: How long to retry if the file exists but lacks rows.
        """
        begun_s = time.monotonic()
        has_said = False
        while True:
            try:
                write()
            except StatusError as error:
                changed = isinstance(error, RowsChangedError)
                left_s = begun_s - time.monotonic()
                left_s += min(changed_rows_s, self._longest_s) if changed else self._left_s
                if left_s <= 0 or self._stop.wait(min(PAUSE_S, left_s)):
                    self._left_s = self._left_s if changed or self._stop else 0.0
                    return error
                if not has_said and not changed:
                    has_said = True
                    self._say(f"{error.message}; waiting up to {units.duration(left_s)}")
            else:
                self._left_s = self._longest_s
                return None
