"""A view that shows the same later: what the dashboard chose is written down in it."""

from __future__ import annotations

from dataclasses import replace

from radt.frontend.charts.spec import ChartSpec, with_slots
from radt.frontend.chosen import Chosen
from radt.frontend.metrics import automatic_metrics, quantities
from radt.frontend.picks import Pick
from radt.frontend.source import Source
from radt.frontend.view import View


def pinned(source: Source, view: View, chosen: Chosen) -> View:
    """The view with its picks and charts named.

    Raises:
        StoreError: The store cannot be read.
    """
    picks = view.picks
    if picks is None:
        picks = tuple(Pick.run(run.record.experiment, run.run_id) for run in chosen.runs.values())
    return replace(view, picks=picks, charts=charts_of(source, view, chosen))


def charts_of(source: Source, view: View, chosen: Chosen) -> tuple[ChartSpec, ...]:
    """The charts of a view, in order; those that the dashboard chooses if the user did not.

    Raises:
        StoreError: The store cannot be read.
    """
    if view.charts is not None:
        return view.charts
    available = quantities(source, tuple(chosen.runs))
    return with_slots(tuple(ChartSpec(metric) for metric in automatic_metrics(available)))
