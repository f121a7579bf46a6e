"""A workload under way: what its start, its following and its end have in common."""

from __future__ import annotations

import queue
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from radt import units
from radt.errors import RadtError
from radt.experiment.status import RowStatus, StatusSink
from radt.model import RunStatus
from radt.runner.due import Due
from radt.runner.ending import Ending
from radt.runner.live import WorkloadView
from radt.runner.options import ExperimentOptions
from radt.runner.outcome import RunOutcome
from radt.runner.process import Exit
from radt.runner.provision import Provision
from radt.runner.recording import Recording
from radt.runner.rendezvous import ContextBarrier
from radt.runner.row import Row
from radt.runner.session import Session
from radt.runner.stop import StopRequest

#: How long a killed process may take to be gone.
JOIN_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Ended:
    """A process has ended."""

    row: Row
    exit: Exit


@dataclass(slots=True)
class ActiveWorkload:
    """See the module's text.

    ``events`` wakes whoever follows the workload: with an end, or with None to look around.
    ``context`` is there with ``--sync context`` only. ``skew_ns`` is None for a run alone.
    """

    session: Session
    due: Due
    options: ExperimentOptions
    stop: StopRequest
    statuses: StatusSink | None
    workload_id: str
    rows: Sequence[Row]
    view: WorkloadView
    provision: Provision
    recording: Recording
    context: ContextBarrier | None = None
    skew_ns: int | None = None
    events: queue.SimpleQueue[Ended | None] = field(default_factory=queue.SimpleQueue)

    @property
    def alive(self) -> list[Row]:
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
        try:
            self.write({row: ending})
        except RadtError as error:  # the next write tries again
            self.session.console.say(f"  {error}", style="red")
        self.recording.finished(row.run_id, ending.status, exit_code, ending.reason)
        if self.context is not None:
            self.context.gone(row.run_id)
        # If the user has stopped all, they have been asked to end already.
        if self.options.fail_fast and ending.status is not RunStatus.FINISHED and not self.stop:
            for other in self.rows:
                why = f"row {row.letter} is {ending.status} (--fail-fast)"
                other.stop(Ending(RunStatus.KILLED, why))

    def signal(self, row: Row, number: signal.Signals) -> None:
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
                self.say(f"{row.letter}: its processes could not be ended", "red")

    def fail_all(self, reason: str) -> None:
        """End the whole workload: what it measures is not what was asked for."""
        for row in self.rows:
            row.stop(Ending(RunStatus.FAILED, reason))

    def write(self, statuses: Mapping[Row, Ending]) -> None:
        """Write statuses into the experiment file.

        Raises:
            StatusError: They go with the next write.
        """
        if self.statuses is not None:
            self.statuses.set_many(
                {
                    row.recorded.plan.line: RowStatus(
                        status_text(ending, self.due.repeat, self.due.repeats), row.shown_id
                    )
                    for row, ending in statuses.items()
                }
            )

    def say(self, text: str, style: str = "dim") -> None:
        """Print a line below the workload."""
        self.session.console.say(f"  {text}", style=style, indent=2)


def status_text(ending: Ending, repeat: int, repeats: int) -> str:
    """What the Status cell says: ``FINISHED``, ``KILLED 2/3: stopped by the user``."""
    count = f" {repeat}/{repeats}" if repeats > 1 else ""
    return (
        f"{ending.status}{count}: {ending.reason}" if ending.reason else f"{ending.status}{count}"
    )
