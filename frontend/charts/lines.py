"""Lines of a chart, one a run: what was measured, on elapsed time, with its gaps.

A value that describes the whole machine or a whole GPU is the same for all runs on it; it becomes
one line, named after the device, instead of several on top of each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from radt.frontend.catalog import RunEntry
from radt.frontend.charts.spec import Window
from radt.frontend.picks import ID_DIGITS
from radt.frontend.source import Source, Stretch
from radt.model import Scope
from radt.store.records import Float64Array, GapRecord, SeriesRecord, SummaryRecord

#: Id of the run and number of the series in it.
SeriesKey = tuple[str, int]
BoolArray = npt.NDArray[np.bool_]

#: Points of one line: two for each pixel of a wide chart.
LINE_POINTS = 1600
#: A pause longer than this many intervals is a gap, not jitter.
GAP_INTERVALS = 3.5
_SAME_INSTANT_S = 1e-6
_SHARED = (Scope.HOST, Scope.GPU, Scope.MIG)
_TOTAL = "total"


@dataclass(frozen=True, slots=True)
class Curve:
    """Points in the order of ``x`` (N,), which is in units of the chart's axis; values (N,).

    NaN is a gap. Values are as stored, of counters the mean rate since the reading before.
    """

    x: Float64Array
    values: Float64Array


EMPTY = Curve(np.empty(0), np.empty(0))


@dataclass(frozen=True, slots=True)
class Line:
    """A curve with its name and the ordinal that gives its colour.

    ``key`` tells it from all others, also tomorrow: what is hidden or highlighted is named by it.
    ``label`` says what it is in full, ``short`` fits beside the line, ``facts`` are for who points
    at it; ``ordinal`` is for `radt.frontend.palette.colour`, ``dash`` counts experiments. ``low``
    and ``high`` (N,) are the edges of its band; ``partial`` (N,) is True where not all of the runs
    took part; ``smooth`` (N,) is its moving mean; ``estimated`` says that it was not measured but
    apportioned. A ``hidden`` line has no points: it is listed, not drawn.
    """

    key: str
    label: str
    short: str
    ordinal: int
    curve: Curve
    low: Float64Array | None = None
    high: Float64Array | None = None
    partial: BoolArray | None = None
    estimated: bool = False
    dash: int = 0
    smooth: Float64Array | None = None
    hidden: bool = False
    facts: tuple[str, ...] = ()
    is_workload: bool = False


@dataclass(frozen=True, slots=True)
class Feed:
    """All series that become one line: one process's, or one device's as seen by all its runs."""

    key: str
    label: str
    short: str
    ordinal: int
    listener: str
    parts: tuple[tuple[RunEntry, SeriesRecord], ...]

    @property
    def is_total(self) -> bool:
        """Whether it is the sum of single devices, if there are any.

        Of a run, what has no entity is its first process, and no sum of the others.
        """
        record = self.parts[0][1]
        return record.scope in _SHARED and not record.entity

    @property
    def whole(self) -> tuple[str, str, str]:
        """What the devices of one total have in common: who read them, and where."""
        record = self.parts[0][0].record
        return self.listener, record.workload_id, record.host

    @property
    def dash(self) -> int:
        return self.parts[0][0].dash

    @property
    def estimated(self) -> bool:
        return any(record.estimated for _, record in self.parts)


def feeds(runs: Mapping[str, RunEntry], series: Iterable[SeriesRecord]) -> tuple[Feed, ...]:
    """Sort the series of one metric into lines, in the order of the runs.

    What two listeners have read of the same thing are two lines, named after them. What is the
    sum of others (all disks, besides each) is named total.
    """
    series = tuple(series)
    several = len({record.listener for record in series}) > 1
    own: list[Feed] = []
    shared: dict[tuple[str, str, str, str], list[tuple[RunEntry, SeriesRecord]]] = {}
    for record in series:
        run = runs[record.run_id]
        if record.scope in _SHARED:
            key = (run.record.workload_id, run.record.host, record.entity, record.listener)
            shared.setdefault(key, []).append((run, record))
        else:
            suffix = f" {record.entity}" if record.entity else ""
            if several:
                suffix += f" {record.listener}"
            parts = ((run, record),)
            title = run.title + suffix
            own.append(
                Feed(
                    _key(f"r{run.run_id[:ID_DIGITS]}", record, several=several),
                    title,
                    run.short + suffix,
                    run.ordinal,
                    record.listener,
                    parts,
                )
            )
    divided = {(workload, host, name) for workload, host, entity, name in shared if entity}
    for (workload, host, entity, listener), on_device in shared.items():
        first = min(on_device, key=lambda part: part[0].ordinal)[0]
        device = entity or (_TOTAL if (workload, host, listener) in divided else "")
        label = f"{first.workload_name}  {device or host or 'host'}"
        short = f"{first.workload_name} {device}".rstrip()
        suffix = f" {listener}" if several else ""
        own.append(
            Feed(
                _key(f"w{workload[:ID_DIGITS]}", on_device[0][1], several=several),
                label + suffix,
                short + suffix,
                first.ordinal,
                listener,
                tuple(on_device),
            )
        )
    return tuple(sorted(own, key=lambda feed: (feed.ordinal, feed.label)))


def _key(stem: str, record: SeriesRecord, *, several: bool) -> str:
    entity = f"/{record.entity}" if record.entity else ""
    return stem + entity + (f"@{record.listener}" if several else "")


def without_parts(found: Sequence[Feed]) -> Sequence[Feed]:
    """Only the total where there is one: with what it is the sum of, all would count twice."""
    totals = {feed.whole for feed in found if feed.is_total}
    return [feed for feed in found if feed.is_total or feed.whole not in totals]


def lines(
    source: Source,
    found: Sequence[Feed],
    summaries: Mapping[SeriesKey, SummaryRecord],
    gaps: Sequence[GapRecord],
    window: Window | None,
    max_points: int = LINE_POINTS,
) -> tuple[Line, ...]:
    """Read the lines, in ``window`` at the full resolution that ``max_points`` can show.

    Raises:
        StoreError: The store cannot be read.
    """
    result = []
    for feed in found:
        curves = [
            _read(source, run, record, summary, gaps, window, max_points)
            for run, record in feed.parts
            if (summary := summaries.get((record.run_id, record.series_no))) is not None
        ]
        curve = union(curves)
        if len(curve.x):
            result.append(
                Line(
                    feed.key,
                    feed.label,
                    feed.short,
                    feed.ordinal,
                    curve,
                    estimated=feed.estimated,
                    dash=feed.dash,
                )
            )
    return tuple(result)


def union(curves: Sequence[Curve]) -> Curve:
    """Several readings of the same device as one curve; equal instants count once."""
    if len(curves) == 1:
        return curves[0]
    if not curves:
        return Curve(np.empty(0), np.empty(0))
    x = np.concatenate([curve.x for curve in curves])
    values = np.concatenate([curve.values for curve in curves])
    # Of equal instants the first counts, so a value goes before a missing one.
    order = np.lexsort((np.isnan(values), x))
    x, values = x[order], values[order]
    first = np.diff(x, prepend=-np.inf) > _SAME_INSTANT_S
    return Curve(x[first], values[first])


def _read(
    source: Source,
    run: RunEntry,
    record: SeriesRecord,
    summary: SummaryRecord,
    gaps: Sequence[GapRecord],
    window: Window | None,
    max_points: int,
) -> Curve:
    start_ns = end_ns = None
    interval_s = record.interval_s or 0.0
    span_s = (summary.last_ns - summary.first_ns) / 1e9
    longest_s = GAP_INTERVALS * interval_s
    if summary.count > max_points:
        if window is not None:
            # A little more than is seen, so that lines run to the chart's edges.
            span_s = window.end - window.start
            margin_s = max(2 * interval_s, 0.05 * span_s)
            start_ns = run.origin_ns + round((window.start - margin_s) * 1e9)
            end_ns = run.origin_ns + round((window.end + margin_s) * 1e9)
        # Of each stretch two points are kept; only a pause much wider than one is surely empty.
        longest_s = max(longest_s, 6 * span_s / max_points)
    stretch = Stretch(record, start_ns, end_ns, max_points)
    samples = source.samples(stretch, ended=run.record.status.ended)
    curve = Curve((samples.times_ns - run.origin_ns) / 1e9, samples.values)
    if window is not None:
        curve = _seen(curve, window)
    holes_s = _holes(run, record, gaps)
    return break_at_gaps(curve, longest_s if record.interval_s else None, holes_s)


def _seen(curve: Curve, window: Window) -> Curve:
    """The points in the window and one neighbour on either side."""
    first = int(np.searchsorted(curve.x, window.start, "left"))
    last = int(np.searchsorted(curve.x, window.end, "right"))
    chosen = slice(max(0, first - 1), last + 1)
    return Curve(curve.x[chosen], curve.values[chosen])


def _holes(run: RunEntry, record: SeriesRecord, gaps: Sequence[GapRecord]) -> list[float]:
    """Seconds at which a recorded gap of this series begins."""
    return [
        (gap.start_ns - run.origin_ns) / 1e9
        for gap in gaps
        if gap.run_id == record.run_id
        and gap.listener == record.listener
        and gap.series_no in (-1, record.series_no)
    ]


def break_at_gaps(curve: Curve, longest_step_s: float | None, holes_s: Sequence[float]) -> Curve:
    """Put a NaN where the line must not go on: after long pauses and where gaps are recorded."""
    x = curve.x
    if len(x) < 2:
        return curve
    breaks = np.zeros(len(x) - 1, dtype=bool)
    if longest_step_s is not None:
        breaks |= np.diff(x) > longest_step_s
    for hole_s in holes_s:
        # The reading at which the gap was noticed may carry the gap's own time stamp.
        place = int(np.searchsorted(x, hole_s, "right")) - 1
        if 0 <= place < len(breaks):
            breaks[place] = True
    where = np.flatnonzero(breaks) + 1
    if not len(where):
        return curve
    middles = (x[where - 1] + x[where]) / 2
    return Curve(np.insert(x, where, middles), np.insert(curve.values, where, np.nan))
