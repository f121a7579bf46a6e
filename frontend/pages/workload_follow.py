"""How the Workload page follows the store, the view and the pointer: its callbacks."""

from __future__ import annotations

from typing import Any

from dash import ALL, Dash, Input, Output, State, no_update
from dash.exceptions import PreventUpdate

from radt.errors import RadtError
from radt.frontend import files
from radt.frontend.dashing import in_browser, triggers
from radt.frontend.pages import states, workload_figures
from radt.frontend.pages.workload_body import (
    arranged,
    body,
    digests,
    place,
    sections_of,
    shown_of,
    strip_row,
)
from radt.frontend.pages.workload_figures import shown_subject
from radt.frontend.pages.workload_log import chosen_run, read_log
from radt.frontend.source import Source
from radt.frontend.view import View
from radt.frontend.workload.subject import find_subject, offered
from radt.frontend.workload.whole import read_all

#: Parts of the page that follow the store, by the end of their element's id.
SECTIONS = ("facts", "notes", "rows", "outcomes", "devices", "ledger", "files", "params")


def register(app: Dash, source: Source) -> None:
    """Callbacks of the page."""
    _register_subject(app, source)
    _register_news(app, source)
    workload_figures.register(app, source)
    _register_log(app, source)
    _register_browser(app)


def _register_subject(app: Dash, source: Source) -> None:
    @app.callback(
        Output("workload-body", "children"),
        Output("workload-shown", "data"),
        Input("view", "data"),
        Input("revision", "data"),
        State("workload-shown", "data"),
        prevent_initial_call=True,
    )
    def change(
        view_data: dict[str, Any] | None, _: str | None, shown: dict[str, Any] | None
    ) -> tuple[Any, ...]:
        if view_data is None:
            raise PreventUpdate
        view = View.from_json(view_data)
        try:
            subject = find_subject(source, view)
            now = shown_of(subject)
            if shown and now["id"] == shown["id"] and now["runs"] == shown["runs"]:
                return no_update, no_update if now == shown else now
            return body(source, subject, view), now
        except RadtError as error:
            if triggers() == {"revision.data"}:
                raise PreventUpdate from None  # what is shown stays while a database is away
            return states.trouble(error, source.address), None

    @app.callback(
        Output("workload-pick", "data"),
        Input("workload-pick", "searchValue"),
        Input("revision", "data"),
        State("workload-shown", "data"),
        State("workload-pick", "data"),
        prevent_initial_call=True,
    )
    def offer(
        search: str | None, _: str | None, shown: dict[str, Any] | None, known: list[Any]
    ) -> Any:
        subject = shown_subject(source, shown)
        found = offered(subject, search or "")
        labels = {one["label"] for one in found}
        if search and search in labels:
            found = offered(subject, "")  # the text of what is chosen is no search
        return no_update if found == known else found


def _register_news(app: Dash, source: Source) -> None:
    @app.callback(
        *(Output(f"workload-{name}", "children") for name in SECTIONS),
        Output("workload-digests", "data"),
        Output({"type": "workload-slot", "index": ALL}, "children"),
        Output({"type": "workload-slot", "index": ALL}, "style"),
        Output("workload-slots", "data"),
        Input("revision", "data"),
        State("workload-shown", "data"),
        State("workload-digests", "data"),
        State("workload-slots", "data"),
        prevent_initial_call=True,
    )
    def news(
        _: str | None,
        shown: dict[str, Any] | None,
        known: dict[str, str] | None,
        slots: list[str | None],
    ) -> tuple[Any, ...]:
        subject = shown_subject(source, shown)
        try:
            reading = read_all(source, subject)
            sections = sections_of(source, reading)
        except RadtError:
            raise PreventUpdate from None
        now = digests(sections)
        before = known or {}
        by_key = {strip.key: strip for strip in reading.strips}
        placed = arranged(slots, list(by_key))
        return (
            *(no_update if now[name] == before.get(name) else sections[name] for name in SECTIONS),
            no_update if now == known else now,
            [
                no_update if old == new else strip_row(by_key[new], reading) if new else []
                for old, new in zip(slots, placed, strict=True)
            ],
            [no_update if placed == slots else place(key, by_key) for key in placed],
            no_update if placed == slots else placed,
        )


def _register_log(app: Dash, source: Source) -> None:
    @app.callback(
        Output("workload-log", "children"),
        Output("workload-log-note", "children"),
        Output("workload-log-all", "href"),
        Output("workload-log-all", "hidden"),
        Output("workload-log-stamp", "data"),
        Input("workload-log-tabs", "value"),
        Input("workload-follow", "data"),
        State("workload-shown", "data"),
        State("workload-log-stamp", "data"),
        prevent_initial_call=True,
    )
    def follow(
        run_id: str | None, _: int | None, shown: dict[str, Any] | None, known: str
    ) -> tuple[Any, ...]:
        subject = shown_subject(source, shown)
        run = chosen_run(subject, run_id or "")
        if run is None:
            raise PreventUpdate
        log = read_log(source, run)
        stamp = f"{run.run_id} {log.stamp} {log.note}"
        if stamp == known:
            raise PreventUpdate
        return log.text, log.note, files.log_address(run.run_id), not log.is_here, stamp


def _register_browser(app: Dash) -> None:
    """What happens in the browser alone (assets/workload.js)."""
    done = Output("workload-done", "data", allow_duplicate=True)
    in_browser(
        app,
        "workloadPick",
        done,
        Input("workload-pick", "value"),
        State("workload-shown", "data"),
        prevent_initial_call=True,
    )
    in_browser(
        app,
        "workloadStep",
        done,
        Input({"type": "workload-step", "to": ALL}, "n_clicks"),
        prevent_initial_call=True,
    )
    in_browser(
        app,
        "workloadZoom",
        done,
        Input({"type": "workload-strip", "key": ALL}, "relayoutData"),
        Input("workload-timeline", "relayoutData"),
        State("workload-window", "data"),
        prevent_initial_call=True,
    )
    in_browser(
        app,
        "workloadMove",
        done,
        Input({"type": "workload-zoom", "action": ALL}, "n_clicks"),
        State("workload-window", "data"),
        prevent_initial_call=True,
    )
    in_browser(
        app, "workloadLog", done, Input("workload-log-tabs", "value"), prevent_initial_call=True
    )
    in_browser(
        app,
        "workloadFollow",
        Output("workload-follow", "data"),
        Input("tick", "data"),
        State("workload-shown", "data"),
        prevent_initial_call=True,
    )
