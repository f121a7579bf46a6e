"""Stretches of time, from and to in ns, both inclusive; and increases of counters within them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from radt.store.counters import Increases
from radt.store.records import Int64Array, RunRecord

#: From and to, both inclusive.
Stretch = tuple[int, int]
#: In order and disjoint.
Stretches = Sequence[Stretch]

#: Bounds of a stretch without an end on that side.
EARLIEST_NS, LATEST_NS = -(2**63), 2**63 - 1


def lived(runs: Iterable[RunRecord], now_ns: int | None = None) -> list[Stretch]:
    """Return the time of each run from its start to its end, if both are known.

    ``now_ns`` is the end of runs that have not ended, None if unknown.
    """
    return [
        (run.started_ns, max(run.started_ns, end_ns))
        for run in runs
        if run.started_ns is not None and (end_ns := run.ended_ns or now_ns) is not None
    ]


def common(stretches: Sequence[Stretch]) -> Stretch:
    """Return the last start and the first end. Without overlap, the end precedes the start."""
    return max(start_ns for start_ns, _ in stretches), min(end_ns for _, end_ns in stretches)


def merged(stretches: Iterable[Stretch]) -> Stretches:
    """Return the same time, in order and without overlaps.

    >>> merged([(5, 9), (0, 2), (1, 3)])
    [(0, 3), (5, 9)]
    """
    joined: list[Stretch] = []
    for start_ns, end_ns in sorted(stretches):
        if joined and start_ns <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end_ns))
        else:
            joined.append((start_ns, end_ns))
    return joined


def clipped(stretches: Stretches, bounds: Stretch) -> list[Stretch]:
    """Return the parts of stretches within bounds that are longer than an instant.

    >>> clipped([(0, 2), (3, 5), (6, 9)], (2, 7))
    [(3, 5), (6, 7)]
    """
    first_ns, last_ns = bounds
    # The last stretch that began before the bounds may reach into them.
    place = max(0, bisect_left(stretches, (first_ns, first_ns)) - 1)
    parts: list[Stretch] = []
    while place < len(stretches) and stretches[place][0] < last_ns:
        start_ns, end_ns = max(stretches[place][0], first_ns), min(stretches[place][1], last_ns)
        if start_ns < end_ns:
            parts.append((start_ns, end_ns))
        place += 1
    return parts


def length_s(stretches: Stretches) -> float | None:
    """Return the total length in seconds; None without stretches, or if one is unbounded."""
    if not stretches or stretches[0][0] == EARLIEST_NS or stretches[-1][1] == LATEST_NS:
        return None
    return sum(end_ns - start_ns for start_ns, end_ns in stretches) / 1e9


def covered_ns(stretches: Stretches, start_ns: Int64Array, end_ns: Int64Array) -> Int64Array:
    """Return how much of each interval (N,), in time order, the stretches cover (N,)."""
    if not len(start_ns) or not stretches:
        return np.zeros(len(start_ns), dtype=np.int64)
    # Differences to distant times would overflow 64-bit integers.
    first_ns, last_ns = int(start_ns[0]), int(end_ns[-1])
    if len(stretches) == 1:  # the common case
        bounds = max(stretches[0][0], first_ns), min(stretches[0][1], last_ns)
        overlap: Int64Array = np.minimum(end_ns, bounds[1]) - np.maximum(start_ns, bounds[0])
        return overlap.clip(0)
    starts, ends = np.array(stretches, dtype=np.int64).T
    starts, ends = np.clip(starts, first_ns, last_ns), np.clip(ends, first_ns, last_ns)
    lengths = ends - starts
    before = np.cumsum(lengths) - lengths

    def until(times_ns: Int64Array) -> Int64Array:
        places = np.searchsorted(starts, times_ns, side="right") - 1
        known = np.maximum(places, 0)
        inside = before[known] + np.clip(times_ns - starts[known], 0, lengths[known])
        return np.where(places < 0, 0, inside)

    return until(end_ns) - until(start_ns)


class Within:
    """Stretches for looking up times."""

    __slots__ = ("_ends", "_starts")

    def __init__(self, stretches: Stretches) -> None:
        self._starts = [start_ns for start_ns, _ in stretches]
        self._ends = [end_ns for _, end_ns in stretches]

    def holds(self, first_ns: int, last_ns: int) -> bool:
        """Return True if a single stretch holds the whole time between two times."""
        place = bisect_right(self._starts, first_ns) - 1
        return place >= 0 and last_ns <= self._ends[place]

    def meets(self, first_ns: int, last_ns: int) -> bool:
        """Return whether a stretch overlaps the time between two times."""
        place = bisect_left(self._ends, first_ns)
        return place < len(self._starts) and self._starts[place] <= last_ns

    def mask(self, times_ns: Int64Array) -> npt.NDArray[np.bool_]:
        """Return which of many times (N,) are within."""
        if len(self._starts) == 1:
            return (times_ns >= self._starts[0]) & (times_ns <= self._ends[0])
        starts = np.array(self._starts, dtype=np.int64)
        ends = np.array(self._ends, dtype=np.int64)
        places = np.searchsorted(starts, times_ns, side="right") - 1
        if not len(starts):
            return np.zeros(len(times_ns), dtype=bool)
        return (places >= 0) & (times_ns <= ends[np.maximum(places, 0)])


def growth(increases: Increases, within: Stretches | None = None) -> float | None:
    """Return the increase of a counter: within stretches, or in total.

    An increase that reaches beyond a stretch counts in proportion to time. None if no increase
    overlaps a stretch.
    """
    if within is None:
        return float(increases.amounts.sum())
    return _share(increases, covered_ns(within, increases.start_ns, increases.end_ns))


def rate_per_s(increases: Increases, within: Stretches) -> float | None:
    """Return the mean rate over the part of the stretches that the increases cover."""
    covered = covered_ns(within, increases.start_ns, increases.end_ns)
    amount, total_ns = _share(increases, covered), float(covered.sum())
    return amount / (total_ns / 1e9) if amount is not None and total_ns > 0 else None


def _share(increases: Increases, covered: Int64Array) -> float | None:
    """Return the increases, each in proportion to its covered time."""
    lengths = (increases.end_ns - increases.start_ns).astype(np.float64)
    met = (covered > 0) & (lengths > 0)
    if not met.any():
        return None
    return float((increases.amounts[met] * covered[met] / lengths[met]).sum())
