"""A series as a line of at most N points: the only way in which radt draws many samples with few.

The x axis is divided into cells of equal width, in the unit of the axis: seconds, steps or epochs.
A point of a line is the mean of exactly the samples in its cell, and its band shows their extremes.
So neither the pace of logging, nor pauses, nor the store's chunks affect the line.

A long series is kept as a digest, whose cells have a width that is a power of two. When there are
too many cells, neighbours are merged in pairs. So a digest has a few thousand cells regardless of
the series' length, updates take time only for new points, the digests of a workload's runs have
aligned cells, and coarser cells consist of whole ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from radt.store.cells import (
    NO_CELLS,
    Cells,
    grid_width,
    group_starts,
    joined,
    power_of_two,
)
from radt.store.records import BoolArray, Float64Array, Int64Array

#: A digest has at most this many cells, and at least half as many.
DIGEST_CELLS = 4096
#: Readings at most this far apart are the same reading.
_SAME_INSTANT_S = 1e-6


@dataclass(frozen=True, slots=True)
class Curve:
    """Points in the order of ``x`` (N,), in units of the chart's axis, with values (N,).

    NaN is a gap. Values are as stored; those of counters are mean rates since the previous reading.
    """

    x: Float64Array
    values: Float64Array


EMPTY = Curve(np.empty(0), np.empty(0))


class XMap:
    """Maps seconds since the barrier to another axis, linearly between known points.

    Positions before the first and after the last point are NaN.
    """

    def __init__(self, seconds: Float64Array, x: Float64Array) -> None:
        self.seconds, self.x = seconds, x

    def __call__(self, seconds: Float64Array) -> Float64Array:
        mapped: Float64Array = np.interp(seconds, self.seconds, self.x, left=np.nan, right=np.nan)
        return mapped

    def __eq__(self, other: object) -> bool:
        return isinstance(other, XMap) and all(
            np.array_equal(own, others, equal_nan=True)
            for own, others in ((self.seconds, other.seconds), (self.x, other.x))
        )

    __hash__ = None  # type: ignore[assignment]


class Shift(XMap):
    """Maps seconds to seconds with another zero."""

    def __init__(self, by: float) -> None:
        super().__init__(np.empty(0), np.empty(0))
        self.by = by

    def __call__(self, seconds: Float64Array) -> Float64Array:
        return seconds + self.by


def digest(cells: Cells) -> Cells:
    """Return the digest of a series in the order of x."""
    if not len(cells):
        return cells
    width = power_of_two(float(cells.last[-1] - cells.first[0]) / DIGEST_CELLS)
    return cells.grouped(max(width, cells.width))


def extended(known: Cells, new: Cells) -> Cells:
    """Return a digest extended by new points."""
    if not len(known) or not len(new):
        return digest(new) if len(new) else known
    start = min(float(known.first[0]), float(new.first[0]))
    end = max(float(known.last[-1]), float(new.last[-1]))
    width = max(known.width, power_of_two((end - start) / DIGEST_CELLS))
    if width > known.width or new.first[0] < known.first[-1]:
        return joined(known, new).ordered().grouped(width)
    # Only the last cell can have grown.
    tail = joined(known.taken(slice(len(known) - 1, None)), new).grouped(width)
    return joined(known.taken(slice(len(known) - 1)), tail)


def union(parts: Sequence[Cells], longest_s: float) -> Cells:
    """Merge the readings of one device by several runs. Simultaneous readings count once.

    In each cell of a digest, the reading with the most samples counts. Only a pause longer than
    ``longest_s`` in all of them together is a gap.
    """
    parts = [part for part in parts if len(part)]
    if len(parts) <= 1:
        return parts[0] if parts else NO_CELLS
    width = max(part.width for part in parts)
    if width > 0:
        parts = [part.grouped(width) for part in parts]
    cells = joined(*parts)
    if width > 0:
        numbers = np.floor(cells.first / width)
        cells = cells.taken(np.lexsort((-cells.count, numbers)))
        own = group_starts(np.sort(numbers))
    else:
        cells = cells.taken(np.argsort(cells.first, kind="stable"))
        own = np.flatnonzero(np.diff(cells.since_s, prepend=-np.inf) > _SAME_INSTANT_S)
    cells = cells.taken(own)
    pause_s = cells.since_s[1:] - np.maximum.accumulate(cells.until_s)[:-1]
    return replace(cells, gap=np.concatenate(([False], pause_s > longest_s)))


def paired(cells: Cells, other: Cells, farthest_s: float) -> Cells:
    """Return the points of a series over the values of another one, in the order of those values.

    Each value of the shorter series is paired with the value of the other that was recorded nearest
    to it in time. Pairs further apart than ``farthest_s`` are left out. A gap remains between
    values that are neighbours both in time and in x.
    """
    if not len(cells) or not len(other):
        return NO_CELLS
    if len(other) < len(cells):
        cells = cells.taken(_nearest(cells.since_s, other.since_s))
    else:
        other = other.taken(_nearest(other.since_s, cells.since_s))
    near = np.abs(cells.since_s - other.since_s) <= farthest_s
    return cells.placed(np.where(near, other.mean, np.nan))


def _nearest(places: Float64Array, wanted: Float64Array) -> Int64Array:
    """Return the index of the nearest of the sorted places (N,) for each wanted one (M,)."""
    right = np.clip(np.searchsorted(places, wanted), 1, max(1, len(places) - 1))
    right = np.minimum(right, len(places) - 1)
    left = np.maximum(right - 1, 0)
    return np.where(wanted - places[left] <= places[right] - wanted, left, right)


def reduced(cells: Cells, most: int, span: float, *, zero: float = 0.0, log: bool = False) -> Cells:
    """Return about ``most`` cells of one width over ``span``. None crosses a visible gap.

    Args:
        cells: The cells to merge.
        most: The number of cells that fit.
        span: The length of the x axis.
        zero: An edge of the digest's cells.
        log: Make the cells equally wide on a logarithmic axis.
    """
    if len(cells) <= most:
        return cells
    positive = cells.first[cells.first > 0]
    if log and len(positive):
        edges = np.geomspace(positive[0], positive[-1], most)[1:-1]
        numbers = np.searchsorted(edges, cells.first, "right").astype(np.float64)
    else:
        width = grid_width(span / most, [cells])
        numbers = np.floor((cells.first - zero) / width)
    breaks = np.flatnonzero(pauses(cells, span, 2 * most))
    return cells.merged(np.unique(np.concatenate([group_starts(numbers), breaks])))


def pauses(cells: Cells, span: float, pixels: int) -> BoolArray:
    """Return only the visible gaps if there are more points than pixels, else all."""
    if len(cells) <= pixels:
        return cells.gap
    pause = cells.first - np.concatenate((cells.first[:1], cells.last[:-1]))
    return np.asarray(cells.gap & (pause * pixels > span))


def with_gaps(cells: Cells, *columns: Float64Array) -> tuple[Float64Array, ...]:
    """Return the middles of the cells and columns of values, with NaN in the gaps."""
    where = np.flatnonzero(cells.gap[1:]) + 1
    if not len(where):
        return cells.middle, *columns
    between = (cells.last[where - 1] + cells.first[where]) / 2
    values = (np.insert(column, where, np.nan) for column in columns)
    return np.insert(cells.middle, where, between), *values


@dataclass(frozen=True, slots=True)
class OnGrid:
    """A series on a grid: mean, minimum and maximum of each cell (M,), NaN where it has none.

    A cell without a value has the interpolation between its neighbours, unless that is a gap.
    """

    mean: Float64Array
    low: Float64Array
    high: Float64Array


def grid(
    parts: Sequence[Cells],
    most: int,
    within: tuple[float, float] = (-math.inf, math.inf),
    *,
    zero: float = 0.0,
    finest: float = 0.0,
) -> Float64Array:
    """Return the edges of at most about ``most`` cells for several series (M + 1,).

    Args:
        parts: The series. Each digest cell falls into a single cell.
        most: The number of cells that fit.
        within: The visible part of the x axis.
        zero: An edge of the digests' cells.
        finest: The smallest width: the interval of readings.
    """
    start = max(min(float(cells.first[0]) for cells in parts), within[0])
    end = min(max(float(cells.last[-1]) for cells in parts), within[1])
    # Seconds since 1970 leave few fractional digits in a float64.
    digits = 8 * float(np.spacing(max(abs(start), abs(end))))
    span = max(end - start, 1e-6)
    width = grid_width(max(span / most, finest, digits), parts)
    if all(np.array_equal(cells.first, cells.last) for cells in parts):
        # Shift by half a cell, so that readings at multiples of the interval fall into the middle
        # of cells.
        zero -= width / 2
    first = math.floor((start - zero) / width)
    count = max(1, math.floor((end - zero) / width) - first + 1)
    return zero + width * np.arange(first, first + count + 1, dtype=np.float64)


def on_grid(cells: Cells, edges: Float64Array) -> OnGrid:
    """Return a series on a grid with these edges."""
    count = len(edges) - 1
    width = float(edges[-1] - edges[0]) / count
    number = np.floor((cells.middle - edges[0]) / width)
    inside = slice(*np.searchsorted(number, [0, count]))
    mean, low, high = (np.full(count, np.nan) for _ in range(3))
    shown = cells.taken(inside)
    if len(shown):
        starts = group_starts(number[inside])
        place = number[inside][starts].astype(np.int64)
        merged = shown.merged(starts)
        mean[place], low[place], high[place] = merged.mean, merged.low, merged.high
    empty = np.isnan(mean)
    mean[empty] = _between(cells, ((edges[:-1] + edges[1:]) / 2)[empty])
    low[empty], high[empty] = mean[empty], mean[empty]
    return OnGrid(mean, low, high)


def _between(cells: Cells, at: Float64Array) -> Float64Array:
    """Interpolate linearly between the points; NaN outside them and within gaps."""
    if not len(cells):
        return np.full(len(at), np.nan)
    middle = cells.middle
    result: Float64Array = np.interp(at, middle, cells.mean, left=np.nan, right=np.nan)
    if len(cells) > 1:
        right = np.clip(np.searchsorted(middle, at), 1, len(cells) - 1)
        result[cells.gap[right]] = np.nan
    return result


def moving_mean(cells: Cells, at: Float64Array, width: float) -> Float64Array:
    """Return the mean within ``width`` around each position (N,); NaN where there is no value.

    Each value is weighted by the part of the x axis since the previous one. The window does not
    reach across gaps.
    """
    if not len(cells):
        return np.full(len(at), np.nan)
    ends, heights = cells.last, cells.mean
    begins = np.where(cells.gap, cells.first, np.concatenate((cells.first[:1], ends[:-1])))
    spans = ends - begins
    knots = np.stack([begins, ends], axis=1).ravel()
    # Rounding may put a start slightly before the previous end.
    knots = np.maximum.accumulate(knots)
    area = np.repeat(np.cumsum(spans * heights), 2)
    cover = np.repeat(np.cumsum(spans), 2)
    area[::2] -= spans * heights
    cover[::2] -= spans
    # The part without gaps that contains each position.
    heads = np.flatnonzero(np.concatenate(([True], cells.gap[1:])))
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
    """Return TensorBoard's smoothing of values (N,), with its bias correction at the start.

    A value of ``counts`` samples counts like as many equal ones. For single samples y, it is s =
    weight · s + (1 - weight) · y, divided by 1 - weight ** n after n samples (``resmoothDataset``
    in TensorBoard's ``line_chart_v2``).
    """
    kept = weight**counts
    total = (1 - kept) * values
    # Each pass joins blocks twice as long as before: log N passes instead of N steps.
    reach = 1
    while reach < len(values):
        total[reach:] = total[reach:] + kept[reach:] * total[:-reach]
        kept[reach:] = kept[reach:] * kept[:-reach]
        reach *= 2
    result: Float64Array = total / (1 - kept)
    return result
