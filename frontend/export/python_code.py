"""The lines of Python that load what a chart shows, and draw it.

They are the samples as they were recorded (counters as rates, as charts draw them): what charts do
to them besides, comments say. Names and addresses come as literals, so that none of them is code;
passwords do not come at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from radt.errors import UsageError
from radt.frontend.catalog import RunEntry
from radt.frontend.charts.spec import ChartSpec, Level, Relative, XAxis
from radt.frontend.chosen import Chosen
from radt.frontend.export.shown import as_seen
from radt.frontend.metrics import series_of
from radt.frontend.picks import ID_DIGITS
from radt.frontend.source import Source
from radt.frontend.view import View
from radt.model import SeriesKind
from radt.units import plural

#: What x is on axes that count from an instant of each run.
_SINCE = {
    XAxis.BARRIER: "seconds since the barrier",
    XAxis.EPOCH: "seconds since the barrier; the charts count epochs",
    XAxis.START: "seconds since the run's start",
}


def python_code(source: Source, view: View, chosen: Chosen, place: int | None) -> str:
    """Lines that load the samples of the charts (``place`` None: of all) into a DataFrame.

    Raises:
        UsageError: There is nothing to load.
        StoreError: The store cannot be read.
    """
    charts = view.charts or ()
    wanted = [
        as_seen(source, view, chosen, chart)
        for chart in (charts if place is None else charts[place : place + 1])
    ]
    known = series_of(source, tuple(chosen.runs))
    metrics = [m for m in dict.fromkeys(chart.metric for chart in wanted) if m in known]
    having = {one.run_id for metric in metrics for one in known[metric]}
    hidden = set.intersection(*(set(chart.hidden) for chart in wanted)) if wanted else set()
    runs = [
        run
        for run in chosen.runs.values()
        if run.run_id in having and f"r{run.run_id[:ID_DIGITS]}" not in hidden
    ]
    if not runs:
        raise UsageError("the charts show nothing to load", "Pick runs that have these metrics")
    foreign = _foreign(source, runs)
    runs = [run for run in runs if run.run_id not in foreign]
    if not runs:
        raise UsageError(
            "radt.load reads what radt recorded, and these runs are MLflow's",
            "Download the data, or use mlflow.MlflowClient().get_metric_history",
        )
    x = wanted[0].x_of(view.board) if len(wanted) == 1 else view.board.x
    counted = any(one.kind is SeriesKind.COUNTER for metric in metrics for one in known[metric])
    return "\n".join(
        [
            *_imports(source),
            "",
            *_runs(runs, x),
            *_load(source, metrics, rates=counted),
            *_x(x, view),
            *([f"# Without {plural(len(foreign), 'run')} of MLflow's own."] if foreign else []),
            *_notes(wanted, view, chosen),
            *_drawing(x, len(metrics)),
            "",
        ]
    )


def _foreign(source: Source, runs: Sequence[RunEntry]) -> set[str]:
    """Ids of the runs that only MLflow has (`radt.frontend.foreign`)."""
    is_foreign = getattr(source.reader, "is_foreign", None)
    return {run.run_id for run in runs if is_foreign and is_foreign(run.run_id)}


def _imports(source: Source) -> Iterator[str]:
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


def _load(source: Source, metrics: Sequence[str], *, rates: bool) -> Iterator[str]:
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


def _notes(charts: Sequence[ChartSpec], view: View, chosen: Chosen) -> Iterator[str]:
    """What charts do, and these lines do not."""
    board = view.board
    if any(
        any(chosen.drawn_at(chart.level_of(board)).values())
        or chart.level_of(board) is Level.WORKLOAD
        for chart in charts
    ):
        yield "# Charts draw the runs of a workload as one line; these are the runs."
    if any(chart.smoothing_of(board) for chart in charts):
        yield "# Charts smooth them; these are the samples."
    if any(chart.relative_of(board) is not Relative.OFF for chart in charts):
        yield "# Charts show them relative to a baseline; these are the samples."


def _drawing(x: XAxis, metric_count: int) -> Iterator[str]:
    rows = ', facet_row="metric"' if metric_count > 1 else ""
    # Over steps each line is in the order it was logged, which is that of the steps.
    yield f'figure = px.line(frame, x="x", y="value", color="line"{rows})'
    if metric_count > 1:
        yield "figure.update_yaxes(matches=None)  # each metric has its own unit"
    yield f"figure.update_xaxes(title={_title(x)!r}).show()"


def _title(x: XAxis) -> str:
    return _SINCE.get(x, x.value)
