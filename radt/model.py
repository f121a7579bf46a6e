"""The vocabulary shared by all parts: statuses, scopes, kinds (ARCHITECTURE.md has the words)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from radt.errors import UsageError


class RunStatus(StrEnum):
    """State of a run or workload; MLflow knows fewer, see `mlflow`."""

    SCHEDULED = "SCHEDULED"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    FAILED = "FAILED"  # it ended by itself with an exit code other than 0, or could not be started
    KILLED = "KILLED"  # a signal ended it: the user's, radt's, anybody's
    TIMEOUT = "TIMEOUT"  # it took longer than its Timeout
    OOM = "OOM"  # memory ran out, the GPU's or the host's
    SKIPPED = "SKIPPED"  # it was due and never started

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen in this state."""
        return self not in (RunStatus.SCHEDULED, RunStatus.RUNNING)

    @property
    def mlflow(self) -> str:
        """MLflow's nearest status; the tag ``radt.status`` has the exact one."""
        match self:
            case RunStatus.TIMEOUT | RunStatus.SKIPPED:
                return RunStatus.KILLED.value
            case RunStatus.OOM:
                return RunStatus.FAILED.value
        return self.value

    @classmethod
    def worst(cls, statuses: Iterable[RunStatus]) -> RunStatus:
        """The status of a whole from those of its parts: FAILED first, FINISHED last."""
        present = set(statuses)
        for status in (
            *(cls.FAILED, cls.OOM, cls.TIMEOUT, cls.KILLED),
            *(cls.SKIPPED, cls.RUNNING, cls.SCHEDULED),
        ):
            if status in present:
                return status
        return cls.FINISHED


class Role(StrEnum):
    """What a run is there for, as the Role column says it."""

    TRAINING = ""
    SERVICE = "service"  # it serves the other runs of its workload, and ends after them


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
    UNATTRIBUTABLE = "unattributable"  # it exists for a whole that others use, too
    LOST = "lost"  # should have been read and was not


class MarkerKind(StrEnum):
    """What a marker stands for."""

    EPOCH = "epoch"
    PHASE = "phase"
    SPAN = "span"
    EVENT = "event"  # something radt itself noticed: a listener restarted, samples missed


#: Characters of a run's id in lists and messages; any 4 or more stand for it.
SHORT_ID_CHARS = 8


def short_id(run_id: str) -> str:
    """Return the beginning of a run's id, for people."""
    return run_id[:SHORT_ID_CHARS]


#: The listeners of a run that names none; may stand among others, too.
DEFAULT_LISTENERS = "default"

#: The ``listener`` of series that the training script logs itself.
SOFTWARE = "run"

#: The ``method`` of those of them that the script logs through MLflow, to the run's MLflow run:
#: MLflow has their points already.
THROUGH_MLFLOW = "logged through MLflow"

#: The step of a point that has none.
NO_STEP = -(2**63)

#: An interval below this measures radt more than the machine; one above is a typing error.
MIN_INTERVAL_S = 0.01
MAX_INTERVAL_S = 3600.0
_INTERVAL = r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|min)"
_OPTION = r"[a-z][a-z0-9_]*(=[^:+@\s]+)?"
_UNIT_S = {"ms": 0.001, "s": 1.0, "min": 60.0}


@dataclass(frozen=True, slots=True)
class ListenerChoice:
    """A listener that a run asks for; ``interval_s`` is None for the listener's own default.

    ``options`` are as the user wrote them: ``("cores",)``, ``("epochs=2-3",)``.
    """

    name: str
    interval_s: float | None = None
    options: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> ListenerChoice:
        """``top``, ``top@500ms``, ``top:cores@2s``; whether it is installed is not asked.

        Raises:
            UsageError: The interval cannot be understood or makes no sense, or an option is not
                ``word`` or ``word=value``.
        """
        named, at, interval = (part.strip() for part in text.partition("@"))
        name, *options = (part.strip().lower() for part in named.split(":"))
        for option in options:
            if not re.fullmatch(_OPTION, option):
                raise UsageError(
                    f"{option!r} is not an option", f"Write {name}:option or {name}:option=value"
                )
        if not at:
            return cls(name, None, tuple(options))
        match = re.fullmatch(_INTERVAL, interval, re.IGNORECASE)
        if match is None:
            raise UsageError(f"{interval!r} is not an interval", f"Write {name}@500ms or {name}@2s")
        interval_s = float(match[1]) * _UNIT_S[match[2].lower()]
        if not MIN_INTERVAL_S <= interval_s <= MAX_INTERVAL_S:
            raise UsageError(
                f"an interval of {interval} is out of range",
                f"Choose between {MIN_INTERVAL_S * 1000:g}ms and {MAX_INTERVAL_S / 60:g}min",
            )
        return cls(name, interval_s, tuple(options))

    def __str__(self) -> str:
        named = ":".join((self.name, *self.options))
        return named if self.interval_s is None else f"{named}@{self.interval_s:g}s"
