"""One line per workload: the mean or sum of its runs, and the band between their extremes.

Each cell of the grid has the mean, the minimum and the maximum of all values recorded in it, so
that the band shows peaks however coarse the grid is. Runs log at different rates. On the common
grid, a run without a point in a cell contributes the interpolation between its neighbours;
otherwise a sum would drop whenever one of the runs pauses. Before its first and after its last
point a run adds nothing to a sum: it was not running. In a gap it was running and its value is
unknown, so the sum is missing, not smaller; likewise before the first and after the last point of a
series without a regular interval. A mean covers the present runs, and is marked as partial if some
are missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np

from radt.analysis.estimates import CONFIDENCE, student_quantile
from radt.analysis.lines import Curve, OnGrid, exponential_mean, grid, moving_mean, on_grid
from radt.frontend.data.axes import Axis, started_s
from radt.frontend.data.catalog import RunEntry, Stroke, Tints
from radt.frontend.data.lines import SeriesGroup, without_parts
from radt.frontend.data.model import NamedCurve
from radt.frontend.data.spec import ID_DIGITS, Aggregate, AxisRange, Band, Relative
from radt.model import Scope
from radt.store.cells import Cells
from radt.store.records import BoolArray, Float64Array, SeriesRecord

GRID_CELLS = 800


@dataclass(frozen=True, slots=True)
class Member:
    """All points of one run or device. ``interval`` is None for irregular points.

    ``lived`` is the run's lifetime on the x axis, from start to end.
    """

    cells: Cells
    interval: float | None
    lived: tuple[float, float] | None = None

    def owed(self, values: OnGrid, edges: Float64Array) -> BoolArray:
        """Return the cells in which it was running but has no value."""
        if self.interval is not None or self.lived is None:
            return np.zeros(len(values.mean), dtype=bool)
        middle, (start, end) = (edges[:-1] + edges[1:]) / 2, self.lived
        return np.asarray(np.isnan(values.mean) & (middle >= start) & (middle <= end))


@dataclass(frozen=True, slots=True)
class RunGroup:
    """Runs that become one line: of one workload, or of several, which then have a ``name``.

    ``listener`` is empty if there is only one.
    """

    series: tuple[SeriesGroup, ...]
    listener: str
    stroke: Stroke
    name: str = ""

    @property
    def runs(self) -> dict[str, RunEntry]:
        """Its runs by id."""
        return {run.run_id: run for series_group in self.series for run, _ in series_group.parts}

    @property
    def run(self) -> RunEntry:
        return self.series[0].run

    @property
    def key(self) -> str:
        key = f"w{self.run.record.workload_id[:ID_DIGITS]}"
        if self.name:
            key = f"g{blake2b(self.name.encode(), digest_size=6).hexdigest()}"
        return f"{key}@{self.listener}" if self.listener else key

    @property
    def short(self) -> str:
        return f"{self.name or self.run.workload_name} {self.listener}".rstrip()


def groups(
    shown: Sequence[SeriesGroup], tints: Tints, names: Mapping[str, str] | None = None
) -> tuple[RunGroup, ...]:
    """Group series by workload, or by the ``names`` of their runs' groups, by run id.

    Series of different listeners are never mixed.
    """
    by_workload: dict[tuple[str, str], list[SeriesGroup]] = {}
    for series_group in without_parts(shown):
        run = series_group.run
        owner = names[run.run_id] if names else run.record.workload_id
        key = (owner, series_group.listener)
        by_workload.setdefault(key, []).append(series_group)
    several = len({series_group.listener for series_group in shown}) > 1
    return tuple(
        RunGroup(
            tuple(series_groups),
            series_groups[0].listener if several else "",
            Stroke(place) if names else tints.workload(series_groups[0].run),
            owner if names else "",
        )
        for place, ((owner, _), series_groups) in enumerate(by_workload.items())
    )


def member_of(series_group: SeriesGroup, cells: Cells, axis: Axis) -> Member:
    """Return a series group as a member of its workload's line."""
    run, record = series_group.parts[0]
    interval = record.interval_s if axis.is_time else None
    lived = _lived(run, record) if axis.is_time else None
    if lived is not None:
        lived = axis.x_of(run, lived[0]), axis.x_of(run, lived[1])
    return Member(cells, interval, lived)


def workload_line(
    group: RunGroup,
    members: Sequence[Member],
    aggregate: Aggregate,
    window: AxisRange | None,
    *,
    zero: float = 0.0,
    smoothing_width: float = 0.0,
    ema: float = 0.0,
    surroundings: Sequence[Member] = (),
    band: Band = Band.RANGE,
) -> NamedCurve | None:
    """Return the line of a workload; None if its members have no points.

    ``zero`` is an edge of the members' digests. ``surroundings``, used for smoothing, are the
    members with their data around the window; they default to the members themselves. The only
    ``band`` of a sum is RANGE.
    """
    members = [member for member in members if len(member.cells)]
    if not members:
        return None
    edges = edges_of(members, window, zero)
    count = f"{aggregate} of {len(members)}" if len(members) > 1 else ""
    method = f"{group.listener} {count}".strip()
    label = f"{group.name or group.run.workload_name}  {method}".strip()
    cells = [on_grid(member.cells, edges) for member in members]
    line = combine(members, cells, edges, aggregate, label, group.run)
    if band is not Band.RANGE and len(line.curve.x):
        line = _spread(line, cells, edges, band)
    if smoothing_width > 0 or ema > 0:
        around = [curve for curve in surroundings if len(curve.cells)] or members
        far = edges_of(around, None, zero) if surroundings else edges
        whole = line
        if surroundings:
            on_far = [on_grid(member.cells, far) for member in around]
            whole = combine(around, on_far, far, aggregate, label, group.run)
        line = smoothed(line, whole, far, smoothing_width, ema)
    return replace(
        line,
        key=group.key,
        short=group.short,
        ordinal=group.stroke.hue,
        dash=group.stroke.dash,
        estimated=any(series_group.estimated for series_group in group.series),
        members=tuple(f"r{run_id[:ID_DIGITS]}" for run_id in group.runs) if group.name else (),
    )


def _spread(
    line: NamedCurve, cells: Sequence[OnGrid], edges: Float64Array, band: Band
) -> NamedCurve:
    """Return the mean of a group with the interval or deviation of its members, if two exist."""
    middle = (edges[:-1] + edges[1:]) / 2
    first = int(np.searchsorted(middle, line.curve.x[0] - (edges[1] - edges[0]) / 4))
    seen = slice(first, first + len(line.curve.x))
    values = np.stack([member.mean[seen] for member in cells])
    known = np.isfinite(values)
    counts = known.sum(axis=0)
    mean = line.curve.values
    squares = np.where(known, (values - mean) ** 2, 0.0).sum(axis=0)
    half = np.sqrt(squares / np.maximum(counts - 1, 1))
    if band is Band.CONFIDENCE:
        times = np.zeros(len(cells) + 1)
        for count in range(2, len(cells) + 1):
            times[count] = student_quantile(count - 1, CONFIDENCE) / math.sqrt(count)
        half *= times[counts]
    return replace(line, low=mean - half, high=mean + half)


def smoothed(
    line: NamedCurve, whole: NamedCurve, edges: Float64Array, width: float, ema: float = 0.0
) -> NamedCurve:
    """Return the moving or exponential mean of ``whole``, whose cells have these edges."""
    values = whole.curve.values
    known = np.isfinite(values)
    if not known.any():
        return line
    half = (edges[1] - edges[0]) / 2
    middle = whole.curve.x[known]
    if ema > 0:
        averages = exponential_mean(values[known], np.ones(len(middle)), ema)
        mean = np.interp(line.curve.x, middle, averages)
    else:
        gap, ones = np.diff(np.flatnonzero(known), prepend=0) > 1, np.ones(len(middle))
        ends, own = (middle - half, middle + half), values[known]
        cells = Cells(*ends, own, own, own, ones, ones, gap, *ends)
        mean = moving_mean(cells, line.curve.x, width)
    mean[~np.isfinite(line.curve.values)] = np.nan
    return replace(line, curve=Curve(line.curve.x, mean))


def edges_of(
    members: Sequence[Member], window: AxisRange | None, zero: float = 0.0
) -> Float64Array:
    """Return the edges of the cells (M + 1,), which are never finer than the readings."""
    intervals = [member.interval for member in members if member.interval is not None]
    within = (-math.inf, math.inf) if window is None else (window.start, window.end)
    parts = [member.cells for member in members]
    return grid(parts, GRID_CELLS, within, zero=zero, finest=min(intervals, default=0.0))


def combine(
    members: Sequence[Member],
    cells: Sequence[OnGrid],
    edges: Float64Array,
    aggregate: Aggregate,
    label: str,
    run: RunEntry,
) -> NamedCurve:
    """Combine the members. The band of a mean spans the members; a sum's, the sums of extremes."""
    middles = np.stack([member.mean for member in cells])
    lows = np.stack([member.low for member in cells])
    highs = np.stack([member.high for member in cells])
    known = np.isfinite(middles)
    shown: BoolArray = np.asarray(known.any(axis=0))
    partial: BoolArray | None = None
    if aggregate is Aggregate.SUM:
        value, low, high = (np.nansum(stack, axis=0) for stack in (middles, lows, highs))
        shown &= ~(in_gap(known)).any(axis=0)
        for member, values in zip(members, cells, strict=True):
            shown &= ~member.owed(values, edges)
    else:
        with np.errstate(invalid="ignore"):
            value = np.nansum(middles, axis=0) / known.sum(axis=0)
        low = np.where(known, lows, np.inf).min(axis=0)
        high = np.where(known, highs, -np.inf).max(axis=0)
        partial = np.asarray(shown & ~known.all(axis=0))
    for array in (value, low, high):
        array[~shown] = np.nan
    middle = (edges[:-1] + edges[1:]) / 2
    # Leading and trailing empty cells are dropped; those in between are gaps.
    places = np.flatnonzero(shown)
    seen = slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0)
    return NamedCurve(
        f"w{run.record.workload_id[:ID_DIGITS]}",
        label,
        run.workload_name,
        run.workload_ordinal,
        Curve(middle[seen], value[seen]),
        low[seen],
        high[seen],
        None if partial is None else partial[seen],
        is_workload=True,
    )


def in_gap(known: BoolArray) -> BoolArray:
    """Return whether each cell (K, M) of a member is unknown between known ones."""
    places = np.arange(known.shape[1])
    first = np.where(known.any(axis=1), known.argmax(axis=1), known.shape[1])
    last = known.shape[1] - 1 - known[:, ::-1].argmax(axis=1)
    within: BoolArray = (places > first[:, None]) & (places < last[:, None])
    return within & ~known


def _lived(run: RunEntry, record: SeriesRecord) -> tuple[float, float] | None:
    """Return the lifetime of a series' process, in seconds since the barrier.

    None for a device, which exists the whole time.
    """
    started_ns, ended_ns = run.record.started_ns, run.record.ended_ns
    if record.scope is not Scope.PROCESS or started_ns is None:
        return None
    end_s = math.inf if ended_ns is None else (ended_ns - run.origin_ns) / 1e9
    return started_s(run), end_s


@dataclass(frozen=True, slots=True)
class BaselineCurves:
    """Baseline of a comparison, with one curve per measured run or device.

    The keys of ``curves`` are the part of a line's key after the run or workload (a device, a
    listener). ``keys`` are those of the baseline's own lines.
    """

    name: str
    curves: dict[str, Curve]
    keys: frozenset[str]

    def curve_for(self, line: NamedCurve) -> Curve | None:
        """Return the curve of the same device, or the only curve."""
        if len(self.curves) == 1:
            return next(iter(self.curves.values()))
        return self.curves.get(suffix(line.key))


def suffix(key: str) -> str:
    """Return the part of a key after the run or workload."""
    places = [key.index(sign) for sign in "/@" if sign in key]
    return key[min(places) :] if places else ""


def against(
    lines: Sequence[NamedCurve], baseline: BaselineCurves, relative: Relative
) -> tuple[tuple[NamedCurve, ...], tuple[str, ...]]:
    """Return the lines relative to the baseline, and notes about it."""
    found: list[NamedCurve] = []
    apart: list[str] = []
    zeros = 0
    for line in lines:
        if line.hidden:
            found.append(line)
            continue
        curve = baseline.curve_for(line)
        if line.key in baseline.keys:
            found.append(_straight(line, 0.0 if relative is Relative.DIFFERENCE else 1.0))
            continue
        beside = (
            np.full(len(line.curve.x), np.nan) if curve is None else value_at(curve, line.curve.x)
        )
        if relative is Relative.RATIO:
            zeros += int((beside == 0).sum())
        compared = _compared(line, beside, relative)
        if not np.isfinite(compared.curve.values).any():
            apart.append(line.short)
        found.append(compared)
    notes = []
    if apart:
        names = ", ".join(apart[:3]) + (f" and {len(apart) - 3} more" if len(apart) > 3 else "")
        notes.append(f"{names}: no value where {baseline.name} has one")
    if zeros:
        notes.append(f"left out where {baseline.name} is 0")
    return tuple(found), tuple(notes)


def value_at(curve: Curve, x: Float64Array) -> Float64Array:
    """Interpolate linearly; NaN outside the points and within gaps."""
    if not len(curve.x):
        return np.full(len(x), np.nan)
    # A NaN among the points is a gap, so no line leads to it or from it.
    result: Float64Array = np.interp(x, curve.x, curve.values, left=np.nan, right=np.nan)
    return result


def _compared(line: NamedCurve, beside: Float64Array, relative: Relative) -> NamedCurve:
    def one(values: Float64Array | None) -> Float64Array | None:
        if values is None:
            return None
        if relative is Relative.DIFFERENCE:
            return values - beside
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(beside == 0, np.nan, values / beside)

    values, low, high = one(line.curve.values), one(line.low), one(line.high)
    assert values is not None
    if low is not None and high is not None:
        low, high = np.minimum(low, high), np.maximum(low, high)
    return replace(line, curve=Curve(line.curve.x, values), low=low, high=high)


def _straight(line: NamedCurve, value: float) -> NamedCurve:
    values = np.where(np.isfinite(line.curve.values), value, np.nan)
    return replace(line, curve=Curve(line.curve.x, values), low=None, high=None)
