"""Vocabulary shared by all packages: statuses, scopes and kinds (see ARCHITECTURE.md)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from radt.errors import UsageError


class RunStatus(StrEnum):
    """Status of a run or workload. MLflow has fewer statuses, see `mlflow`."""

    SCHEDULED = "SCHEDULED"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    FAILED = "FAILED"  # exited with a code other than 0, or could not be started
    KILLED = "KILLED"  # ended by a signal, from the user, radt or any other process
    TIMEOUT = "TIMEOUT"  # exceeded its Timeout
    OOM = "OOM"  # ran out of GPU or host memory
    SKIPPED = "SKIPPED"  # was scheduled and never started

    @property
    def ended(self) -> bool:
        """Return True if the status is final."""
        return self not in (RunStatus.SCHEDULED, RunStatus.RUNNING)

    @property
    def mlflow(self) -> str:
        """Return MLflow's nearest status; the tag ``radt.status`` has the exact one."""
        match self:
            case RunStatus.TIMEOUT | RunStatus.SKIPPED:
                return RunStatus.KILLED.value
            case RunStatus.OOM:
                return RunStatus.FAILED.value
        return self.value

    @classmethod
    def worst(cls, statuses: Iterable[RunStatus]) -> RunStatus:
        """Return the worst of the runs' statuses, from FAILED (worst) to FINISHED (best)."""
        present = set(statuses)
        for status in (
            *(cls.FAILED, cls.OOM, cls.TIMEOUT, cls.KILLED),
            *(cls.SKIPPED, cls.RUNNING, cls.SCHEDULED),
        ):
            if status in present:
                return status
        return cls.FINISHED


#: Names of run statuses for users. Running out of memory is a result, not a failure.
STATUS_WORDS: Mapping[RunStatus, str] = {
    RunStatus.SCHEDULED: "waiting",
    RunStatus.RUNNING: "running",
    RunStatus.FINISHED: "finished",
    RunStatus.FAILED: "failed",
    RunStatus.KILLED: "killed",
    RunStatus.TIMEOUT: "timed out",
    RunStatus.OOM: "OOM",
    RunStatus.SKIPPED: "skipped",
}


class Role(StrEnum):
    """Purpose of a run, as in the Role column."""

    TRAINING = ""
    SERVICE = "service"  # serves the other runs of its workload, and ends after them


class Scope(StrEnum):
    """What a value describes. A value never gets a narrower scope than it was measured at."""

    RUN = "run"  # logged by the training script itself
    PROCESS = "process"  # the run's process tree
    MIG = "mig"  # one MIG instance
    GPU = "gpu"  # a whole GPU, including other users of it
    HOST = "host"  # the whole machine


class SeriesKind(StrEnum):
    """How the values of a series behave over time."""

    GAUGE = "gauge"  # goes up and down; mean, min and max make sense
    COUNTER = "counter"  # only grows; differences make sense


class MissingReason(StrEnum):
    """Why a value is missing. Missing values are never stored as 0, -1 or 100."""

    UNSUPPORTED = "unsupported"  # not provided by the hardware or driver
    PERMISSION = "permission"  # exists, but reading it is not permitted
    PAUSED = "paused"  # paused on purpose while a profiler runs
    UNATTRIBUTABLE = "unattributable"  # only known for a whole that others also use
    LOST = "lost"  # should have been read but was not


class MarkerKind(StrEnum):
    """Kind of marker on a run's timeline."""

    EPOCH = "epoch"
    PHASE = "phase"
    SPAN = "span"
    EVENT = "event"  # noticed by radt itself: a listener restarted, samples missed


#: Number of characters of a run id in lists and messages. Users may type any 4 or more.
SHORT_ID_CHARS = 8


def short_id(run_id: str) -> str:
    """Return the abbreviated run id for display."""
    return run_id[:SHORT_ID_CHARS]


#: Stands for the default set of listeners. May be combined with other listeners.
DEFAULT_LISTENERS = "default"

#: ``listener`` of series that the training script logs itself.
SOFTWARE = "run"

#: ``method`` of script-logged series that the script logs through MLflow to the run's MLflow run.
#: MLflow already has their points.
THROUGH_MLFLOW = "logged through MLflow"

#: Step of a point that has none.
NO_STEP = -(2**63)

#: Shorter intervals measure radt rather than the machine; longer ones are typing errors.
MIN_INTERVAL_S = 0.01
MAX_INTERVAL_S = 3600.0
_INTERVAL = r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|min)"
_OPTION = r"[a-z][a-z0-9_]*(=[^:+@\s]+)?"
_UNIT_S = {"ms": 0.001, "s": 1.0, "min": 60.0}


@dataclass(frozen=True, slots=True)
class ListenerChoice:
    """A listener requested for a run; ``interval_s`` is None for the listener's default.

    ``options`` are as the user wrote them: ``("cores",)``, ``("epochs=2-3",)``.
    """

    name: str
    interval_s: float | None = None
    options: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> ListenerChoice:
        """Parse ``top``, ``top@500ms`` or ``top:cores@2s``, without checking that it is installed.

        Raises:
            UsageError: The interval is invalid or out of range, or an option is not ``word`` or
                ``word=value``.
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
