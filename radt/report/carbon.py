"""Emissions of workloads, as the listener ``carbon`` estimates them (docs/energy.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from radt.report.attempts import Attempt
from radt.report.energy import Points, SeriesOf, counted_once
from radt.report.estimates import Estimate, of_rows
from radt.report.measures import WorkloadMeasures
from radt.report.quantities import Combine, Quantity
from radt.report.reading import RUNS_PER_STATEMENT, points_of, series_of
from radt.report.stretches import Stretches, merged
from radt.report.windows import Window
from radt.store.reader import StoreReader
from radt.store.records import SeriesRecord

CARBON_METRICS = ("carbon.emissions.gpu", "carbon.emissions.cpu")

Emissions = Mapping[Quantity, Estimate]


def read_emissions(
    reader: StoreReader,
    workloads: Sequence[Sequence[Attempt]],
    measures: Sequence[WorkloadMeasures],
) -> list[Emissions]:
    """Grams of CO2 equivalent of workloads, in their order: in all, and per epoch that counts.

    Args:
        reader: The store.
        workloads: Each given by its repeats.
        measures: Of these.

    Raises:
        StoreError: The store cannot be read.
    """
    return [
        found for some in _batches(workloads, measures) for found in _emissions_of(reader, some)
    ]


_Pair = tuple[Sequence[Attempt], WorkloadMeasures]


def _batches(
    workloads: Sequence[Sequence[Attempt]], measures: Sequence[WorkloadMeasures]
) -> Iterator[list[_Pair]]:
    some: list[_Pair] = []
    count = 0
    for pair in zip(workloads, measures, strict=True):
        some.append(pair)
        count += sum(len(attempt.runs) for attempt in pair[0])
        if count >= RUNS_PER_STATEMENT:
            yield some
            some, count = [], 0
    if some:
        yield some


def _emissions_of(reader: StoreReader, some: Sequence[_Pair]) -> Iterator[Emissions]:
    run_ids = [run.run_id for repeats, _ in some for one in repeats for run in one.runs]
    series = series_of(reader, run_ids, CARBON_METRICS)
    keys = [(one.run_id, one.series_no) for found in series.values() for one in found]
    points = points_of(reader, keys, CARBON_METRICS) if keys else {}
    for repeats, measured in some:
        own = [one for attempt in repeats for run in attempt.runs for one in series[run.run_id]]
        yield _emissions(repeats, measured, series, points, own) if own else {}


def _emissions(
    repeats: Sequence[Attempt],
    measured: WorkloadMeasures,
    series: SeriesOf,
    points: Points,
    own: Sequence[SeriesRecord],
) -> Emissions:
    windows = {
        one.run.run_id: one.window
        for row in measured.rows.values()
        for one in row
        if one is not None
    }
    found = {}
    for quantity, values in (
        (Quantity.CARBON, [_grams(attempt, series, points) for attempt in repeats]),
        (
            Quantity.CARBON_PER_EPOCH,
            [_grams_per_epoch(attempt, windows, series, points) for attempt in repeats],
        ),
    ):
        estimate = of_rows(
            [values],
            Combine.MEAN,
            metrics=sorted({one.metric for one in own}, reverse=True),
            methods=sorted({one.method for one in own}),
            is_estimated=True,
        )
        if estimate is not None:
            found[quantity] = estimate
    return found


def _grams(
    attempt: Attempt,
    series: SeriesOf,
    points: Points,
    within: Stretches | None = None,
) -> float | None:
    readings: dict[tuple[str, ...], dict[str, list[SeriesRecord]]] = {}
    for run in attempt.runs:
        for one in series[run.run_id]:
            # Each counts from its own start: by another rule or at another interval is another.
            counter = f"{one.listener} {one.method} {one.interval_s}"
            device = readings.setdefault((run.host, one.metric, one.entity), {})
            device.setdefault(counter, []).append(one)
    return counted_once(readings.values(), points, within)


def _grams_per_epoch(
    attempt: Attempt, windows: Mapping[str, Window], series: SeriesOf, points: Points
) -> float | None:
    counted = [windows[run.run_id] for run in attempt.runs if run.run_id in windows]
    within = merged(stretch for window in counted for stretch in window.epochs)
    count = sum(len(window.epochs_s) for window in counted)
    grams = _grams(attempt, series, points, within) if within else None
    return None if grams is None or not count else grams / count
