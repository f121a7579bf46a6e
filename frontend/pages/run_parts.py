"""The elements of the Run page, section by section."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from urllib.parse import quote

import numpy as np
from dash import dcc, html
from dash.development.base_component import Component

from radt import units
from radt.analysis.missing import why_no_number
from radt.errors import StoreError
from radt.frontend.data.catalog import RunEntry
from radt.frontend.data.run.facts import MAX_CURVES, MetricRow, curve
from radt.frontend.data.run.subject import RunSubject, label_of, offered
from radt.frontend.data.source import Source
from radt.frontend.data.spec import ChartSpec, Pick
from radt.frontend.data.workload.run_facts import Fact
from radt.frontend.files import log_address
from radt.frontend.pages.page import attributes, kept_link, subject_list
from radt.frontend.pages.workload_parts import device_name, swatch
from radt.frontend.pages.workload_tables import mlflow_link, trace_link
from radt.frontend.view import View
from radt.model import STATUS_WORDS, RunStatus, SeriesKind
from radt.store.records import Float64Array
from radt.units import scale_of

#: The size of a metric's small curve.
_CURVE_WIDTH, _CURVE_HEIGHT = 72, 20
#: Maximum number of rows in a table of parameters, tags or packages.
_MAX_FACTS = 500


def head(subject: RunSubject) -> Component:
    """Return the run's name, links to the other pages, and the list of other runs."""
    run = subject.run
    picked = View(picks=(Pick.run(run.record.experiment, run.run_id),))
    return html.Div(
        [
            swatch(subject.hue),
            html.H1(run.title),
            html.Span(run.record.experiment, className="workload-dim"),
            html.Span("newest", className="workload-mark", hidden=not subject.automatic),
            html.Span(className="push"),
            kept_link("Charts", "compare", picked),
            kept_link("Workload", "workload", View(workload=run.record.workload_id)),
            *mlflow_link(run),
            trace_link(run.run_id),
            subject_list(
                *("run-pick", offered(subject.catalog, "", run), run.run_id),
                label="Another run",
                nothing="No matching run in this experiment",
                is_searched=True,
            ),
        ],
        className="workload-head run-head",
    )


def facts_bar(subject: RunSubject) -> list[Component]:
    """Return the state of the run and its command."""
    record = subject.run.record
    facts = [_fact("Status", STATUS_WORDS[record.status], status=record.status)]
    if record.end_reason:
        bad = record.status is not RunStatus.FINISHED
        facts.append(_fact("Reason", record.end_reason, bad=bad))
    began_ns = record.started_ns or record.created_ns
    began = datetime.fromtimestamp(began_ns / 1e9).astimezone()
    facts.append(_fact("Began", began.strftime("%Y-%m-%d %H:%M:%S")))
    if record.started_ns and record.ended_ns:
        facts.append(_fact("Lasted", units.duration(record.lasted_s())))
    elif record.started_ns and subject.is_live:
        facts.append(_fact("Lasts", units.duration(record.lasted_s(time.time_ns()))))
    if not record.is_from_mlflow:
        collocation = "" if record.collocation == "-" else f" · {record.collocation}"
        facts.append(_fact("Devices", device_name(record.devices) + collocation))
    if record.host:
        facts.append(_fact("Machine", record.host))
    facts.append(_fact("Run id", record.run_id))
    if record.command:
        facts.append(_fact("Command", record.command, code=True))
    return facts


def _fact(
    name: str,
    text: str,
    *,
    status: RunStatus | None = None,
    bad: bool = False,
    code: bool = False,
) -> Component:
    marks = {"data_status": status.value} if status else {"data_bad": "yes"} if bad else {}
    return html.Div(
        [html.Dt(name), html.Dd(html.Code(text) if code else text, **attributes(**marks))],
        className="run-command" if code else None,
        **attributes(data_fact=name.lower().replace(" ", "-")),
    )


# -- metrics -------------------------------------------------------------------------------------


def metrics_panel(content: Sequence[Component]) -> Component:
    """Return the panel of all metrics in numbers, with a search field."""
    return _panel(
        "Metrics",
        html.Div(list(content), id="run-metrics"),
        html.Label(
            [
                html.Span("Find a metric", className="unseen"),
                dcc.Input(
                    id="run-filter",
                    type="search",
                    placeholder="Find a metric",
                    debounce=0.15,
                    className="run-search",
                ),
            ]
        ),
    )


def metrics_section(
    source: Source, subject: RunSubject, rows: Sequence[MetricRow], search: str
) -> list[Component]:
    """Return the table of all metrics whose names contain all words of a search."""
    if not rows:
        return [html.P("No metrics recorded.", className="workload-dim")]
    words = search.lower().split()
    shown = [row for row in rows if all(word in row.name.lower() for word in words)]
    if not shown:
        return [html.P(f"None of {len(rows)} metrics matches.", className="workload-dim")]
    body = [
        _metric_row(subject, row, _curve(source, subject.run, row) if place < MAX_CURVES else None)
        for place, row in enumerate(shown)
    ]
    names = ("metric", "unit", "last", "min", "max", "mean", "total", "values", "")
    numeric = range(2, 8)
    table = html.Table(
        [
            html.Thead(
                html.Tr(
                    [
                        html.Th(
                            name or html.Span("curve", className="unseen"),
                            scope="col",
                            className="workload-right" if place in numeric else None,
                        )
                        for place, name in enumerate(names)
                    ]
                )
            ),
            html.Tbody(body),
        ],
        className="workload-table run-metrics",
    )
    return [_scrolling(table, "Metrics")]


def _curve(source: Source, run: RunEntry, row: MetricRow) -> Float64Array | None:
    try:
        return curve(source, run, row)
    except StoreError:
        return None  # a damaged chunk, which the Compare page reports


def _metric_row(subject: RunSubject, row: MetricRow, values: Float64Array | None) -> Component:
    run = subject.run
    chart = View(
        picks=(Pick.run(run.record.experiment, run.run_id),), charts=(ChartSpec(row.series.metric),)
    )
    cells = [
        html.Td(_number(row, number), title=_exact(row, number, is_growth=is_growth))
        for number, is_growth in (
            *((row.last, False), (row.minimum, False), (row.maximum, False)),
            (row.mean, True),
        )
    ]
    is_counter = row.series.kind is SeriesKind.COUNTER
    of_total = _exact(row, row.total, is_growth=True) if is_counter else None
    return html.Tr(
        [
            html.Th(
                kept_link(row.name, "compare", chart),
                scope="row",
                title=row.explanation,
            ),
            html.Td(row.label, className="workload-dim"),
            *cells,
            html.Td(_total(row), title=of_total),
            html.Td(f"{row.count:,}", className="workload-dim"),
            html.Td(_small_curve(values)),
        ],
        **attributes(data_metric=row.name),
    )


def _number(row: MetricRow, value: float | None) -> str:
    scaled = row.scaled(value)
    return units.NO_VALUE if scaled is None else units.significant(scaled, 4)


def _total(row: MetricRow) -> str:
    """Return the growth of a counter, with its unit; "" for other series."""
    if row.series.kind is not SeriesKind.COUNTER:
        return ""
    if row.total is None:
        return units.NO_VALUE
    if row.series.unit == "1":  # a count for counters; a ratio for other series
        return units.significant(row.total, 4)
    scale = scale_of(row.series.unit, row.total)
    return f"{units.significant(row.total * scale.factor, 4)} {scale.label}".rstrip()


def _exact(row: MetricRow, value: float | None, *, is_growth: bool) -> str:
    """Return a number at full precision, or why it is missing."""
    if value is None:
        return why_no_number(row.series.kind, is_growth=is_growth)
    return repr(value)


def _small_curve(values: Float64Array | None) -> Component:
    """Return a curve without axes, in the text colour.

    It is a mask, as a strict content policy allows no inline SVG from Dash.
    """
    finite = np.asarray([]) if values is None else values[np.isfinite(values)]
    if len(finite) < 2:
        return html.Span()
    low, high = float(finite.min()), float(finite.max())
    x = np.linspace(1, _CURVE_WIDTH - 1, len(finite))
    spread = high - low
    share = (finite - low) / spread if spread > 0 else np.full(len(finite), 0.5)
    y = _CURVE_HEIGHT - 2 - share * (_CURVE_HEIGHT - 4)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    picture = (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_CURVE_WIDTH} {_CURVE_HEIGHT}'>"
        f"<polyline points='{points}' fill='none' stroke='black' stroke-width='1.25'/></svg>"
    )
    mask = f'url("data:image/svg+xml,{quote(picture)}")'
    return html.Span(className="run-curve", style={"maskImage": mask, "WebkitMaskImage": mask})


# -- filled by the browser -----------------------------------------------------------------------


def media_panel() -> Component:
    """Return the panel of images, tables and texts by step; hidden without any."""
    return html.Section(
        [html.H2("Logged by step"), html.Div(id="run-media")],
        id="run-media-panel",
        className="workload-panel",
        hidden=True,
    )


def log_panel(subject: RunSubject) -> Component:
    """Return the panel of the log."""
    return html.Section(
        [
            html.Div(
                [
                    html.H2("Log"),
                    html.Span(className="push"),
                    html.Span(id="run-log-note", className="workload-dim"),
                    html.Div(id="run-log-tools", className="run-tools"),
                    html.A("whole log", href=log_address(subject.run.run_id), download=""),
                ],
                className="workload-log-head",
            ),
            html.Div(id="run-log-found"),
            html.Pre(
                id="run-log",
                className="workload-log",
                tabIndex=0,
                role="log",
                **attributes(aria_label="Log", aria_live="off"),
            ),
        ],
        className="workload-panel",
    )


def files_panel() -> Component:
    """Return the panel of files, with the beginning of the chosen one."""
    return _panel(
        "Files",
        html.Div(
            [
                html.Div(id="run-files", className="run-files"),
                html.Div(
                    [
                        html.Div(id="run-preview"),
                        html.Div(
                            dcc.Markdown("", id="run-markdown", link_target="_blank"),
                            id="run-markdown-box",
                            hidden=True,
                        ),
                    ],
                    className="run-preview",
                ),
            ],
            className="run-files-grid",
        ),
    )


# -- beside another run --------------------------------------------------------------------------


def other_panel(subject: RunSubject, content: Sequence[Component]) -> Component:
    """Return the panel of parameters, tags and packages, with the choice of another run."""
    other = subject.other
    return _panel(
        "Parameters and environment",
        html.Div(list(content), id="run-differences", className="run-differences"),
        html.Span("vs", className="workload-dim"),
        subject_list(
            "run-other",
            offered(subject.catalog, "", other),
            None if other is None else other.run_id,
            label="Run to compare with",
            nothing="No matching run in this experiment",
            is_searched=True,
        ),
    )


def differences_section(
    subject: RunSubject, parts: Mapping[str, Sequence[Fact]]
) -> list[Component]:
    """Return a table for each kind of fact, with differences visible and the rest collapsed."""
    heads = ["", "this run"]
    if subject.other is not None:
        heads.append(label_of(subject.other))
    return [
        html.Div([html.H3(title), *_facts(title, facts, heads)], className="workload-facts-part")
        for title, facts in parts.items()
        if facts
    ]


def _facts(name: str, facts: Sequence[Fact], heads: Sequence[str]) -> list[Component]:
    differing = [fact for fact in facts if fact.differs]
    same = [fact for fact in facts if not fact.differs]
    alone = len(heads) == 2
    content: list[Component] = []
    if differing:
        rows = [_fact_row(fact, fact.values) for fact in differing]
        content.append(_facts_table(rows, heads, f"{name} that differ"))
    if same:
        rows = [_fact_row(fact, fact.values[:1]) for fact in same]
        table = _facts_table(rows, ["", "this run" if alone else "both runs"], name)
        title = units.plural(len(same), "value") if alone else f"{len(same):,} the same"
        content.append(
            html.Details([html.Summary(title), table], open=not differing and name != "Packages")
        )
    return content


def _fact_row(fact: Fact, values: Sequence[str | None]) -> Component:
    cells = [html.Td(units.NO_VALUE if value is None else _text(value)) for value in values]
    return html.Tr([html.Th(_text(fact.name), scope="row"), *cells])


def _facts_table(rows: Sequence[Component], heads: Sequence[str], title: str) -> Component:
    columns = [
        html.Th(head or html.Span("name", className="unseen"), scope="col") for head in heads
    ]
    shown = list(rows[:_MAX_FACTS])
    if len(rows) > len(shown):
        shown.append(html.Tr(html.Th(f"and {len(rows) - len(shown):,} more", scope="row")))
    table = html.Table(
        [html.Thead(html.Tr(columns)), html.Tbody(shown)],
        className="workload-table workload-values",
    )
    return _scrolling(table, title)


def _text(text: str) -> str:
    """Return a text that JSON can encode."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _scrolling(table: Component, title: str) -> Component:
    return html.Div(
        table,
        className="workload-scroll",
        tabIndex=0,
        role="region",
        **attributes(aria_label=f"{title}, scrolls sideways"),
    )


def _panel(title: str, content: Component, *tools: Component) -> Component:
    return html.Section(
        [
            html.Div(
                [html.H2(title), html.Span(className="push"), *tools],
                className="workload-log-head",
            ),
            content,
        ],
        className="workload-panel",
    )
