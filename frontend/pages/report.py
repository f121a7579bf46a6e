"""Report: the table of `radt report`, and the same bars.

The layout has empty parts, which one route fills for the view (`radt.frontend.pages.parts`).
static/report.js has the controls, which change the view.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from dash import Dash, html
from dash.development.base_component import Component
from flask import Flask, Response, request
from markupsafe import Markup, escape

from radt.analysis.quantities import Quantity
from radt.analysis.selection import Omission
from radt.analysis.series_quantities import SeriesQuantity
from radt.analysis.window_spec import DEFAULT_WINDOW
from radt.errors import RadtError
from radt.frontend.addresses import address
from radt.frontend.answers import attached, text_answer
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.catalog import read_experiments
from radt.frontend.data.report import read_progress, read_shown, suggestions
from radt.frontend.data.report_model import (
    BY_NAME,
    BY_ORDER,
    BY_WORKLOAD,
    MAX_SERIES,
    SEPARATOR,
    Choices,
    Shown,
)
from radt.frontend.data.spec import ID_DIGITS, Pick
from radt.frontend.pages.json_routes import Answer, add_json_routes, asked_view
from radt.frontend.pages.page import Page, attributes
from radt.frontend.pages.parts import changed, followed, template
from radt.frontend.selection import MAX_RUNS, latest_experiment
from radt.frontend.theme import Scheme, colour
from radt.frontend.view import View
from radt.model import STATUS_WORDS, RunStatus
from radt.render.bars import Bar, charts_of
from radt.render.files import file_name, rendered
from radt.render.formats import ReportFormat
from radt.render.interference import matrices
from radt.render.markup import bars_file, bars_svg, table_html
from radt.render.model import Cell, Row, Scope, Table, Tone
from radt.render.report import values_table
from radt.render.report_content import Item, Line, lines_of, reasons_of
from radt.units import plural

DATA_PATH, PROGRESS_PATH, BARS_PATH = "report/data", "report/progress", "report/bars.svg"
#: Workloads on one page of the table.
PAGE_ROWS = 100
#: Sort keys of the columns beside the quantities.
_SORTS = {"workload": BY_WORKLOAD, "runs": BY_NAME}
#: The page's downloads, with the texts of their links.
DOWNLOADS = {
    ReportFormat.HTML: "HTML",
    ReportFormat.MARKDOWN: "Markdown",
    ReportFormat.CSV: "CSV",
    ReportFormat.JSON: "JSON",
}
#: Suggestions; any value of `radt report --window` may be typed.
_WINDOWS = ("epoch:2", "epoch:2-", "steady", "all", "train")
_SERIES_EXAMPLE = "last(accuracy), time_to(accuracy>=0.65)"
_NO_VALUES = (
    "No run finished an epoch or recorded throughput or load, so there is nothing to compare. "
    "Mark epochs with run.epochs() in the script, or name listeners in the experiment file."
)
_NO_EPOCHS = (
    "Time per epoch is not known because no epochs are marked. "
    "Loop over run.epochs() in the script."
)


def layout(source: CachedStore, view: View) -> Component:
    """Return the page, whose parts `DATA_PATH` fills.

    Raises:
        NothingRecordedError: There is no experiment.
        StoreError: The store cannot be read.
    """
    _chosen(source, view)
    table: Any = {"tabIndex": "0", "role": "region"}
    return html.Section(
        [
            html.H1("Report", className="unseen"),
            html.Div(id="report-head", className="report-head"),
            html.P(id="report-progress", className="report-progress", role="status"),
            html.Div(
                html.Div(className="report-sketch"),
                id="report-table",
                className="report-scroll",
                **table,
                **attributes(aria_label="Table of the report"),
            ),
            html.Div(id="report-pages", className="report-pages"),
            html.Div(id="report-matrices", className="report-matrices"),
            html.Div(id="report-charts", className="report-charts"),
            html.Footer(id="report-notes", className="report-notes"),
        ],
        className="report",
        **followed(DATA_PATH),
    )


def register(app: Dash, source: CachedStore) -> None:
    """Register the routes of the page."""
    add_json_routes(app.server, source, {DATA_PATH: answer, PROGRESS_PATH: progress_answer})
    _install_files(app.server, source)


def answer(source: CachedStore, asked: Answer) -> Answer | None:
    """Return the parts of the page that changed.

    Raises:
        NothingRecordedError: There is no experiment.
        StoreError: The store cannot be read.
    """
    view = asked_view(asked)
    shown, choices = read_shown(source, view), Choices.of(view.options)
    macros: Any = template("report.html")
    head = (_WINDOWS, DEFAULT_WINDOW.text, _SERIES_EXAMPLE, MAX_SERIES, SEPARATOR)
    problem = choices.series_error or next(map(str, (each.error for each in shown.problems)), "")
    # Quantities of series are chosen elsewhere.
    columns, measured = (
        [each for each in quantities if isinstance(each, Quantity)]
        for quantities in (shown.columns, shown.quantities)
    )
    content = shown.in_columns
    parts = {
        "head": macros.head(*head),
        "facts": " · ".join(shown.facts),
        "error": " ".join(filter(None, [choices.window_error, problem])),
        "table": _table_part(shown, choices, view, _unknown(source, shown)),
        "pages": _pages(shown, choices),
        "links": _links(shown, choices, view),
        "matrices": Markup().join(
            macros.matrix(table.title, table.explanation, table_html(table))
            for table in matrices(shown).values()
        ),
        "charts": _charts(shown, choices, view),
        "notes": macros.notes([content.interval_note, *content.notes]),
    }
    return changed(
        asked,
        {f"report-{name}": html for name, html in parts.items()},
        experiment=view.experiment or latest_experiment(source),
        experiments=[experiment.name for experiment in read_experiments(source)],
        suggested=suggestions(source, shown.experiments[0]),
        columns=[each.value for each in columns],
        measured=[[each.value, each.info.title] for each in measured],
        can_pick=bool(view.picks),
        can_profile=bool(shown.count(Omission.PROFILED) or choices.profiled),
    )


def progress_answer(source: CachedStore, asked: Answer) -> Answer | None:
    """Return the number of workloads read so far; None if no report is being read.

    Raises:
        NothingRecordedError: No experiment is stored.
        StoreError: The store cannot be read.
    """
    progress = read_progress(source, asked_view(asked))
    return None if progress is None else {"read": progress[0], "of": progress[1]}


def _chosen(source: CachedStore, view: View) -> str:
    return view.experiment or latest_experiment(source)


PAGE = Page("report", "Report", layout, register, _chosen)


# -- the table ----------------------------------------------------------------------------------


def page_of(shown: Shown, choices: Choices) -> tuple[int, int]:
    """Return the shown page of the table (the chosen one or the last), and the number of pages."""
    count = max(1, -(-len(shown.items) // PAGE_ROWS))
    return min(choices.page, count - 1), count


def _in_sight(shown: Shown, choices: Choices) -> list[Item]:
    start = page_of(shown, choices)[0] * PAGE_ROWS
    return list(shown.items[start : start + PAGE_ROWS])


def table_of(shown: Shown, choices: Choices, view: View) -> Table:
    """Return one page of the table, with links to the workloads, and sortable heads."""
    lines = lines_of(_in_sight(shown, choices))
    values = values_table(shown, lines, shown.columns)
    values = values.part(values.values, Scope.ROW)
    keys = [_SORTS.get(column.title, "") for column in values.columns]
    keys[len(keys) - len(shown.columns) :] = [quantity.value for quantity in shown.columns]
    order = "descending" if choices.is_descending else "ascending"
    columns = [
        replace(column, sort=key, order=order if key and key == choices.sort else "")
        for column, key in zip(values.columns, keys, strict=True)
    ]
    rows = []
    for line, row in zip(lines, values.rows, strict=True):
        cells = list(row.cells)
        if line.is_first:
            cells[0] = _workload(shown, line.item, view)
        place = keys.index(BY_NAME)
        cells[place] = _runs(line, cells[place])
        rows.append(Row(cells, row.is_first))
    return Table(columns, rows)


def _workload(shown: Shown, item: Item, view: View) -> Cell:
    target = replace(
        view, experiment=item.experiment, workload=item.summary.workload_id[:ID_DIGITS]
    )
    return Cell(
        item.label,
        explanation=f"Workload {item.name}",
        href=address("workload", target.to_query()),
        colours=_colours(shown.tint(item)),
    )


def _colours(tint: int) -> tuple[str, str]:
    return colour(tint, Scheme.LIGHT), colour(tint, Scheme.DARK)


def _runs(line: Line, cell: Cell) -> Cell:
    status = line.group.status
    if status is RunStatus.FINISHED:
        return cell
    why = "; ".join(reasons_of(line.group))
    text = f"{cell.text} {STATUS_WORDS[status]}"
    return Cell(text, explanation=why, tone=Tone.BAD)


def _unknown(source: CachedStore, shown: Shown) -> str:
    """Return an experiment that is asked for and not stored; empty if all are."""
    known = {experiment.name for experiment in read_experiments(source)}
    return next((name for name in shown.experiments if name not in known), "")


def _table_part(shown: Shown, choices: Choices, view: View, unknown: str) -> Markup:
    macros: Any = template("report.html")
    if not shown.items and unknown:
        return escape(macros.nothing(f"There is no experiment {unknown}", "Choose another one."))
    if not shown.items:
        return escape(macros.nothing(*_nothing(shown, choices)))
    note = "" if Quantity.TIME_PER_EPOCH in shown.quantities else _NO_EPOCHS
    cells = table_html(table_of(shown, choices, view))
    return escape(macros.table(cells, note if shown.quantities else _NO_VALUES))


def _nothing(shown: Shown, choices: Choices) -> tuple[str, str]:
    """Return the reason for an empty table, and the remedy."""
    if choices.picked:
        return "No selected run has ended", "Select other workloads, or show all."
    if open_count := sum(selection.open_count for selection in shown.selections):
        what = f"{plural(open_count, 'run')} in progress. This page updates when they end."
        return "No run has ended yet", what
    if shown.count(Omission.PROFILED):
        what = "Profilers slow runs down. Turn on 'with profiled runs' to see them."
        return "Only profiled runs have ended", what
    if shown.count(Omission.ARCHIVED):
        return "All runs that have ended are archived", "Take them out of the archive."
    return "No run has ended", "A report needs at least one run that has ended."


def _pages(shown: Shown, choices: Choices) -> Markup:
    macros: Any = template("report.html")
    page, count = page_of(shown, choices)
    first, total = page * PAGE_ROWS + 1, len(shown.items)
    last = min(total, first + PAGE_ROWS - 1)
    return escape(macros.pages(page, count, f"{first:,}", f"{last:,}", f"{total:,}"))


def _links(shown: Shown, choices: Choices, view: View) -> Markup:
    """Return links to the files, and to Compare with this page's workloads."""
    compared: list[Pick] = []
    count = 0
    for item in _in_sight(shown, choices):
        count += item.summary.run_count
        if compared and count > MAX_RUNS:
            break
        compared.append(Pick.workload(item.experiment, item.summary.workload_id))
    macros: Any = template("report.html")
    files = [(text, address(path_of(kind), view.to_query())) for kind, text in DOWNLOADS.items()]
    target = ""
    if compared:
        target = address("compare", replace(view, picks=tuple(compared)).to_query())
    advised = replace(view, experiment=shown.experiments[0])
    return escape(macros.links(files, target, address("advice", advised.to_query())))


# -- bars and files -----------------------------------------------------------------------------


def _charts(shown: Shown, choices: Choices, view: View) -> Markup:
    macros: Any = template("report.html")

    def colours_of(bar: Bar) -> tuple[str, str]:
        return _colours(shown.tint(bar.item, bar.group))

    query = view.to_query()
    return Markup().join(
        macros.chart(
            chart,
            bars_svg(chart, colours_of),
            address(BARS_PATH, f"{query}&{urlencode({'quantity': chart.axis.quantity.value})}"),
        )
        for chart in sorted(
            charts_of(shown, in_order=choices.sort != BY_ORDER).charts,
            key=lambda chart: not isinstance(chart.axis.quantity, SeriesQuantity),
        )
    )


def path_of(kind: ReportFormat) -> str:
    """Return the path of a file's download."""
    return f"report/file.{kind.suffix}"


def _install_files(server: Flask, source: CachedStore) -> None:
    """Add the routes of downloads."""

    def report(kind: ReportFormat) -> Callable[[Shown, Choices], Response]:
        def make(shown: Shown, choices: Choices) -> Response:
            # The page's columns are chosen for readers; data files have all measured quantities.
            text = rendered(shown if choices.columns is None else shown.in_columns, kind)
            name = file_name([*shown.experiments[:1], "report"], kind.suffix)
            return attached(text, kind.mime, name)

        return make

    def bars(shown: Shown, choices: Choices) -> Response:
        for chart in charts_of(shown, in_order=choices.sort != BY_ORDER).charts:
            quantity = chart.axis.quantity
            if quantity.value == request.args.get("quantity"):
                words = quantity.words if isinstance(quantity, SeriesQuantity) else quantity.value
                title = f"{', '.join(shown.experiments)} · {shown.window}"
                text = bars_file(chart, title)
                name = file_name([*shown.experiments[:1], words], "svg")
                return attached(text, "image/svg+xml", name)
        return text_answer("There is no such chart", 404)

    def answering(make: Callable[[Shown, Choices], Response]) -> Callable[[], Response]:
        def file() -> Response:
            view = View.from_query(request.query_string.decode("ascii", "replace"))
            try:
                shown = read_shown(source, view)
                if unknown := _unknown(source, shown):
                    return text_answer(f"There is no experiment {unknown}", 404)
                return make(shown, Choices.of(view.options))
            except RadtError as error:
                return text_answer(str(error), 503)

        return file

    server.add_url_rule(f"/{BARS_PATH}", "report-bars", answering(bars))
    for kind in DOWNLOADS:
        server.add_url_rule(f"/{path_of(kind)}", f"report-{kind.suffix}", answering(report(kind)))
