"""The lines of charts as they are drawn: thinned out, aggregated, smoothed, zoomed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from radt.errors import UsageError
from radt.frontend.charts.chartdata import ChartData, chart_data
from radt.frontend.charts.lines import Line
from radt.frontend.charts.spec import ChartSpec, Level, Relative, Window
from radt.frontend.chosen import Chosen
from radt.frontend.export.tables import label
from radt.frontend.hiding import hidden_keys
from radt.frontend.source import Source
from radt.frontend.view import View
from radt.store.records import Float64Array

if TYPE_CHECKING:
    import pyarrow as pa


@cache
def shown_schema() -> pa.Schema:
    """The columns of the file.

    ``chart`` counts from 1, ``x`` is in units of ``x_axis`` (seconds, of wall since 1970; steps;
    epochs), ``value``, ``low`` and ``high`` in ``unit``. A value that is NaN is a gap. Where
    ``smoothed_over`` is not 0, the value is the moving mean over so much of x, and ``low`` to
    ``high`` is what was measured.
    """
    import pyarrow as pa  # not above: it takes half a second, and most never export

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
            pa.field("relative", label),
        ]
    )


@dataclass(frozen=True, slots=True)
class ShownChart:
    """A chart of a view with its data, None if no run has the metric; ``place`` is from 0."""

    place: int
    spec: ChartSpec
    data: ChartData | None


def shown_charts(
    source: Source, view: View, chosen: Chosen, place: int | None
) -> Iterator[ShownChart]:
    """The charts of a view, or one of them, each read when its turn comes.

    Raises:
        UsageError: There is no such chart, or no chart at all.
        StoreError: The store cannot be read.
    """
    charts = view.charts or ()
    places: Sequence[int] = range(len(charts)) if place is None else [place]
    if not charts or places[-1] >= len(charts):
        raise UsageError("there is no such chart", "Add a chart to the page first")
    for one in places:
        spec = as_seen(source, view, chosen, charts[one])
        window = view.windows.get(spec.x_of(view.board))
        data = chart_data(source, chosen, spec, view.board, window) if chosen.runs else None
        yield ShownChart(one, spec, data)


def as_seen(source: Source, view: View, chosen: Chosen, spec: ChartSpec) -> ChartSpec:
    """The chart with what is hidden in all charts hidden in it, too.

    Raises:
        StoreError: The store cannot be read.
    """
    return replace(spec, hidden=spec.hidden + hidden_keys(source, chosen, view, spec.metric))


def shown_tables(charts: Iterator[ShownChart], view: View) -> Iterator[pa.Table]:
    """The lines of charts, one after the other; hidden ones are left out."""
    for chart in charts:
        if chart.data is None:
            continue
        zoom = view.windows.get(chart.data.x)
        for line in chart.data.lines:
            if not line.hidden and len(line.curve.x):
                yield _table(chart.place, chart.data, line, zoom)


def _table(place: int, data: ChartData, line: Line, zoom: Window | None) -> pa.Table:
    import pyarrow as pa

    x = line.curve.x
    seen = np.ones(len(x), dtype=bool)
    if zoom is not None:  # lines go on to the neighbours beyond the edges
        seen = (x >= zoom.start) & (x <= zoom.end)
    count = int(seen.sum())

    def numbers(values: Float64Array | None) -> pa.Array:
        if values is None:
            return pa.nulls(count, pa.float64())
        return pa.array(values[seen], pa.float64(), from_pandas=False)

    partial = np.zeros(len(x), dtype=bool) if line.partial is None else line.partial
    level = Level.WORKLOAD if line.is_workload else Level.RUN
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
        "x_axis": label(data.x.value, count),
        "level": label(level.value, count),
        "aggregate": label(aggregate, count),
        "smoothed_over": pa.repeat(pa.scalar(data.smoothing_width), count),
        "relative": label(data.relative.value, count),
    }
    schema = shown_schema()
    return pa.table([columns[name] for name in schema.names], schema=schema)
