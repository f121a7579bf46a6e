"""Measure the runs of workloads within their windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from radt.analysis.energy import (
    CARBON_METRICS,
    ENERGY_SERIES,
    RunEnergy,
    SeriesOf,
    WorkloadEnergy,
    emissions_g,
    estimate_j,
    gpus_j,
)
from radt.analysis.estimates import Estimate, Measured, Reached, combined, of_rows
from radt.analysis.quantities import THROUGHPUT_METRICS, Combine, Quantity, Reading, Subject
from radt.analysis.reading import (
    GaugeStats,
    Key,
    gauge_stats,
    points_of,
    series_of,
)
from radt.analysis.selection import Attempt
from radt.analysis.series_quantities import AnyQuantity, SeriesQuantity, Statistic
from radt.analysis.series_values import SeriesValues, read_series_values
from radt.analysis.stretches import (
    Stretch,
    Stretches,
    Within,
    merged,
    rate_per_s,
)
from radt.analysis.window_spec import DEFAULT_WINDOW, WindowSpec
from radt.analysis.windows import Window, find_windows
from radt.model import SOFTWARE, RunStatus, SeriesKind
from radt.store import counters
from radt.store.reader import StoreReader
from radt.store.records import RunRecord, Samples, SeriesRecord
from radt.store.totals import GPU_ENERGY_KEY, read_totals, total_value
from radt.usage import KERNEL, lower_bound

_GPU_ENERGY, _RUN_ENERGY = (metric for metric, _ in ENERGY_SERIES)
#: Counters read as totals, not as rates.
_TOTALS = (_GPU_ENERGY, _RUN_ENERGY, *CARBON_METRICS)
_METRICS = tuple(
    dict.fromkeys(
        [*(metric for quantity in Quantity for metric in quantity.info.metrics), *_TOTALS]
    )
)
#: Metrics read over the whole run, regardless of its window.
_WHOLE_RUN = tuple(
    metric
    for quantity in Quantity
    if quantity.info.reading in (Reading.TOTAL, Reading.HIGHEST)
    for metric in quantity.info.metrics
)
#: Readings and metrics per run, and per device of a workload.
_OF_RUNS, _OF_DEVICES = (
    {
        quantity: quantity.info.metrics
        for quantity in Quantity
        if quantity.info.subject is subject and quantity.info.reading is not Reading.DERIVED
    }
    for subject in (Subject.RUNS, Subject.WORKLOAD)
)


@dataclass(frozen=True, slots=True)
class RunMeasures:
    """The values of a run. An unfinished run has only its estimated energy.

    ``unmet`` are quantities of series whose condition it never met. ``metrics`` are the metrics of
    quantities that the run has.
    """

    run: RunRecord
    window: Window
    values: Mapping[AnyQuantity, Measured] = field(default_factory=dict)
    unmet: frozenset[SeriesQuantity] = frozenset()
    metrics: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class WorkloadMeasures:
    """The values of a workload.

    Attributes:
        rows: The runs of each row by letter, one per repeat, None if missing.
        values: Values of its devices, and of all its runs together.
        energy: Energy of its GPUs and runs.
    """

    rows: Mapping[str, Sequence[RunMeasures | None]]
    values: Mapping[Quantity, Estimate]
    energy: WorkloadEnergy


def measure(
    reader: StoreReader,
    workloads: Sequence[Sequence[Attempt]],
    window: WindowSpec = DEFAULT_WINDOW,
    series: Sequence[SeriesQuantity] = (),
) -> list[WorkloadMeasures]:
    """Return the values of workloads, in order. Each workload is given by its repeats.

    They are read together, with few statements. `series` are additional quantities of series.

    Raises:
        CodecError: A chunk is damaged.
        StoreError: The store cannot be read.
    """
    attempts = [attempt for repeats in workloads for attempt in repeats]
    batch = _Batch(reader, attempts, window, series)
    return [batch.workload(repeats) for repeats in workloads]


class _Batch:
    """Runs that are read together."""

    def __init__(
        self,
        reader: StoreReader,
        attempts: Sequence[Attempt],
        window: WindowSpec,
        series: Sequence[SeriesQuantity],
    ) -> None:
        runs = [run for attempt in attempts for run in attempt.runs]
        run_ids = [run.run_id for run in runs]
        self.series = series_of(reader, run_ids, _METRICS)
        #: Summaries of the series that are read over the whole run.
        self.summaries = {
            (each.series.run_id, each.series.series_no): each
            for each in reader.summary(run_ids, _WHOLE_RUN)
        }
        self.windows = find_windows(reader, attempts, self.series, window)
        self.energy = self._only(lambda record: (record.metric, record.scope) in ENERGY_SERIES)
        self.totals = read_totals(reader, runs if any(self.energy.values()) else ())
        self.emissions = self._only(lambda record: record.metric in CARBON_METRICS)
        gauges: dict[Key, Within] = {}
        counted_metrics = {*_TOTALS}
        counted: list[Key] = [
            (record.run_id, record.series_no)
            for totals in (self.energy, self.emissions)
            for same in totals.values()
            for record in same
        ]
        for run_id, window_of_run in self.windows.items():
            within = Within(window_of_run.stretches)
            for record in self.series[run_id]:
                key = (run_id, record.series_no)
                if record.listener == KERNEL or record.metric in _TOTALS:
                    continue
                if not window_of_run.stretches:
                    continue
                if record.kind is SeriesKind.COUNTER:
                    counted.append(key)
                    counted_metrics.add(record.metric)
                else:
                    gauges[key] = within
        self.stats: Mapping[Key, GaugeStats] = gauge_stats(reader, gauges, _METRICS)
        self.points: Mapping[Key, Samples] = points_of(reader, counted, sorted(counted_metrics))
        self.of_series = read_series_values(
            reader,
            [run for run in runs if run.status is RunStatus.FINISHED],
            {run_id: window_of_run.stretches for run_id, window_of_run in self.windows.items()},
            series,
        )

    def _only(self, is_wanted: Callable[[SeriesRecord], bool]) -> SeriesOf:
        return {
            run_id: [record for record in same if is_wanted(record)]
            for run_id, same in self.series.items()
        }

    def workload(self, repeats: Sequence[Attempt]) -> WorkloadMeasures:
        """Return the values of a workload of the batch."""
        runs = [run for attempt in repeats for run in attempt.runs]
        rows: dict[str, list[RunMeasures | None]] = {run.letter: [] for run in runs}
        for attempt in repeats:
            of_letter = {run.letter: run for run in attempt.runs}
            for letter, row in rows.items():
                run = of_letter.get(letter)
                row.append(None if run is None else self._run(run))
        there = {record.metric for run in runs for record in self.series[run.run_id]}
        values = {
            quantity: estimate
            for quantity, metrics in _OF_DEVICES.items()
            if not there.isdisjoint(metrics)
            and (estimate := self._devices(quantity, repeats)) is not None
        }
        emitted = [record for run in runs for record in self.emissions[run.run_id]]
        of_carbon = sorted({record.metric for record in emitted}, reverse=True)
        methods = sorted({record.method for record in emitted})
        used_j = [self._used_j(attempt) for attempt in repeats]
        per_epoch_j = [self._per_epoch(attempt, self._used_j) for attempt in repeats]
        per_sample_j = [self._per_sample_j(attempt) for attempt in repeats]
        emitted_g = [self._emitted_g(attempt) for attempt in repeats]
        per_epoch_g = [self._per_epoch(attempt, self._emitted_g) for attempt in repeats]
        for quantity, amounts, metrics in (
            (Quantity.ENERGY, used_j, [_GPU_ENERGY]),
            (Quantity.ENERGY_PER_EPOCH, per_epoch_j, [_GPU_ENERGY]),
            (Quantity.ENERGY_PER_SAMPLE, per_sample_j, [_GPU_ENERGY]),
            (Quantity.CARBON, emitted_g, of_carbon),
            (Quantity.CARBON_PER_EPOCH, per_epoch_g, of_carbon),
        ):
            is_carbon = metrics is of_carbon
            estimate = of_rows(
                [amounts],
                Combine.MEAN,
                metrics=metrics,
                methods=methods if is_carbon else (),
                is_estimated=is_carbon,
            )
            if estimate is not None:
                values[quantity] = estimate
        return WorkloadMeasures(rows, values, self._energy(rows, used_j))

    def _energy(
        self,
        rows: Mapping[str, Sequence[RunMeasures | None]],
        used_j: Sequence[float | None],
    ) -> WorkloadEnergy:
        """Return the energy of a workload and its runs, the mean over its repeats."""
        shares = []
        for letter, row in rows.items():
            estimated = [
                (measures.run, measures.values[Quantity.ENERGY_OF_RUNS])
                for measures in row
                if measures is not None and Quantity.ENERGY_OF_RUNS in measures.values
            ]
            if estimated:
                run, newest = estimated[-1]
                mean_j = fmean(measured.value for _, measured in estimated)
                shares.append(RunEnergy(letter, run.name, mean_j, newest.method))
        known_j = [amount_j for amount_j in used_j if amount_j is not None]
        is_lower_bound = any(
            lower_bound(GPU_ENERGY_KEY) in self.totals.get(measures.run.run_id, {})
            for row in rows.values()
            for measures in row
            if measures is not None
        )
        return WorkloadEnergy(fmean(known_j) if known_j else None, shares, is_lower_bound)

    def _run(self, run: RunRecord) -> RunMeasures:
        window = self.windows.get(run.run_id, Window())
        values: dict[AnyQuantity, Measured] = {}
        there = frozenset(record.metric for record in self.series[run.run_id])
        of_series = self.of_series.get(run.run_id, SeriesValues())
        if run.status is RunStatus.FINISHED:
            if window.time_per_epoch_s is not None:
                values[Quantity.TIME_PER_EPOCH] = Measured(window.time_per_epoch_s)
            for quantity, metrics in _OF_RUNS.items():
                if there.isdisjoint(metrics):
                    continue
                measured = self._first(run.run_id, quantity)
                if measured is not None:
                    values[quantity] = measured
        if (estimate := estimate_j(self.energy[run.run_id], self.points)) is not None:
            values[Quantity.ENERGY_OF_RUNS] = estimate
        values.update(of_series.values)
        return RunMeasures(run, window, values, of_series.unmet, there)

    def _first(self, run_id: str, quantity: Quantity) -> Measured | None:
        """Return the value of the first series of a quantity that has one in the window.

        If a run has a series for each device, the first series of each are added.
        """
        info = quantity.info
        for metric in info.metrics:
            by_entity: dict[str, Measured] = {}
            for record in self.series[run_id]:
                if record.metric != metric or record.entity in by_entity:
                    continue
                if metric in THROUGHPUT_METRICS and record.listener != SOFTWARE:
                    continue
                if (record.listener == KERNEL) is not (info.reading is Reading.TOTAL):
                    continue
                value = self._value(record, info.reading)
                if value is not None:
                    by_entity[record.entity] = Measured(
                        value, metric, record.method, record.estimated
                    )
            if by_entity:
                first = next(iter(by_entity.values()))
                if not info.adds_devices:
                    return first
                return replace(first, value=sum(measured.value for measured in by_entity.values()))
        return None

    def _value(self, record: SeriesRecord, reading: Reading) -> float | None:
        key = (record.run_id, record.series_no)
        if reading in (Reading.TOTAL, Reading.HIGHEST):
            summary = self.summaries.get(key)
            if summary is None or (
                reading is Reading.HIGHEST and record.kind is SeriesKind.COUNTER
            ):
                return None
            return total_value(summary)
        if record.kind is SeriesKind.COUNTER:
            if reading is not Reading.RATE or key not in self.points:
                return None
            points, stretches = self.points[key], self.windows[record.run_id].stretches
            if len(points) < 2 or not stretches:
                return None
            increases = counters.increases(points.times_ns, points.values, record.wraps_at)
            return rate_per_s(increases, stretches)
        stats = self.stats.get(key)
        if stats is None:
            return None
        return stats.peak if reading is Reading.PEAK else stats.mean

    def _devices(self, quantity: Quantity, repeats: Sequence[Attempt]) -> Estimate | None:
        """Return the value of all devices together, by the first metric that any of them has."""
        info = quantity.info
        for metric in info.metrics:
            values, methods = [], []
            for attempt in repeats:
                of_devices, described = self._attempt(attempt, metric, info.reading)
                values.append(combined(of_devices, info.combine) if of_devices else None)
                methods += described
            if any(value is not None for value in values):
                return of_rows([values], Combine.MEAN, metrics=[metric], methods=methods)
        return None

    def _attempt(
        self, attempt: Attempt, metric: str, reading: Reading
    ) -> tuple[list[float], list[str]]:
        """Return a value per device, the mean of the runs on it, and the methods.

        If two listeners read a device, the one that most runs have counts, otherwise the first.
        """
        by_device: dict[tuple[str, str], dict[str, list[float]]] = {}
        methods = []
        for run in attempt.runs:
            for record in self.series[run.run_id]:
                value = self._value(record, reading) if record.metric == metric else None
                if value is not None:
                    by_listener = by_device.setdefault((run.host, record.entity), {})
                    by_listener.setdefault(record.listener, []).append(value)
                    methods.append(record.method)
        chosen = [
            by_listener[max(by_listener, key=lambda name: len(by_listener[name]))]
            for by_listener in by_device.values()
        ]
        combine = max if reading is Reading.PEAK else fmean
        return [float(combine(values)) for values in chosen], methods

    def _windows(self, attempt: Attempt) -> list[tuple[RunRecord, Window]]:
        """Return the runs with their windows, except services, which do no work themselves."""
        return [
            (run, window)
            for run in attempt.trained
            if (window := self.windows.get(run.run_id)) is not None and window.stretches
        ]

    def _used_j(self, attempt: Attempt, within: Stretches | None = None) -> float | None:
        return gpus_j(attempt.runs, self.energy, self.points, within)

    def _emitted_g(self, attempt: Attempt, within: Stretches | None = None) -> float | None:
        return emissions_g(attempt.runs, self.emissions, self.points, within)

    def _per_epoch(
        self, attempt: Attempt, amount_of: Callable[[Attempt, Stretches], float | None]
    ) -> float | None:
        """Return the amount during the counted epochs, divided by the epochs of all runs."""
        windows = [window for _, window in self._windows(attempt)]
        within = merged(part for window in windows for part in window.epochs)
        count = sum(len(window.epochs_s) for window in windows)
        amount = amount_of(attempt, within) if within and count else None
        return None if amount is None else amount / count

    def _per_sample_j(self, attempt: Attempt) -> float | None:
        """Return joules per sample in the counted epochs; without epochs, in the whole window."""
        within: list[Stretch] = []
        samples = 0.0
        for run, window in self._windows(attempt):
            rate = self._first(run.run_id, Quantity.SAMPLES_PER_S)
            taken_s = sum(window.epochs_s) if window.epochs_s else window.length_s
            if rate is None or taken_s is None:
                return None  # an unknown number of samples used some of the energy
            samples += rate.value * taken_s
            within += window.epochs or window.stretches
        used_j = self._used_j(attempt, merged(within)) if within else None
        return used_j / samples if used_j is not None and samples > 0 else None


def value_of(
    rows: Sequence[Sequence[RunMeasures | None]], quantity: AnyQuantity
) -> Estimate | None:
    """Return a quantity of rows, each given by its repeats; None if no run has it."""
    measured = [
        [None if measures is None else measures.values.get(quantity) for measures in row]
        for row in rows
    ]
    known = [value for row in measured for value in row if value is not None]
    if not known:
        return None
    return of_rows(
        [[None if value is None else value.value for value in row] for row in measured],
        quantity.info.combine,
        metrics=[value.metric for value in known],
        methods=[value.method for value in known],
        is_estimated=any(value.is_estimated for value in known),
    )


def reached_of(
    rows: Sequence[Sequence[RunMeasures | None]], quantity: SeriesQuantity
) -> Reached | None:
    """Return how many of the finished runs met the condition of a ``time_to``.

    None for other quantities, and for runs without the metric.
    """
    finished = [
        measures
        for row in rows
        for measures in row
        if measures is not None and measures.run.status is RunStatus.FINISHED
    ]
    count = sum(quantity in measures.values for measures in finished)
    has_metric = count or any(quantity in measures.unmet for measures in finished)
    if quantity.statistic is not Statistic.TIME_TO or not has_metric:
        return None
    return Reached(count, len(finished))
