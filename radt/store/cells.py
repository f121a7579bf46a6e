"""Cells of a series: stretches with the sum, number and extremes of their values.

Everything that reduces a series to fewer points merges cells: charts and exports
(`radt.analysis.lines`), MLflow (`radt.delivery.mlflow.points`), traces and thinning (`kept`). A
point is the smallest cell. Merging keeps extremes and sums exact, so the mean of a cell is the mean
of exactly the samples in it. This module reads no store.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from radt.model import NO_STEP, SeriesKind
from radt.store.counters import increases, rate_unit
from radt.store.records import BoolArray, Float64Array, Int64Array, Samples, SeriesRecord

#: A pause longer than this many intervals is a gap, not jitter.
GAP_INTERVALS = 3.5
#: With fewer points, some part of a thinned series would have none.
MIN_KEPT = 16
_COLUMNS = (
    *("first", "last", "low", "high", "total", "weight", "count", "gap"),
    *("since_s", "until_s"),
)


@dataclass(frozen=True, slots=True)
class Cells:
    """N cells in the order of x (all arrays (N,)), each with at least one finite value.

    A cell covers x from ``first`` to ``last``, recorded from ``since_s`` to ``until_s``. It has the
    lowest and the highest value, the sum ``total`` of value × weight, the sum of weights and the
    ``count`` of values. A value's weight is 1; that of a counter's rate is the seconds it averages.
    ``gap`` is True if values are missing before the cell.

    ``width`` is that of the grid the values were merged on. For single points it is 0, or their
    smallest distance if x is a number of steps.
    """

    first: Float64Array
    last: Float64Array
    low: Float64Array
    high: Float64Array
    total: Float64Array
    weight: Float64Array
    count: Float64Array
    gap: BoolArray
    since_s: Float64Array
    until_s: Float64Array
    width: float = 0.0

    def __len__(self) -> int:
        return len(self.first)

    @property
    def middle(self) -> Float64Array:
        return (self.first + self.last) / 2

    @property
    def mean(self) -> Float64Array:
        """Return the mean of the values; for a counter, its growth over time."""
        return self.total / self.weight

    def taken(self, which: slice | Int64Array | BoolArray) -> Self:
        """Return the cells at these indices."""
        return replace(self, **{name: getattr(self, name)[which] for name in _COLUMNS})

    def between(self, start: float, end: float, margin: int = 1) -> Self:
        """Return the cells that overlap a range, and ``margin`` neighbours on each side."""
        left = int(np.searchsorted(self.last, start, "left"))
        right = int(np.searchsorted(self.first, end, "right"))
        return self.taken(slice(max(0, left - margin), max(left, right) + margin))

    def broken_at(self, holes_s: Sequence[float]) -> Self:
        """Return the cells with gaps added at the beginnings of recorded gaps, in seconds."""
        places = np.searchsorted(self.since_s, np.asarray(holes_s, dtype=np.float64), "right")
        places = places[(places > 0) & (places < len(self))]
        if not len(places):
            return self
        gap = self.gap.copy()
        gap[places] = True
        return replace(self, gap=gap)

    def shifted(self, by: float) -> Self:
        """Return the cells with x shifted by an offset."""
        if by == 0:
            return self
        return replace(self, first=self.first + by, last=self.last + by)

    def placed(self, x: Float64Array) -> Self:
        """Return single points at new positions; points whose x is NaN are left out."""
        points = replace(self, first=x, last=x)
        known = np.isfinite(x)
        return (points if known.all() else points.taken(known)).ordered()

    def ordered(self) -> Self:
        """Return the cells in the order of x. Cells with new neighbours have no gap before them."""
        if not np.any(self.first[1:] < self.first[:-1]):
            return self
        order = np.argsort(self.first, kind="stable")
        cells = self.taken(order)
        return replace(cells, gap=cells.gap & (np.diff(order, prepend=-1) == 1))

    def merged(self, starts: Int64Array) -> Self:
        """Merge groups of cells that begin at these indices; the first index is 0."""
        if len(starts) == len(self):
            return self
        return replace(
            self,
            first=self.first[starts],
            last=np.maximum.reduceat(self.last, starts),
            low=np.minimum.reduceat(self.low, starts),
            high=np.maximum.reduceat(self.high, starts),
            total=np.add.reduceat(self.total, starts),
            weight=np.add.reduceat(self.weight, starts),
            count=np.add.reduceat(self.count, starts),
            gap=self.gap[starts],
            since_s=np.minimum.reduceat(self.since_s, starts),
            until_s=np.maximum.reduceat(self.until_s, starts),
        )

    def grouped(self, width: float, zero: float = 0.0) -> Self:
        """Merge the cells on a grid of one width that has an edge at ``zero``."""
        if not len(self):
            return self
        starts = group_starts(np.floor((self.first - zero) / width))
        return replace(self.merged(starts), width=max(width, self.width))


_NOTHING = np.empty(0)
NO_CELLS = Cells(*(_NOTHING,) * 7, np.empty(0, dtype=bool), _NOTHING, _NOTHING)


@dataclass(frozen=True, slots=True)
class Before:
    """End of the points read so far: time of the last finite value, and whether a gap follows.

    ``reading`` is a counter's last reading.
    """

    at_s: float = math.nan
    missing: bool = False
    reading: Samples | None = None


def of_points(
    at_s: Float64Array,
    values: Float64Array,
    longest_s: float = math.inf,
    before: Before | None = None,
) -> Cells:
    """Return a cell for each finite value, over time; a pause of more than ``longest_s`` is a gap.

    Args:
        at_s: Times, in order (N,).
        values: Values (N,); a value that is not finite is missing.
        longest_s: The longest pause that is not a gap.
        before: The end of the points before these.
    """
    finite = np.isfinite(values)
    lead = before or Before()
    missing = np.zeros(len(at_s), dtype=bool)
    if not finite.all():
        # True where values are missing right before the value.
        place = np.flatnonzero(finite)
        missing = np.diff(place, prepend=-1) > 1
        at_s, values = at_s[finite], values[finite]
    if not len(at_s):
        return NO_CELLS
    missing[0] |= lead.missing
    gap = missing | (np.diff(at_s, prepend=lead.at_s) > longest_s)
    if math.isnan(lead.at_s):
        gap[0] = False
    ones = np.ones(len(at_s))
    return Cells(at_s, at_s, values, values, values, ones, ones, gap, at_s, at_s)


def of_samples(
    samples: Samples, series: SeriesRecord, base_ns: int, before: Before | None = None
) -> tuple[Cells, Before]:
    """Return samples as cells over the seconds since ``base_ns``, and the state at their end.

    A counter's values become its rates since the previous reading, in the unit of its `rate_unit`.
    """
    lead = before or Before()
    longest_s = math.inf if series.interval_s is None else GAP_INTERVALS * series.interval_s
    values = samples.values
    times_ns, reading = samples.times_ns, lead.reading
    finite = np.flatnonzero(np.isfinite(values))
    if series.kind is SeriesKind.COUNTER:
        if reading is not None:
            times_ns = np.concatenate((reading.times_ns, times_ns))
            values = np.concatenate((reading.values, values))
        if len(finite):
            reading = samples[finite[-1:]]
        grown = increases(times_ns, values, series.wraps_at).timed
        weights, times_ns = grown.seconds, grown.end_ns
        total = grown.amounts * rate_unit(series.unit).factor
        values = total / weights
        finite = np.arange(len(values))
    at_s = (times_ns - base_ns) / 1e9
    cells = of_points(at_s, values, longest_s, lead)
    if series.kind is SeriesKind.COUNTER:
        cells = replace(cells, total=total, weight=weights)
    if not len(finite):
        missing = lead.missing or len(values) > 0
        return cells, Before(lead.at_s, missing, reading)
    end = Before(float(at_s[finite[-1]]), bool(finite[-1] < len(values) - 1), reading)
    return cells, end


def steps_of(samples: Samples) -> Float64Array:
    """Return the steps of finite values as numbers, NaN for none (N,)."""
    if samples.steps is None:
        return np.full(int(np.isfinite(samples.values).sum()), np.nan)
    steps = samples.steps.astype(np.float64)
    steps[samples.steps == NO_STEP] = np.nan
    return steps[np.isfinite(samples.values)]


def joined(*parts: Cells) -> Cells:
    """Concatenate cells in order."""
    parts = tuple(part for part in parts if len(part)) or (NO_CELLS,)
    if len(parts) == 1:
        return parts[0]
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS}
    return replace(parts[0], **columns, width=max(part.width for part in parts))


def group_starts(numbers: Float64Array) -> Int64Array:
    """Return the indices at which runs of equal numbers begin."""
    return np.flatnonzero(np.concatenate(([True], numbers[1:] != numbers[:-1])))


def power_of_two(at_least: float) -> float:
    """Return the smallest power of two that is at least the value."""
    if not 0 < at_least < math.inf:
        return 2.0**-30
    mantissa, exponent = math.frexp(at_least)
    return math.ldexp(1.0, exponent - 1 if mantissa == 0.5 else exponent)


def grid_width(at_least: float, cells: Sequence[Cells]) -> float:
    """Return a grid width of at least this on which these cells can be merged without splitting.

    As a series grows, its width takes few different values, each of which serves for a while.
    """
    finest = max((part.width for part in cells), default=0.0)
    base = max(finest, power_of_two(at_least / 8))
    return base * max(1, math.ceil(at_least / base))


def kept(samples: Samples, most: int) -> Samples:
    """Return at most ``most`` of the given points (but at least `MIN_KEPT`), unchanged.

    They are cut into stretches of equal number, each of which keeps its smallest and largest finite
    value, so a spike of one point survives among millions. The first and last points are kept, and
    some values that are not finite, for gaps.
    """
    return samples[kept_places(samples.values, most)]


def kept_places(values: Float64Array, most: int) -> Int64Array:
    """Return the indices of the points that `kept` returns, in order."""
    budget = max(most, MIN_KEPT)
    if len(values) <= budget:
        return np.arange(len(values), dtype=np.int64)
    finite = np.isfinite(values)
    places, gaps = np.flatnonzero(finite), np.flatnonzero(~finite)
    gaps = gaps[_stretches(len(gaps), (budget - 2) // 4)]
    count = (budget - 2 - len(gaps)) // 2
    ends = np.array([0, len(values) - 1])
    if len(places) > 2 * count:
        starts = _stretches(len(places), count)
        own = values[places]
        lows, highs = np.minimum.reduceat(own, starts), np.maximum.reduceat(own, starts)
        lengths = np.diff(np.append(starts, len(own)))
        chosen = (_first_equal(own, lows, lengths), _first_equal(own, highs, lengths))
        places = places[np.concatenate(chosen)]
    return np.unique(np.concatenate([ends, gaps, places]))


def _stretches(count: int, most: int) -> Int64Array:
    """Return the starts of at most ``most`` stretches of equally many of ``count`` points."""
    if count <= most:
        return np.arange(count, dtype=np.int64)
    return np.arange(most, dtype=np.int64) * count // most


def _first_equal(values: Float64Array, wanted: Float64Array, lengths: Int64Array) -> Int64Array:
    """Return the index of the first value in each group that equals the group's target."""
    places = np.flatnonzero(values == np.repeat(wanted, lengths))
    groups = np.repeat(np.arange(len(lengths)), lengths)[places]
    return places[group_starts(groups.astype(np.float64))]
