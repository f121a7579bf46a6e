"""Points of MLflow's metrics on their way into arrays, in bounded memory however many they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from radt.frontend.foreign.mlflow_run import NS_PER_MS
from radt.store.downsample import envelope
from radt.store.records import Samples, SeriesRecord, SummaryRecord

#: More points of one series are not kept, but the extremes of each stretch of them.
MAX_POINTS = 1_000_000
#: So many points are left of a stretch of `BLOCK_ROWS`.
_LEFT = 2_000
BLOCK_ROWS = 65_536

#: What databases hold in place of infinity (mlflow/store/tracking/sqlalchemy_store.py).
LARGEST = 1.7976931348623157e308

#: Time in milliseconds, value, whether it is none, step.
Row = tuple[int, float, bool, int]


def samples_of(rows: Sequence[Row]) -> Samples:
    """Rows as columns, in time order; equal times in the order of steps.

    Steps are None where all are 0, which is what MLflow has where none were given.
    """
    if not rows:
        empty = np.empty(0, dtype=np.int64)
        return Samples(empty, np.empty(0, dtype=np.float64))
    columns = list(zip(*rows, strict=True))
    times = np.array(columns[0], dtype=np.int64)
    values = np.array(columns[1], dtype=np.float64)
    steps = np.array(columns[3], dtype=np.int64)
    values[np.array(columns[2], dtype=np.bool_)] = np.nan
    large = np.abs(values) >= LARGEST
    values[large] = np.copysign(np.inf, values[large])
    order = np.lexsort((steps, times))
    return Samples(times[order] * NS_PER_MS, values[order], steps[order])


def collected(blocks: Iterable[Sequence[Row]]) -> tuple[Samples, bool]:
    """All points of one series, and whether these are all: of more than `MAX_POINTS` some.

    What is left then are the extremes of each block, so that no peak is lost.
    """
    found: list[Samples] = []
    count = 0
    complete = True
    for rows in blocks:
        found.append(samples_of(rows))
        count += len(rows)
        if count > MAX_POINTS:
            complete = False
            found = [_thinned(part) for part in found]
            count = sum(map(len, found))
    return joined(found), complete


def thinned_to_fit(samples: Samples) -> tuple[Samples, bool]:
    """At most `MAX_POINTS`, and whether they are all."""
    if len(samples) <= MAX_POINTS:
        return samples, True
    stretches = range(0, len(samples), BLOCK_ROWS)
    return joined([_thinned(sliced(samples, at, at + BLOCK_ROWS)) for at in stretches]), False


def joined(parts: Sequence[Samples]) -> Samples:
    """Parts of one series in time order."""
    if not parts:
        return samples_of(())
    times = np.concatenate([part.times_ns for part in parts])
    values = np.concatenate([part.values for part in parts])
    steps = np.concatenate([_steps(part) for part in parts])
    order = np.lexsort((steps, times))
    return Samples(times[order], values[order], steps[order])


def with_steps_if_any(samples: Samples) -> Samples:
    """Without steps where all are 0."""
    if samples.steps is None or samples.steps.any():
        return samples
    return Samples(samples.times_ns, samples.values)


def between(samples: Samples, start_ns: int | None, end_ns: int | None) -> Samples:
    """The points from one time to another, both included; None sets no limit."""
    times = samples.times_ns
    first = 0 if start_ns is None else int(np.searchsorted(times, start_ns, "left"))
    last = len(times) if end_ns is None else int(np.searchsorted(times, end_ns, "right"))
    return sliced(samples, first, last)


def sliced(samples: Samples, start: int, stop: int) -> Samples:
    """The points from one place to another."""
    steps = samples.steps
    return Samples(
        samples.times_ns[start:stop],
        samples.values[start:stop],
        None if steps is None else steps[start:stop],
    )


def summary_of(series: SeriesRecord, samples: Samples) -> SummaryRecord:
    """What is known of the points of a series, of which there is at least one."""
    finite = samples.values[np.isfinite(samples.values)]
    return SummaryRecord(
        series,
        len(samples),
        mean_of(samples),
        float(finite.min()) if len(finite) else None,
        float(finite.max()) if len(finite) else None,
        finite_or_none(samples.values[0]),
        finite_or_none(samples.values[-1]),
        int(samples.times_ns[0]),
        int(samples.times_ns[-1]),
    )


def mean_of(samples: Samples) -> float | None:
    """Mean of the finite values; None without any."""
    finite = samples.values[np.isfinite(samples.values)]
    return finite_or_none(finite.mean()) if len(finite) else None


def finite_or_none(value: Any) -> float | None:
    """The number, unless it is none or infinite."""
    return float(value) if value is not None and np.isfinite(value) else None


def _thinned(samples: Samples) -> Samples:
    return envelope(samples, _LEFT) if len(samples) > _LEFT else samples


def _steps(samples: Samples) -> Any:
    return np.zeros(len(samples), dtype=np.int64) if samples.steps is None else samples.steps
