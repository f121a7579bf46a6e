"""Advice: what `radt advise` knows of an experiment, and the next experiment as a file."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dash import Dash, html
from dash.development.base_component import Component
from flask import Response, request

from radt.analysis.advice import Advice
from radt.analysis.advice_experiment import NextExperiment, next_experiment
from radt.errors import RadtError, RunNotFoundError, UsageError
from radt.frontend.addresses import address
from radt.frontend.answers import CSV_MIME, attached, text_answer
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.catalog import read_experiments
from radt.frontend.data.report import read_advice
from radt.frontend.pages.json_routes import Answer, add_json_routes, asked_view
from radt.frontend.pages.page import Page, choice_field
from radt.frontend.pages.parts import changed, followed, template
from radt.frontend.selection import focused_experiment
from radt.frontend.view import View
from radt.render.advice import RECOMMENDATION, advice_document
from radt.render.files import file_name
from radt.render.markup import table_html
from radt.render.model import Block, Table

DATA_PATH, FILE_PATH = "advice/data", "advice/next.csv"
#: The option that shows every candidate.
_ALL = "advice.all"


def layout(source: CachedStore, view: View) -> Component:
    """Return the page, whose parts `DATA_PATH` fills.

    Raises:
        NothingRecordedError: There is no experiment.
        RunNotFoundError: The store does not have the view's experiment.
        StoreError: The store cannot be read.
    """
    names = [experiment.name for experiment in read_experiments(source)]
    chosen = choice_field(
        "advice-experiment",
        names,
        focused_experiment(source, view),
        label="Experiment",
        style="subject",
    )
    return html.Section(
        [
            html.H1("Advice", className="unseen"),
            html.Div([chosen, html.Div(id="advice-head")], className="advice-head"),
            html.Div(html.Div(className="report-sketch"), id="advice-body"),
        ],
        className="report advice",
        **followed(DATA_PATH),
    )


def register(app: Dash, source: CachedStore) -> None:
    """Register the routes of the page."""
    add_json_routes(app.server, source, {DATA_PATH: answer})
    app.server.add_url_rule(f"/{FILE_PATH}", "advice-next", lambda: _file(source))


def answer(source: CachedStore, asked: Answer) -> Answer | None:
    """Return the parts of the page that changed.

    Raises:
        NothingRecordedError: There is no experiment.
        RunNotFoundError: The store does not have the view's experiment.
        StoreError: The store cannot be read.
    """
    view = asked_view(asked)
    advice = read_advice(source, focused_experiment(source, view))
    is_all = _ALL in view.options
    document = advice_document(advice, all_of_them=is_all, all_by="“All candidates”")
    # What to do comes first; on a terminal, what comes last is in sight.
    blocks = sorted(document, key=lambda block: _title(block) != RECOMMENDATION)
    macros: Any = template("advice.html")
    options = {name: text for name, text in view.options.items() if name != _ALL}
    toggled = replace(view, options=options if is_all else {**options, _ALL: "1"})
    following, reason = _next(advice)
    query = view.to_query()
    parts = {
        "head": macros.head(
            document.facts, following, reason, address(FILE_PATH, query), address("report", query)
        ),
        "body": macros.body(
            [(_title(block), block, _cells(block)) for block in blocks],
            advice.is_refused,
            is_all,
            address(PAGE.path, toggled.to_query()),
        ),
    }
    return changed(asked, {f"advice-{name}": html for name, html in parts.items()})


def _title(block: Block) -> str:
    return getattr(block, "title", "")


def _cells(block: Block) -> str:
    """Return a table as HTML; empty for notes."""
    return table_html(block) if isinstance(block, Table) else ""


def _next(advice: Advice) -> tuple[NextExperiment | None, str]:
    """Return the next experiment, or why there is none."""
    try:
        return next_experiment(advice), ""
    except UsageError as error:
        return None, error.message


def _file(source: CachedStore) -> Response:
    view = View.from_query(request.query_string.decode("ascii", "replace"))
    try:
        advice = read_advice(source, focused_experiment(source, view))
        text = next_experiment(advice).text
    except (RunNotFoundError, UsageError) as error:
        return text_answer(str(error), 404)
    except RadtError as error:
        return text_answer(str(error), 503)
    return attached(text, CSV_MIME, file_name([advice.measurements.experiment, "next"], "csv"))


PAGE = Page("advice", "Advice", layout, register, focused_experiment)
