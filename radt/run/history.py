"""What a run keeps for a script in the style of W&B: next step, parameters, last values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from radt.errors import UsageError

#: Computes a statistic from its previous value, a new value, and the number of values.
_Fold = Callable[[float, float, int], float]
_FOLDS: dict[str, _Fold] = {
    "first": lambda known, _, __: known,
    "last": lambda _, value, __: value,
    "max": lambda known, value, _: value if math.isnan(known) or value > known else known,
    "mean": lambda known, value, count: known + (value - known) / count,
    "min": lambda known, value, _: value if math.isnan(known) or value < known else known,
}


@dataclass(slots=True)
class History:
    """State that a run keeps for its script: next step, parameters, last values and warnings given.

    Attributes:
        statistics: Names of the statistics in a metric's summary, by pattern of metric names.
        counts: Number of values of each metric with statistics.
        alerts: Time of the last alert with each title (`time.monotonic`).
    """

    step: int = 0
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    statistics: dict[str, dict[str, _Fold]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    tags: tuple[str, ...] = ()
    notes: str | None = None
    job_type: str | None = None
    alerts: dict[str, float] = field(default_factory=dict)

    def define(self, pattern: str, summary: str, goal: str | None) -> None:
        """Choose the statistics that the summary of matching metrics keeps.

        Raises:
            UsageError: The statistic is unknown, or ``best`` has no goal.
        """
        known = _FOLDS | {"best": _FOLDS.get(f"{goal}"[:3], _FOLDS["last"])}
        kinds = [kind.strip() for kind in summary.split(",")]
        if "best" in kinds and goal not in ("minimize", "maximize"):
            raise UsageError(f"Expected goal='minimize' or 'maximize' with 'best', got {goal!r}")
        if unknown := set(kinds) - known.keys() - {"copy", "none"}:
            raise UsageError(f"Expected summary={'|'.join(known)}, got {unknown.pop()!r}")
        self.statistics[pattern] = {kind: known[kind] for kind in kinds if kind in known}

    def note(self, name: str, value: float) -> None:
        """Update the summary with a value that was logged."""
        patterns = [pattern for pattern in self.statistics if fnmatchcase(name, pattern)]
        if not patterns:
            self.summary[name] = value
            return
        self.counts[name] += 1
        known = self.summary.get(name)
        if self.counts[name] == 1 or not isinstance(known, dict):  # the script may have set it
            known = {}
        self.summary[name] = {
            kind: fold(known.get(kind, value), value, self.counts[name])
            for kind, fold in self.statistics[patterns[-1]].items()
        }
