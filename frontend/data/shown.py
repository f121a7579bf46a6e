"""The charts that a view shows, including the dashboard's automatic choices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from radt.errors import UsageError
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.chart_data import chart_data, natural_x
from radt.frontend.data.metrics import automatic_metrics, hidden_keys, quantities
from radt.frontend.data.model import ChartData
from radt.frontend.data.spec import ChartSpec, Pick, XAxis, with_slots
from radt.frontend.selection import SelectedRuns
from radt.frontend.view import View


def pinned(source: CachedStore, view: View, selection: SelectedRuns) -> View:
    """Return the view with explicit picks and charts.

    Raises:
        StoreError: The store cannot be read.
    """
    picks = view.picks
    if picks is None:
        picks = tuple(
            Pick.run(run.record.experiment, run.run_id) for run in selection.runs.values()
        )
    return replace(view, picks=picks, charts=view_charts(source, view, selection))


def view_charts(source: CachedStore, view: View, selection: SelectedRuns) -> tuple[ChartSpec, ...]:
    """Return the charts of a view, in order; by default the dashboard's choice.

    Raises:
        StoreError: The store cannot be read.
    """
    if view.charts is not None:
        return view.charts
    available = quantities(source, tuple(selection.runs))
    return with_slots(tuple(ChartSpec(metric) for metric in automatic_metrics(available)))


@dataclass(frozen=True, slots=True)
class ShownChart:
    """A chart of a view with its data, None if no run has the metric. ``place`` counts from 0."""

    place: int
    spec: ChartSpec
    data: ChartData | None


def shown_charts(
    source: CachedStore, view: View, selection: SelectedRuns, place: int | None
) -> Iterator[ShownChart]:
    """Yield the charts of a view, or one of them, each read on demand.

    Raises:
        UsageError: There is no such chart, or no chart at all.
        StoreError: The store cannot be read.
    """
    charts = view.charts or ()
    places: Sequence[int] = range(len(charts)) if place is None else [place]
    if not charts or places[-1] >= len(charts):
        raise UsageError("this chart does not exist", "Add a chart to the page first")
    for each in places:
        spec = as_seen(source, view, selection, charts[each])
        window = view.windows.get(spec.zoom_of(view.board))
        data = chart_data(source, selection, spec, view.board, window) if selection.runs else None
        yield ShownChart(each, spec, data)


def as_seen(source: CachedStore, view: View, selection: SelectedRuns, spec: ChartSpec) -> ChartSpec:
    """Return the chart with its resolved x axis, and without lines that are hidden in all charts.

    Raises:
        StoreError: The store cannot be read.
    """
    drawn = (spec.metric, spec.second) if spec.second else (spec.metric,)
    keys = [key for metric in drawn for key in hidden_keys(source, selection, view, metric)]
    natural = {natural_x(source, selection, metric) for metric in drawn}
    both = natural.pop() if len(natural) == 1 else XAxis.BARRIER
    x = None if spec.over else spec.x or view.board.x or both
    return replace(spec, x=x, hidden=tuple(dict.fromkeys([*spec.hidden, *keys])))
