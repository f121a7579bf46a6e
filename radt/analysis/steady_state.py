"""Find the steady state of runs without epochs: the part after warm-up and before the end.

The rule is MSER, the marginal standard error rule: it truncates the beginning at the point that
minimises the standard error of the mean (K. P. White, "An effective truncation heuristic for bias
reduction in simulation output", Simulation 69(6), 1997), here of means of five values each (MSER-5:
S. C. Spratt, University of Virginia, 1998), which removes noise. The end of a run, where it saves
or evaluates, is not steady either, so both sides are truncated at once. As in White's paper, at
most half may be truncated; otherwise the run has no steady state.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from radt.analysis.quantities import THROUGHPUT_METRICS
from radt.analysis.reading import Key, points_of
from radt.analysis.stretches import Stretch
from radt.model import SOFTWARE, SeriesKind
from radt.store.reader import StoreReader
from radt.store.records import Float64Array, Samples, SeriesRecord

#: Metrics of a run's pace, in order of preference. The first with enough values is used.
SOURCES: tuple[tuple[str, ...], ...] = (
    THROUGHPUT_METRICS,
    ("gpu.sm.active", "gpu.mig.sm.active", "gpu.utilization"),
    ("process.cpu.utilization",),
)
#: Ten means. With fewer, the result would be random.
MIN_SAMPLES = 50
_BATCH = 5
#: Longer series have more values per mean. Bounds are then accurate to 0.5 % of the run.
_MAX_BATCHES = 200
#: A smaller relative standard deviation is steady.
_CALM = 0.01
#: A larger difference, in standard errors, is significant.
_DIFFERENT_ERRORS = 3.0
_ROUNDING = 1e-12
#: Number of runs whose points are in memory at a time.
_RUNS_AT_A_TIME = 50


@dataclass(frozen=True, slots=True)
class SteadyState:
    """The steady state of a run.

    Attributes:
        stretch: None without a steady state.
        metric: The metric examined; empty if none had enough values.
    """

    stretch: Stretch | None = None
    metric: str = ""


def steady_stretch(samples: Samples) -> Stretch | None:
    """Return the steady state, from its first value to its last; None without one.

    Args:
        samples: Points in time order. Non-finite values are ignored.
    """
    finite = np.isfinite(samples.values)
    times_ns, values = samples.times_ns[finite], samples.values[finite]
    if len(values) < MIN_SAMPLES:
        return None
    largest = float(np.abs(values).max())
    if largest > 0:
        values = values / largest  # so that sums do not overflow
    size = max(_BATCH, -(-len(values) // _MAX_BATCHES))
    count = len(values) // size
    # The last mean includes the remainder.
    firsts = np.arange(count) * size
    calmest = _calmest(np.add.reduceat(values, firsts) / np.diff(firsts, append=len(values)))
    if calmest is None:
        return None
    first, stop = calmest
    last = len(values) if stop == count else stop * size
    return int(times_ns[first * size]), int(times_ns[last - 1])


def find_steady_states(
    reader: StoreReader, series: Mapping[str, Sequence[SeriesRecord]], run_ids: Sequence[str]
) -> dict[str, SteadyState]:
    """Return the steady states of many runs, given the series of each.

    Raises:
        CodecError: A chunk is damaged.
        StoreError: The store cannot be read.
    """
    states = dict.fromkeys(run_ids, SteadyState())
    for start in range(0, len(run_ids), _RUNS_AT_A_TIME):
        batch = run_ids[start : start + _RUNS_AT_A_TIME]
        for metrics in SOURCES:
            batch = [run_id for run_id in batch if not states[run_id].metric]
            candidates = {run_id: _candidates(series[run_id], metrics) for run_id in batch}
            keys = [(run_id, record.series_no) for run_id in batch for record in candidates[run_id]]
            if not keys:
                continue
            points = points_of(reader, keys, metrics)
            for run_id in batch:
                chosen = _fullest(candidates[run_id], points)
                if chosen is not None:
                    stretch = steady_stretch(points[run_id, chosen.series_no])
                    states[run_id] = SteadyState(stretch, chosen.metric)
    return states


def _candidates(series: Iterable[SeriesRecord], metrics: Sequence[str]) -> list[SeriesRecord]:
    """Return the series of these metrics, in the order of the metrics."""
    return sorted(
        (
            record
            for record in series
            if record.metric in metrics
            and record.kind is SeriesKind.GAUGE
            and (record.metric not in THROUGHPUT_METRICS or record.listener == SOFTWARE)
        ),
        key=lambda record: metrics.index(record.metric),
    )


def _fullest(
    candidates: Sequence[SeriesRecord], points: Mapping[Key, Samples]
) -> SeriesRecord | None:
    """Return the series with most values of the first metric that has enough."""
    counts = {
        record: int(np.isfinite(samples.values).sum())
        for record in candidates
        if (samples := points.get((record.run_id, record.series_no))) is not None
    }
    enough = [record for record, count in counts.items() if count >= MIN_SAMPLES]
    same = [record for record in enough if record.metric == enough[0].metric]
    return max(same, key=counts.__getitem__, default=None)


def _calmest(means: Float64Array) -> tuple[int, int] | None:
    """Return the part with the smallest standard error, as first and stop.

    None if it has the minimal length and still drifts, or lies next to another level of that
    length.
    """
    count = len(means)
    # Centred and scaled to 1, as sums of squares of large values lose digits.
    centred = means - means.mean()
    if centred.std() <= _CALM * abs(float(means.mean())):
        return 0, count
    centred = centred / np.abs(centred).max()
    sums = np.concatenate([[0.0], np.cumsum(centred)])
    squares = np.concatenate([[0.0], np.cumsum(centred**2)])
    shortest = -(-count // 2)
    firsts = np.arange(count - shortest + 1)[:, None]
    stops = np.arange(shortest, count + 1)[None, :]
    lengths = np.maximum(stops - firsts, 1)
    spread = squares[stops] - squares[firsts] - (sums[stops] - sums[firsts]) ** 2 / lengths
    errors = np.where(stops - firsts >= shortest, np.maximum(spread, 0.0) / lengths**2, np.inf)
    # Without noise, rounding must not decide: the longest of equal parts wins.
    place = int(np.argmax(np.where(errors <= errors.min() + _ROUNDING, lengths, 0)))
    first, column = divmod(place, errors.shape[1])
    stop = shortest + column
    if stop - first > shortest:
        return first, stop
    kept, rest = means[first:stop], means[stop:] if first == 0 else means[:first]
    has_two_levels = len(rest) >= shortest - 1 and not _drifts(rest) and _differ(kept, rest)
    return None if _drifts(kept) or has_two_levels else (first, stop)


def _drifts(means: Float64Array) -> bool:
    """Return whether the second half differs from the first."""
    middle = len(means) // 2
    return _differ(means[:middle], means[-middle:]) if middle > 1 else True


def _differ(some: Float64Array, others: Float64Array) -> bool:
    """Return whether their means differ significantly."""
    error = math.sqrt(some.var(ddof=1) / len(some) + others.var(ddof=1) / len(others))
    return abs(float(some.mean() - others.mean())) > _DIFFERENT_ERRORS * error
