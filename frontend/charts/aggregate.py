"""Lines of a chart, one a workload: the mean or the sum of its runs, and the band they span.

Computed from every recorded point, so that peaks survive in the band however coarse the grid is.
Runs log at their own pace; on the common grid a run without a point in a cell takes part with the
straight line between its neighbours, or a sum would drop wherever one of the runs happens to pause.
Before its first and after its last point a run adds nothing to a sum, which is right: it was not
there. In a gap it was there and nobody knows how much it used, so the sum is missing, not smaller;
likewise until the first and from the last point on of what is read now and then.
A mean is that of the runs present, and marked as partial where some are not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from radt.frontend.catalog import RunEntry
from radt.frontend.charts.lines import (
    GAP_INTERVALS,
    BoolArray,
    Curve,
    Feed,
    Line,
    union,
    without_parts,
)
from radt.frontend.charts.spec import Aggregate, Window
from radt.frontend.picks import ID_DIGITS
from radt.frontend.source import Source, Stretch
from radt.model import Scope
from radt.store.records import Float64Array, SeriesRecord

GRID_CELLS = 600


@dataclass(frozen=True, slots=True)
class Member:
    """All points of one run (or device); ``interval_s`` None if it has no regular one.

    ``lived_s`` is when the run began and ended.
    """

    curve: Curve
    interval_s: float | None
    lived_s: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Cells:
    """One member on the grid: middle, lowest and highest value of each cell (M,), NaN if absent.

    ``owed`` (M,) is True where it has no value although it was there.
    """

    middle: Float64Array
    low: Float64Array
    high: Float64Array
    owed: BoolArray


def workload_lines(
    source: Source, found: Sequence[Feed], aggregate: Aggregate, window: Window | None
) -> tuple[Line, ...]:
    """Aggregate the lines of each workload.

    Raises:
        StoreError: The store cannot be read.
    """
    by_workload: dict[tuple[str, str], list[Feed]] = {}
    for feed in without_parts(found):
        key = (feed.parts[0][0].record.workload_id, feed.listener)
        by_workload.setdefault(key, []).append(feed)
    several = len({feed.listener for feed in found}) > 1
    result = []
    for group in by_workload.values():
        run = group[0].parts[0][0]
        members = [member for feed in group if len((member := _read(source, feed)).curve.values)]
        if not members:
            continue
        grid_s = grid(members, window)
        cells = [on_grid(member, grid_s) for member in members]
        count = f"{aggregate} of {len(members)}" if len(members) > 1 else ""
        if several:
            count = f"{group[0].listener} {count}".strip()
        label = f"{run.workload_name}  {count}".strip()
        line = combine(cells, grid_s, aggregate, label, run)
        if several:
            line = replace(
                line,
                key=f"{line.key}@{group[0].listener}",
                short=f"{line.short} {group[0].listener}",
            )
        result.append(replace(line, estimated=any(feed.estimated for feed in group)))
    return tuple(result)


def grid(members: Sequence[Member], window: Window | None) -> Float64Array:
    """Edges of the cells in seconds (M + 1,): never finer than the readings, at most 600 cells."""
    start_s = min(float(member.curve.x[0]) for member in members)
    end_s = max(float(member.curve.x[-1]) for member in members)
    if window is not None:
        start_s, end_s = max(start_s, window.start), min(end_s, window.end)
    span_s = max(end_s - start_s, 1e-6)
    intervals = [member.interval_s for member in members if member.interval_s is not None]
    width_s = max(span_s / GRID_CELLS, min(intervals, default=0.0))
    count = max(1, int(np.ceil(span_s / width_s + 1e-9)))
    # Half a cell earlier: readings that come at multiples of the interval fall into the middle.
    left_s = start_s - width_s / 2
    return left_s + width_s * np.arange(count + 2, dtype=np.float64)


def on_grid(member: Member, edges_s: Float64Array) -> Cells:
    """One member's values in the cells between the edges."""
    count = len(edges_s) - 1
    finite = np.isfinite(member.curve.values)
    x, values = member.curve.x[finite], member.curve.values[finite]
    cell = np.searchsorted(edges_s, x, "right") - 1
    inside = (cell >= 0) & (cell < count)
    cell, seen = cell[inside], values[inside]
    hits = np.bincount(cell, minlength=count)
    with np.errstate(invalid="ignore"):
        middle: Float64Array = np.bincount(cell, weights=seen, minlength=count) / hits
    low, high = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(low, cell, seen)
    np.maximum.at(high, cell, seen)
    empty = hits == 0
    middle_s = (edges_s[:-1] + edges_s[1:]) / 2
    middle[empty] = between(member, x, values, middle_s)[empty]
    low[empty], high[empty] = middle[empty], middle[empty]
    owed = np.zeros(count, dtype=bool)
    if member.interval_s is None and member.lived_s is not None:
        start_s, end_s = member.lived_s
        owed = np.isnan(middle) & (middle_s >= start_s) & (middle_s <= end_s)
    return Cells(middle, low, high, owed)


def between(
    member: Member, x: Float64Array, values: Float64Array, at_s: Float64Array
) -> Float64Array:
    """Straight lines between neighbouring points; NaN outside them and within gaps."""
    if not len(x):
        return np.full(len(at_s), np.nan)
    result: Float64Array = np.interp(at_s, x, values, left=np.nan, right=np.nan)
    if member.interval_s is not None and len(x) > 1:
        right = np.clip(np.searchsorted(x, at_s), 1, len(x) - 1)
        pause_s = x[right] - x[right - 1]
        result[pause_s > GAP_INTERVALS * member.interval_s] = np.nan
    return result


def combine(
    cells: Sequence[Cells], edges_s: Float64Array, aggregate: Aggregate, label: str, run: RunEntry
) -> Line:
    """Add the members up. The band of a mean spans the members; of a sum, the sums of extremes."""
    middles = np.stack([member.middle for member in cells])
    lows = np.stack([member.low for member in cells])
    highs = np.stack([member.high for member in cells])
    known = np.isfinite(middles)
    shown: BoolArray = np.asarray(known.any(axis=0))
    partial: BoolArray | None = None
    if aggregate is Aggregate.SUM:
        value, low, high = (np.nansum(stack, axis=0) for stack in (middles, lows, highs))
        shown &= ~(in_gap(known)).any(axis=0)
        shown &= ~np.stack([member.owed for member in cells]).any(axis=0)
    else:
        with np.errstate(invalid="ignore"):
            value = np.nansum(middles, axis=0) / known.sum(axis=0)
        low = np.where(known, lows, np.inf).min(axis=0)
        high = np.where(known, highs, -np.inf).max(axis=0)
        partial = np.asarray(shown & ~known.all(axis=0))
    for array in (value, low, high):
        array[~shown] = np.nan
    middle_s = (edges_s[:-1] + edges_s[1:]) / 2
    # Leading and trailing empty cells carry nothing; those in between are gaps.
    places = np.flatnonzero(shown)
    seen = slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0)
    return Line(
        f"w{run.record.workload_id[:ID_DIGITS]}",
        label,
        run.workload_name,
        run.workload_ordinal,
        Curve(middle_s[seen], value[seen]),
        low[seen],
        high[seen],
        None if partial is None else partial[seen],
        dash=run.dash,
        is_workload=True,
    )


def in_gap(known: BoolArray) -> BoolArray:
    """Where members (K, M) are unknown between cells in which they are known."""
    places = np.arange(known.shape[1])
    first = np.where(known.any(axis=1), known.argmax(axis=1), known.shape[1])
    last = known.shape[1] - 1 - known[:, ::-1].argmax(axis=1)
    within: BoolArray = (places > first[:, None]) & (places < last[:, None])
    return within & ~known


def _read(source: Source, feed: Feed) -> Member:
    curves = []
    for run, record in feed.parts:
        samples = source.samples(Stretch(record), ended=run.record.status.ended)
        curves.append(Curve((samples.times_ns - run.origin_ns) / 1e9, samples.values))
    run, record = feed.parts[0]
    return Member(union(curves), record.interval_s, _lived_s(run, record))


def _lived_s(run: RunEntry, record: SeriesRecord) -> tuple[float, float] | None:
    """When the process of a series was there; None of a device, which was there all the time."""
    started_ns, ended_ns = run.record.started_ns, run.record.ended_ns
    if record.scope is not Scope.PROCESS or started_ns is None:
        return None
    end_s = math.inf if ended_ns is None else (ended_ns - run.origin_ns) / 1e9
    return (started_ns - run.origin_ns) / 1e9, end_s
