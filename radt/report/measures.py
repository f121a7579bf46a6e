"""What the runs of workloads measured, within the windows that count."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from radt.model import SOFTWARE, RunStatus, SeriesKind
from radt.report.attempts import Attempt
from radt.report.energy import (
    COUNTED,
    RunEnergy,
    SeriesOf,
    WorkloadEnergy,
    estimates_j,
    gpus_j,
    workload_energy,
)
from radt.report.estimates import Estimate, combined, of_rows
from radt.report.growth import rate_per_s
from radt.report.quantities import ABOUT, THROUGHPUT_METRICS, Combine, Of, Quantity, Reading
from radt.report.reading import (
    RUNS_PER_STATEMENT,
    Key,
    Seen,
    points_of,
    seen_within,
    series_of,
)
from radt.report.stretches import Stretch, Within, merged
from radt.report.windowing import windows_of
from radt.report.windows import DEFAULT_WINDOW, Window, WindowSpec
from radt.store import counters
from radt.store.reader import StoreReader
from radt.store.records import RunRecord, Samples, SeriesRecord

_ENERGY_METRICS = tuple(metric for metric, _ in COUNTED)
_METRICS = tuple(
    dict.fromkeys(
        [metric for about in ABOUT.values() for metric in about.metrics] + [*_ENERGY_METRICS]
    )
)


@dataclass(frozen=True, slots=True)
class Measured:
    """One value of one run, and the series that it was read of."""

    value: float
    metric: str = ""
    method: str = ""
    is_estimated: bool = False


@dataclass(frozen=True, slots=True)
class RunMeasures:
    """What a run measured; nothing but its estimated energy if it did not finish."""

    run: RunRecord
    window: Window
    values: Mapping[Quantity, Measured] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkloadMeasures:
    """What the runs of a workload measured, and its devices.

    ``rows`` has for each row its runs, one a repeat, None where there is none.
    """

    rows: Mapping[str, Sequence[RunMeasures | None]]
    devices: Mapping[Quantity, Estimate]
    energy: WorkloadEnergy


def measure(
    reader: StoreReader,
    workloads: Sequence[Sequence[Attempt]],
    window: WindowSpec = DEFAULT_WINDOW,
) -> Iterator[WorkloadMeasures]:
    """Measure workloads, each given by its repeats, in their order.

    Raises:
        StoreError: The store cannot be read.
    """
    for some in _batches(workloads):
        attempts = [attempt for repeats in some for attempt in repeats]
        batch = _Batch(reader, attempts, window)
        for repeats in some:
            yield batch.workload(repeats)


def _batches(workloads: Sequence[Sequence[Attempt]]) -> Iterator[list[Sequence[Attempt]]]:
    some: list[Sequence[Attempt]] = []
    count = 0
    for repeats in workloads:
        some.append(repeats)
        count += sum(len(attempt.runs) for attempt in repeats)
        if count >= RUNS_PER_STATEMENT:
            yield some
            some, count = [], 0
    if some:
        yield some


class _Batch:
    """Some hundred runs, read together."""

    def __init__(
        self, reader: StoreReader, attempts: Sequence[Attempt], window: WindowSpec
    ) -> None:
        run_ids = [run.run_id for attempt in attempts for run in attempt.runs]
        self.series = series_of(reader, run_ids, _METRICS)
        self.windows = windows_of(reader, attempts, self.series, window)
        self.energy: SeriesOf = {
            run_id: [one for one in found if (one.metric, one.scope) in COUNTED]
            for run_id, found in self.series.items()
        }
        gauges: dict[Key, Within] = {}
        grow: list[Key] = [
            (one.run_id, one.series_no) for found in self.energy.values() for one in found
        ]
        for run_id, window_of_run in self.windows.items():
            within = Within(window_of_run.stretches)
            for one in self.series[run_id] if window_of_run.stretches else ():
                if one.metric in _ENERGY_METRICS:
                    continue
                if one.kind is SeriesKind.COUNTER:
                    grow.append((run_id, one.series_no))
                else:
                    gauges[run_id, one.series_no] = within
        self.seen: Mapping[Key, Seen] = seen_within(reader, gauges, _METRICS)
        self.points: Mapping[Key, Samples] = points_of(reader, grow, _METRICS)

    def workload(self, repeats: Sequence[Attempt]) -> WorkloadMeasures:
        """What one of its workloads measured."""
        runs = [run for attempt in repeats for run in attempt.runs]
        estimates = estimates_j(runs, self.energy, self.points)
        rows: dict[str, list[RunMeasures | None]] = {run.letter: [] for run in runs}
        for attempt in repeats:
            of_letter = {run.letter: run for run in attempt.runs}
            for letter, row in rows.items():
                run = of_letter.get(letter)
                row.append(None if run is None else self._run(run, estimates))
        wholes = [gpus_j(attempt.runs, self.energy, self.points) for attempt in repeats]
        known = [whole for whole in wholes if whole is not None]
        devices = {
            quantity: estimate
            for quantity, about in ABOUT.items()
            if about.of is Of.WORKLOAD
            and about.reading is not Reading.DERIVED
            and (estimate := self._devices(quantity, repeats)) is not None
        }
        for quantity, values in (
            (Quantity.ENERGY, wholes),
            (Quantity.ENERGY_PER_EPOCH, [self._per_epoch_j(one) for one in repeats]),
            (Quantity.ENERGY_PER_SAMPLE, [self._per_sample_j(one) for one in repeats]),
        ):
            derived = of_rows([values], Combine.MEAN, metrics=[_ENERGY_METRICS[0]])
            if derived is not None:
                devices[quantity] = derived
        return WorkloadMeasures(rows, devices, workload_energy(repeats, known, estimates))

    def _run(self, run: RunRecord, estimates: Mapping[str, RunEnergy]) -> RunMeasures:
        window = self.windows.get(run.run_id, Window())
        values: dict[Quantity, Measured] = {}
        if run.status is RunStatus.FINISHED:
            if window.time_per_epoch_s is not None:
                values[Quantity.TIME_PER_EPOCH] = Measured(window.time_per_epoch_s)
            for quantity, about in ABOUT.items():
                if about.of is Of.RUNS and about.metrics:
                    found = self._first(run.run_id, quantity)
                    if found is not None:
                        values[quantity] = found
        if run.run_id in estimates:
            estimate = estimates[run.run_id]
            values[Quantity.ENERGY_OF_RUNS] = Measured(
                estimate.estimated_j, _ENERGY_METRICS[1], estimate.method, is_estimated=True
            )
        return RunMeasures(run, window, values)

    def _first(self, run_id: str, quantity: Quantity) -> Measured | None:
        """Of the first series that measures a quantity and has a value in the window.

        Of what a run has on each of its devices: the first series of each, together.
        """
        about = ABOUT[quantity]
        for metric in about.metrics:
            found: dict[str, Measured] = {}
            for one in self.series[run_id]:
                if one.metric != metric or one.entity in found:
                    continue
                if metric in THROUGHPUT_METRICS and one.listener != SOFTWARE:
                    continue
                value = self._value(one, about.reading)
                if value is not None:
                    found[one.entity] = Measured(value, metric, one.method, one.estimated)
            if found:
                first = next(iter(found.values()))
                if not about.adds_devices:
                    return first
                return replace(first, value=sum(one.value for one in found.values()))
        return None

    def _value(self, one: SeriesRecord, reading: Reading) -> float | None:
        key = (one.run_id, one.series_no)
        if one.kind is SeriesKind.COUNTER:
            if reading is not Reading.RATE or key not in self.points:
                return None
            points, stretches = self.points[key], self.windows[one.run_id].stretches
            if len(points) < 2 or not stretches:
                return None
            found = counters.increases(points.times_ns, points.values, one.wraps_at)
            return rate_per_s(found, stretches)
        seen = self.seen.get(key)
        if seen is None:
            return None
        return seen.peak if reading is Reading.PEAK else seen.mean

    def _devices(self, quantity: Quantity, repeats: Sequence[Attempt]) -> Estimate | None:
        """All devices of the workload together, the first metric that any of them has."""
        about = ABOUT[quantity]
        for metric in about.metrics:
            values, methods = [], []
            for attempt in repeats:
                of_devices, described = self._attempt(attempt, metric, about.reading)
                values.append(combined(of_devices, about.combine) if of_devices else None)
                methods += described
            if any(value is not None for value in values):
                return of_rows([values], Combine.MEAN, metrics=[metric], methods=methods)
        return None

    def _attempt(
        self, attempt: Attempt, metric: str, reading: Reading
    ) -> tuple[list[float], list[str]]:
        """A value a device, as the runs on it saw it; how it came about.

        Where two listeners read a device, the one that more runs have counts.
        """
        found: dict[tuple[str, str], dict[str, list[float]]] = {}
        methods = []
        for run in attempt.runs:
            for one in self.series[run.run_id]:
                value = self._value(one, reading) if one.metric == metric else None
                if value is not None:
                    by_listener = found.setdefault((run.host, one.entity), {})
                    by_listener.setdefault(one.listener, []).append(value)
                    methods.append(one.method)
        chosen = [
            by_listener[max(sorted(by_listener), key=lambda name: len(by_listener[name]))]
            for by_listener in found.values()
        ]
        together = max if reading is Reading.PEAK else fmean
        return [float(together(values)) for values in chosen], methods

    def _finished(self, attempt: Attempt) -> list[tuple[RunRecord, Window]]:
        """The runs that have something that counts, and their windows."""
        return [
            (run, window)
            for run in attempt.runs
            if (window := self.windows.get(run.run_id)) is not None and window.stretches
        ]

    def _used_j(self, attempt: Attempt, within: Iterable[Stretch]) -> float | None:
        """What the GPUs used in stretches of any of its runs."""
        stretches = merged(within)
        return gpus_j(attempt.runs, self.energy, self.points, stretches) if stretches else None

    def _per_epoch_j(self, attempt: Attempt) -> float | None:
        windows = [window for _, window in self._finished(attempt)]
        used_j = self._used_j(attempt, (one for window in windows for one in window.epochs))
        count = sum(len(window.epochs_s) for window in windows)
        return None if used_j is None or not count else used_j / count

    def _per_sample_j(self, attempt: Attempt) -> float | None:
        """Of the epochs that count; of runs without any, of all that counts."""
        within: list[Stretch] = []
        samples = 0.0
        for run, window in self._finished(attempt):
            rate = self._first(run.run_id, Quantity.SAMPLES_PER_S)
            taken_s = sum(window.epochs_s) if window.epochs_s else window.length_s
            if rate is None or taken_s is None:
                return None  # of some runs it is not known: the others did not use it all
            samples += rate.value * taken_s
            within += window.epochs or window.stretches
        used_j = self._used_j(attempt, within)
        return used_j / samples if used_j is not None and samples > 0 else None
