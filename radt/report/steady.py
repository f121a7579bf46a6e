"""The steady state of runs whose scripts mark no epochs: without their warm-up and their end.

The rule is MSER, the marginal standard error rule: of all ways to leave out the beginning, the one
counts that leaves the smallest standard error of the mean (K. P. White, "An effective truncation
heuristic for bias reduction in simulation output", Simulation 69(6), 1997), here of means of five
values each (MSER-5: S. C. Spratt, University of Virginia, 1998), as single values are noise. The
end of a run, where it saves or evaluates, is no steady state either: the same rule leaves out both
sides at once. As White says, no more than half may be left out; where the rule would have to leave
out more, the run never settled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from radt.model import SOFTWARE, SeriesKind
from radt.report.quantities import THROUGHPUT_METRICS
from radt.report.reading import Key, points_of
from radt.report.stretches import Stretch
from radt.store.reader import StoreReader
from radt.store.records import Float64Array, Samples, SeriesRecord

#: What a run's pace is read of: the first that has values enough.
SOURCES: tuple[tuple[str, ...], ...] = (
    THROUGHPUT_METRICS,
    ("gpu.sm.active", "gpu.mig.sm.active", "gpu.utilization"),
    ("process.cpu.utilization",),
)
#: Ten means: of fewer, chance decides what is the calmest part.
MIN_SAMPLES = 50
_BATCH = 5
#: Of longer series more values make a mean. A run's bounds are then known to half a percent of it.
_MAX_BATCHES = 200
#: What varies by less, as a share of its mean, is steady.
_CALM = 0.01
#: What is further apart, in standard errors, is not so by chance.
_DIFFERENT_ERRORS = 3.0
_ROUNDING = 1e-12
#: Runs whose points are in memory at a time.
_RUNS_AT_A_TIME = 50


@dataclass(frozen=True, slots=True)
class Steady:
    """What was found of a run.

    Attributes:
        stretch: The steady state; None where there is none.
        metric: By which series; empty where none had values enough.
    """

    stretch: Stretch | None = None
    metric: str = ""


def steady_stretch(samples: Samples) -> Stretch | None:
    """From the first value of the steady state to its last one; None where it never settles.

    Args:
        samples: In time order. Values that are not finite are left out.
    """
    finite = np.isfinite(samples.values)
    times_ns, values = samples.times_ns[finite], samples.values[finite]
    if len(values) < MIN_SAMPLES:
        return None
    largest = float(np.abs(values).max())
    if largest > 0:
        values = values / largest  # no sum is then too large
    size = max(_BATCH, -(-len(values) // _MAX_BATCHES))
    count = len(values) // size
    # What is over belongs to the last one.
    firsts = np.arange(count) * size
    found = _calmest(np.add.reduceat(values, firsts) / np.diff(firsts, append=len(values)))
    if found is None:
        return None
    first, stop = found
    last = len(values) if stop == count else stop * size
    return int(times_ns[first * size]), int(times_ns[last - 1])


def steady_states(
    reader: StoreReader, series: Mapping[str, Sequence[SeriesRecord]], run_ids: Sequence[str]
) -> dict[str, Steady]:
    """The steady state of each of many runs.

    Args:
        reader: The store.
        series: What there is of each run.
        run_ids: They.

    Raises:
        CodecError: A chunk is damaged.
        StoreError: The store cannot be read.
    """
    found = dict.fromkeys(run_ids, Steady())
    for start in range(0, len(run_ids), _RUNS_AT_A_TIME):
        some = run_ids[start : start + _RUNS_AT_A_TIME]
        for metrics in SOURCES:
            some = [run_id for run_id in some if not found[run_id].metric]
            candidates = {run_id: _candidates(series[run_id], metrics) for run_id in some}
            keys = [(run_id, one.series_no) for run_id in some for one in candidates[run_id]]
            if not keys:
                continue
            points = points_of(reader, keys, metrics)
            for run_id in some:
                chosen = _fullest(candidates[run_id], points)
                if chosen is not None:
                    stretch = steady_stretch(points[run_id, chosen.series_no])
                    found[run_id] = Steady(stretch, chosen.metric)
    return found


def _candidates(series: Iterable[SeriesRecord], metrics: Sequence[str]) -> list[SeriesRecord]:
    """Those of these metrics, in the metrics' order."""
    return sorted(
        (
            one
            for one in series
            if one.metric in metrics
            and one.kind is SeriesKind.GAUGE
            and (one.metric not in THROUGHPUT_METRICS or one.listener == SOFTWARE)
        ),
        key=lambda one: metrics.index(one.metric),
    )


def _fullest(
    candidates: Sequence[SeriesRecord], points: Mapping[Key, Samples]
) -> SeriesRecord | None:
    """The first metric that has values enough, of it the series with most (one a GPU)."""
    counts = {
        one: int(np.isfinite(samples.values).sum())
        for one in candidates
        if (samples := points.get((one.run_id, one.series_no))) is not None
    }
    enough = [one for one, count in counts.items() if count >= MIN_SAMPLES]
    same = [one for one in enough if one.metric == enough[0].metric]
    return max(same, key=counts.__getitem__, default=None)


def _calmest(means: Float64Array) -> tuple[int, int] | None:
    """The part with the smallest standard error, from (included) and to (not).

    None where it is just as long as it has to be and still drifts, as it would be shorter if it
    might; or has another level beside it that is as long.
    """
    count = len(means)
    # Around the mean and of the size 1: sums of squares of large values have no digits left.
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
    # Where there is no noise, rounding must not decide: of like parts the longest counts.
    place = int(np.argmax(np.where(errors <= errors.min() + _ROUNDING, lengths, 0)))
    first, column = divmod(place, errors.shape[1])
    stop = shortest + column
    if stop - first > shortest:
        return first, stop
    kept, rest = means[first:stop], means[stop:] if first == 0 else means[:first]
    has_two_levels = len(rest) >= shortest - 1 and not _drifts(rest) and _differ(kept, rest)
    return None if _drifts(kept) or has_two_levels else (first, stop)


def _drifts(means: Float64Array) -> bool:
    """Whether the second half differs from the first."""
    middle = len(means) // 2
    return _differ(means[:middle], means[-middle:]) if middle > 1 else True


def _differ(some: Float64Array, others: Float64Array) -> bool:
    """Whether they differ in mean by more than chance would have it."""
    error = math.sqrt(some.var(ddof=1) / len(some) + others.var(ddof=1) / len(others))
    return abs(float(some.mean() - others.mean())) > _DIFFERENT_ERRORS * error
