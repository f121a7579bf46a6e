"""Read the numbers of `radt.analysis.series_quantities` from a store.

Extremes, last values, sums and means come from the headers of chunks, which are exact for thinned
series, too. Percentiles and times are read from the points; of a thinned series they are estimates.
Counters are read as their rates, as charts show them, except for their total.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

import numpy as np

from radt.analysis.estimates import Measured
from radt.analysis.reading import Key, gauge_stats, of_runs, points_of, rows_of, series_of
from radt.analysis.series_quantities import (
    AnyQuantity,
    KnownSeries,
    SeriesQuantity,
    Statistic,
    several_units,
    unknown_metric,
)
from radt.analysis.stretches import Stretches, Within, rate_per_s
from radt.model import SOFTWARE, SeriesKind
from radt.store import counters
from radt.store.reader import StoreReader
from radt.store.records import RunRecord, Samples, SeriesRecord
from radt.technique_metrics import standard_unit
from radt.usage import KERNEL

_METRICS = of_runs("SELECT DISTINCT metric FROM series WHERE run_id IN :ids")
_UNITS = of_runs(
    "SELECT DISTINCT metric, unit, kind FROM series WHERE run_id IN :ids AND metric IN :metrics",
    "metrics",
)
_HEADERS = of_runs(
    "SELECT c.run_id, c.series_no, c.finite_count, c.last_ns, c.last_value, c.value_min, "
    "c.value_max, CASE WHEN ABS(c.value_sum) >= 1e300 THEN :infinity ELSE c.value_sum END, "
    "c.kept_count IS NOT NULL "
    "FROM series s JOIN chunk c ON c.run_id = s.run_id AND c.series_no = s.series_no "
    "WHERE s.run_id IN :ids AND s.metric IN :metrics "
    "ORDER BY c.run_id, c.series_no, c.chunk_no",
    "metrics",
    infinity=math.inf,
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
    for metric, unit, kind in rows_of(reader, _UNITS, run_ids, metrics=names):
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
                metrics = {row[0] for row in rows_of(reader, _METRICS, run_ids)}
            problems.append(unknown_metric(quantity, where, metrics))
    return KnownSeries(tuple(quantities), tuple(problems))


def _unit(quantity: SeriesQuantity, unit: str, kind: SeriesKind) -> str:
    """Return the unit of a quantity from that of its series."""
    if quantity.statistic is Statistic.TIME_TO:
        return "s"
    if kind is SeriesKind.COUNTER and quantity.statistic is not Statistic.TOTAL:
        return counters.rate_unit(unit).unit
    return unit


@dataclass(frozen=True, slots=True)
class SeriesValues:
    """The numbers of one run.

    Attributes:
        values: By quantity.
        unmet: The ``time_to`` whose condition it never met.
    """

    values: Mapping[AnyQuantity, Measured] = field(default_factory=dict)
    unmet: frozenset[SeriesQuantity] = frozenset()


@dataclass(slots=True)
class _Whole:
    """All finite points of a series, from its headers; ``is_thinned``: not all are stored."""

    last_ns: int = -(2**63)
    last: float | None = None  # None if only the points say which the last finite value is
    lowest: float = math.inf
    highest: float = -math.inf
    total: float = 0.0
    is_thinned: bool = False


def read_series_values(
    reader: StoreReader,
    runs: Sequence[RunRecord],
    windows: Mapping[str, Stretches],
    asked: Sequence[SeriesQuantity],
) -> dict[str, SeriesValues]:
    """Return the numbers of runs by run id.

    Args:
        reader: The store.
        runs: The runs.
        windows: The part of each run that counts, by run id; none if it is missing.
        asked: The quantities.

    Raises:
        CodecError: A chunk is damaged.
        StoreError: The store cannot be read.
    """
    if not asked or not runs:
        return {}
    batch = _Batch(reader, runs, windows, asked)
    return {run.run_id: batch.of(run) for run in runs}


class _Batch:
    """The series of a few hundred runs, read together."""

    def __init__(
        self,
        reader: StoreReader,
        runs: Sequence[RunRecord],
        windows: Mapping[str, Stretches],
        asked: Sequence[SeriesQuantity],
    ) -> None:
        self._asked, self._windows = asked, windows
        run_ids = [run.run_id for run in runs]
        metrics = list(dict.fromkeys(quantity.metric for quantity in asked))
        self._series = {
            run_id: _by_metric(records)
            for run_id, records in series_of(reader, run_ids, metrics).items()
        }
        self._whole = _whole_series(reader, run_ids, metrics)
        self._points = points_of(reader, self._with_points(), metrics)
        self._means = gauge_stats(
            reader,
            {key: Within(windows.get(key[0], ())) for key in self._keys({Statistic.MEAN})},
            metrics,
        )

    def _keys(self, statistics: set[Statistic]) -> Iterable[Key]:
        """Yield the series of the quantities with these statistics."""
        for quantity in self._asked:
            if quantity.statistic in statistics:
                for by_metric in self._series.values():
                    for record in by_metric.get(quantity.metric, ()):
                        yield record.run_id, record.series_no

    def _with_points(self) -> list[Key]:
        """Return the series whose points are read: all counters, and some statistics."""
        every = {
            (record.run_id, record.series_no)
            for by_metric in self._series.values()
            for records in by_metric.values()
            for record in records
            if record.kind is SeriesKind.COUNTER
        }
        every.update(self._keys({Statistic.P50, Statistic.P95, Statistic.P99, Statistic.TIME_TO}))
        every.update(
            key
            for key in self._keys({Statistic.LAST})
            if key in self._whole and self._whole[key].last is None
        )
        return sorted(every)

    def of(self, run: RunRecord) -> SeriesValues:
        """Return the numbers of a run."""
        values: dict[AnyQuantity, Measured] = {}
        unmet = set()
        for quantity in self._asked:
            records = self._series[run.run_id].get(quantity.metric, [])
            numbers = [self._number(run, quantity, record) for record in records]
            known = [number for number in numbers if number is not None]
            if quantity.statistic is Statistic.TIME_TO and records and len(known) < len(records):
                unmet.add(quantity)
            elif known:
                values[quantity] = Measured(
                    _of_entities(quantity.statistic, known),
                    quantity.metric,
                    records[0].method,
                    self._is_estimated(quantity, records),
                )
        return SeriesValues(values, frozenset(unmet))

    def _is_estimated(self, quantity: SeriesQuantity, records: Sequence[SeriesRecord]) -> bool:
        if any(record.estimated for record in records):
            return True
        exact = quantity.statistic is Statistic.TOTAL or (
            quantity.statistic is not Statistic.TIME_TO
            and quantity.statistic.percentile is None
            and records[0].kind is not SeriesKind.COUNTER
        )
        return not exact and any(
            self._whole[key].is_thinned
            for record in records
            if (key := (record.run_id, record.series_no)) in self._whole
        )

    def _number(
        self, run: RunRecord, quantity: SeriesQuantity, record: SeriesRecord
    ) -> float | None:
        key = (record.run_id, record.series_no)
        if record.kind is SeriesKind.COUNTER:
            points = self._points.get(key)
            return None if points is None else self._of_counter(run, quantity, record, points)
        match quantity.statistic:
            case Statistic.MEAN:
                stats = self._means.get(key)
                return None if stats is None else stats.mean
            case Statistic.LAST | Statistic.MAX | Statistic.MIN | Statistic.TOTAL:
                whole = self._whole.get(key)
                known = None if whole is None else _of_whole(quantity.statistic, whole)
                if known is not None or quantity.statistic is not Statistic.LAST:
                    return known
        points = self._points.get(key)
        return None if points is None else self._of_points(run, quantity, points)

    def _of_counter(
        self, run: RunRecord, quantity: SeriesQuantity, record: SeriesRecord, points: Samples
    ) -> float | None:
        if quantity.statistic is Statistic.TOTAL:
            return counters.total_of(points, record)
        if quantity.statistic is Statistic.MEAN:
            stretches = self._windows.get(run.run_id, ())
            if len(points) < 2 or not stretches:
                return None
            grown = counters.increases(points.times_ns, points.values, record.wraps_at)
            rate = rate_per_s(grown, stretches)
            return None if rate is None else rate * counters.rate_unit(record.unit).factor
        return self._of_points(run, quantity, counters.rates(points, record))

    def _of_points(self, run: RunRecord, quantity: SeriesQuantity, points: Samples) -> float | None:
        finite = np.isfinite(points.values)
        times_ns, values = points.times_ns[finite], points.values[finite]
        statistic = quantity.statistic
        if statistic.percentile is not None:
            values = values[Within(self._windows.get(run.run_id, ())).mask(times_ns)]
            return float(np.percentile(values, statistic.percentile)) if len(values) else None
        if not len(values):
            return None
        match statistic:
            case Statistic.LAST:
                return float(values[-1])
            case Statistic.MAX:
                return float(values.max())
            case Statistic.MIN:
                return float(values.min())
        met = np.flatnonzero(quantity.met(values))
        return float(times_ns[met[0]] - run.origin_ns) / 1e9 if len(met) else None


def _by_metric(records: Iterable[SeriesRecord]) -> dict[str, list[SeriesRecord]]:
    """Return the series of each metric that count: those of one listener, one per entity.

    The script's own come first, then the listener with the first series; the kernel's totals last.
    """
    by_metric: dict[str, list[SeriesRecord]] = {}
    for record in records:
        by_metric.setdefault(record.metric, []).append(record)

    def rank(record: SeriesRecord) -> tuple[bool, bool, int]:
        return record.listener != SOFTWARE, record.listener == KERNEL, record.series_no

    chosen = {}
    for metric, same in by_metric.items():
        first = min(same, key=rank)
        chosen[metric] = [record for record in same if record.listener == first.listener]
    return chosen


def _of_entities(statistic: Statistic, numbers: Sequence[float]) -> float:
    """Combine the numbers of several devices or processes of a run."""
    match statistic:
        case Statistic.MAX | Statistic.TIME_TO:  # all of them have to get there
            return max(numbers)
        case Statistic.MIN:
            return min(numbers)
        case Statistic.TOTAL:
            return sum(numbers)
    return fmean(numbers)


def _of_whole(statistic: Statistic, whole: _Whole) -> float | None:
    if not math.isfinite(whole.lowest):
        return None
    match statistic:
        case Statistic.LAST:
            return whole.last
        case Statistic.MAX:
            return whole.highest
        case Statistic.MIN:
            return whole.lowest
    return whole.total


def _whole_series(
    reader: StoreReader, run_ids: Sequence[str], metrics: Sequence[str]
) -> dict[Key, _Whole]:
    found: dict[Key, _Whole] = {}
    for row in rows_of(reader, _HEADERS, run_ids, metrics=list(metrics)):
        run_id, series_no, finite_count, last_ns, last, lowest, highest, total, is_thinned = row
        whole = found.setdefault((run_id, series_no), _Whole())
        whole.is_thinned = whole.is_thinned or bool(is_thinned)
        if not finite_count:
            continue
        whole.lowest = min(whole.lowest, lowest)
        whole.highest = max(whole.highest, highest)
        whole.total += total
        if last_ns >= whole.last_ns:
            whole.last_ns = last_ns
            whole.last = last if last is not None and math.isfinite(last) else None
    return found
