"""Shares of one resource, stacked over time, and the value of the whole device.

All runs are on one grid of cells, never finer than the readings. Before its start and after its end
a run used nothing. In a gap its use is unknown, so the stack is missing there, not lower; the
device's own line continues. Values are means of the cells.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from radt.frontend.data.catalog import RunEntry
from radt.frontend.data.model import BoolArray
from radt.frontend.data.source import Source, Stretch
from radt.frontend.data.spec import Window
from radt.frontend.data.workload.model import (
    Band,
    DeviceSeries,
    Readings,
    Share,
    StackData,
    Strip,
    Total,
)
from radt.frontend.data.workload.subject import Subject
from radt.model import SeriesKind
from radt.store.overview import envelope
from radt.store.reader import StoreReader
from radt.store.records import Float64Array, GapRecord, Samples, SeriesRecord, SummaryRecord

SeriesKey = tuple[str, int]
Summaries = Mapping[SeriesKey, SummaryRecord]
#: A pause longer than this many intervals is a gap, not jitter; as in all charts.
GAP_INTERVALS = 3.5
#: Longer stretches are read as extremes instead of every point.
_MAX_POINTS = 400_000
_ENVELOPE_POINTS = 4_000
_SAME_INSTANT_S = 1e-6


def summaries_of(source: Source, run_ids: tuple[str, ...]) -> Summaries:
    """Return summaries of the series, without reading their points.

    Raises:
        StoreError: The store cannot be read.
    """

    def read(reader: StoreReader) -> Summaries:
        return {(s.series.run_id, s.series.series_no): s for s in reader.summary(run_ids)}

    return source.remember(("workload-summaries", run_ids), read)


def read(
    source: Source,
    run: RunEntry,
    record: SeriesRecord,
    summary: SummaryRecord | None,
    gaps: Iterable[GapRecord],
    *,
    origin_ns: int,
    window: Window | None,
) -> Readings | None:
    """Read a series, whole or within a window, with NaN in gaps; None without a value.

    Raises:
        StoreError: The store cannot be read.
    """
    if summary is None:
        return None
    stretch = _stretch(record, summary, origin_ns, window)
    samples = source.samples(stretch, ended=run.record.status.ended)
    if not len(samples):
        return None
    counted_from_s = None
    if record.kind is SeriesKind.COUNTER:
        counted_from_s = (max(summary.first_ns, stretch.start_ns or 0) - origin_ns) / 1e9
    at_s = (samples.times_ns - origin_ns) / 1e9
    readings = Readings(at_s, samples.values, record.interval_s, counted_from_s)
    holes_s = [
        (gap.start_ns - origin_ns) / 1e9
        for gap in gaps
        if gap.run_id == record.run_id
        and gap.listener == record.counted_as
        and gap.series_no in (-1, record.series_no)
    ]
    thinned_s = 0.0
    if stretch.max_points is not None:
        # Two points are kept per part; only a pause much wider than a part is surely empty.
        thinned_s = 6 * float(readings.at_s[-1] - readings.at_s[0]) / stretch.max_points
    return broken(readings, holes_s, thinned_s)


def _stretch(
    record: SeriesRecord, summary: SummaryRecord, origin_ns: int, window: Window | None
) -> Stretch:
    expected = float(summary.count)
    start_ns = end_ns = None
    if window is not None:
        span_s = max((summary.last_ns - summary.first_ns) / 1e9, 1e-9)
        # A little more than is visible, so that lines run to the edges.
        margin_s = max(4 * (record.interval_s or 0.0), 0.05 * (window.end - window.start))
        start_ns = origin_ns + round((window.start - margin_s) * 1e9)
        end_ns = origin_ns + round((window.end + margin_s) * 1e9)
        expected *= (window.end - window.start + 2 * margin_s) / span_s
    max_points = None if expected <= _MAX_POINTS else _ENVELOPE_POINTS
    return Stretch(record, start_ns, end_ns, max_points)


def broken(readings: Readings, holes_s: Sequence[float], thinned_s: float = 0.0) -> Readings:
    """Put NaN into long pauses and into recorded gaps, which begin at ``holes_s``."""
    at_s = readings.at_s
    if len(at_s) < 2:
        return readings
    breaks: BoolArray = np.zeros(len(at_s) - 1, dtype=bool)
    if readings.interval_s is not None:
        breaks |= np.diff(at_s) > max(GAP_INTERVALS * readings.interval_s, thinned_s)
    for hole_s in holes_s:
        # The reading at which the gap was noticed may carry the gap's own time.
        place = int(np.searchsorted(at_s, hole_s, "right")) - 1
        if 0 <= place < len(breaks):
            breaks[place] = True
    where = np.flatnonzero(breaks) + 1
    if not len(where):
        return readings
    middles = (at_s[where - 1] + at_s[where]) / 2
    return replace(
        readings,
        at_s=np.insert(at_s, where, middles),
        values=np.insert(readings.values, where, np.nan),
    )


def united(several: Sequence[Readings]) -> Readings:
    """Merge readings of one device by several runs; equal instants count once."""
    if len(several) == 1:
        return several[0]
    at_s = np.concatenate([part.at_s for part in several])
    values = np.concatenate([part.values for part in several])
    # A reader without a value is not a gap if another has one at that instant.
    known = np.isfinite(values)
    at_s, values = at_s[known], values[known]
    order = np.argsort(at_s, kind="stable")
    at_s, values = at_s[order], values[order]
    first = np.diff(at_s, prepend=-np.inf) > _SAME_INSTANT_S
    intervals = [part.interval_s for part in several if part.interval_s is not None]
    begun_s = [part.counted_from_s for part in several if part.counted_from_s is not None]
    merged = Readings(
        at_s[first], values[first], max(intervals, default=None), min(begun_s, default=None)
    )
    return broken(merged, [])


def added(several: Sequence[Readings]) -> Readings:
    """Add several series of one run (such as of its MIG instances) at the times of the first."""
    first = several[0]
    values = first.values.copy()
    for other in several[1:]:
        values += np.interp(first.at_s, other.at_s, other.values, left=0.0, right=0.0)
    return replace(first, values=values)


def on_cells(readings: Readings, edges_s: Float64Array) -> Float64Array:
    """Return means of the cells between the edges (M,), with straight lines between readings; NaN
    in gaps, before the first reading and after the last one.
    """
    count = len(edges_s) - 1
    middle_s = (edges_s[:-1] + edges_s[1:]) / 2
    known = np.isfinite(readings.values)
    at_s, values = readings.at_s[known], readings.values[known]
    if not len(at_s):
        return np.full(count, np.nan)
    cell = np.searchsorted(edges_s, at_s, "right") - 1
    inside = (cell >= 0) & (cell < count)
    hits = np.bincount(cell[inside], minlength=count)
    with np.errstate(invalid="ignore"):
        middle: Float64Array = (
            np.bincount(cell[inside], weights=values[inside], minlength=count) / hits
        )
    empty = hits == 0
    middle[empty] = np.interp(middle_s, at_s, values, left=np.nan, right=np.nan)[empty]
    for place in np.flatnonzero(~known):
        if 0 < place < len(known) - 1:
            within = (middle_s > readings.at_s[place - 1]) & (middle_s < readings.at_s[place + 1])
            middle[within & empty] = np.nan
    return middle


CELLS = 400
#: The limit on runs with a band of their own; the rest share one band.
MAX_BANDS = 16
_TOTAL_POINTS = 1200


def stack_data(
    source: Source,
    subject: Subject,
    strip: Strip,
    summaries: Summaries,
    gaps: Sequence[GapRecord],
    *,
    window: Window,
    zoomed: bool,
    cores: int | None,
) -> StackData:
    """Read a strip. ``window`` is the visible part; ``zoomed``: only that part is read.

    ``cores`` is the machine's number of cores; if unknown, a share of all cores cannot be drawn
    beside cores and is left out.

    Raises:
        StoreError: The store cannot be read.
    """
    seen = window if zoomed else None
    members: list[tuple[Share, Readings]] = []
    for share in strip.shares:
        layers = [
            readings
            for record in share.series
            if (
                readings := read(
                    source,
                    share.run,
                    record,
                    summaries.get((record.run_id, record.series_no)),
                    gaps,
                    origin_ns=subject.origin_ns,
                    window=seen,
                )
            )
        ]
        if layers:
            members.append((share, added(layers)))
    edges_s = grid([readings.interval_s for _, readings in members], window)
    bands = [
        Band(
            (share.run,),
            on_stack(readings, lived_s(share.run, subject), edges_s),
            readings.mean(window),
            readings.peak(window),
        )
        for share, readings in members
    ]
    is_scaled = strip.resource.of_cores and strip.is_stacked
    factor = float(cores or 0) if is_scaled else 1.0
    totals = [
        _total(source, subject, device, summaries, gaps, window, seen, factor)
        for device in (strip.totals if factor else ())
    ]
    return StackData(
        strip,
        edges_s,
        _bounded(bands),
        _known([readings for _, readings in members], bands, edges_s),
        tuple(total for total in totals if total is not None),
        window,
    )


def grid(intervals_s: Sequence[float | None], window: Window) -> Float64Array:
    """Return the edges of the cells over the window (M + 1,)."""
    span_s = window.end - window.start
    known = [interval_s for interval_s in intervals_s if interval_s]
    width_s = max(span_s / CELLS, min(known, default=0.0))
    count = max(1, math.ceil(span_s / width_s))
    edges: Float64Array = window.start + width_s * np.arange(count + 1, dtype=np.float64)
    return edges


def on_stack(readings: Readings, lived: tuple[float, float], edges_s: Float64Array) -> Float64Array:
    """Return a run's cells: 0 outside its lifetime, NaN where values are unknown within it."""
    values = on_cells(readings, edges_s)
    at_s = (edges_s[:-1] + edges_s[1:]) / 2
    half_s = (edges_s[1] - edges_s[0]) / 2
    start_s, end_s = lived
    known_s = readings.known_s
    if len(known_s):
        # Before its first reading and after its last one, the run used next to nothing.
        slack_s = max(3 * (readings.interval_s or 0.0), half_s)
        if known_s[0] - start_s <= slack_s or not math.isfinite(start_s):
            start_s = float(known_s[0])
        if end_s - known_s[-1] <= slack_s:
            end_s = float(known_s[-1])
    values[(at_s < start_s - half_s) | (at_s > end_s + half_s)] = 0.0
    return values


def lived_s(run: RunEntry, subject: Subject) -> tuple[float, float]:
    """Return start and end of a run; infinite if unknown or still to come."""
    started_ns, ended_ns = run.record.started_ns, run.record.ended_ns
    start_s = -math.inf if started_ns is None else (started_ns - subject.origin_ns) / 1e9
    end_s = math.inf if ended_ns is None else (ended_ns - subject.origin_ns) / 1e9
    return start_s, end_s


def _known(members: Sequence[Readings], bands: Sequence[Band], edges_s: Float64Array) -> BoolArray:
    at_s = (edges_s[:-1] + edges_s[1:]) / 2
    known: BoolArray = np.ones(len(at_s), dtype=bool)
    for band in bands:
        known &= np.isfinite(band.values)
    ends = [readings.known_s for readings in members if len(readings.known_s)]
    if not ends:
        return np.zeros(len(at_s), dtype=bool)
    half_s = (edges_s[1] - edges_s[0]) / 2
    # No run was present before the first reading and after the last.
    known &= at_s >= min(float(span[0]) for span in ends) - half_s
    known &= at_s <= max(float(span[-1]) for span in ends) + half_s
    return known


def _bounded(bands: Sequence[Band]) -> tuple[Band, ...]:
    if len(bands) <= MAX_BANDS:
        return tuple(bands)
    rest = bands[MAX_BANDS - 1 :]
    runs = tuple(run for band in rest for run in band.runs)
    together: Float64Array = np.sum([band.values for band in rest], axis=0)
    # Together, they lived while one of them had a value.
    lived = together[np.isfinite(together) & (together != 0)]
    mean, peak = (float(lived.mean()), float(lived.max())) if len(lived) else (0.0, 0.0)
    return (*bands[: MAX_BANDS - 1], Band(runs, together, mean, peak))


def _total(
    source: Source,
    subject: Subject,
    device: DeviceSeries,
    summaries: Summaries,
    gaps: Sequence[GapRecord],
    window: Window,
    read_window: Window | None,
    factor: float,
) -> Total | None:
    several = [
        readings
        for run, record in device.parts
        if (
            readings := read(
                source,
                run,
                record,
                summaries.get((record.run_id, record.series_no)),
                gaps,
                origin_ns=subject.origin_ns,
                window=read_window,
            )
        )
    ]
    if not several:
        return None
    total = united(several)
    total = replace(total, values=total.values * factor)
    runs = {run.run_id: run for run, _ in device.parts}
    first = next(iter(runs.values()))
    has_own = bool(device.entity.partition("/")[2])
    # MLflow does not record the machine of a run: each run's values are its own.
    has_own |= first.record.is_from_mlflow and len(subject.runs) > 1
    own = first if has_own and len(runs) == 1 else None
    name = device.entity or "machine"
    return Total(name, thinned(total), total.mean(window), total.peak(window), own)


def thinned(readings: Readings) -> Readings:
    """Thin the points to what the width can show, keeping extremes and gaps."""
    if len(readings.at_s) <= _TOTAL_POINTS:
        return readings
    times_ns = np.round(readings.at_s * 1e9).astype(np.int64)
    kept = envelope(Samples(times_ns, readings.values), _TOTAL_POINTS)
    return replace(readings, at_s=kept.times_ns / 1e9, values=kept.values)
