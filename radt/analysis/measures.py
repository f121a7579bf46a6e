"""Measure the runs of workloads within their windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
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
from radt.analysis.metric_columns import counted, of_devices
from radt.analysis.quantities import Combine, Quantity, QuantityInfo, Statistic, Subject
from radt.analysis.reading import series_of
from radt.analysis.recording import RunRecording, read_recordings
from radt.analysis.selection import Attempt
from radt.analysis.series_quantities import AnyQuantity, SeriesQuantity
from radt.analysis.series_values import SeriesNumbers
from radt.analysis.stretches import Stretch, Stretches, merged
from radt.analysis.window_spec import DEFAULT_WINDOW, WindowSpec
from radt.analysis.windows import Window, find_windows
from radt.model import RunStatus, SeriesKind
from radt.store.reader import StoreReader
from radt.store.records import RunRecord, SeriesRecord
from radt.store.totals import GPU_ENERGY_KEY, read_totals
from radt.usage import lower_bound

_GPU_ENERGY, _RUN_ENERGY = (metric for metric, _ in ENERGY_SERIES)
#: Counters read as totals, not as rates.
_TOTALS = (_GPU_ENERGY, _RUN_ENERGY, *CARBON_METRICS)
#: Statistics to read per metric, each with whether it covers the whole run.
_WANTED: dict[str, set[tuple[Statistic, bool]]] = {}
for _info in (quantity.info for quantity in Quantity):
    for _metric in _info.metrics:
        _WANTED.setdefault(_metric, set()).add((_info.statistic, _info.whole_run))
#: Quantities that are read from series, with their metrics: per run, and per device of a workload.
_OF_RUNS, _OF_DEVICES = (
    {
        quantity: quantity.info.metrics
        for quantity in Quantity
        if quantity.info.subject is subject and quantity.info.metrics
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


#: The runs of each row by letter, one per repeat, None if missing.
Rows = Mapping[str, Sequence[RunMeasures | None]]


@dataclass(frozen=True, slots=True)
class WorkloadMeasures:
    """The values of a workload.

    Attributes:
        rows: Its runs.
        values: Values of its devices, and of all its runs together.
        energy: Energy of its GPUs and runs.
        recordings: How its runs were recorded, by run id.
        children: Measures of the child runs.
    """

    rows: Rows
    values: Mapping[AnyQuantity, Estimate]
    energy: WorkloadEnergy
    recordings: Mapping[str, RunRecording]
    children: Rows

    @property
    def runs(self) -> list[RunMeasures]:
        """Return the measures of all its runs."""
        return [measures for row in self.rows.values() for measures in row if measures is not None]


def measure(
    reader: StoreReader,
    workloads: Sequence[Sequence[Attempt]],
    window: WindowSpec = DEFAULT_WINDOW,
    series: Sequence[SeriesQuantity] = (),
) -> list[WorkloadMeasures]:
    """Return the values of workloads, in order. Each workload is given by its repeats.

    They are read together, with few statements. Children are measured in a window of their own.
    `series` are additional quantities of series.

    Raises:
        CodecError: A chunk is damaged.
        StoreError: The store cannot be read.
    """
    attempts = [attempt for repeats in workloads for attempt in repeats]
    parents = [attempt.of_children for attempt in attempts if attempt.children]
    runs = [run for attempt in (*attempts, *parents) for run in attempt.runs]
    recordings = read_recordings(reader, runs)
    batch = _Batch(reader, attempts, window, series)
    children = _Batch(reader, parents, replace(window, overlap=False), series)
    return [
        batch.workload(
            repeats,
            {
                run.run_id: recordings[run.run_id]
                for attempt in repeats
                for run in (*attempt.runs, *attempt.children)
            },
            children.rows([attempt.of_children for attempt in repeats]),
        )
        for repeats in workloads
    ]


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
        self.asked = series
        wanted = {metric: set(statistics) for metric, statistics in _WANTED.items()}
        for quantity in series:
            statistic = quantity.statistic
            wanted.setdefault(quantity.metric, set()).add((statistic, not statistic.in_window))
        self.series = series_of(reader, [run.run_id for run in runs], [*wanted, *_TOTALS])
        self.windows = find_windows(reader, attempts, self.series, window)
        self.energy = self._only(lambda record: (record.metric, record.scope) in ENERGY_SERIES)
        self.totals = read_totals(reader, runs if any(self.energy.values()) else ())
        self.emissions = self._only(lambda record: record.metric in CARBON_METRICS)
        self.numbers = SeriesNumbers(
            reader,
            self.series,
            {run_id: found.stretches for run_id, found in self.windows.items()},
            wanted,
            (
                record
                for counted in (self.energy, self.emissions)
                for records in counted.values()
                for record in records
            ),
        )

    def _only(self, is_wanted: Callable[[SeriesRecord], bool]) -> SeriesOf:
        return {
            run_id: [record for record in same if is_wanted(record)]
            for run_id, same in self.series.items()
        }

    def rows(self, repeats: Sequence[Attempt]) -> Rows:
        """Return the runs of a workload of the batch, by letter."""
        letters = dict.fromkeys(run.letter for attempt in repeats for run in attempt.runs)
        known = [{run.letter: self._run(run) for run in attempt.runs} for attempt in repeats]
        return {letter: [of_letter.get(letter) for of_letter in known] for letter in letters}

    def workload(
        self, repeats: Sequence[Attempt], recordings: Mapping[str, RunRecording], children: Rows
    ) -> WorkloadMeasures:
        """Return the values of a workload of the batch."""
        runs = [run for attempt in repeats for run in attempt.runs]
        rows = self.rows(repeats)
        there = {record.metric for run in runs for record in self.series[run.run_id]}
        values: dict[AnyQuantity, Estimate] = {
            quantity: estimate
            for quantity, metrics in _OF_DEVICES.items()
            if not there.isdisjoint(metrics)
            and (estimate := self._devices(quantity, repeats)) is not None
        }
        emitted = [record for run in runs for record in self.emissions[run.run_id]]
        of_carbon = sorted({record.metric for record in emitted}, reverse=True)
        methods = sorted({record.method for record in emitted})
        for quantity, amount_of, is_carbon in (
            (Quantity.ENERGY, self._used_j, False),
            (Quantity.ENERGY_PER_EPOCH, partial(self._per_epoch, self._used_j), False),
            (Quantity.ENERGY_PER_SAMPLE, self._per_sample_j, False),
            (Quantity.CARBON, self._emitted_g, True),
            (Quantity.CARBON_PER_EPOCH, partial(self._per_epoch, self._emitted_g), True),
        ):
            estimate = of_rows(
                [[amount_of(attempt) for attempt in repeats]],
                Combine.MEAN,
                metrics=of_carbon if is_carbon else [_GPU_ENERGY],
                methods=methods if is_carbon else (),
                is_estimated=is_carbon,
            )
            if estimate is not None:
                values[quantity] = estimate
        energy = self._energy(rows, values.get(Quantity.ENERGY))
        return WorkloadMeasures(rows, values, energy, recordings, children)

    def _energy(self, rows: Rows, used: Estimate | None) -> WorkloadEnergy:
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
        is_lower_bound = any(
            lower_bound(GPU_ENERGY_KEY) in self.totals.get(measures.run.run_id, {})
            for row in rows.values()
            for measures in row
            if measures is not None
        )
        return WorkloadEnergy(None if used is None else used.mean, shares, is_lower_bound)

    def _run(self, run: RunRecord) -> RunMeasures:
        window = self.windows.get(run.run_id, Window())
        values: dict[AnyQuantity, Measured] = {}
        unmet = set()
        there = frozenset(record.metric for record in self.series[run.run_id])
        if run.status is RunStatus.FINISHED:
            if window.time_per_epoch_s is not None:
                values[Quantity.TIME_PER_EPOCH] = Measured(window.time_per_epoch_s)
            for quantity, metrics in _OF_RUNS.items():
                if there.isdisjoint(metrics):
                    continue
                measured = self._first(run.run_id, quantity)
                if measured is not None:
                    values[quantity] = measured
            for asked in self.asked:
                records = self._counted(run.run_id, asked)
                measured = self._of_series(run, asked, records)
                if measured is not None:
                    values[asked] = measured
                elif records and asked.statistic is Statistic.TIME_TO:
                    unmet.add(asked)
        if (estimate := estimate_j(self.energy[run.run_id], self.numbers.points)) is not None:
            values[Quantity.ENERGY_OF_RUNS] = estimate
        return RunMeasures(run, window, values, frozenset(unmet), there)

    def _counted(self, run_id: str, quantity: SeriesQuantity) -> list[SeriesRecord]:
        """Return the series of a run that a quantity uses: those of one listener, one per device.

        The kernel's totals cover the whole run and have no values in between, so only totals use
        them.
        """
        records = [record for record in self.series[run_id] if record.metric == quantity.metric]
        listeners = [record.listener for record in records]
        is_total = quantity.statistic is Statistic.TOTAL
        return [records[place] for place in counted(listeners, whole_run=is_total)]

    def _of_series(
        self, run: RunRecord, quantity: SeriesQuantity, records: Sequence[SeriesRecord]
    ) -> Measured | None:
        statistic = quantity.statistic
        numbers = [
            self.numbers.number(
                record,
                statistic,
                whole_run=not statistic.in_window,
                time_to=quantity,
                origin_ns=run.origin_ns,
            )
            for record in records
        ]
        known = [number for number in numbers if number is not None]
        if not known or (statistic is Statistic.TIME_TO and len(known) < len(records)):
            return None
        is_read = statistic is Statistic.TIME_TO or statistic.percentile is not None
        is_rate = records[0].kind is SeriesKind.COUNTER and statistic is not Statistic.TOTAL
        is_estimated = any(
            record.estimated or ((is_read or is_rate) and self.numbers.is_thinned(record))
            for record in records
        )
        return Measured(
            of_devices(statistic, known), quantity.metric, records[0].method, is_estimated
        )

    def _first(self, run_id: str, quantity: Quantity) -> Measured | None:
        """Return the value of the first of a quantity's series that has one in the window.

        If the quantity adds devices, the first series of each device are added.
        """
        info = quantity.info
        for metric in info.metrics:
            by_entity: dict[str, Measured] = {}
            for record in self.series[run_id]:
                if record.metric != metric or record.entity in by_entity:
                    continue
                value = self._value(record, info) if info.counts(record.listener) else None
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

    def _value(self, record: SeriesRecord, info: QuantityInfo) -> float | None:
        return self.numbers.number(record, info.statistic, whole_run=info.whole_run)

    def _devices(self, quantity: Quantity, repeats: Sequence[Attempt]) -> Estimate | None:
        """Return the value of all devices together, by the first metric that any of them has."""
        info = quantity.info
        for metric in info.metrics:
            values, methods = [], []
            for attempt in repeats:
                of_devices, described = self._attempt(attempt, metric, info)
                values.append(combined(of_devices, info.combine) if of_devices else None)
                methods += described
            if any(value is not None for value in values):
                return of_rows([values], Combine.MEAN, metrics=[metric], methods=methods)
        return None

    def _attempt(
        self, attempt: Attempt, metric: str, info: QuantityInfo
    ) -> tuple[list[float], list[str]]:
        """Return a value per device, the mean of the runs on it, and the methods.

        If two listeners read a device, the one that most runs have counts, otherwise the first.
        """
        by_device: dict[tuple[str, str], dict[str, list[float]]] = {}
        methods = []
        for run in attempt.runs:
            for record in self.series[run.run_id]:
                value = self._value(record, info) if record.metric == metric else None
                if value is not None:
                    by_listener = by_device.setdefault((run.host, record.entity), {})
                    by_listener.setdefault(record.listener, []).append(value)
                    methods.append(record.method)
        chosen = [
            by_listener[max(by_listener, key=lambda name: len(by_listener[name]))]
            for by_listener in by_device.values()
        ]
        combine = max if info.statistic is Statistic.MAX else fmean
        return [float(combine(values)) for values in chosen], methods

    def _windows(self, attempt: Attempt) -> list[tuple[RunRecord, Window]]:
        """Return the runs with their windows, except services, which do no work themselves."""
        return [
            (run, window)
            for run in attempt.trained
            if (window := self.windows.get(run.run_id)) is not None and window.stretches
        ]

    def _used_j(self, attempt: Attempt, within: Stretches | None = None) -> float | None:
        return gpus_j(attempt.runs, self.energy, self.numbers.points, within)

    def _emitted_g(self, attempt: Attempt, within: Stretches | None = None) -> float | None:
        return emissions_g(attempt.runs, self.emissions, self.numbers.points, within)

    def _per_epoch(
        self, amount_of: Callable[[Attempt, Stretches], float | None], attempt: Attempt
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
