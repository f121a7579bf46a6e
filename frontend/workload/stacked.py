"""What the runs of a workload had of one resource, stacked over time, under the device's own value.

All runs on one grid of cells, never finer than the readings. Before its start and after its end a
run had nothing. In a gap nobody knows what it had, so the stack is missing there, not lower; the
device's own line goes on. Values are means of the cells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from radt.frontend.catalog import RunEntry
from radt.frontend.charts.spec import Window
from radt.frontend.foreign.mlflow_run import is_of_mlflow_alone
from radt.frontend.source import Source
from radt.frontend.workload.readings import (
    BoolArray,
    Readings,
    Summaries,
    added,
    on_cells,
    read,
    united,
)
from radt.frontend.workload.strips import DeviceSeries, Share, Strip
from radt.frontend.workload.subject import Subject
from radt.store.downsample import envelope
from radt.store.records import Float64Array, GapRecord, Samples

CELLS = 400
#: Runs that have a band of their own; what more there are is one band.
MAX_BANDS = 16
_TOTAL_POINTS = 1200


@dataclass(frozen=True, slots=True)
class Band:
    """One run's share: values (M,) on the grid, 0 while it was not there; NaN where unknown.

    ``runs`` are several where many are added up.
    """

    runs: tuple[RunEntry, ...]
    values: Float64Array

    @property
    def name(self) -> str:
        if len(self.runs) > 1:
            return f"{len(self.runs)} more"
        record = self.runs[0].record
        return record.letter or record.name or record.run_id[:8]


@dataclass(frozen=True, slots=True)
class Total:
    """The device's own value; ``owner`` is the run that has the device for itself."""

    name: str
    readings: Readings
    owner: RunEntry | None = None


@dataclass(frozen=True, slots=True)
class StackData:
    """All that a strip shows. ``edges_s`` (M + 1,) are those of the cells.

    ``known`` (M,) is False where a run's share is not known, so that nothing is stacked.
    """

    strip: Strip
    edges_s: Float64Array
    bands: tuple[Band, ...]
    known: BoolArray
    totals: tuple[Total, ...]
    window: Window

    @property
    def at_s(self) -> Float64Array:
        """Middles of the cells (M,)."""
        middles: Float64Array = (self.edges_s[:-1] + self.edges_s[1:]) / 2
        return middles


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
    """Read a strip. ``window`` is what is visible; ``zoomed``: only that is read.

    ``cores`` are those of the machine; where they are not known, a share of all cores cannot be
    drawn beside cores and is left out.

    Raises:
        StoreError: The store cannot be read.
    """
    seen = window if zoomed else None
    members: list[tuple[Share, Readings]] = []
    for share in strip.shares:
        found = [
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
        if found:
            members.append((share, added(found)))
    edges_s = grid([readings.interval_s for _, readings in members], window)
    bands = [
        Band((share.run,), on_stack(readings, lived_s(share.run, subject), edges_s))
        for share, readings in members
    ]
    is_scaled = strip.resource.of_cores and strip.is_stacked
    factor = float(cores or 0) if is_scaled else 1.0
    totals = [
        _total(source, subject, device, summaries, gaps, seen, factor)
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
    """Edges of the cells over the window (M + 1,)."""
    span_s = window.end - window.start
    known = [interval_s for interval_s in intervals_s if interval_s]
    width_s = max(span_s / CELLS, min(known, default=0.0))
    count = max(1, math.ceil(span_s / width_s))
    edges: Float64Array = window.start + width_s * np.arange(count + 1, dtype=np.float64)
    return edges


def on_stack(found: Readings, lived: tuple[float, float], edges_s: Float64Array) -> Float64Array:
    """A run's cells: 0 outside of its life, NaN where it lived and nothing is known."""
    values = on_cells(found, edges_s)
    at_s = (edges_s[:-1] + edges_s[1:]) / 2
    half_s = (edges_s[1] - edges_s[0]) / 2
    start_s, end_s = lived
    known_s = found.known_s
    if len(known_s):
        # Until its first reading and from its last one on it was hardly there.
        slack_s = max(3 * (found.interval_s or 0.0), half_s)
        if known_s[0] - start_s <= slack_s or not math.isfinite(start_s):
            start_s = float(known_s[0])
        if end_s - known_s[-1] <= slack_s:
            end_s = float(known_s[-1])
    values[(at_s < start_s - half_s) | (at_s > end_s + half_s)] = 0.0
    return values


def lived_s(run: RunEntry, subject: Subject) -> tuple[float, float]:
    """When a run began and ended; infinite where that is not known, or has not happened."""
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
    # Nobody was there before the first of them, and after the last.
    known &= at_s >= min(float(one[0]) for one in ends) - half_s
    known &= at_s <= max(float(one[-1]) for one in ends) + half_s
    return known


def _bounded(bands: Sequence[Band]) -> tuple[Band, ...]:
    if len(bands) <= MAX_BANDS:
        return tuple(bands)
    rest = bands[MAX_BANDS - 1 :]
    runs = tuple(run for band in rest for run in band.runs)
    together: Float64Array = np.sum([band.values for band in rest], axis=0)
    return (*bands[: MAX_BANDS - 1], Band(runs, together))


def _total(
    source: Source,
    subject: Subject,
    device: DeviceSeries,
    summaries: Summaries,
    gaps: Sequence[GapRecord],
    window: Window | None,
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
                window=window,
            )
        )
    ]
    if not several:
        return None
    one = united(several)
    one = thinned(replace(one, values=one.values * factor))
    runs = {run.run_id: run for run, _ in device.parts}
    first = next(iter(runs.values()))
    has_own = bool(device.entity.partition("/")[2])
    # MLflow does not say on which machine a run ran: each has read its own.
    has_own |= is_of_mlflow_alone(first.record) and len(subject.runs) > 1
    own = first if has_own and len(runs) == 1 else None
    return Total(device.entity or "machine", one, own)


def thinned(found: Readings) -> Readings:
    """As many points as can be seen, extremes and gaps among them."""
    if len(found.at_s) <= _TOTAL_POINTS:
        return found
    times_ns = np.round(found.at_s * 1e9).astype(np.int64)
    kept = envelope(Samples(times_ns, found.values), _TOTAL_POINTS)
    return Readings(kept.times_ns / 1e9, kept.values, found.interval_s)
