"""One row of a workload under way: its process, its deadline, how it is being stopped."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass

from radt.runner.ending import Ending
from radt.runner.live import RunView
from radt.runner.outcome import RunOutcome
from radt.runner.preparation import RecordedRun
from radt.runner.process import TrainingProcess
from radt.runner.profiling import PATIENCE_S, Profiling
from radt.runner.provision import StartableRun
from radt.runner.stop import Escalation

#: Of the signals that end runs; all others ask as politely as SIGINT.
_URGENCY: Mapping[int, int] = {signal.SIGTERM: 2, signal.SIGKILL: 3}


@dataclass(slots=True, eq=False)
class Row:
    """See the module's text.

    ``verdict`` is set where radt itself ends the run, and then says how; ``timed_out`` where its
    time was over. ``outcome`` is there once the run has ended.
    """

    recorded: RecordedRun
    view: RunView
    mlflow_run_id: str | None = None
    startable: StartableRun | None = None
    process: TrainingProcess | None = None
    escalation: Escalation | None = None
    verdict: Ending | None = None
    timed_out: bool = False
    started_monotonic_s: float | None = None
    outcome: RunOutcome | None = None
    _urgency: int = 0

    @property
    def letter(self) -> str:
        return self.recorded.plan.letter

    @property
    def run_id(self) -> str:
        return self.recorded.run_id

    @property
    def shown_id(self) -> str:
        """The id for the Run column: MLflow's, as people paste it there; else radt's own."""
        return self.mlflow_run_id or self.run_id

    @property
    def running(self) -> TrainingProcess:
        """The process, which has been started."""
        assert self.process is not None
        return self.process

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

    def stop(self, verdict: Ending) -> None:
        """Begin to end the run: it asks, insists and kills; the first verdict counts."""
        if self.escalation is None and self.outcome is None:
            self.escalate()
            self.verdict = verdict

    def escalate(self) -> None:
        """Begin to end it. Where a report is to be written, it has time for that.

        SIGINT, unlike SIGTERM, leaves alone what the profiler has in groups of its own.
        """
        patience_s = PATIENCE_S if self.is_prefixed else 0.0
        self.escalation = Escalation(signal.SIGINT, patience_s=patience_s)

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
