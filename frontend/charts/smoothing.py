"""A centred moving mean over a fixed width of the x axis, each stretch counting by its width."""

from __future__ import annotations

import numpy as np

from radt.frontend.charts.cells import BoolArray, Cells
from radt.store.records import Float64Array


def moving_mean(cells: Cells, at: Float64Array, width: float) -> Float64Array:
    """The mean of what is within ``width`` around each place (N,); NaN where nothing is.

    Gaps are not bridged: at one the window ends.
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
    """`moving_mean` of blocks: from ``begins`` to ``ends`` (M,) as high as ``heights``."""
    spans = ends - begins
    knots = np.stack([begins, ends], axis=1).ravel()
    # Rounding may put a beginning a hair before the end before it.
    knots = np.maximum.accumulate(knots)
    area = np.repeat(np.cumsum(spans * heights), 2)
    cover = np.repeat(np.cumsum(spans), 2)
    area[::2] -= spans * heights
    cover[::2] -= spans
    # The stretch without gaps in which each place is.
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
