"""Reduce whole runs to one number per metric, from the summaries of their series.

A run may have several series of a metric, one per device and listener. One listener counts
(`counted`), and `of_devices` combines its devices. For a counter, ``last`` is its growth over the
run and ``mean`` its rate, in the unit of `rate_unit`; it has no extremes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np
from sqlalchemy import bindparam, text

from radt.analysis.quantities import Statistic
from radt.model import SOFTWARE, SeriesKind
from radt.store.counters import rate_unit
from radt.store.reader import StoreReader
from radt.store.records import Float64Array
from radt.usage import KERNEL

#: The statistics of columns.
STATISTICS = (Statistic.LAST, Statistic.MIN, Statistic.MAX, Statistic.MEAN)


@dataclass(frozen=True, slots=True)
class MetricName:
    """A metric of the store. Scripts log it if ``is_logged``; ``run_count`` runs have it."""

    metric: str
    unit: str
    kind: SeriesKind
    is_logged: bool
    run_count: int


@dataclass(frozen=True)
class MetricColumn:
    """Statistics of one metric for all runs that have values of it.

    The arrays of ``numbers`` have an element per run, in the order of ``run_ids``: NaN where no
    value is finite, and for the extremes of counters. The last value is as stored: infinite or NaN
    for a diverged run.
    """

    metric: str
    unit: str
    kind: SeriesKind
    run_ids: tuple[str, ...]
    count: Float64Array
    numbers: Mapping[Statistic, Float64Array]

    @cached_property
    def _places(self) -> dict[str, int]:
        return {run_id: place for place, run_id in enumerate(self.run_ids)}

    def __contains__(self, run_id: object) -> bool:
        """Return whether the run has values of the metric, finite or not."""
        return run_id in self._places

    def unit_of(self, statistic: Statistic) -> str:
        """Return the unit of a statistic: the mean of a counter is a rate."""
        is_rate = self.kind is SeriesKind.COUNTER and statistic is Statistic.MEAN
        return rate_unit(self.unit).unit if is_rate else self.unit

    def values(self, statistic: Statistic, run_ids: Sequence[str]) -> Float64Array:
        """Return a statistic of the given runs, in their order; NaN for runs without it."""
        places = np.array([self._places.get(run_id, -1) for run_id in run_ids], dtype=np.int64)
        return np.append(self.numbers[statistic], math.nan)[places]


_NAMES = text(
    "SELECT metric, MIN(unit), MIN(kind), MAX(CASE WHEN listener = :software THEN 1 ELSE 0 END), "
    "COUNT(DISTINCT run_id) FROM series GROUP BY metric"
).bindparams(software=SOFTWARE)

#: The summaries of all series of some metrics that have points; seconds are those of the growth.
_SUMMARIES = text(
    "SELECT s.metric, s.run_id, s.unit, s.kind, s.listener, t.count, t.finite_count, t.last, "
    "t.minimum, t.maximum, t.total, t.growth, (t.last_finite_ns - t.first_finite_ns) / 1e9 "
    "FROM series s JOIN series_summary t ON t.run_id = s.run_id AND t.series_no = s.series_no "
    "WHERE s.metric IN :metrics ORDER BY s.run_id, s.series_no"
).bindparams(bindparam("metrics", expanding=True))


def counted(listeners: Sequence[str], *, whole_run: bool = True) -> list[int]:
    """Return the indices of the series of a metric in a run that count: those of one listener.

    That is the script if it logs the metric, else the listener of the first series. The kernel's
    totals (`radt.usage`) come first for whole runs, and last otherwise, as they have no
    intermediate readings.

    Args:
        listeners: The listener of each series, in the order of their numbers.
        whole_run: Whether the numbers cover the whole run.
    """

    def rank(place: int) -> tuple[bool, bool, int]:
        is_kernel = listeners[place] == KERNEL
        return is_kernel is not whole_run, listeners[place] != SOFTWARE, place

    if len(listeners) < 2:
        return list(range(len(listeners)))
    first = listeners[min(range(len(listeners)), key=rank)]
    return [place for place, listener in enumerate(listeners) if listener == first]


def of_devices(statistic: Statistic, numbers: Sequence[float]) -> float:
    """Combine a statistic of the devices or processes of a run. There is at least one number."""
    match statistic:
        case Statistic.MAX | Statistic.TIME_TO:  # time_to: all must meet it
            return max(numbers)
        case Statistic.MIN:
            return min(numbers)
        case Statistic.TOTAL:
            return math.fsum(numbers)
    return fmean(numbers)


def read_names(reader: StoreReader) -> list[MetricName]:
    """Return all metrics, those that scripts logged first, sorted by name.

    Raises:
        StoreError: The store cannot be read.
    """
    with reader.snapshot() as connection:
        rows = connection.execute(_NAMES).all()
    names = [
        MetricName(metric, unit, SeriesKind(kind), bool(logged), count)
        for metric, unit, kind, logged, count in rows
    ]
    return sorted(names, key=lambda name: (not name.is_logged, name.metric))


def read_columns(reader: StoreReader, metrics: Sequence[str]) -> dict[str, MetricColumn]:
    """Return the columns of metrics by name, without those for which no run has values.

    Raises:
        StoreError: The store cannot be read.
    """
    rows: dict[str, list[Any]] = {}
    with reader.snapshot() as connection:
        for row in connection.execute(_SUMMARIES, {"metrics": list(metrics)}):
            rows.setdefault(row[0], []).append(row)
    return {metric: _column(metric, rows[metric]) for metric in sorted(rows)}


def _column(metric: str, rows: Sequence[Any]) -> MetricColumn:
    """Return the column of a metric from the summaries of its series, by run and number."""
    _, run_ids, units, kinds, listeners, *columns = zip(*rows, strict=True)
    counts, finite_counts, last, minimum, maximum, total, growth, seconds = (
        np.array(column, dtype=np.float64) for column in columns
    )
    is_counter = set(kinds) == {SeriesKind.COUNTER}
    kind = SeriesKind.COUNTER if is_counter else SeriesKind.GAUGE
    numbers = {
        Statistic.LAST: last,
        Statistic.MIN: minimum,
        Statistic.MAX: maximum,
        Statistic.MEAN: _ratio(total, finite_counts),
    }
    if is_counter:
        nothing = np.full(len(rows), math.nan)
        numbers = {
            Statistic.LAST: growth,
            Statistic.MIN: nothing,
            Statistic.MAX: nothing,
            Statistic.MEAN: _ratio(growth, seconds) * rate_unit(units[0]).factor,
        }
    starts = [0, *(n for n, ids in enumerate(pairwise(run_ids), 1) if ids[0] != ids[1])]
    if len(starts) < len(rows):
        groups = [
            [start + place for place in counted(listeners[start:stop])]
            for start, stop in pairwise([*starts, len(rows)])
        ]
        counts = np.array([counts[group].sum() for group in groups])
        numbers = {
            statistic: _combined(statistic, kind, [values[group] for group in groups])
            for statistic, values in numbers.items()
        }
    return MetricColumn(
        metric, units[0], kind, tuple(run_ids[start] for start in starts), counts, numbers
    )


def _combined(
    statistic: Statistic, kind: SeriesKind, of_runs: Iterable[Float64Array]
) -> Float64Array:
    """Return a statistic of runs, given those of their series; NaN where there is none."""
    if statistic is Statistic.LAST and kind is not SeriesKind.COUNTER:
        return np.array([of_devices(Statistic.LAST, values.tolist()) for values in of_runs])
    adds = kind is SeriesKind.COUNTER
    combine = Statistic.TOTAL if adds else statistic
    known = (values[~np.isnan(values)].tolist() for values in of_runs)
    return np.array([of_devices(combine, each) if each else math.nan for each in known])


def _ratio(total: Float64Array, count: Float64Array) -> Float64Array:
    """Return the quotient; NaN where the total is not finite or nothing was counted."""
    ratio = np.full(len(total), math.nan)
    np.divide(total, count, out=ratio, where=np.isfinite(total) & (count > 0))
    return ratio
