"""The x axis of a chart: maps seconds since the barrier to time, epochs or steps.

It also holds the marks of epochs, phases and spans.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from radt.analysis.lines import Shift, XMap
from radt.frontend.data.catalog import RunEntry
from radt.frontend.data.model import Tick
from radt.frontend.data.series_cache import Ask
from radt.frontend.data.spec import AxisRange, XAxis
from radt.model import MarkerKind
from radt.store.cells import Cells
from radt.store.records import MarkerRecord, SeriesRecord
from radt.units import duration

_SHORTEST = 1.0


@dataclass(frozen=True, slots=True)
class Axis:
    """An x axis with one map per run id. ``whole`` is the range without a zoom.

    Over steps there are no ``maps``: each point has its own step. Over another metric, maps return
    the seconds since the barrier, by which values are paired (`radt.frontend.data.over`).
    """

    kind: XAxis
    maps: Mapping[str, XMap]
    whole: AxisRange

    @property
    def by_step(self) -> bool:
        return self.kind is XAxis.STEP

    @property
    def is_time(self) -> bool:
        """True if the axis is in seconds."""
        return self.kind not in (XAxis.STEP, XAxis.EPOCH, XAxis.METRIC)

    @property
    def follows_lines(self) -> bool:
        """True if its range is that of the lines, and instants have no position on it."""
        return self.kind in (XAxis.STEP, XAxis.METRIC)

    def zero_of(self, run: RunEntry) -> float:
        """Return the position of a run's barrier on an axis of time; else 0."""
        onto = self.maps.get(run.run_id)
        return onto.by if isinstance(onto, Shift) else 0.0

    def x_of(self, run: RunEntry, elapsed_s: float) -> float:
        """Return the position of an instant of a run; NaN if unknown."""
        if self.follows_lines:
            return math.nan
        return float(self.maps[run.run_id](np.array([elapsed_s]))[0])

    def ask(
        self, run: RunEntry, record: SeriesRecord, window: AxisRange | None, variant: str
    ) -> Ask:
        """Return the request for a series that is drawn on this axis as part of ``run``."""
        onto = self.maps[run.run_id] if self.kind is XAxis.EPOCH else None
        zero = self.zero_of(run)
        shown = None if window is None else (window.start - zero, window.end - zero)
        return Ask(
            record,
            run.origin_ns,
            shown,
            by_step=self.by_step,
            onto=onto,
            every_point=self.kind is XAxis.METRIC,
            variant=variant,
        )


def axis_of(
    kind: XAxis,
    runs: Mapping[str, RunEntry],
    ends_s: Mapping[str, float],
    markers: Sequence[MarkerRecord],
) -> Axis:
    """Return the axis of runs. ``ends_s`` are their ends or newest samples, in s after the barrier.

    The range of steps or of another metric is not known here, as it depends on the lines
    (`whole_of`).
    """
    longest_s = max((ends_s[run_id] for run_id in runs), default=_SHORTEST)
    whole = AxisRange(0.0, max(longest_s, _SHORTEST))
    match kind:
        case XAxis.START:
            shifts = {run_id: -started_s(run) for run_id, run in runs.items()}
            longest_s = max(ends_s[run_id] + shifts[run_id] for run_id in runs)
            whole = AxisRange(0.0, max(longest_s, _SHORTEST))
            return Axis(kind, {run_id: Shift(by) for run_id, by in shifts.items()}, whole)
        case XAxis.WALL:
            shifts = {run_id: run.origin_ns / 1e9 for run_id, run in runs.items()}
            start = min(shifts.values())
            end = max(ends_s[run_id] + shifts[run_id] for run_id in runs)
            whole = AxisRange(start, max(end, start + _SHORTEST))
            return Axis(kind, {run_id: Shift(by) for run_id, by in shifts.items()}, whole)
        case XAxis.EPOCH:
            maps = epoch_maps(runs, ends_s, markers)
            known = [axis_map.x for axis_map in maps.values() if np.isfinite(axis_map.x).all()]
            start = min((float(x[0]) for x in known), default=0.0)
            end = max((float(x[-1]) for x in known), default=_SHORTEST)
            return Axis(kind, maps, AxisRange(start, max(end, start + 0.1)))
        case XAxis.STEP:
            return Axis(kind, {}, AxisRange(0.0, 1.0))
    return Axis(kind, {run_id: Shift(0.0) for run_id in runs}, whole)


def whole_of(placed: Iterable[Cells], shortest: float = _SHORTEST) -> AxisRange:
    """Return the range from the first to the last point of all lines, at least ``shortest`` long.

    With ``shortest`` 0, only a range of a single value is widened.
    """
    spans = [(float(cells.first[0]), float(cells.last[-1])) for cells in placed if len(cells)]
    start = min((first for first, _ in spans), default=0.0)
    end = max((last for _, last in spans), default=start)
    least = shortest or (0.0 if end > start else abs(start) or _SHORTEST)
    return AxisRange(start, max(end, start + least))


def started_s(run: RunEntry) -> float:
    """Return the start of a run's process, in seconds since its barrier; 0 if unknown."""
    started_ns = run.record.started_ns
    return 0.0 if started_ns is None else (started_ns - run.origin_ns) / 1e9


def is_epoch(marker: MarkerRecord) -> bool:
    """Return whether a marker is an epoch of the run's first process. Other processes repeat it."""
    return marker.kind is MarkerKind.EPOCH and not marker.process


def epoch_maps(
    runs: Mapping[str, RunEntry], ends_s: Mapping[str, float], markers: Sequence[MarkerRecord]
) -> dict[str, XMap]:
    """Return maps from time to finished epochs: 2.5 is half-way through the third epoch.

    Times before the first and after the last epoch have no position. An epoch in progress is
    assumed to take at least as long as the previous one.
    """
    of_run: dict[str, list[MarkerRecord]] = {run_id: [] for run_id in runs}
    for marker in markers:
        if is_epoch(marker) and marker.run_id in of_run:
            of_run[marker.run_id].append(marker)
    # Scripts count from 0 or from 1.
    first = min((m.step for own in of_run.values() for m in own if m.step is not None), default=1)
    counted_from = 0 if first <= 0 else 1
    return {
        run_id: _epoch_map(runs[run_id], own, ends_s[run_id], counted_from)
        for run_id, own in of_run.items()
    }


def _epoch_map(
    run: RunEntry, epochs: Sequence[MarkerRecord], end_s: float, counted_from: int
) -> XMap:
    if not epochs:
        return XMap(np.array([0.0]), np.array([np.nan]))
    starts_s = [(epoch.start_ns - run.origin_ns) / 1e9 for epoch in epochs]
    done = [
        float(place if epoch.step is None else epoch.step - counted_from)
        for place, epoch in enumerate(epochs)
    ]
    last = epochs[-1]
    if last.end_ns is not None:
        last_s = (last.end_ns - run.origin_ns) / 1e9
    else:
        before_s = starts_s[-1] - starts_s[-2] if len(starts_s) > 1 else 0.0
        last_s = max(end_s, starts_s[-1] + before_s)
    seconds = np.array([*starts_s, max(last_s, starts_s[-1] + 1e-6)])
    return XMap(seconds, np.array([*done, done[-1] + 1]))


#: Maximum number of marks of one run. Further ones are left out evenly.
MAX_MARKS = 400


def ticks(
    runs: Mapping[str, RunEntry],
    tints: Mapping[str, int],
    markers: Sequence[MarkerRecord],
    axis: Axis,
    window: AxisRange | None,
) -> tuple[Tick, ...]:
    """Return the marks of the runs, within the window if there is one."""
    of_run: dict[str, list[MarkerRecord]] = {}
    for marker in markers:
        if marker.run_id in runs and (is_epoch(marker) or marker.kind is not MarkerKind.EPOCH):
            of_run.setdefault(marker.run_id, []).append(marker)
    shown: list[Tick] = []
    in_order = [run_id for run_id in runs if run_id in of_run]
    for row, run_id in enumerate(in_order):
        run = runs[run_id]
        own = [_tick(row, tints[run_id], run, marker, axis) for marker in of_run[run_id]]
        seen = [mark for mark in own if _is_seen(mark, window)]
        # Epochs first: a script may have thousands of spans.
        epochs = [mark for mark in seen if mark.kind is MarkerKind.EPOCH]
        others = [mark for mark in seen if mark.kind is not MarkerKind.EPOCH]
        shown += _thinned(epochs)
        shown += _thinned(others)
    return tuple(shown)


def _tick(row: int, ordinal: int, run: RunEntry, marker: MarkerRecord, axis: Axis) -> Tick:
    x = axis.x_of(run, (marker.start_ns - run.origin_ns) / 1e9)
    end = None
    took = ""
    if marker.end_ns is not None:
        took = f" · {duration((marker.end_ns - marker.start_ns) / 1e9)}"
        end = axis.x_of(run, (marker.end_ns - run.origin_ns) / 1e9)
    if marker.kind is MarkerKind.EPOCH:
        what = f"epoch {marker.step if marker.step is not None else marker.name}"
    else:
        what = " ".join(part for part in (marker.name, marker.process) if part)
        if marker.kind is MarkerKind.EVENT and marker.detail:
            took = f" · {marker.detail[:80]}"
    key = f"r{run.run_id[:12]}"
    return Tick(row, ordinal, x, f"{run.short} · {what}{took}", marker.kind, end, key)


def _is_seen(tick: Tick, window: AxisRange | None) -> bool:
    if not math.isfinite(tick.x):
        return False
    last = tick.x if tick.end is None or not math.isfinite(tick.end) else tick.end
    return window is None or (tick.x <= window.end and last >= window.start)


def _thinned(ticks: Sequence[Tick]) -> Sequence[Tick]:
    step = math.ceil(len(ticks) / MAX_MARKS)
    return ticks[::step] if step > 1 else ticks
