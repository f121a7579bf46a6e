"""What the user looks at, and its form in the page's address, so that a link shows the same.

Parameters, all optional: ``e`` experiment, ``r`` runs (first 12 characters of their ids),
``m`` metrics, ``level`` run or workload, ``t`` the zoom in seconds since the start (``12.5,60``),
``mean`` and ``sum`` metrics aggregated otherwise than by default. Without ``r`` or ``m`` the
dashboard chooses, and goes on choosing as new runs come.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self
from urllib.parse import parse_qs, quote, urlencode

RUN_ID_DIGITS = 12
MAX_RUNS = 200
MAX_METRICS = 24


class Level(StrEnum):
    """What one line of a chart stands for."""

    RUN = "run"
    WORKLOAD = "workload"


class Aggregate(StrEnum):
    """How the runs of a workload become one line."""

    MEAN = "mean"
    SUM = "sum"


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time, in seconds since the runs' start."""

    start_s: float
    end_s: float

    @classmethod
    def parse(cls, text: str) -> Window | None:
        """From ``12.5,60``; None for anything that is no stretch of time."""
        try:
            start_s, end_s = (float(part) for part in text.split(","))
        except ValueError:
            return None
        return cls.of(start_s, end_s)

    @classmethod
    def of(cls, start_s: float, end_s: float) -> Window | None:
        """The stretch, or None if it is none (empty, reversed, not finite)."""
        finite = math.isfinite(start_s) and math.isfinite(end_s)
        return cls(start_s, end_s) if finite and end_s > start_s else None

    def __str__(self) -> str:
        return f"{self.start_s:.6g},{self.end_s:.6g}"


@dataclass(frozen=True, slots=True)
class Selection:
    """Experiment, runs, metrics and how to show them; None means that the dashboard chooses."""

    experiment: str | None = None
    run_ids: tuple[str, ...] | None = None
    metrics: tuple[str, ...] | None = None
    level: Level = Level.RUN
    window: Window | None = None
    aggregates: Mapping[str, Aggregate] = field(default_factory=dict)

    @classmethod
    def from_query(cls, search: str | None) -> Self:
        """Read the part of an address after ``?``; what makes no sense there is left out."""
        query = parse_qs((search or "").lstrip("?"), keep_blank_values=True)

        def single(name: str) -> str | None:
            return query[name][0] if name in query else None

        def several(name: str, limit: int) -> tuple[str, ...] | None:
            if name not in query:
                return None
            parts = (part for text in query[name] for part in text.split(","))
            return tuple(dict.fromkeys(part for part in parts if part))[:limit]

        level = single("level")
        aggregates = {
            metric: aggregate
            for aggregate in Aggregate
            for metric in several(aggregate, MAX_METRICS) or ()
        }
        return cls(
            experiment=single("e"),
            run_ids=several("r", MAX_RUNS),
            metrics=several("m", MAX_METRICS),
            level=Level(level) if level in list(Level) else Level.RUN,
            window=Window.parse(single("t") or ""),
            aggregates=aggregates,
        )

    def to_query(self) -> str:
        """The address after ``?``, with nothing in it that is the default anyway."""
        query: dict[str, str] = {}
        if self.experiment is not None:
            query["e"] = self.experiment
        if self.run_ids is not None:
            query["r"] = ",".join(run_id[:RUN_ID_DIGITS] for run_id in self.run_ids)
        if self.metrics is not None:
            query["m"] = ",".join(self.metrics)
        if self.level is not Level.RUN:
            query["level"] = self.level
        if self.window is not None:
            query["t"] = str(self.window)
        for aggregate in Aggregate:
            metrics = [name for name, chosen in self.aggregates.items() if chosen is aggregate]
            if metrics:
                query[aggregate] = ",".join(metrics)
        return urlencode(query, safe=",./", quote_via=quote)
