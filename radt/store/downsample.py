"""Fewer points of a series for a chart, without losing what matters."""

from __future__ import annotations

import numpy as np
from tsdownsample import MinMaxDownsampler

from radt.store.records import Float64Array, Int64Array, Samples

#: Fewer would not leave each part of the result its share.
MIN_POINTS = 16

_MINMAX = MinMaxDownsampler()  # type: ignore[no-untyped-call]


def envelope(samples: Samples, max_points: int) -> Samples:
    """At most ``max_points`` (and at least 16) of the given points.

    The points are cut into stretches of equal number; each keeps its smallest and its largest
    finite value, so a spike of one point survives among millions. First and last point stay. So
    do values that are not finite, one a stretch: a chart shows them as gaps.

    MinMaxLTTB would be smoother but keeps one of two opposite spikes in a stretch. Stretches are
    not of equal time: tsdownsample's search for those fails on equal and on extreme times.

    Args:
        samples: Points in time order.
        max_points: How many to keep.
    """
    chosen = envelope_indices(samples, max_points)
    if len(chosen) == len(samples):
        return samples
    steps = samples.steps
    return Samples(
        samples.times_ns[chosen],
        samples.values[chosen],
        None if steps is None else steps[chosen],
    )


def envelope_indices(samples: Samples, max_points: int) -> Int64Array:
    """Which of the points `envelope` keeps, in order."""
    count = len(samples)
    budget = max(max_points, MIN_POINTS)
    if count <= budget:
        return np.arange(count, dtype=np.int64)
    kept = [np.array([0, count - 1], dtype=np.int64)]
    budget -= 2
    finite = np.isfinite(samples.values)
    if finite.all():
        kept.append(_extremes(samples.values, budget))
    else:
        missing = np.flatnonzero(~finite)
        gaps = missing[one_of_each_stretch(len(missing), budget // 4)]
        present = np.flatnonzero(finite)
        kept += [gaps, present[_extremes(samples.values[present], budget - len(gaps))]]
    return np.unique(np.concatenate(kept))


def _extremes(values: Float64Array, max_points: int) -> Int64Array:
    """Indices of minimum and maximum of each stretch."""
    if len(values) <= max_points:
        return np.arange(len(values), dtype=np.int64)
    chosen = _MINMAX.downsample(np.ascontiguousarray(values), n_out=max_points // 2 * 2)
    return np.asarray(chosen, dtype=np.int64)


def one_of_each_stretch(count: int, max_points: int) -> Int64Array:
    """At most so many of the numbers from 0 to ``count``, evenly apart."""
    if count <= max_points:
        return np.arange(count, dtype=np.int64)
    return np.arange(max_points, dtype=np.int64) * count // max_points
