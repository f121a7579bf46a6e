"""Everything one chart needs, read from the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from radt.analysis.lines import EMPTY
from radt.frontend.data import aggregate as aggregating
from radt.frontend.data.aggregate import BaselineCurves, against, suffix
from radt.frontend.data.axes import Axis, axis_of, is_epoch, ticks, whole_of
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.catalog import RunEntry, Stroke, Tints, told_apart
from radt.frontend.data.lines import (
    WIDTH_PX,
    Facts,
    SeriesGroup,
    ViewWindow,
    group_names,
    params_of,
    points_each,
    read,
    run_line,
    series_groups,
)
from radt.frontend.data.metrics import quantity_of, series_of
from radt.frontend.data.model import ChartData, NamedCurve, Tick
from radt.frontend.data.over import OtherMetric
from radt.frontend.data.spec import (
    Aggregate,
    AxisRange,
    Band,
    BoardSpec,
    ChartSpec,
    Level,
    PickKind,
    Relative,
    XAxis,
)
from radt.frontend.selection import SelectedRuns
from radt.model import Scope
from radt.store.cells import NO_CELLS, Cells
from radt.store.reader import StoreReader
from radt.store.records import GapRecord, MarkerRecord, SeriesRecord

#: Maximum number of series checked for steps: usually all series of a metric have them, or none.
_ASKED_FOR_STEPS = 12


def axes_of(source: CachedStore, selection: SelectedRuns, metric: str) -> tuple[XAxis, ...]:
    """Return the possible x axes of a metric: times always, steps and epochs if recorded.

    Raises:
        StoreError: The store cannot be read.
    """
    axes = [XAxis.BARRIER, XAxis.START, XAxis.WALL]
    series = tuple(series_of(source, tuple(selection.runs)).get(metric, ()))[:_ASKED_FOR_STEPS]
    if _have_steps(source, series):
        axes.append(XAxis.STEP)
    if any(map(is_epoch, _markers(source, tuple(selection.runs)))):
        axes.append(XAxis.EPOCH)
    return tuple(axes)


def natural_x(source: CachedStore, selection: SelectedRuns, metric: str) -> XAxis:
    """Return the default axis of a metric: steps if a script logged it with them.

    Raises:
        StoreError: The store cannot be read.
    """
    series = series_of(source, tuple(selection.runs)).get(metric, ())
    logged = tuple(one for one in series if one.scope is Scope.RUN)[:_ASKED_FOR_STEPS]
    return XAxis.STEP if logged and _have_steps(source, logged) else XAxis.BARRIER


def _have_steps(source: CachedStore, series: tuple[SeriesRecord, ...]) -> bool:
    """Return whether any of the series has steps."""

    asked = set(series)

    def read(reader: StoreReader) -> bool:
        summaries = reader.summary([one.run_id for one in series])
        return any(each.lowest_step is not None for each in summaries if each.series in asked)

    return source.remember(("steps", series), read)


def axis_for(source: CachedStore, selection: SelectedRuns, kind: XAxis) -> Axis:
    """Return the x axis of the chosen runs, which all charts share.

    Raises:
        StoreError: The store cannot be read.
    """
    run_ids = tuple(selection.runs)
    return axis_of(kind, selection.runs, _ends_s(source, selection.runs), _markers(source, run_ids))


def chart_data(
    source: CachedStore,
    selection: SelectedRuns,
    spec: ChartSpec,
    board: BoardSpec,
    window: AxisRange | None,
    width_px: int = WIDTH_PX,
    *,
    with_ticks: bool = True,
) -> ChartData | None:
    """Return the data of a chart for the chosen runs; None if none of them has the metric.

    ``window`` is the visible part of the chart's x axis, None for all. Lines have up to two samples
    per pixel of ``width_px``. With more samples, they have means and extremes.

    Raises:
        StoreError: The store cannot be read, or a chunk is damaged.
    """
    series = series_of(source, tuple(selection.runs)).get(spec.metric)
    if not series:
        return None
    chart = _Chart(source, selection, spec, board, window, series, width_px)
    data = chart.data(with_ticks=with_ticks)
    if not spec.second:
        return data
    own = replace(
        *(spec,), metric=spec.second, second="", aggregate=Aggregate.AUTO, y_min=None, y_max=None
    )
    beside = chart_data(source, selection, own, board, window, width_px, with_ticks=False)
    if beside is None or not beside.lines:
        note = f"no selected run has {spec.second} over this x axis"
        return replace(data, notes=(*data.notes, note))
    whole = data.window
    if window is None:
        ends = (data.window.start, beside.window.start), (data.window.end, beside.window.end)
        whole = AxisRange(min(ends[0]), max(ends[1]))
    return replace(data, window=whole, second=replace(beside, window=whole))


class _Chart:
    """One chart while `ChartData` is being built from the store."""

    def __init__(
        self,
        source: CachedStore,
        selection: SelectedRuns,
        spec: ChartSpec,
        board: BoardSpec,
        window: AxisRange | None,
        series: Sequence[SeriesRecord],
        width_px: int,
    ) -> None:
        self.source, self.selection, self.spec, self.board = source, selection, spec, board
        self.window, self.width_px = window, width_px
        self.runs = selection.runs
        self.quantity = quantity_of(series)
        self.aggregate = spec.aggregate
        if self.aggregate is Aggregate.AUTO:
            # Repeats did not run at the same time, so their sum has no meaning.
            is_group = spec.level_of(board) is Level.GROUP
            self.aggregate = Aggregate.MEAN if is_group else self.quantity.default_aggregate
        # The interval and the deviation are those of a mean.
        self.band = Band.RANGE if self.aggregate is Aggregate.SUM else board.band
        self.tints = Tints(source, self.runs.values())
        self.series_groups = series_groups(self.runs, series, self.tints)
        run_ids = tuple(self.runs)
        self.gaps: Sequence[GapRecord] = source.remember(
            ("gaps", run_ids), lambda reader: reader.gaps(run_ids)
        )
        self.axis = axis_for(source, selection, spec.x_of(board))
        others = series_of(source, run_ids).get(spec.over)
        self.over = OtherMetric(source, self.runs, others) if others else None
        self.placed: dict[str, Cells] = {}  # lines over another metric, which no window changes
        if self.axis.follows_lines:
            cells = [self.read(series_group, None) for series_group in self.series_groups]
            whole = whole_of(cells) if self.axis.by_step else whole_of(cells, shortest=0.0)
            self.axis = replace(self.axis, whole=whole)
            if window is not None and (window.end < whole.start or window.start > whole.end):
                # Some metrics count epochs, others batches, so they may not share a zoom.
                self.window = window = None
        whole = self.axis.whole
        self.smoothing_width = (whole.end - whole.start) * spec.smoothing_of(board) / 100
        self.ema = 0.0 if self.smoothing_width else spec.ema_of(board)
        self.around: AxisRange | None = None
        if window is not None and self.ema:
            self.around = AxisRange.of(min(whole.start, window.start - 1), window.end)
        elif window is not None and self.smoothing_width:
            margin = self.smoothing_width / 2
            self.around = AxisRange(window.start - margin, window.end + margin)

    def data(self, *, with_ticks: bool) -> ChartData:
        level = self.spec.level_of(self.board)
        together = self.selection.drawn_at(level)
        single: list[SeriesGroup] = []
        whole: list[SeriesGroup] = []
        for series_group in self.series_groups:
            (whole if together[series_group.run.run_id] else single).append(series_group)
        names = None
        if level is Level.GROUP:
            params = params_of(self.source, tuple(self.runs))
            names = group_names(params, self.runs, self.board.group_by)
        facts = Facts(self.source, self.runs)
        places = {run_id: place for place, run_id in enumerate(self.runs)}
        lines: list[tuple[int, NamedCurve]] = []
        for series_group in single:
            if line := self.run_line(series_group):
                line = replace(line, facts=facts.of_group(series_group))
                lines.append((places[series_group.run.run_id], line))
        for group in aggregating.groups(whole, self.tints, names):
            if line := self.workload_line(group):
                line = replace(line, facts=facts.of_workload(group.series))
                lines.append((places[group.run.run_id], line))
        lines.sort(key=lambda placed: placed[0])
        strokes = told_apart(Stroke(line.ordinal, line.dash) for _, line in lines)
        shown, relative, notes = self.compared(
            [
                replace(line, ordinal=stroke.hue, dash=stroke.dash)
                for (_, line), stroke in zip(lines, strokes, strict=True)
            ]
        )
        singly = {run_id: run for run_id, run in self.runs.items() if not together[run_id]}
        return ChartData(
            quantity=self.quantity,
            spec=self.spec,
            x=self.axis.kind,
            level=_drawn(level, single, whole),
            aggregate=self.aggregate if whole else None,
            band=self.band,
            lines=shown,
            ticks=self.ticks(singly) if with_ticks else (),
            window=self.window or self.axis.whole,
            relative=relative,
            smoothing_width=self.smoothing_width,
            ema=self.ema,
            robust=self.board.robust,
            x_unit=self.over.unit if self.over else "",
            x_growth=self.over is not None and self.over.is_counter,
            notes=(*notes, *(self.over.notes if self.over else ())),
        )

    def read(self, group: SeriesGroup, window: AxisRange | None) -> Cells:
        if self.axis.kind is not XAxis.METRIC:
            return read(self.source, group, self.axis, self.gaps, window)
        if group.key not in self.placed:
            cells = read(self.source, group, self.axis, self.gaps, None)
            self.placed[group.key] = self.over.place(group, cells) if self.over else NO_CELLS
        return self.placed[group.key]

    def run_line(self, group: SeriesGroup, *, even_hidden: bool = False) -> NamedCurve | None:
        if group.key in self.spec.hidden and not even_hidden:
            return hidden_line(group.key, group.label, group.short, group.stroke)
        around = self.read(group, self.around) if self.around is not None else None
        points = points_each(
            sum(shown.key not in self.spec.hidden for shown in self.series_groups),
            self.width_px,
        )
        view_window = ViewWindow(
            *(self.window, self.smoothing_width, around, points, self.ema),
            log=self.spec.log_x,
            zero=self.axis.zero_of(group.run),
        )
        return run_line(group, self.read(group, self.window), view_window)

    def workload_line(
        self, group: aggregating.RunGroup, *, even_hidden: bool = False
    ) -> NamedCurve | None:
        if group.key in self.spec.hidden and not even_hidden:
            line = hidden_line(group.key, group.short, group.short, group.stroke)
            return replace(line, is_workload=True)
        return aggregating.workload_line(
            group,
            self.members(group, self.window),
            self.aggregate,
            self.window,
            zero=self.axis.zero_of(group.run),
            smoothing_width=self.smoothing_width,
            ema=self.ema,
            surroundings=self.members(group, self.around) if self.around is not None else (),
            band=self.band if group.name else Band.RANGE,
        )

    def members(
        self, group: aggregating.RunGroup, window: AxisRange | None
    ) -> list[aggregating.Member]:
        return [
            aggregating.member_of(series_group, self.read(series_group, window), self.axis)
            for series_group in group.series
        ]

    def compared(
        self, lines: Sequence[NamedCurve]
    ) -> tuple[tuple[NamedCurve, ...], Relative, tuple[str, ...]]:
        relative = self.spec.relative_of(self.board)
        pick = self.spec.baseline_of(self.board)
        if relative is Relative.OFF or pick is None:
            return tuple(lines), Relative.OFF, ()
        runs = self.selection.find(pick)
        if not runs:
            return tuple(lines), Relative.OFF, ("the baseline is not in the selection",)
        is_run = pick.kind is PickKind.RUN
        name = runs[0].short if is_run else runs[0].workload_name
        baseline = self.baseline(runs, name, is_run=is_run)
        if not baseline.curves:
            return tuple(lines), Relative.OFF, (f"{name} has no {self.spec.metric}",)
        compared, notes = against(lines, baseline, relative)
        return compared, relative, notes

    def baseline(self, runs: Sequence[RunEntry], name: str, *, is_run: bool) -> BaselineCurves:
        ids = {run.run_id for run in runs}
        own = [
            group
            for group in self.series_groups
            if any(run.run_id in ids for run, _ in group.parts)
        ]
        if is_run:
            lines = {group.key: self.run_line(group, even_hidden=True) for group in own}
        else:
            groups = aggregating.groups(own, self.tints)
            lines = {group.key: self.workload_line(group, even_hidden=True) for group in groups}
        curves = {key: line.curve for key, line in lines.items() if line and len(line.curve.x)}
        return BaselineCurves(name, {suffix(key): curves[key] for key in curves}, frozenset(curves))

    def ticks(self, singly: Mapping[str, RunEntry]) -> tuple[Tick, ...]:
        if self.axis.follows_lines:
            return ()
        markers = _markers(self.source, tuple(self.runs))
        places = {run_id: self.tints.run(run).hue for run_id, run in singly.items()}
        return ticks(singly, places, markers, self.axis, self.window)


def _drawn(level: Level, single: Sequence[SeriesGroup], whole: Sequence[SeriesGroup]) -> Level:
    """Return what the lines of a chart are; AUTO if some are runs and some workloads."""
    if level is Level.GROUP:
        return level
    return Level.AUTO if whole and single else Level.WORKLOAD if whole else Level.RUN


def hidden_line(key: str, label: str, short: str, stroke: Stroke) -> NamedCurve:
    """Return a hidden line, which is listed but has no data."""
    return NamedCurve(key, label, short, stroke.hue, EMPTY, dash=stroke.dash, hidden=True)


def whole_window(source: CachedStore, runs: Mapping[str, RunEntry]) -> AxisRange:
    """Return the range from the barrier to the end (or newest sample) of the longest run.

    Raises:
        StoreError: The store cannot be read.
    """
    return axis_of(XAxis.BARRIER, runs, _ends_s(source, runs), ()).whole


def _ends_s(source: CachedStore, runs: Mapping[str, RunEntry]) -> dict[str, float]:
    """Return the seconds from the barrier to each run's end, or to its newest sample."""
    going_on = tuple(
        run_id
        for run_id, run in runs.items()
        if run.record.ended_ns is None and run.record.started_ns is not None
    )
    newest = source.remember(("newest", going_on), lambda reader: reader.newest_ns(going_on))
    ends_ns = {
        run_id: run.record.ended_ns or newest.get(run_id, run.origin_ns)
        for run_id, run in runs.items()
    }
    return {run_id: (ends_ns[run_id] - run.origin_ns) / 1e9 for run_id, run in runs.items()}


def _markers(source: CachedStore, run_ids: tuple[str, ...]) -> Sequence[MarkerRecord]:
    return source.remember(("markers", run_ids), lambda reader: reader.markers(run_ids))
