"""Summaries of metrics for tables of runs, one number a run, from the headers of chunks alone.

A run may have several series of a metric, one for each device or listener. Their minimum and
maximum are those of all, their mean is that of all values, their last value the mean of their last
values. Of a counter, ``last`` is its growth over the run and ``mean`` its growth a
second, both summed over the series; it has no extremes. What the kernel counted of a whole run
(`radt.usage`) takes precedence over readings of the same counter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
from sqlalchemy import Connection, bindparam, text

from radt.model import SOFTWARE, SeriesKind
from radt.store.records import Float64Array
from radt.store.tables import CHUNK_TOTALS, end_value
from radt.usage import KERNEL


class Statistic(StrEnum):
    """Which number of a series stands for a run."""

    LAST = "last"
    MIN = "min"
    MAX = "max"
    MEAN = "mean"


@dataclass(frozen=True, slots=True)
class MetricName:
    """A metric of the store; ``is_logged`` by scripts, ``run_count`` runs have it."""

    metric: str
    unit: str
    kind: SeriesKind
    is_logged: bool
    run_count: int


@dataclass(frozen=True)
class MetricColumn:
    """Statistics of one metric for all runs that have values of it.

    The arrays have an element a run, in the order of ``run_ids``; NaN where no value is finite (a
    last value also where it is not), and for the extremes of counters.
    """

    metric: str
    unit: str
    kind: SeriesKind
    run_ids: tuple[str, ...]
    count: Float64Array
    last: Float64Array
    minimum: Float64Array
    maximum: Float64Array
    mean: Float64Array

    @cached_property
    def _places(self) -> dict[str, int]:
        return {run_id: place for place, run_id in enumerate(self.run_ids)}

    def __contains__(self, run_id: object) -> bool:
        """Return whether the run has values of the metric, finite or not."""
        return run_id in self._places

    def all_of(self, statistic: Statistic) -> Float64Array:
        """Return a statistic of all runs, in the order of ``run_ids``."""
        return {
            Statistic.LAST: self.last,
            Statistic.MIN: self.minimum,
            Statistic.MAX: self.maximum,
            Statistic.MEAN: self.mean,
        }[statistic]

    def values(self, statistic: Statistic, run_ids: Sequence[str]) -> Float64Array:
        """Return a statistic of the given runs, in their order; NaN for runs without it."""
        places = np.array([self._places.get(run_id, -1) for run_id in run_ids], dtype=np.int64)
        return np.append(self.all_of(statistic), math.nan)[places]


_NAMES = text(
    "SELECT metric, MIN(unit), MIN(kind), MAX(CASE WHEN listener = :software THEN 1 ELSE 0 END), "
    "COUNT(DISTINCT run_id) FROM series GROUP BY metric"
).bindparams(software=SOFTWARE)

_COLUMNS = text(
    "SELECT t.metric, t.run_id, t.unit, t.kind, t.listener, "  # noqa: S608 - our own names
    "t.points, t.finite, t.total, t.smallest, t.largest, "
    f"CASE t.kind WHEN :counter THEN {end_value('first_value', 'first_ns', 'ASC')} END, "
    f"{end_value('last_value', 'last_ns', 'DESC')}, "
    "t.last_ns - t.first_ns "
    "FROM (SELECT s.run_id, s.series_no, s.metric, s.unit, s.kind, s.listener, "
    f"{CHUNK_TOTALS} FROM series s JOIN chunk "
    "ON chunk.run_id = s.run_id AND chunk.series_no = s.series_no "
    "WHERE s.metric IN :metrics GROUP BY s.run_id, s.series_no) t "
    "ORDER BY t.run_id, t.series_no"
).bindparams(bindparam("metrics", expanding=True), infinity=math.inf, counter=SeriesKind.COUNTER)


def read_names(connection: Connection) -> list[MetricName]:
    """Return all metrics, those that scripts logged first, by name."""
    names = [
        MetricName(metric, unit, SeriesKind(kind), bool(logged), count)
        for metric, unit, kind, logged, count in connection.execute(_NAMES)
    ]
    return sorted(names, key=lambda name: (not name.is_logged, name.metric))


def read_columns(connection: Connection, metrics: Sequence[str]) -> list[MetricColumn]:
    """Return the columns of metrics by name, without those that no run has values of."""
    rows: dict[str, list[Any]] = {}
    for row in connection.execute(_COLUMNS, {"metrics": list(metrics)}).all():
        rows.setdefault(row[0], []).append(row)
    return [_column(metric, rows[metric]) for metric in sorted(rows)]


def _column(metric: str, rows: Sequence[Any]) -> MetricColumn:
    is_counter = all(row[3] == SeriesKind.COUNTER for row in rows)
    kind = SeriesKind.COUNTER if is_counter else SeriesKind.GAUGE
    run_ids = tuple(dict.fromkeys(row[1] for row in rows))
    if not is_counter and len(run_ids) == len(rows):  # one series a run, as nearly always
        count, finite, total, least, most, _, last = np.array(
            [row[5:12] for row in rows], dtype=np.float64
        ).T
        mean = np.divide(total, finite, out=np.full(len(rows), math.nan), where=finite > 0)
        return MetricColumn(metric, rows[0][2], kind, run_ids, count, last, least, most, mean)
    by_run: dict[str, list[Any]] = {}
    for row in rows:
        by_run.setdefault(row[1], []).append(row)
    summed = _of_counters if is_counter else _of_gauges
    numbers = np.array([summed(of_run) for of_run in by_run.values()], dtype=np.float64)
    return MetricColumn(metric, rows[0][2], kind, run_ids, *numbers.T)


def _of_gauges(rows: Sequence[Any]) -> tuple[float, ...]:
    """Return count, last, minimum, maximum and mean of one run."""
    finite = sum(row[6] for row in rows)
    total = sum(row[7] for row in rows if row[6])
    return (
        sum(row[5] for row in rows),
        _ratio(sum(_number(row[11]) for row in rows), len(rows)),
        min((row[8] for row in rows if row[8] is not None), default=math.nan),
        max((row[9] for row in rows if row[9] is not None), default=math.nan),
        _ratio(total, finite),
    )


def _of_counters(rows: Sequence[Any]) -> tuple[float, ...]:
    counted = [row for row in rows if row[4] == KERNEL] or rows
    growths = [_number(row[11]) - _number(row[10]) for row in counted]
    rates = [_ratio(growth, row[12] / 1e9) for growth, row in zip(growths, counted, strict=True)]
    count = sum(row[5] for row in counted)
    return count, _grown(growths), math.nan, math.nan, _grown(rates)


def _grown(parts: Iterable[float]) -> float:
    """Return the sum; NaN if a counter was set back, whose growth its ends do not tell."""
    parts = list(parts)
    return sum(parts) if all(part >= 0 for part in parts) else math.nan


def _ratio(total: float | None, count: float) -> float:
    return total / count if total is not None and count else math.nan


def _number(value: float | None) -> float:
    return math.nan if value is None else value
