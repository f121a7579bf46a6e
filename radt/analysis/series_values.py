"""Read the numbers of `radt.analysis.series_quantities` from a store.

Extremes, last values and totals come from the summaries of series, which are exact even for thinned
series. Percentiles and times are read from the points, so they are estimates for thinned series.
Counters are read as rates, as in charts, except for their total.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from radt.analysis.quantities import Statistic
from radt.analysis.reading import Key, gauge_stats, points_of
from radt.analysis.series_quantities import (
    KnownSeries,
    SeriesQuantity,
    several_units,
    unknown_metric,
)
from radt.analysis.stretches import Stretches, Within, rate_per_s
from radt.model import SeriesKind
from radt.store import counters
from radt.store.reader import StoreReader
from radt.store.records import Samples, SeriesRecord
from radt.store.tables import of_runs
from radt.technique_metrics import standard_unit

_METRICS = of_runs("SELECT DISTINCT metric FROM series WHERE run_id IN :ids")
_UNITS = of_runs(
    "SELECT DISTINCT metric, unit, kind FROM series WHERE run_id IN :ids AND metric IN :metrics",
    "metrics",
)


def known_series(
    reader: StoreReader, run_ids: Sequence[str], asked: Sequence[SeriesQuantity], where: str
) -> KnownSeries:
    """Return which of the asked quantities runs have.

    Args:
        reader: The store.
        run_ids: The runs.
        asked: The quantities.
        where: What the runs belong to, for messages.

    Raises:
        StoreError: The store cannot be read.
    """
    if not asked or not run_ids:
        return KnownSeries(tuple(asked))
    names = list(dict.fromkeys(quantity.metric for quantity in asked))
    units: dict[str, set[tuple[str, SeriesKind]]] = {}
    for metric, unit, kind in reader.rows_of(_UNITS, run_ids, metrics=names):
        units.setdefault(metric, set()).add((standard_unit(metric, unit), SeriesKind(kind)))
    metrics: set[str] | None = None
    quantities, problems = [], []
    for quantity in asked:
        found = {_unit(quantity, unit, kind) for unit, kind in units.get(quantity.metric, ())}
        if len(found) == 1:
            quantities.append(replace(quantity, unit=found.pop()))
        elif found:
            problems.append(several_units(quantity, sorted(found)))
        else:
            if metrics is None:
                metrics = {row[0] for row in reader.rows_of(_METRICS, run_ids)}
            problems.append(unknown_metric(quantity, where, metrics))
    return KnownSeries(tuple(quantities), tuple(problems))


def _unit(quantity: SeriesQuantity, unit: str, kind: SeriesKind) -> str:
    """Return the unit of a quantity from that of its series."""
    if quantity.statistic is Statistic.TIME_TO:
        return "s"
    if kind is SeriesKind.COUNTER and quantity.statistic is not Statistic.TOTAL:
        return counters.rate_unit(unit).unit
    return unit


class SeriesNumbers:
    """Single numbers of the series of a few hundred runs, which are read together.

    Args:
        reader: The store.
        series: The series by run.
        windows: The part of each run that counts; of other runs only `pointed` are read.
        wanted: What `number` is asked for: statistics by metric, each with True for whole runs.
        pointed: Further series whose `points` are read.

    Raises:
        CodecError: A chunk is damaged.
        StoreError: The store cannot be read.
    """

    def __init__(
        self,
        reader: StoreReader,
        series: Mapping[str, Sequence[SeriesRecord]],
        windows: Mapping[str, Stretches],
        wanted: Mapping[str, Collection[tuple[Statistic, bool]]],
        pointed: Iterable[SeriesRecord] = (),
    ) -> None:
        self._windows = windows
        points = {key_of(record): record.metric for record in pointed}
        gauges: dict[Key, Within] = {}
        averaged, summarised = set(), set()
        for run_id, stretches in windows.items():
            within = Within(stretches)
            for record in series[run_id]:
                for statistic, whole_run in wanted.get(record.metric, ()):
                    if _needs_points(statistic, record):
                        points[key_of(record)] = record.metric
                    elif not whole_run and stretches:
                        gauges[key_of(record)] = within
                        averaged.add(record.metric)
                    if whole_run or key_of(record) in points:  # for `is_thinned`
                        summarised.add(record.metric)
        self.points: Mapping[Key, Samples] = points_of(
            reader, list(points), sorted(set(points.values()))
        )
        self._stats = gauge_stats(reader, gauges, sorted(averaged))
        self._summaries = {
            key_of(summary.series): summary
            for summary in reader.summary(list(windows) if summarised else (), sorted(summarised))
        }

    def number(
        self,
        record: SeriesRecord,
        statistic: Statistic,
        *,
        whole_run: bool,
        time_to: SeriesQuantity | None = None,
        origin_ns: int = 0,
    ) -> float | None:
        """Return a number of a series; None without values, or if it never met a condition.

        Args:
            record: The series.
            statistic: How its values become a number.
            whole_run: Whether values outside the window count.
            time_to: The condition of ``TIME_TO``.
            origin_ns: The start of the run, from which ``TIME_TO`` counts.
        """
        key = key_of(record)
        if _needs_points(statistic, record):
            points = self.points.get(key)
            if points is None:
                return None
            stretches = None if whole_run else self._windows.get(record.run_id, ())
            if record.kind is SeriesKind.COUNTER:
                if statistic is Statistic.MEAN:
                    return _mean_rate(points, record, stretches or ())
                points = counters.rates(points, record)
            if statistic is Statistic.TIME_TO:
                assert time_to is not None
                return _time_to(points, time_to, origin_ns)
            return _of_points(points, statistic, stretches)
        if not whole_run:
            stats = self._stats.get(key)
            if stats is None:
                return None
            return stats.peak if statistic is Statistic.MAX else stats.mean
        summary = self._summaries.get(key)
        if summary is None:
            return None
        match statistic:
            case Statistic.LAST:
                return summary.last
            case Statistic.MAX:
                return summary.maximum
            case Statistic.MIN:
                return summary.minimum
        return summary.growth if record.kind is SeriesKind.COUNTER else summary.total

    def is_thinned(self, record: SeriesRecord) -> bool:
        """Return whether the store no longer has all points of a series."""
        summary = self._summaries.get(key_of(record))
        return summary is not None and summary.is_thinned


def key_of(record: SeriesRecord) -> Key:
    return record.run_id, record.series_no


def _needs_points(statistic: Statistic, record: SeriesRecord) -> bool:
    """Return True if neither a series' summary nor its chunk headers determine a statistic."""
    if record.kind is SeriesKind.COUNTER:
        return statistic is not Statistic.TOTAL
    return statistic is Statistic.TIME_TO or statistic.percentile is not None


def _mean_rate(points: Samples, record: SeriesRecord, stretches: Stretches) -> float | None:
    if len(points) < 2 or not stretches:
        return None
    grown = counters.increases(points.times_ns, points.values, record.wraps_at)
    rate = rate_per_s(grown, stretches)
    return None if rate is None else rate * counters.rate_unit(record.unit).factor


def _time_to(points: Samples, condition: SeriesQuantity, origin_ns: int) -> float | None:
    finite = np.isfinite(points.values)
    met = np.flatnonzero(condition.met(points.values[finite]))
    return float(points.times_ns[finite][met[0]] - origin_ns) / 1e9 if len(met) else None


def _of_points(points: Samples, statistic: Statistic, stretches: Stretches | None) -> float | None:
    finite = np.isfinite(points.values)
    if stretches is not None:
        finite &= Within(stretches).mask(points.times_ns)
    values = points.values[finite]
    if not len(values):
        return None
    match statistic:
        case Statistic.LAST:
            return float(values[-1])
        case Statistic.MAX:
            return float(values.max())
        case Statistic.MIN:
            return float(values.min())
    assert statistic.percentile is not None
    return float(np.percentile(values, statistic.percentile))
