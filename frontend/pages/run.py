"""The Run page: its layout, and the callbacks that keep it up to date.

Dash draws facts and numbers. The browser fills the log, the files and values logged by step
(static/run*.js) from the routes of `radt.frontend.run_routes`.
"""

from __future__ import annotations

from typing import Any

from dash import Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate

from radt.errors import RadtError
from radt.frontend import run_routes
from radt.frontend.data.run.facts import differences, metric_rows
from radt.frontend.data.run.subject import RunSubject, find_run, offered
from radt.frontend.data.source import Source
from radt.frontend.notes import notes_card
from radt.frontend.pages.page import Page, choices_json, error_page, in_browser, triggers
from radt.frontend.pages.run_parts import (
    differences_section,
    facts_bar,
    files_panel,
    head,
    log_panel,
    media_panel,
    metrics_panel,
    metrics_section,
    other_panel,
)
from radt.frontend.pages.workload_body import digests
from radt.frontend.view import View

#: Parts of the page that follow the store, by the suffix of their element's id.
SECTIONS = ("facts", "metrics", "differences")


def layout(source: Source, view: View) -> Component:
    """Return the page for a view.

    Raises:
        RunNotFoundError: There is no such run.
        NothingRecordedError: There is no experiment.
        StoreError: The store cannot be read.
    """
    subject = find_run(source, view)
    return html.Section(
        [
            dcc.Store(id="run-shown", data=_shown(subject)),
            dcc.Store(id="run-digests", data={}),
            dcc.Store(id="run-done"),
            html.Div(_body(source, subject), id="run-body"),
        ],
        className="workload run",
    )


def register(app: Dash, source: Source) -> None:
    """Register the callbacks of the page and its routes."""
    run_routes.register(app, source)
    _register_subject(app, source)
    _register_news(app, source)
    done = Output("run-done", "data", allow_duplicate=True)
    for function, *inputs in (
        ("runPick", Input("run-pick", "data-value"), State("run-shown", "data")),
        ("runOther", Input("run-other", "data-value"), State("run-shown", "data")),
        ("runFollow", Input("tick", "data"), Input("run-shown", "data")),
    ):
        in_browser(app, function, done, *inputs, prevent_initial_call="initial_duplicate")


def _chosen(source: Source, view: View) -> str:
    subject = find_run(source, view)
    return f"{subject.run.short} of {subject.run.record.experiment}"


PAGE = Page("run", "Run", layout, register, _chosen)


def _shown(subject: RunSubject) -> dict[str, Any]:
    """Return the browser's state: the shown run, the other one, and whether it is still running."""
    return {
        "id": subject.run.run_id,
        "other": None if subject.other is None else subject.other.run_id,
        "live": subject.is_live,
    }


def _sections(source: Source, subject: RunSubject, search: str) -> dict[str, list[Component]]:
    metrics = metric_rows(source, subject.run.run_id)
    return {
        "facts": facts_bar(subject),
        "metrics": metrics_section(source, subject, metrics, search),
        "differences": differences_section(subject, differences(source, subject)),
    }


def _body(source: Source, subject: RunSubject) -> list[Component]:
    sections = _sections(source, subject, "")
    return [
        head(subject),
        html.Dl(sections["facts"], id="run-facts", className="workload-facts"),
        notes_card(subject.run.run_id),
        html.Div(
            [metrics_panel(sections["metrics"]), other_panel(subject, sections["differences"])],
            className="run-columns",
        ),
        media_panel(),
        log_panel(subject),
        files_panel(),
    ]


def _subject(source: Source, view_data: dict[str, Any] | None) -> RunSubject:
    if view_data is None:
        raise PreventUpdate
    return find_run(source, View.from_json(view_data))


def _register_subject(app: Dash, source: Source) -> None:
    @app.callback(
        Output("run-body", "children"),
        Output("run-shown", "data"),
        Input("view", "data"),
        Input("revision", "data"),
        State("run-shown", "data"),
        prevent_initial_call=True,
    )
    def change(
        view_data: dict[str, Any] | None, _: str | None, shown: dict[str, Any] | None
    ) -> tuple[Any, ...]:
        try:
            subject = _subject(source, view_data)
            now = _shown(subject)
            if shown and now["id"] == shown["id"]:
                return no_update, no_update if now == shown else now
            return _body(source, subject), now
        except RadtError as error:
            if triggers() == {"revision.data"}:
                raise PreventUpdate from None  # keep the content while a database is unreachable
            return error_page(error, source.address), None

    for name in ("run-pick", "run-other"):

        @app.callback(
            Output(name, "data-choices"),
            Input(name, "data-search"),
            State(name, "data-value"),
            State("view", "data"),
            prevent_initial_call=True,
        )
        def offer(search: str | None, chosen: str | None, view_data: dict[str, Any] | None) -> str:
            try:
                catalog = _subject(source, view_data).catalog
            except RadtError:
                raise PreventUpdate from None
            shown = catalog.runs.get(chosen or "")
            return choices_json(offered(catalog, search or "", shown))


def _register_news(app: Dash, source: Source) -> None:
    @app.callback(
        *(Output(f"run-{name}", "children") for name in SECTIONS),
        Output("run-digests", "data"),
        Input("revision", "data"),
        Input("view", "data"),
        Input("run-filter", "value"),
        State("run-digests", "data"),
        prevent_initial_call=True,
    )
    def news(
        _: str | None,
        view_data: dict[str, Any] | None,
        search: str | None,
        known: dict[str, str] | None,
    ) -> tuple[Any, ...]:
        try:
            sections = _sections(source, _subject(source, view_data), search or "")
        except RadtError:
            raise PreventUpdate from None
        now, before = digests(sections), known or {}
        return (
            *(no_update if now[name] == before.get(name) else sections[name] for name in SECTIONS),
            no_update if now == known else now,
        )
