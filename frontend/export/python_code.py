"""The lines of Python that load what a chart shows."""

from __future__ import annotations

from radt.frontend.chosen import Chosen
from radt.frontend.source import Source
from radt.frontend.view import View


def python_code(source: Source, view: View, chosen: Chosen, place: int | None) -> str:
    """Lines that load the samples of the charts (``place`` None: of all) into a DataFrame.

    Passwords are not in it: the address of a Postgres store is taken from ``RADT_STORE_URI``.

    Raises:
        StoreError: The store cannot be read.
    """
    charts = view.charts or ()
    wanted = charts if place is None else charts[place : place + 1]
    metrics = list(dict.fromkeys(chart.metric for chart in wanted))
    runs = ",\n".join(f"    {run_id!r}" for run_id in chosen.runs)
    path = source.address.path
    where = "" if path is None else f", home={str(path.parent)!r}"
    call = f"radt.load(runs, metrics={metrics!r}{where})"
    return f"import radt\n\nruns = [\n{runs},\n]\nframe = {call}\n"
