"""What of a run's series MLflow gets: scripts' metrics in full, hardware as means, a summary.

Pure functions from records of the store to points; the same records always give the same points,
so that what is sent twice after a crash is stored once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from radt.model import NO_STEP, SOFTWARE, MarkerKind, SeriesKind
from radt.store.records import (
    LedgerRecord,
    MarkerRecord,
    RunRecord,
    Samples,
    SeriesRecord,
    SummaryRecord,
)

#: Length of the stretches that hardware series are averaged over, as MLflow's own sampler.
MEAN_INTERVAL_S = 10
_MEAN_INTERVAL_NS = MEAN_INTERVAL_S * 1_000_000_000
NS_PER_MS = 1_000_000

EPOCH_KEY = "epoch/duration_s"


class Point(NamedTuple):
    """One value of one metric as MLflow takes it."""

    key: str
    value: float
    timestamp_ms: int
    step: int


def series_name(series: SeriesRecord) -> str:
    """The name of a series in MLflow, before its characters are looked at.

    ``loss``, ``loss/rank 1`` for what scripts log; ``system/gpu.power/gpu0`` for hardware, because
    MLflow's page of system metrics shows what begins so.
    """
    name = f"{series.metric}/{series.entity}" if series.entity else series.metric
    return name if series.listener == SOFTWARE else f"system/{name}"


def software_points(key: str, samples: Samples, first_index: int) -> list[Point]:
    """Every point as it is. Points without a step get their number in the series as one.

    MLflow cuts histories in which points share a step, so 0 for all would lose them in its charts.

    Args:
        first_index: Number in the series of the first of the samples.
    """
    times_ms = (samples.times_ns // NS_PER_MS).tolist()
    indices = range(first_index, first_index + len(samples))
    if samples.steps is None:
        steps: Sequence[int] = indices
    else:
        steps = [
            index if step == NO_STEP else step
            for index, step in zip(indices, samples.steps.tolist(), strict=True)
        ]
    values = samples.values.tolist()
    return [
        Point(key, value, time_ms, step)
        for value, time_ms, step in zip(values, times_ms, steps, strict=True)
    ]


class Means(NamedTuple):
    """Points of a hardware series, and up to which time (exclusive) they cover it."""

    points: list[Point]
    until_ns: int


def hardware_means(
    key: str, kind: SeriesKind, samples: Samples, *, origin_ns: int, since_ns: int, final: bool
) -> Means:
    """Means over stretches of `MEAN_INTERVAL_S` since ``origin_ns``; the last value of a counter.

    A stretch is over when a later sample is there, or when the series has ended (``final``). The
    step is the stretch's end in seconds since ``origin_ns``. Values that are not finite are left
    out; a stretch without any has no point.

    Args:
        samples: In time order; those before ``since_ns`` are ignored.
        since_ns: End of what is covered already, 0 for nothing.
    """
    keep = samples.times_ns >= since_ns
    times, values = samples.times_ns[keep], samples.values[keep]
    if not len(times):
        return Means([], since_ns)
    stretches = (times - origin_ns) // _MEAN_INTERVAL_NS
    numbers, starts = np.unique(stretches, return_index=True)
    ends = np.append(starts[1:], len(times))
    complete = len(numbers) if final else len(numbers) - 1
    points = []
    for number, start, end in zip(
        numbers[:complete].tolist(), starts.tolist(), ends.tolist(), strict=False
    ):
        part = values[start:end]
        finite = part[np.isfinite(part)]
        if not len(finite):
            continue
        value = finite[-1] if kind is SeriesKind.COUNTER else finite.mean()
        stop_ns = origin_ns + (number + 1) * _MEAN_INTERVAL_NS
        # Only what no earlier, interrupted call can have sent may have a time of its own.
        time_ns = int(times[-1]) if number == numbers[-1] else stop_ns
        points.append(
            Point(key, float(value), time_ns // NS_PER_MS, (number + 1) * MEAN_INTERVAL_S)
        )
    if final:
        return Means(points, int(times[-1]) + 1)
    return Means(points, int(origin_ns + numbers[-1] * _MEAN_INTERVAL_NS) if complete else since_ns)


def epoch_points(markers: Sequence[MarkerRecord]) -> list[Point]:
    """Duration of each epoch of the run's first process that was completed, at its number."""
    return [
        Point(
            EPOCH_KEY,
            (marker.end_ns - marker.start_ns) / 1e9,
            marker.end_ns // NS_PER_MS,
            index if marker.step is None else marker.step,
        )
        for index, marker in enumerate(markers)
        if marker.kind is MarkerKind.EPOCH and not marker.process and marker.end_ns is not None
    ]


def summary_values(
    run: RunRecord,
    summaries: Sequence[SummaryRecord],
    epochs: Sequence[Point],
    ledger: Sequence[LedgerRecord],
) -> dict[str, float]:
    """The run in a few numbers, by name: what tables of runs are sorted by.

    Mean and maximum of each hardware series, the increase of counters, duration of the run and of
    its epochs (the mean without the first, which is warm-up, if there are others), and how complete
    the samples are.
    """
    values: dict[str, float | None] = {}
    for summary in summaries:
        series = summary.series
        if series.listener == SOFTWARE:
            continue
        name = f"summary/{series_name(series).removeprefix('system/')}"
        if series.kind is SeriesKind.COUNTER:
            if summary.first is not None and summary.last is not None:
                values[f"{name}/total"] = summary.last - summary.first
        else:
            values[f"{name}/mean"] = summary.mean
            values[f"{name}/max"] = summary.maximum
    durations = [point.value for point in epochs]
    if durations:
        steady = durations[1:] or durations
        values[f"summary/{EPOCH_KEY}/mean"] = sum(steady) / len(steady)
        values[f"summary/{EPOCH_KEY}/max"] = max(steady)
    if run.started_ns is not None and run.ended_ns is not None:
        values["summary/duration_s"] = (run.ended_ns - run.started_ns) / 1e9
    for entry in ledger:
        values[f"summary/samples/{entry.listener}/received"] = float(entry.received)
        values[f"summary/samples/{entry.listener}/missed"] = float(entry.missed)
    return {name: value for name, value in values.items() if value is not None}
