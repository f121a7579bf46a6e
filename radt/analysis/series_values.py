"""Read the numbers of `radt.analysis.series_quantities` from a store.

Extremes, last values and totals come from the summaries of series, which are exact even for thinned
series. Percentiles and times are read from the points, so they are estimates for thinned series.
Counters are read as rates, as in charts, except for their total.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from radt.analysis.estimates import Measured
from radt.analysis.metric_columns import counted, of_devices
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
from radt.model import SeriesKind
from radt.store import counters
from radt.store.reader import StoreReader
from radt.store.records import RunRecord, Samples, SeriesRecord
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
        self._run_ids = run_ids = [run.run_id for run in runs]
        metrics = list(dict.fromkeys(quantity.metric for quantity in asked))
        self._series: dict[tuple[str, str], list[SeriesRecord]] = {}
        for records in series_of(reader, run_ids, metrics).values():
            for record in records:
                self._series.setdefault((record.run_id, record.metric), []).append(record)
        self._summaries = {
            (summary.series.run_id, summary.series.series_no): summary
            for summary in reader.summary(run_ids, metrics)
        }
        self._points = points_of(reader, self._keys(_needs_points), metrics)
        means = self._keys(
            lambda quantity, record: (
                quantity.statistic is Statistic.MEAN and record.kind is not SeriesKind.COUNTER
            )
        )
        within = {key: Within(windows.get(key[0], ())) for key in means}
        self._means = gauge_stats(reader, within, metrics)

    def _counted(self, run_id: str, quantity: SeriesQuantity) -> list[SeriesRecord]:
        """Return the series of a run that a quantity uses: those of one listener, one per device.

        Only the kernel's totals cover the whole run, and only from its start to its end.
        """
        records = self._series.get((run_id, quantity.metric), [])
        listeners = [record.listener for record in records]
        is_total = quantity.statistic is Statistic.TOTAL
        return [records[place] for place in counted(listeners, whole_run=is_total)]

    def _keys(self, is_wanted: Callable[[SeriesQuantity, SeriesRecord], bool]) -> list[Key]:
        """Return the series of quantities that meet a condition."""
        return sorted(
            {
                (record.run_id, record.series_no)
                for run_id in self._run_ids
                for quantity in self._asked
                for record in self._counted(run_id, quantity)
                if is_wanted(quantity, record)
            }
        )

    def of(self, run: RunRecord) -> SeriesValues:
        """Return the numbers of a run."""
        values: dict[AnyQuantity, Measured] = {}
        unmet = set()
        for quantity in self._asked:
            records = self._counted(run.run_id, quantity)
            numbers = [self._number(run, quantity, record) for record in records]
            known = [number for number in numbers if number is not None]
            if quantity.statistic is Statistic.TIME_TO and records and len(known) < len(records):
                unmet.add(quantity)
            elif known:
                values[quantity] = Measured(
                    of_devices(quantity.statistic, known),
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
            self._summaries[key].is_thinned
            for record in records
            if (key := (record.run_id, record.series_no)) in self._summaries
        )

    def _number(
        self, run: RunRecord, quantity: SeriesQuantity, record: SeriesRecord
    ) -> float | None:
        key = (record.run_id, record.series_no)
        if _needs_points(quantity, record):
            points = self._points.get(key)
            if points is None:
                return None
            if record.kind is SeriesKind.COUNTER:
                return self._of_counter(run, quantity, record, points)
            return self._of_points(run, quantity, points)
        if quantity.statistic is Statistic.MEAN:
            stats = self._means.get(key)
            return None if stats is None else stats.mean
        summary = self._summaries.get(key)
        if summary is None:
            return None
        match quantity.statistic:
            case Statistic.LAST:
                return summary.last
            case Statistic.MAX:
                return summary.maximum
            case Statistic.MIN:
                return summary.minimum
        return summary.growth if record.kind is SeriesKind.COUNTER else summary.total

    def _of_counter(
        self, run: RunRecord, quantity: SeriesQuantity, record: SeriesRecord, points: Samples
    ) -> float | None:
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


def _needs_points(quantity: SeriesQuantity, record: SeriesRecord) -> bool:
    """Return True if neither a series' summary nor its chunk headers determine a quantity."""
    if record.kind is SeriesKind.COUNTER:
        return quantity.statistic is not Statistic.TOTAL
    return quantity.statistic is Statistic.TIME_TO or quantity.statistic.percentile is not None
