"""The vocabulary shared by all parts: statuses, scopes, kinds (ARCHITECTURE.md has the words)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class RunStatus(StrEnum):
    """State of a run or workload; the values are MLflow's."""

    SCHEDULED = "SCHEDULED"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    KILLED = "KILLED"

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen in this state."""
        return self in (RunStatus.FINISHED, RunStatus.FAILED, RunStatus.KILLED)


class Scope(StrEnum):
    """What a value describes. A value is never given a narrower scope than it was measured at."""

    RUN = "run"  # logged by the training script itself
    PROCESS = "process"  # the run's process tree
    MIG = "mig"  # one MIG instance
    GPU = "gpu"  # a whole GPU, whoever uses it
    HOST = "host"  # the whole machine


class SeriesKind(StrEnum):
    """How the values of a series behave over time."""

    GAUGE = "gauge"  # goes up and down; mean, min and max make sense
    COUNTER = "counter"  # only grows; differences make sense


class MissingReason(StrEnum):
    """Why a value is missing. A missing value is never 0, -1 or 100."""

    UNSUPPORTED = "unsupported"  # the hardware or driver does not have it
    PERMISSION = "permission"  # it exists but may not be read
    PAUSED = "paused"  # switched off on purpose, a profiler runs
    LOST = "lost"  # should have been read and was not


class MarkerKind(StrEnum):
    """What a marker stands for."""

    EPOCH = "epoch"
    PHASE = "phase"
    SPAN = "span"
    EVENT = "event"  # something radt itself noticed: a listener restarted, samples missed


#: The ``listener`` of series that the training script logs itself.
SOFTWARE = "run"


@dataclass(frozen=True, slots=True)
class ListenerChoice:
    """A listener that a run asks for; ``interval_s`` is None for the listener's own default."""

    name: str
    interval_s: float | None = None

    def __str__(self) -> str:
        return self.name if self.interval_s is None else f"{self.name}@{self.interval_s:g}s"
