"""Cells of a series: stretches with extremes, sum and area, from which charts are drawn.

A point is the smallest cell. Cells are merged into larger ones without losing an extreme or a sum,
so that a digest of ten million points and the points themselves are drawn by the same code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from radt.frontend.data.model import BoolArray
from radt.store.records import Float64Array, Int64Array

#: Readings no further apart than this are the same reading.
SAME_INSTANT = 1e-6
COLUMNS = (
    *("first", "last", "low", "high", "low_at", "high_at"),
    *("total", "count", "area", "cover", "gap"),
)


@dataclass(frozen=True, slots=True)
class Cells:
    """N cells in order (all arrays (N,)), each with at least one finite value.

    A cell spans ``first`` to ``last`` and has the lowest and highest value with their positions,
    the sum and number of values, the area under the line from the point before ``first`` to
    ``last``, and the width of that line (0 across gaps). ``gap`` is True if values are missing
    before the cell. ``steps`` (4, N) are the steps of first, last, lowest and highest; None without
    steps.
    """

    first: Float64Array
    last: Float64Array
    low: Float64Array
    high: Float64Array
    low_at: Float64Array
    high_at: Float64Array
    total: Float64Array
    count: Float64Array
    area: Float64Array
    cover: Float64Array
    gap: BoolArray
    steps: Float64Array | None = None

    def __len__(self) -> int:
        return len(self.first)

    @property
    def middle(self) -> Float64Array:
        return (self.first + self.last) / 2

    @property
    def mean(self) -> Float64Array:
        """The unweighted mean of the values."""
        return self.total / self.count

    @property
    def mean_height(self) -> Float64Array:
        """The mean of the line weighted by cell width; of the values if no cell has a width."""
        with np.errstate(invalid="ignore", divide="ignore"):
            height: Float64Array = np.where(self.cover > 0, self.area / self.cover, self.mean)
        return height

    def part(self, start: int, stop: int) -> Cells:
        """Return cells ``start`` to ``stop``, as views."""
        return self.taken(slice(start, stop))

    def between(self, start: float, end: float, margin: int = 1) -> Cells:
        """Return the cells that overlap a range, and ``margin`` neighbours on each side."""
        left = int(np.searchsorted(self.last, start, "left"))
        right = int(np.searchsorted(self.first, end, "right"))
        return self.part(max(0, left - margin), max(left, right) + margin)

    def broken_at(self, holes: npt.ArrayLike) -> Cells:
        """Return the cells with gaps added where recorded gaps begin."""
        places = np.searchsorted(self.first, np.asarray(holes, dtype=np.float64), "right")
        places = places[(places > 0) & (places < len(self))]
        if not len(places):
            return self
        gap = self.gap.copy()
        gap[places] = True
        return replace(self, gap=gap)

    def merged(self, starts: Int64Array) -> Cells:
        """Merge groups of cells that begin at these indices; the first is 0.

        Gaps within a group are forgotten, except for their width.
        """
        if len(starts) == len(self):
            return self
        lengths = np.diff(np.append(starts, len(self)))
        ends = starts + lengths - 1
        low, high = np.minimum.reduceat(self.low, starts), np.maximum.reduceat(self.high, starts)
        lowest = _first_equal(self.low, low, lengths)
        highest = _first_equal(self.high, high, lengths)
        steps = self.steps
        if steps is not None:
            own = [steps[0, starts], steps[1, ends], steps[2, lowest], steps[3, highest]]
            steps = np.stack(own)
        return Cells(
            self.first[starts],
            self.last[ends],
            low,
            high,
            self.low_at[lowest],
            self.high_at[highest],
            np.add.reduceat(self.total, starts),
            np.add.reduceat(self.count, starts),
            np.add.reduceat(self.area, starts),
            np.add.reduceat(self.cover, starts),
            self.gap[starts],
            steps,
        )

    def on_steps(self) -> Cells:
        """Return the cells over steps instead of time; cells without steps are left out."""
        if self.steps is None:
            return self.part(0, 0)
        has_step: BoolArray = np.asarray(np.isfinite(self.steps).all(axis=0))
        own = self if has_step.all() else self.taken(has_step)
        assert own.steps is not None
        first, last, low_at, high_at = own.steps
        if len(first) and (np.any(first[1:] < first[:-1]) or np.any(last < first)):
            order = np.argsort(first, kind="stable")  # a run that resumed from an earlier step
            own = own.taken(order)
            assert own.steps is not None
            first, last, low_at, high_at = own.steps
            last = np.maximum(first, last)
        cover = np.diff(last, prepend=first[:1] if len(first) else 0.0)
        cover = np.where(own.cover > 0, np.maximum(cover, 0.0), 0.0)
        return own.moved(first, last, low_at, high_at, cover)

    def over(self, other: Cells, farthest: float) -> Cells:
        """Return the cells over the values of another series, in the order of those values.

        Each value of the series with fewer values is paired with that value of the other which was
        recorded nearest to it in time; pairs further apart than ``farthest`` are left out. A gap
        stays one between values that follow each other both in time and in x.
        """
        if not len(self) or not len(other):
            return self.part(0, 0)
        own, at = self, other
        if len(other) < len(self):
            own = self.taken(_nearest(self.middle, other.middle))
        else:
            at = other.taken(_nearest(other.middle, self.middle))
        paired = np.flatnonzero(np.abs(own.middle - at.middle) <= farthest)
        order = paired[np.argsort(at.mean[paired], kind="stable")]
        own, x = own.taken(order), at.mean[order]
        gap = own.gap & (np.diff(order, prepend=-1) == 1)
        cover = np.where(gap, 0.0, np.diff(x, prepend=x[:1]))
        height = (own.mean + np.concatenate((own.mean[:1], own.mean[:-1]))) / 2
        return replace(
            own,
            **dict.fromkeys(("first", "last", "low_at", "high_at"), x),
            gap=gap,
            cover=cover,
            area=cover * height,
            steps=None,
        )

    def mapped(self, onto: XMap) -> Cells:
        """Return the cells mapped to another axis."""
        if isinstance(onto, Shift):
            if onto.by == 0:
                return self
            return replace(
                self,
                first=self.first + onto.by,
                last=self.last + onto.by,
                low_at=self.low_at + onto.by,
                high_at=self.high_at + onto.by,
            )
        begins = onto(self.last - self.cover)
        last = onto(self.last)
        cover = np.maximum(last - begins, 0.0)
        first, low_at, high_at = (
            onto(column) for column in (self.first, self.low_at, self.high_at)
        )
        known = np.isfinite(first) & np.isfinite(last)
        cover = np.where(np.isfinite(cover), cover, 0.0)
        cells = self.moved(first, last, low_at, high_at, cover)
        if not known.all():
            cells = cells.taken(known)
        if np.any(cells.first[1:] < cells.first[:-1]):
            cells = cells.taken(np.argsort(cells.first, kind="stable"))
        return cells

    def moved(
        self,
        first: Float64Array,
        last: Float64Array,
        low_at: Float64Array,
        high_at: Float64Array,
        cover: Float64Array,
    ) -> Cells:
        """Return the same values at other positions."""
        with np.errstate(invalid="ignore", divide="ignore"):
            height = np.where(self.cover > 0, self.area / self.cover, 0.0)
        return replace(
            self,
            first=first,
            last=last,
            low_at=low_at,
            high_at=high_at,
            area=height * cover,
            cover=cover,
        )

    def taken(self, which: slice | Int64Array | BoolArray) -> Cells:
        """Return the cells at these indices."""
        steps = None if self.steps is None else self.steps[:, which]
        cells = Cells(*(getattr(self, name)[which] for name in COLUMNS))
        return cells if steps is None else replace(cells, steps=steps)


NO_CELLS = Cells(*(np.empty(0),) * 10, np.empty(0, dtype=bool))


class XMap:
    """Maps seconds since the barrier to another axis, linearly between known points.

    Positions before the first and after the last point are NaN.
    """

    def __init__(self, seconds: Float64Array, x: Float64Array) -> None:
        self.seconds, self.x = seconds, x

    def __call__(self, seconds: Float64Array) -> Float64Array:
        mapped: Float64Array = np.interp(seconds, self.seconds, self.x, left=np.nan, right=np.nan)
        return mapped

    def back(self, x: float) -> float:
        """Map a position on the axis back to seconds, clamped to the known range."""
        return float(np.interp(x, self.x, self.seconds))


class Shift(XMap):
    """Maps seconds to seconds with another zero."""

    def __init__(self, by: float) -> None:
        super().__init__(np.empty(0), np.empty(0))
        self.by = by

    def __call__(self, seconds: Float64Array) -> Float64Array:
        return seconds + self.by

    def back(self, x: float) -> float:
        return x - self.by


@dataclass(frozen=True, slots=True)
class Before:
    """The last finite point before new ones, and whether a gap follows it."""

    at: float = math.nan
    value: float = math.nan
    missing: bool = False


def of_points(
    at: Float64Array,
    values: Float64Array,
    steps: Float64Array | None = None,
    longest: float = math.inf,
    before: Before | None = None,
) -> Cells:
    """Return a cell for each finite value; a pause longer than ``longest`` is a gap."""
    finite = np.isfinite(values)
    lead = before or Before()
    if finite.all():
        missing = np.zeros(len(at), dtype=bool)
    else:
        # Whether values are missing right before each value.
        place = np.flatnonzero(finite)
        missing = np.diff(place, prepend=-1) > 1
        at, values = at[finite], values[finite]
        steps = None if steps is None else steps[finite]
    if not len(at):
        nothing = np.empty(0)
        return Cells(
            *(nothing,) * 10, np.empty(0, dtype=bool), None if steps is None else np.empty((4, 0))
        )
    missing[0] |= lead.missing
    pause = np.diff(at, prepend=lead.at)
    gap = missing | (pause > longest)
    if math.isnan(lead.at):
        gap[0] = False
    with np.errstate(invalid="ignore"):
        cover = np.where(gap | ~(pause > 0), 0.0, pause)
        area = np.where(cover > 0, cover * (values + np.append(lead.value, values[:-1])) / 2, 0.0)
    own = None if steps is None else np.stack([steps] * 4)
    ones = np.ones(len(at))
    return Cells(at, at, values, values, at, at, values, ones, area, cover, gap, own)


def united(parts: Sequence[Cells], longest: float) -> Cells:
    """Merge several readings of one quantity; equal instants count once.

    Only a pause that is longer than ``longest`` in all of them together is a gap.
    """
    if len(parts) <= 1:
        return parts[0] if parts else NO_CELLS
    cells = joined(*parts)
    if not len(cells):
        return cells
    cells = cells.taken(np.argsort(cells.first, kind="stable"))
    reach = np.maximum.accumulate(cells.last)
    apart = np.concatenate(([True], cells.first[1:] > reach[:-1] + SAME_INSTANT))
    merged = cells.merged(np.flatnonzero(apart))
    pause = merged.first - np.concatenate((merged.first[:1], merged.last[:-1]))
    gap = pause > longest
    last = np.maximum.reduceat(cells.last, np.flatnonzero(apart))
    cover = np.where(gap, last - merged.first, np.diff(last, prepend=merged.first[:1]))
    return replace(merged, last=last, gap=gap, cover=cover, area=merged.mean * cover)


def joined(*parts: Cells) -> Cells:
    """Concatenate cells in order."""
    columns = [np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS]
    steps = None
    if any(part.steps is not None for part in parts):
        steps = np.concatenate(
            [np.full((4, len(p)), np.nan) if p.steps is None else p.steps for p in parts], axis=1
        )
    cells = Cells(*columns)
    return cells if steps is None else replace(cells, steps=steps)


def grouped(cells: Cells, width: float, zero: float = 0.0) -> Cells:
    """Merge cells into a grid of one width that starts at ``zero``."""
    if not len(cells):
        return cells
    return cells.merged(group_starts(np.floor((cells.first - zero) / width)))


def group_starts(numbers: Float64Array) -> Int64Array:
    """Return the indices at which runs of equal numbers begin."""
    return np.flatnonzero(np.concatenate(([True], numbers[1:] != numbers[:-1])))


def power_of_two(at_least: float) -> float:
    """Return the smallest power of two that is at least the value."""
    if not 0 < at_least < math.inf:
        return 2.0**-30
    mantissa, exponent = math.frexp(at_least)
    return math.ldexp(1.0, exponent - 1 if mantissa == 0.5 else exponent)


def _nearest(places: Float64Array, wanted: Float64Array) -> Int64Array:
    """Return the index of the place (N,), in order, that is nearest to each wanted one (M,)."""
    right = np.clip(np.searchsorted(places, wanted), 1, max(1, len(places) - 1))
    right = np.minimum(right, len(places) - 1)
    left = np.maximum(right - 1, 0)
    return np.where(wanted - places[left] <= places[right] - wanted, left, right)


def _first_equal(values: Float64Array, wanted: Float64Array, lengths: Int64Array) -> Int64Array:
    """Return the index of the first value in each group that equals the group's target."""
    places = np.flatnonzero(values == np.repeat(wanted, lengths))
    groups = np.repeat(np.arange(len(lengths)), lengths)[places]
    return places[group_starts(groups.astype(np.float64))]


def moving_mean(cells: Cells, at: Float64Array, width: float) -> Float64Array:
    """Return the mean within ``width`` around each position (N,); NaN where there is no value.

    The window does not reach across gaps.
    """
    if not len(cells):
        return np.full(len(at), np.nan)
    return mean_within(
        cells.last - cells.cover, cells.last, cells.mean_height, cells.gap, at, width
    )


def mean_within(
    begins: Float64Array,
    ends: Float64Array,
    heights: Float64Array,
    gaps: BoolArray,
    at: Float64Array,
    width: float,
) -> Float64Array:
    """Return `moving_mean` of blocks from ``begins`` to ``ends`` (M,) with these ``heights``."""
    spans = ends - begins
    knots = np.stack([begins, ends], axis=1).ravel()
    # Rounding may put a start slightly before the previous end.
    knots = np.maximum.accumulate(knots)
    area = np.repeat(np.cumsum(spans * heights), 2)
    cover = np.repeat(np.cumsum(spans), 2)
    area[::2] -= spans * heights
    cover[::2] -= spans
    # The stretch without gaps that contains each position.
    heads = np.flatnonzero(np.concatenate(([True], gaps[1:])))
    tails = np.append(heads[1:], len(ends)) - 1
    own = np.clip(np.searchsorted(begins[heads], at, "right") - 1, 0, len(heads) - 1)
    left = np.maximum(at - width / 2, begins[heads][own])
    right = np.minimum(at + width / 2, ends[tails][own])
    seen = np.interp(right, knots, cover) - np.interp(left, knots, cover)
    below = np.interp(right, knots, area) - np.interp(left, knots, area)
    nearest = np.clip(np.searchsorted(ends, at), 0, len(ends) - 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        result: Float64Array = np.where(seen > 0, below / seen, heights[nearest])
    return result


def exponential_mean(values: Float64Array, counts: Float64Array, weight: float) -> Float64Array:
    """Return TensorBoard's smoothing of values (N,), which begins unbiased.

    A value of ``counts`` samples is taken for as many equal ones. Of single samples y it is
    s = weight · s + (1 - weight) · y, divided by 1 - weight ** n after n of them
    (``resmoothDataset`` in TensorBoard's ``line_chart_v2``).
    """
    kept = weight**counts
    total = (1 - kept) * values
    # Each pass joins stretches of twice as many values: log N passes instead of N steps.
    reach = 1
    while reach < len(values):
        total[reach:] = total[reach:] + kept[reach:] * total[:-reach]
        kept[reach:] = kept[reach:] * kept[:-reach]
        reach *= 2
    result: Float64Array = total / (1 - kept)
    return result
