"""A workload under way, each of its runs, and how they are stopped.

Ctrl-C once asks the training processes to end, twice kills them. The terminal does not deliver
Ctrl-C to them (each has a session of its own): the runner decides which signal they get, and when.
"""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

from radt import units
from radt.errors import RadtError
from radt.experiment.status import RowStatus, StatusSink
from radt.model import RunStatus
from radt.runner.barrier import ContextBarrier
from radt.runner.command import PATIENCE_S, Profiling
from radt.runner.live import RunView, WorkloadView
from radt.runner.outcome import STOPPED, RunEnd, RunOutcome
from radt.runner.pending import ExperimentOptions, PendingWorkload
from radt.runner.preparation import RecordedRun
from radt.runner.process import Exit, TrainingProcess
from radt.runner.provision import LaunchSpec, Provision
from radt.runner.recording import Recording, Session

#: Seconds from the polite signal to SIGTERM, and from there to SIGKILL.
INTERRUPT_GRACE_S = 10.0
TERMINATE_GRACE_S = 5.0

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(slots=True)
class Escalation:
    """Which signal is due: the first one, then SIGTERM, then SIGKILL.

    For all runs if the user asks, for one of them if radt ends it (its Timeout, another's failure).
    The second one comes ``patience_s`` later than it would, for what takes long to end well.
    ``is_hurried`` says that SIGKILL was asked for.
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
        """The signal to send now, if one is due; each is returned once."""
        if self._due and time.monotonic() >= self._due[0][0]:
            return self._due.pop(0)[1]
        return None


class StopRequest:
    """Whether the user wants the runner to stop, and how urgently; from any thread.

    ``reason`` is that of the runs which end of it, ``patience_s`` the time that a profiler has for
    its report.
    """

    patience_s = PATIENCE_S

    def __init__(self) -> None:
        self.escalation: Escalation | None = None
        self.reason = STOPPED
        self.on_request: Callable[[], None] = lambda: None
        # A signal may come in the middle of any line; unlike events and locks, this may be used
        # in its handler then.
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()

    def __bool__(self) -> bool:
        return self.escalation is not None

    @property
    def number(self) -> signal.Signals | None:
        """The signal that asked first; None while nobody has."""
        return self.escalation.first if self.escalation is not None else None

    @property
    def exit_code(self) -> int:
        """128 plus the signal's number, as shells have it."""
        return 128 + (self.number or signal.SIGINT)

    def request(self, number: int = signal.SIGINT) -> None:
        """Ask to stop, as a signal of this number does; asked again, kill."""
        if self.escalation is None:
            self.escalation = Escalation(signal.Signals(number))
        else:
            self.escalation.kill_now()
        self._wake.put(None)
        self.on_request()

    def request_once(self, reason: str) -> None:
        """Ask to stop as Ctrl-C does, for a reason of radt's own; asked again, nothing changes."""
        if self.escalation is None:
            self.reason = reason
            self.request()

    def wait(self, timeout_s: float) -> bool:
        """Return when the user wants to stop, or the time is over; whether he does."""
        if not self:
            try:
                self._wake.get(timeout=timeout_s)
            except queue.Empty:
                return bool(self)
            self._wake.put(None)  # for whoever else waits
        return True

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take SIGINT, SIGTERM and SIGHUP while inside.

        A signal that whoever started radt has switched off (nohup, a shell's background job) stays
        switched off. Outside the main thread, which alone may take signals, `request` is the way.
        """
        previous: dict[signal.Signals, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in _STOP_SIGNALS:
                # None: a handler that is not Python's, which could not be put back.
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    previous[number] = signal.signal(number, self._handle)
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.request(number)


#: Of the signals that end runs; all others ask as politely as SIGINT.
_URGENCY: Mapping[int, int] = {signal.SIGTERM: 2, signal.SIGKILL: 3}


@dataclass(slots=True, eq=False)
class ActiveRun:
    """See the module's text.

    ``verdict`` is set where radt itself ends the run, and then says how; ``timed_out`` where its
    time was over; ``dismissed_ns`` is the monotonic time at which a service was asked to end after
    all others. ``outcome`` is there once the run has ended.
    """

    recorded: RecordedRun
    view: RunView
    mlflow_run_id: str | None = None
    startable: LaunchSpec | None = None
    process: TrainingProcess | None = None
    escalation: Escalation | None = None
    verdict: RunEnd | None = None
    timed_out: bool = False
    dismissed_ns: int | None = None
    started_monotonic_s: float | None = None
    outcome: RunOutcome | None = None
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
        """The process, which has been started."""
        assert self.process is not None
        return self.process

    @property
    def is_service(self) -> bool:
        """Whether it serves the others, and ends after them."""
        return self.recorded.plan.is_service

    @property
    def was_killed(self) -> bool:
        """Whether it was sent SIGKILL, because it had not ended when it was asked to."""
        return self._urgency >= _URGENCY[signal.SIGKILL]

    @property
    def exceeded_s(self) -> float | None:
        """The Timeout that the run exceeded."""
        return self.recorded.plan.timeout_s if self.timed_out else None

    @property
    def alive(self) -> bool:
        """Whether the process was started and has not been seen to end."""
        return self.process is not None and self.outcome is None

    @property
    def profiling(self) -> Profiling | None:
        """The profilers that the run is under."""
        return self.startable.profiling if self.startable is not None else None

    @property
    def is_prefixed(self) -> bool:
        """Whether a profiler is its parent, which writes a report after the program has ended."""
        return self.profiling is not None and bool(self.profiling.prefix)

    def stop(self, verdict: RunEnd) -> None:
        """Begin to end the run: it asks, insists and kills; the first verdict counts."""
        if self.escalation is None and self.outcome is None:
            self.escalate()
            self.verdict = verdict

    def dismiss(self) -> None:
        """Begin to end a service that nobody needs any more."""
        if self.escalation is None and self.outcome is None:
            self.escalate()
            self.dismissed_ns = time.monotonic_ns()

    def escalate(self, patience_s: float = PATIENCE_S) -> None:
        """Begin to end it. Where a report is to be written, it has so much time for that.

        SIGINT, unlike SIGTERM, leaves alone what the profiler has in groups of its own.
        """
        self.escalation = Escalation(
            signal.SIGINT, patience_s=patience_s if self.is_prefixed else 0.0
        )

    def is_news(self, number: int) -> bool:
        """Whether the run has not been asked to end as urgently before; noted as asked now.

        The user and radt may both ask; many programs take a second Ctrl-C for leave to drop what
        they are saving. What kills may come again.
        """
        urgency = _URGENCY.get(number, 1)
        news = urgency > self._urgency or number == signal.SIGKILL
        self._urgency = max(self._urgency, urgency)
        return news

    def check_time(self) -> bool:
        """Begin to stop the run if its Timeout is over; whether it just was."""
        timeout_s = self.recorded.plan.timeout_s
        if (
            timeout_s is None
            or self.started_monotonic_s is None
            or not self.alive
            or self.escalation is not None
            or time.monotonic() < self.started_monotonic_s + timeout_s
        ):
            return False
        if self.profiling is not None and self.profiling.program_end is not None:
            return False  # it was in time; its report does not count
        self.timed_out = True
        self.escalate()
        return True


#: How long a killed process may take to be gone.
JOIN_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Ended:
    """A process has ended."""

    row: ActiveRun
    exit: Exit


@dataclass(slots=True)
class ActiveWorkload:
    """See the module's text.

    ``events`` wakes whoever follows the workload: with an end, or with None to look around.
    ``context`` is there with ``--sync context`` only. ``skew_ns`` is None for a run alone.
    """

    session: Session
    pending: PendingWorkload
    options: ExperimentOptions
    stop: StopRequest
    statuses: StatusSink | None
    workload_id: str
    rows: Sequence[ActiveRun]
    view: WorkloadView
    provision: Provision
    recording: Recording
    context: ContextBarrier | None = None
    skew_ns: int | None = None
    events: queue.SimpleQueue[Ended | None] = field(default_factory=queue.SimpleQueue)

    @property
    def alive(self) -> list[ActiveRun]:
        """Rows whose process was started and has not been seen to end."""
        return [row for row in self.rows if row.alive]

    def wake(self) -> None:
        """Have whoever follows the workload look around."""
        self.events.put(None)

    def record_barrier(self, released_ns: Mapping[str, int]) -> None:
        """Note when the runs went on, by run id; monotonic ns."""
        if not released_ns:
            return
        barrier_ns = min(released_ns.values())
        if len(released_ns) > 1:  # one run alone has no skew, rather than none of it
            self.skew_ns = max(released_ns.values()) - barrier_ns
            self.view.state = f"barrier skew {units.duration(self.skew_ns / 1e9)}"
        self.view.started_monotonic_s = barrier_ns / 1e9
        self.recording.barrier(self.workload_id, barrier_ns, self.skew_ns)

    def end(
        self,
        row: ActiveRun,
        ending: RunEnd,
        exit_code: int | None = None,
        tail: Sequence[str] = (),
        *,
        in_file: bool = True,
    ) -> None:
        """Record a row's end everywhere; what cannot be reached hears of it later.

        With several nodes it is the end of a part; `settle` records that of the run.

        Args:
            in_file: Whether the experiment file has the row.
        """
        row.view.ended_monotonic_s = time.monotonic()
        row.view.status = ending.status
        row.view.detail = ending.reason
        row.outcome = RunOutcome(
            letter=row.letter,
            name=row.recorded.plan.label,
            role=row.recorded.plan.role,
            run_id=row.run_id,
            status=ending.status,
            reason=ending.reason,
            elapsed_s=row.view.elapsed_s,
            tail=tail,
            log=row.recorded.run_dir.output_log if row.process is not None else None,
        )
        row.exit_code = exit_code
        if self.session.spread is None:
            self._record_end(row, ending, in_file=in_file)
        else:
            self.session.spread.ended(row.letter, ending)
        if self.context is not None:
            self.context.gone(row.run_id)
        # If the user has stopped all, they have been asked to end already.
        if self.options.fail_fast and ending.status is not RunStatus.FINISHED and not self.stop:
            for other in self.rows:
                why = f"row {row.letter} is {ending.status} (--fail-fast)"
                other.stop(RunEnd(RunStatus.KILLED, why))

    def settle(self) -> None:
        """Record the ends of runs that are spread over several nodes, once all parts have one."""
        if (spread := self.session.spread) is None:
            return
        endings = spread.settle()
        for row in self.rows:
            ending = endings[row.letter]
            assert row.outcome is not None
            if (row.outcome.status, row.outcome.reason) != (ending.status, ending.reason):
                # It is the end of another node's part.
                row.exit_code = None
            row.outcome = replace(row.outcome, status=ending.status, reason=ending.reason)
            row.view.status, row.view.detail = ending.status, ending.reason
            self.recording.tags(row.run_id, dict(spread.tags))
            self._record_end(row, ending)

    def _record_end(self, row: ActiveRun, ending: RunEnd, *, in_file: bool = True) -> None:
        try:
            if row.mlflow_run_id is None and self.session.tracking_uri:
                row.mlflow_run_id = self.session.reader.run(row.run_id).mlflow_run_id
            self.write({row: ending} if in_file else {})
        except RadtError as error:  # the next write tries again
            self.session.console.say(f"  {error}", style="red")
        self.recording.finished(row.run_id, ending.status, row.exit_code, ending.reason)

    def signal(self, row: ActiveRun, number: signal.Signals) -> None:
        """Send a signal to a row's processes; an MPS client is taken off its server before."""
        devices = self.provision.devices
        if number == signal.SIGKILL and devices is not None and not devices.plan.is_naive:
            for problem in devices.about_to_kill(row.running.descendants()):
                self.say(f"{row.letter}: {problem}")
        row.running.signal(number)

    def kill_all(self) -> None:
        """End what is left of all rows, at once; return when it is gone."""
        started = [row for row in self.rows if row.process is not None]
        for row in started:
            if not row.running.join(0.0):
                self.signal(row, signal.SIGKILL)
        for row in started:
            if not row.running.join(JOIN_TIMEOUT_S):
                self.say(f"{row.letter}: its processes did not end", "red")

    def fail_all(self, reason: str) -> None:
        """End the whole workload: what it measures is not what was asked for."""
        for row in self.rows:
            row.stop(RunEnd(RunStatus.FAILED, reason))

    def write(self, statuses: Mapping[ActiveRun, RunEnd]) -> None:
        """Write statuses into the experiment file.

        Raises:
            StatusError: They go with the next write.
        """
        if self.statuses is not None:
            self.statuses.set_many(
                {
                    row.recorded.plan.line: RowStatus(
                        status_text(ending, self.pending.repeat, self.pending.repeats), row.run_id
                    )
                    for row, ending in statuses.items()
                }
            )

    def say(self, text: str, style: str = "dim") -> None:
        """Print a line below the workload."""
        self.session.console.say(f"  {text}", style=style, indent=2)


def status_text(ending: RunEnd, repeat: int, repeats: int) -> str:
    """What the Status cell says: ``FINISHED``, ``KILLED 2/3: stopped by the user``."""
    count = f" {repeat}/{repeats}" if repeats > 1 else ""
    return (
        f"{ending.status}{count}: {ending.reason}" if ending.reason else f"{ending.status}{count}"
    )
