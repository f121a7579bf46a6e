"""Run: one run's facts, metrics, parameters, log and files.

One route fills the parts of the page for the view (`radt.frontend.pages.parts`). The browser fills
the log, the files and values logged by step (static/run*.js) from the routes of
`radt.frontend.run_routes`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, cast

import numpy as np
from dash import Dash, html
from dash.development.base_component import Component

from radt import units
from radt.analysis.missing import why_no_number
from radt.errors import RunNotFoundError, StoreError
from radt.frontend import run_routes
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.catalog import RunEntry
from radt.frontend.data.run.facts import MAX_CURVES, MetricRow, curve, differences, metric_rows
from radt.frontend.data.run.subject import RunSubject, find_run, label_of, offered
from radt.frontend.data.run_files import tail_of
from radt.frontend.data.spec import ChartSpec, Pick
from radt.frontend.files import open_log, trace_address
from radt.frontend.pages.json_routes import Answer, add_json_routes, asked_view
from radt.frontend.pages.page import Page, attributes
from radt.frontend.pages.parts import KeyFigure, changed, followed, template
from radt.frontend.pages.workload_texts import device_name, mlflow_address
from radt.frontend.view import View
from radt.model import STATUS_WORDS, RunStatus, SeriesKind
from radt.units import scale_of

DATA_PATH, OFFERED_PATH = "run/data", "run/offered"
#: The view's option with the words that listed metrics contain.
FILTER = "run.metric"
#: Number of last log lines shown at the top of a failed run's page.
_LAST_LINES = 15
#: The size of a metric's small curve.
_CURVE_WIDTH, _CURVE_HEIGHT = 72, 20
#: Maximum number of rows in a table of parameters, tags or packages.
_MAX_FACTS = 500


def layout(source: CachedStore, view: View) -> Component:
    """Return the page, whose parts `DATA_PATH` fills.

    Raises:
        RunNotFoundError: There is no such run.
        NothingRecordedError: There is no experiment.
        StoreError: The store cannot be read.
    """
    find_run(source, view)
    return html.Section(
        [
            html.Div(id="run-head", className="workload-head run-head"),
            html.Div(id="run-failure"),
            html.Dl(id="run-facts", className="workload-facts"),
            html.Section(
                html.Div(id="run-notes", className="notes"), **attributes(aria_label="Notes")
            ),
            html.Div(id="run-panels"),
            _files_panel(),
        ],
        className="workload run",
        **followed(DATA_PATH),
    )


def _files_panel() -> Component:
    """Return the panel of files, with the beginning of the chosen one."""
    return html.Section(
        [
            html.H2("Files"),
            html.Div(
                [
                    html.Div(id="run-files", className="run-files"),
                    html.Div(id="run-preview", className="run-preview"),
                ],
                className="run-files-grid",
            ),
        ],
        className="workload-panel",
    )


def register(app: Dash, source: CachedStore) -> None:
    """Register the routes of the page."""
    run_routes.register(app, source)
    add_json_routes(app.server, source, {DATA_PATH: answer, OFFERED_PATH: offered_answer})


def _chosen(source: CachedStore, view: View) -> str:
    subject = find_run(source, view)
    return f"{subject.run.short} of {subject.run.record.experiment}"


PAGE = Page("run", "Run", layout, register, _chosen)


def answer(source: CachedStore, asked: Answer) -> Answer | None:
    """Return the parts of the page that changed.

    Raises:
        RunNotFoundError: There is no such run.
        NothingRecordedError: There is no experiment.
        StoreError: The store cannot be read.
    """
    view = asked_view(asked)
    subject = find_run(source, view)
    run, other = subject.run, subject.other
    macros: Any = template("run.html")
    charts = View(picks=(Pick.run(run.record.experiment, run.run_id),))
    rows = metric_rows(source, run.run_id)
    words = view.options.get(FILTER, "").lower().split()
    matching = [row for row in rows if all(word in row.name.lower() for word in words)]
    links = mlflow_address(run), trace_address(run.run_id)
    parts = {
        "panels": macros.panels(),
        "head": macros.head(
            *(subject, charts, View(workload=run.record.workload_id), *links),
            *(offered(subject.catalog, "", run), OFFERED_PATH),
        ),
        "failure": _failure(source, run),
        "facts": template("common.html").facts(_facts(subject)),
        "metrics": macros.metrics(_metrics(source, subject, matching), len(rows)),
        "others": macros.others(offered(subject.catalog, "", other), other, OFFERED_PATH),
        "differences": macros.differences(
            differences(source, subject), label_of(other) if other else "", _MAX_FACTS
        ),
    }
    return changed(
        asked,
        {f"run-{name}": html for name, html in parts.items()},
        id=run.run_id,
        live=subject.is_live,
    )


def offered_answer(source: CachedStore, asked: Answer) -> Answer:
    """Return the runs whose labels contain the words of a search.

    Raises:
        RunNotFoundError, NothingRecordedError, StoreError: As `answer`.
    """
    catalog = find_run(source, asked_view(asked)).catalog
    shown = catalog.runs.get(str(asked.get("value")))
    return {"choices": offered(catalog, str(asked.get("search", "")), shown)}


def _failure(source: CachedStore, run: RunEntry) -> str:
    """Return why a run did not finish, and the last lines of its log; "" for other runs."""
    status = run.record.status
    if not status.ended or status is RunStatus.FINISHED:
        return ""
    lines, note = "", ""
    try:
        with open_log(run.record, source.address) as file:
            lines = "\n".join(tail_of(file, _LAST_LINES))
    except (RunNotFoundError, OSError) as error:
        note = str(error)
    macros: Any = template("run.html")
    reason = run.record.end_reason or STATUS_WORDS[status]
    return cast("str", macros.failure(reason, lines, note))


def _facts(subject: RunSubject) -> list[KeyFigure]:
    """Return the key facts of the run: status, times, devices, machine, id and command."""
    record = subject.run.record
    facts = [KeyFigure("Status", STATUS_WORDS[record.status], status=record.status.value)]
    if record.end_reason and record.status is RunStatus.FINISHED:
        facts.append(KeyFigure("Reason", record.end_reason))
    began_ns = record.started_ns or record.created_ns
    began = datetime.fromtimestamp(began_ns / 1e9).astimezone()
    facts.append(KeyFigure("Started", began.strftime("%Y-%m-%d %H:%M:%S")))
    if record.started_ns and record.ended_ns:
        facts.append(KeyFigure("Duration", units.duration(record.lasted_s())))
    elif record.started_ns and subject.is_live:
        facts.append(KeyFigure("Running for", units.duration(record.lasted_s(time.time_ns()))))
    if not record.is_from_mlflow:
        collocation = "" if record.collocation == "-" else f" · {record.collocation}"
        facts.append(KeyFigure("Devices", device_name(record.devices) + collocation))
    if record.host:
        facts.append(KeyFigure("Machine", record.host))
    facts.append(KeyFigure("Run id", record.run_id))
    if record.command:
        facts.append(KeyFigure("Command", record.command, is_code=True))
    return facts


# -- metrics -------------------------------------------------------------------------------------


def _metrics(
    source: CachedStore, subject: RunSubject, rows: Sequence[MetricRow]
) -> list[dict[str, Any]]:
    """Return the lines of the table of metrics, the first ones with a curve."""
    pick = Pick.run(subject.run.record.experiment, subject.run.run_id)
    return [
        {
            "name": row.name,
            "explanation": row.explanation,
            "unit": row.label,
            "chart": View(picks=(pick,), charts=(ChartSpec(row.series.metric),)),
            "numbers": [
                *((_number(row, each), _exact(row, each)) for each in row.extremes),
                (_number(row, row.mean), _exact(row, row.mean, is_growth=True)),
                _total(row),
            ],
            "count": f"{row.count:,}",
            "curve": _points(source, subject.run, row) if place < MAX_CURVES else "",
        }
        for place, row in enumerate(rows)
    ]


def _number(row: MetricRow, value: float | None) -> str:
    scaled = row.scaled(value)
    return units.NO_VALUE if scaled is None else units.significant(scaled, 4)


def _exact(row: MetricRow, value: float | None, *, is_growth: bool = False) -> str:
    """Return a number at full precision, or why it is missing."""
    if value is None:
        return why_no_number(row.series.kind, is_growth=is_growth)
    return repr(value)


def _total(row: MetricRow) -> tuple[str, str]:
    """Return the growth of a counter with its unit, and exactly; empty for other series."""
    if row.series.kind is not SeriesKind.COUNTER:
        return "", ""
    exact = _exact(row, row.total, is_growth=True)
    if row.total is None:
        return units.NO_VALUE, exact
    if row.series.unit == "1":  # a count for counters; a ratio for other series
        return units.significant(row.total, 4), exact
    scale = scale_of(row.series.unit, row.total)
    return f"{units.significant(row.total * scale.factor, 4)} {scale.label}".rstrip(), exact


def _points(source: CachedStore, run: RunEntry, row: MetricRow) -> str:
    """Return the points of a metric's small curve; "" without any."""
    try:
        values = curve(source, run, row)
    except StoreError:
        return ""  # a damaged chunk, which the Compare page reports
    finite = values[np.isfinite(values)]
    if len(finite) < 2:
        return ""
    low, spread = float(finite.min()), float(np.ptp(finite))
    share = (finite - low) / spread if spread > 0 else np.full(len(finite), 0.5)
    x = np.linspace(1, _CURVE_WIDTH - 1, len(finite))
    y = _CURVE_HEIGHT - 2 - share * (_CURVE_HEIGHT - 4)
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
