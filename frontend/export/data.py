"""The file with the data of charts: the lines as drawn, or every sample."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from radt.errors import UsageError
from radt.frontend.chosen import Chosen
from radt.frontend.export.asked import Asked, Share
from radt.frontend.export.full import full_schema, full_tables, measure
from radt.frontend.export.shown import shown_charts, shown_schema, shown_tables
from radt.frontend.export.tables import written
from radt.frontend.source import Source
from radt.frontend.view import View


def data_file(source: Source, asked: Asked, chosen: Chosen) -> Iterator[bytes]:
    """The parts of the file. The first is made at once, so that what is wrong shows now.

    Raises:
        UsageError: There is nothing in it, or too much.
        StoreError: The store cannot be read.
    """
    view = asked.view
    if asked.of is Share.FULL:
        full = measure(source, chosen, metrics_of(view, asked.chart))
        parts = written(full_tables(source.reader, chosen, full), full_schema(), asked.format)
    else:
        tables = shown_tables(shown_charts(source, view, chosen, asked.chart), view)
        first_table = next(tables, None)
        if first_table is None:
            raise UsageError("the charts show nothing", "Pick runs that have these metrics")
        parts = written(chain([first_table], tables), shown_schema(), asked.format)
    first = next(parts)
    return chain([first], parts)


def metrics_of(view: View, place: int | None) -> list[str]:
    """The metrics of the charts of a view, or of one of them, each once.

    Raises:
        UsageError: There is no such chart, or no chart at all.
    """
    charts = view.charts or ()
    if not charts or (place is not None and place >= len(charts)):
        raise UsageError("there is no such chart", "Add a chart to the page first")
    wanted = charts if place is None else (charts[place],)
    return list(dict.fromkeys(chart.metric for chart in wanted))
