"""Shares of one resource, stacked over time, and the value of the whole device.

All runs are on one grid of cells, never finer than the readings. Before its start and after its end
a run used nothing. In a gap its use is unknown, so the stack is missing there, not lower; the
device's own line continues. Values are means of the cells.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from radt.analysis.lines import Shift, grid, on_grid
from radt.frontend.data.axes import Axis
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.catalog import RunEntry, Stroke
from radt.frontend.data.lines import SeriesGroup, ViewWindow, read, run_line
from radt.frontend.data.spec import AxisRange, XAxis
from radt.frontend.data.workload.model import Band, DeviceSeries, Share, StackData, Strip, Total
from radt.frontend.data.workload.subject import ShownWorkload
from radt.store.cells import Cells
from radt.store.reader import StoreReader
from radt.store.records import BoolArray, Float64Array, GapRecord, SeriesRecord
from radt.store.summaries import SeriesSummary

SeriesKey = tuple[str, int]
Summaries = Mapping[SeriesKey, SeriesSummary]
CELLS = 400
#: Maximum number of runs with a separate band; the rest share one.
MAX_BANDS = 16
_TOTAL_POINTS = 1200


def summaries_of(source: CachedStore, run_ids: tuple[str, ...]) -> Summaries:
    """Return summaries of the series, without reading their points.

    Raises:
        StoreError: The store cannot be read.
    """

    def by_series(reader: StoreReader) -> Summaries:
        return {(s.series.run_id, s.series.series_no): s for s in reader.summary(run_ids)}

    return source.remember(("workload-summaries", run_ids), by_series)


@dataclass(frozen=True, slots=True)
class _Visible:
    """The series that a strip shows, on the page's axis of time.

    ``window`` is the visible part; ``zoomed``: only that part is read.
    """

    source: CachedStore
    subject: ShownWorkload
    gaps: Sequence[GapRecord]
    window: AxisRange
    zoomed: bool

    def read(self, parts: tuple[tuple[RunEntry, SeriesRecord], ...]) -> Cells:
        """Return one run's series, or a device's as recorded by several runs."""
        origin_ns = self.subject.origin_ns
        maps = {run.run_id: Shift((run.origin_ns - origin_ns) / 1e9) for run, _ in parts}
        group = SeriesGroup("", "", "", Stroke(0), "", parts)
        axis = Axis(XAxis.BARRIER, maps, self.window)
        return read(self.source, group, axis, self.gaps, self.window if self.zoomed else None)

    def mean(self, cells: Cells) -> float:
        """Return the mean of the visible values; NaN without any."""
        seen = self._seen(cells)
        return float(seen.total.sum() / seen.weight.sum()) if len(seen) else math.nan

    def peak(self, cells: Cells) -> float:
        """Return the largest visible value; NaN without one."""
        seen = self._seen(cells)
        return float(seen.high.max()) if len(seen) else math.nan

    def _seen(self, cells: Cells) -> Cells:
        inside = (cells.middle >= self.window.start) & (cells.middle <= self.window.end)
        return cells.taken(np.flatnonzero(inside))


def stack_data(
    source: CachedStore,
    subject: ShownWorkload,
    strip: Strip,
    gaps: Sequence[GapRecord],
    *,
    window: AxisRange,
    zoomed: bool,
    cores: int | None,
) -> StackData:
    """Read a strip. ``window`` is the visible part; ``zoomed``: only that part is read.

    ``cores`` is the machine's number of cores. If unknown, a share of all cores is left out, as it
    cannot be drawn on the same scale as cores.

    Raises:
        StoreError: The store cannot be read.
    """
    visible = _Visible(source, subject, gaps, window, zoomed)
    members: list[tuple[Share, dict[SeriesRecord, Cells]]] = []
    for share in strip.shares:
        layers = {record: visible.read(((share.run, record),)) for record in share.series}
        if layers := {record: cells for record, cells in layers.items() if len(cells)}:
            members.append((share, layers))
    edges_s = np.array([window.start, window.end])
    if parts := [cells for _, layers in members for cells in layers.values()]:
        intervals = [one.interval_s for _, layers in members for one in layers if one.interval_s]
        within = (window.start, window.end)
        edges_s = grid(parts, CELLS, within, finest=min(intervals, default=0.0))
    bands = [_band(share, layers, edges_s, visible) for share, layers in members]
    is_scaled = strip.resource.of_cores and strip.is_stacked
    factor = float(cores or 0) if is_scaled else 1.0
    totals = [_total(device, visible, factor) for device in (strip.totals if factor else ())]
    return StackData(
        strip,
        edges_s,
        _bounded(bands),
        _known(parts, bands, edges_s),
        tuple(total for total in totals if total is not None),
        window,
    )


def _band(
    share: Share, layers: Mapping[SeriesRecord, Cells], edges_s: Float64Array, visible: _Visible
) -> Band:
    """Return a run's share: the sum of its series, such as those of its MIG instances."""
    lived = lived_s(share.run, visible.subject)
    values = [
        on_stack(cells, record.interval_s, lived, edges_s) for record, cells in layers.items()
    ]
    mean = sum(visible.mean(cells) for cells in layers.values())
    peaks = [visible.peak(cells) for cells in layers.values()]
    together: Float64Array = np.sum(values, axis=0)
    peak = peaks[0] if len(peaks) == 1 else float(np.nanmax(together))
    return Band((share.run,), together, mean, peak)


def on_stack(
    cells: Cells, interval_s: float | None, lived: tuple[float, float], edges_s: Float64Array
) -> Float64Array:
    """Return a run's cells: 0 outside its lifetime, NaN where values are unknown within it."""
    values = on_grid(cells, edges_s).mean
    at_s = (edges_s[:-1] + edges_s[1:]) / 2
    half_s = (edges_s[1] - edges_s[0]) / 2
    start_s, end_s = lived
    first_s, last_s = float(cells.first[0]), float(cells.last[-1])
    # Before its first and after its last reading, the run used next to nothing.
    slack_s = max(3 * (interval_s or 0.0), half_s)
    if first_s - start_s <= slack_s or not math.isfinite(start_s):
        start_s = first_s
    if end_s - last_s <= slack_s:
        end_s = last_s
    values[(at_s < start_s - half_s) | (at_s > end_s + half_s)] = 0.0
    return values


def lived_s(run: RunEntry, subject: ShownWorkload) -> tuple[float, float]:
    """Return start and end of a run; infinite if unknown or in the future."""
    started_ns, ended_ns = run.record.started_ns, run.record.ended_ns
    start_s = -math.inf if started_ns is None else (started_ns - subject.origin_ns) / 1e9
    end_s = math.inf if ended_ns is None else (ended_ns - subject.origin_ns) / 1e9
    return start_s, end_s


def _known(parts: Sequence[Cells], bands: Sequence[Band], edges_s: Float64Array) -> BoolArray:
    at_s = (edges_s[:-1] + edges_s[1:]) / 2
    known: BoolArray = np.ones(len(at_s), dtype=bool)
    for band in bands:
        known &= np.isfinite(band.values)
    if not parts:
        return np.zeros(len(at_s), dtype=bool)
    half_s = (edges_s[1] - edges_s[0]) / 2
    # No run was present before the first reading and after the last.
    known &= at_s >= min(float(cells.first[0]) for cells in parts) - half_s
    known &= at_s <= max(float(cells.last[-1]) for cells in parts) + half_s
    return known


def _bounded(bands: Sequence[Band]) -> tuple[Band, ...]:
    if len(bands) <= MAX_BANDS:
        return tuple(bands)
    rest = bands[MAX_BANDS - 1 :]
    runs = tuple(run for band in rest for run in band.runs)
    together: Float64Array = np.sum([band.values for band in rest], axis=0)
    # Together, they lived while any of them had a value.
    lived = together[np.isfinite(together) & (together != 0)]
    mean, peak = (float(lived.mean()), float(lived.max())) if len(lived) else (0.0, 0.0)
    return (*bands[: MAX_BANDS - 1], Band(runs, together, mean, peak))


def _total(device: DeviceSeries, visible: _Visible, factor: float) -> Total | None:
    cells = visible.read(device.parts)
    cells = replace(
        cells, low=cells.low * factor, high=cells.high * factor, total=cells.total * factor
    )
    name = device.entity or "machine"
    group = SeriesGroup(name, name, name, Stroke(0), device.listener, device.parts)
    window = visible.window if visible.zoomed else None
    line = run_line(group, cells, ViewWindow(window, max_points=_TOTAL_POINTS))
    if line is None:
        return None
    runs = {run.run_id: run for run, _ in device.parts}
    first = next(iter(runs.values()))
    has_own = bool(device.entity.partition("/")[2])
    # MLflow does not record the machine of a run, so its values are treated as separate.
    has_own |= first.record.is_from_mlflow and len(visible.subject.runs) > 1
    own = first if has_own and len(runs) == 1 else None
    return Total(line, visible.mean(cells), visible.peak(cells), own)
