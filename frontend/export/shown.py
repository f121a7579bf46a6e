"""The visible data of charts as tables, and as Python code that loads the same data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from radt.errors import UsageError
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.catalog import RunEntry
from radt.frontend.data.metrics import series_of
from radt.frontend.data.model import ChartData, NamedCurve
from radt.frontend.data.shown import ShownChart, as_seen
from radt.frontend.data.spec import ID_DIGITS, AxisRange, ChartSpec, Level, Relative, XAxis
from radt.frontend.export.tables import label
from radt.frontend.selection import SelectedRuns
from radt.frontend.view import View
from radt.model import SeriesKind
from radt.store.records import Float64Array

if TYPE_CHECKING:
    import pyarrow as pa


@cache
def shown_schema() -> pa.Schema:
    """Return the columns of the file.

    ``chart`` counts from 1, ``x`` is in units of ``x_axis`` (seconds, since 1970 for wall; steps;
    epochs; of a metric, its own), ``value``, ``low`` and ``high`` in ``unit``. A value of NaN is a
    gap. If ``smoothed_over`` is not 0, the value is the moving mean over this width of x; if
    ``ema`` is not 0, the exponential mean of this weight. ``low`` to ``high`` is not smoothed.
    """
    import pyarrow as pa  # takes half a second to import, and most visitors never export

    label = pa.dictionary(pa.int32(), pa.string())
    return pa.schema(
        [
            pa.field("chart", pa.int32()),
            pa.field("metric", label),
            pa.field("line", label),
            pa.field("key", label),
            pa.field("x", pa.float64()),
            pa.field("value", pa.float64()),
            pa.field("low", pa.float64()),
            pa.field("high", pa.float64()),
            pa.field("partial", pa.bool_()),
            pa.field("estimated", pa.bool_()),
            pa.field("unit", label),
            pa.field("x_axis", label),
            pa.field("level", label),
            pa.field("aggregate", label),
            pa.field("smoothed_over", pa.float64()),
            pa.field("ema", pa.float64()),
            pa.field("relative", label),
        ]
    )


def shown_tables(charts: Iterator[ShownChart], view: View) -> Iterator[pa.Table]:
    """Yield the lines of charts, one after the other, without hidden ones."""
    for chart in charts:
        if chart.data is None:
            continue
        zoom = view.windows.get(chart.spec.zoom_of(view.board))
        for data in filter(None, (chart.data, chart.data.second)):
            for line in data.lines:
                if not line.hidden and len(line.curve.x):
                    yield _table(chart.place, data, line, zoom)


def _table(place: int, data: ChartData, line: NamedCurve, zoom: AxisRange | None) -> pa.Table:
    import pyarrow as pa

    x = line.curve.x
    seen = np.ones(len(x), dtype=bool)
    if zoom is not None:  # lines include one point beyond each edge
        seen = (x >= zoom.start) & (x <= zoom.end)
    count = int(seen.sum())

    def numbers(values: Float64Array | None) -> pa.Array:
        if values is None:
            return pa.nulls(count, pa.float64())
        return pa.array(values[seen], pa.float64(), from_pandas=False)

    partial = np.zeros(len(x), dtype=bool) if line.partial is None else line.partial
    level = Level.RUN
    if line.is_workload:
        level = Level.GROUP if data.level is Level.GROUP else Level.WORKLOAD
    aggregate = data.aggregate.value if line.is_workload and data.aggregate else ""
    ratio = data.relative is Relative.RATIO
    columns = {
        "chart": pa.repeat(pa.scalar(place + 1, pa.int32()), count),
        "metric": label(data.quantity.metric, count),
        "line": label(line.label, count),
        "key": label(line.key, count),
        "x": numbers(x),
        "value": numbers(line.curve.values),
        "low": numbers(line.low),
        "high": numbers(line.high),
        "partial": pa.array(partial[seen]),
        "estimated": pa.repeat(pa.scalar(line.estimated), count),
        "unit": label("1" if ratio else data.quantity.drawn_unit, count),
        "x_axis": label(data.spec.over or data.x.value, count),
        "level": label(level.value, count),
        "aggregate": label(aggregate, count),
        "smoothed_over": pa.repeat(pa.scalar(data.smoothing_width), count),
        "ema": pa.repeat(pa.scalar(data.ema), count),
        "relative": label(data.relative.value, count),
    }
    schema = shown_schema()
    return pa.table([columns[name] for name in schema.names], schema=schema)


#: The meaning of x on axes that count from an instant of each run.
_SINCE = {
    XAxis.BARRIER: "seconds since the barrier",
    XAxis.EPOCH: "seconds since the barrier; the charts count epochs",
    XAxis.START: "seconds since the run's start",
}


def python_code(source: CachedStore, view: View, selection: SelectedRuns, place: int | None) -> str:
    """Return code that loads the samples of the charts (``place`` None: of all) into a DataFrame.

    Raises:
        UsageError: There is nothing to load.
        StoreError: The store cannot be read.
    """
    charts = view.charts or ()
    wanted = [
        as_seen(source, view, selection, chart)
        for chart in (charts if place is None else charts[place : place + 1])
    ]
    known = series_of(source, tuple(selection.runs))
    drawn = dict.fromkeys(metric for chart in wanted for metric in chart.metrics)
    metrics = [metric for metric in drawn if metric in known]
    having = {series.run_id for metric in metrics for series in known[metric]}
    hidden = set.intersection(*(set(chart.hidden) for chart in wanted)) if wanted else set()
    runs = [
        run
        for run in selection.runs.values()
        if run.run_id in having and f"r{run.run_id[:ID_DIGITS]}" not in hidden
    ]
    if not runs:
        raise UsageError(
            "the charts show no samples to load", "Select runs that have these metrics"
        )
    axes = {chart.x_of(view.board) for chart in wanted}
    x = axes.pop() if len(axes) == 1 else XAxis.BARRIER
    if x is XAxis.METRIC:
        x, view = XAxis.BARRIER, replace(view, windows={})
    counted = any(
        series.kind is SeriesKind.COUNTER for metric in metrics for series in known[metric]
    )
    return "\n".join(
        [
            *_imports(source),
            "",
            *_runs(runs, x),
            *_load(source, metrics, rates=counted),
            *_x(x, view),
            *_notes(wanted, view, selection),
            *_drawing(x, len(metrics)),
            "",
        ]
    )


def _imports(source: CachedStore) -> Iterator[str]:
    if source.address.is_postgres:
        yield "import os"
        yield ""
    yield "import plotly.express as px"
    yield ""
    yield "import radt"


def _runs(runs: Sequence[RunEntry], x: XAxis) -> Iterator[str]:
    yield "names = {  # what the charts call the runs"
    yield from (f"    {run.run_id!r}: {run.title!r}," for run in runs)
    yield "}"
    if x not in _SINCE:
        return
    yield "zeros_ns = {  # zero of each run's x axis, in nanoseconds since 1970"
    for run in runs:
        started_ns = run.record.started_ns
        zero_ns = started_ns if x is XAxis.START and started_ns else run.origin_ns
        yield f"    {run.run_id!r}: {zero_ns},"
    yield "}"


def _load(source: CachedStore, metrics: Sequence[str], *, rates: bool) -> Iterator[str]:
    yield "frame = radt.load("
    yield "    list(names),"
    yield f"    metrics={list(metrics)!r},"
    if rates:
        yield "    rates=True,  # counters as how fast they grew"
    path = source.address.path
    if path is None:
        yield f"    # {str(source.address)!r}; the password is best in ~/.pgpass"
        yield '    store_uri=os.environ["RADT_STORE_URI"],'
    else:
        yield f"    home={str(path.parent)!r},"
    yield ")"


def _x(x: XAxis, view: View) -> Iterator[str]:
    yield 'ids = frame["run_id"].astype(str)'
    yield 'frame["line"] = (ids.map(names) + " " + frame["entity"].astype(str)).str.strip()'
    if x in _SINCE:
        yield f"# {_SINCE[x]}"
        yield 'frame["x"] = (frame["time"].astype("int64") - ids.map(zeros_ns)) / 1e9'
    else:
        yield f'frame["x"] = frame["{"time" if x is XAxis.WALL else "step"}"]'
    zoom = view.windows.get(x)
    if zoom is None or x is XAxis.EPOCH:
        return
    value = 'frame["time"].astype("int64") / 1e9' if x is XAxis.WALL else 'frame["x"]'
    value = f"({value})" if x is XAxis.WALL else value
    yield f"frame = frame[{value}.between({zoom.start!r}, {zoom.end!r})]  # the zoom"


def _notes(charts: Sequence[ChartSpec], view: View, selection: SelectedRuns) -> Iterator[str]:
    """Yield notes on features of the charts that the code does not reproduce."""
    board = view.board
    if any(
        any(selection.drawn_at(chart.level_of(board)).values())
        or chart.level_of(board) is Level.WORKLOAD
        for chart in charts
    ):
        yield "# Charts draw several runs as one line; these are the runs."
    for chart in charts:
        if chart.over:
            yield f"# A chart draws {chart.metric!r} over {chart.over!r}. pandas.merge_asof with"
            yield '# direction="nearest", by run, pairs their samples likewise.'
    if any(chart.smoothing_of(board) or chart.ema_of(board) for chart in charts):
        yield "# Charts smooth them; these are the samples."
    if any(chart.relative_of(board) is not Relative.OFF for chart in charts):
        yield "# Charts show them relative to a baseline; these are the samples."


def _drawing(x: XAxis, metric_count: int) -> Iterator[str]:
    rows = ', facet_row="metric"' if metric_count > 1 else ""
    # Over steps, each line is in the order of logging, which is that of the steps.
    yield f'figure = px.line(frame, x="x", y="value", color="line"{rows})'
    if metric_count > 1:
        yield "figure.update_yaxes(matches=None)  # each metric has its own unit"
    yield f"figure.update_xaxes(title={_title(x)!r}).show()"


def _title(x: XAxis) -> str:
    return _SINCE.get(x, x.value)
