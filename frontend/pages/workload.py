"""The Workload page: its layout, and the callbacks that keep it up to date."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from dash import ALL, MATCH, Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate

from radt import units
from radt.errors import RadtError
from radt.frontend import files
from radt.frontend.charts import timeseries
from radt.frontend.charts.layout import elapsed_label as clock
from radt.frontend.charts.stacks import STRIP_PX, strip_figure
from radt.frontend.charts.timeline import blank, timeline, timeline_px
from radt.frontend.data.source import Source
from radt.frontend.data.spec import Window, XAxis
from radt.frontend.data.workload.model import Strip
from radt.frontend.data.workload.run_facts import (
    Machine,
    gaps_of,
    machine_of,
    machine_on,
    tags_of,
)
from radt.frontend.data.workload.stacks import stack_data
from radt.frontend.data.workload.strips import read_all
from radt.frontend.data.workload.subject import Subject, find_subject, offered
from radt.frontend.pages.json_routes import Answer, add_json_routes, asked_view
from radt.frontend.pages.page import Page, error_page, in_browser, triggers
from radt.frontend.pages.workload_body import (
    OFFERED_PATH,
    arranged,
    body,
    digests,
    place,
    sections_of,
    shown_of,
    strip_row,
)
from radt.frontend.pages.workload_parts import strip_legend
from radt.frontend.theme import Scheme
from radt.frontend.view import View


def layout(source: Source, view: View) -> Component:
    """Return the page for a view.

    Raises:
        RunNotFoundError: There is no such workload.
        NothingRecordedError: There is no experiment.
        StoreError: The store cannot be read.
    """
    subject = find_subject(source, view)
    return html.Section(
        [
            dcc.Store(id="workload-shown", data=shown_of(subject)),
            html.Div(body(source, subject, view), id="workload-body"),
        ],
        className="workload",
    )


def register(app: Dash, source: Source) -> None:
    """Register the callbacks of the page and the routes of its files."""
    files.register(app, source)
    add_json_routes(app.server, source, {OFFERED_PATH: offered_answer})
    _register_updates(app, source)


def offered_answer(source: Source, asked: Answer) -> Answer:
    """Return the workloads whose labels contain the words of a search.

    Raises:
        RunNotFoundError, NothingRecordedError, StoreError: As `find_subject`.
    """
    subject = find_subject(source, asked_view(asked))
    return {"choices": offered(subject, str(asked.get("search", "")))}


def _chosen(source: Source, view: View) -> str:
    subject = find_subject(source, view)
    return f"{subject.title} of {subject.catalog.experiment}"


PAGE = Page("workload", "Workload", layout, register, _chosen)


def shown_subject(source: Source, shown: Mapping[str, Any] | None) -> Subject:
    """Return the workload that the page shows.

    Raises:
        PreventUpdate: There is none, or it was deleted; the router shows the error.
    """
    if not shown:
        raise PreventUpdate
    try:
        return find_subject(source, View(workload=str(shown["id"])))
    except RadtError:
        raise PreventUpdate from None


def _register_figures(app: Dash, source: Source) -> None:
    """Register the callbacks of the timeline and the strips."""

    @app.callback(
        Output("workload-timeline", "figure"),
        Output("workload-timeline", "style"),
        Output("workload-stamp", "data"),
        Output("workload-window", "data"),
        Output("workload-zoom-text", "children"),
        Input("view", "data"),
        Input("paper", "data"),
        Input("revision", "data"),
        State("workload-shown", "data"),
        State("workload-stamp", "data"),
    )
    def draw(
        view_data: dict[str, Any] | None,
        scheme_name: str | None,
        revision: str | None,
        shown: dict[str, Any] | None,
        known: str | None,
    ) -> tuple[Any, ...]:
        if scheme_name is None or revision is None or view_data is None:
            raise PreventUpdate  # several are in progress, and trigger this callback next
        subject, window = shown_subject(source, shown), _window(view_data)
        stamp = _stamp(subject, window, scheme_name, revision)
        if stamp == known:
            raise PreventUpdate
        try:
            reading = read_all(source, subject)
        except RadtError as error:
            return timeseries.notice(error.message, Scheme(scheme_name)), *[no_update] * 4
        seen = window or reading.whole
        height = timeline_px(reading.lives)
        return (
            timeline(reading.lives, seen, Scheme(scheme_name)),
            {"height": f"{height}px"},
            stamp,
            {"whole": [reading.whole.start, reading.whole.end]},
            _zoom_text(window),
        )

    @app.callback(
        Output({"type": "workload-strip", "key": MATCH}, "figure"),
        Output({"type": "workload-legend", "key": MATCH}, "children"),
        Output({"type": "workload-strip-stamp", "key": MATCH}, "data"),
        Input("view", "data"),
        Input("paper", "data"),
        Input("revision", "data"),
        State({"type": "workload-strip", "key": MATCH}, "id"),
        State({"type": "workload-strip-stamp", "key": MATCH}, "data"),
        State("workload-shown", "data"),
    )
    def draw_strip(
        view_data: dict[str, Any] | None,
        scheme_name: str | None,
        revision: str | None,
        identity: dict[str, str],
        known: str | None,
        shown: dict[str, Any] | None,
    ) -> tuple[Any, ...]:
        if scheme_name is None or revision is None or view_data is None:
            raise PreventUpdate
        subject, window = shown_subject(source, shown), _window(view_data)
        stamp = _stamp(subject, window, scheme_name, revision)
        if stamp == known:
            raise PreventUpdate
        scheme = Scheme(scheme_name)
        try:
            reading = read_all(source, subject)
            strip = next(
                (candidate for candidate in reading.strips if candidate.key == identity["key"]),
                None,
            )
            if strip is None:
                raise PreventUpdate
            machine = _machine(source, subject, strip)
            data = stack_data(
                source,
                subject,
                strip,
                gaps_of(source, subject.run_ids),
                window=window or reading.whole,
                zoomed=window is not None,
                cores=machine.logical_cores,
            )
        except RadtError as error:
            note = html.P(error.message, className="workload-dim")
            return blank(STRIP_PX), [note], None
        drawn = strip_figure(data, scheme, machine.logical_cores)
        return drawn.figure, strip_legend(drawn), stamp


def _machine(source: Source, subject: Subject, strip: Strip) -> Machine:
    tags = tags_of(source, subject)
    for run in subject.workload.runs:
        own = tags.get(run.run_id, {})
        if run.record.host == strip.host:
            facts = machine_of(source, run.record, own)
        else:
            facts = machine_on(source, run.record, own, strip.host)
        if facts.logical_cores is not None:
            return facts
    return Machine(host=strip.host)


def _window(view_data: Mapping[str, Any]) -> Window | None:
    return View.from_json(view_data).windows.get(XAxis.BARRIER)


def _stamp(subject: Subject, window: Window | None, scheme: str, revision: str) -> str:
    """Return a key that changes when the figure would. Ended runs get no new points."""
    states_text = " ".join(
        f"{run.run_id[:12]}{run.record.status}{run.record.ended_ns}"
        for run in subject.workload.runs
    )
    live = revision if subject.is_live else ""
    text = f"{subject.workload_id} {window} {scheme} {live} {states_text}"
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def _zoom_text(window: Window | None) -> str:
    if window is None:
        return ""
    step_s = (window.end - window.start) / 100
    length = units.duration(window.end - window.start)
    return f"{clock(window.start, step_s)} – {clock(window.end, step_s)} · {length}"


#: Parts of the page that follow the store, by the suffix of their element's id.
SECTIONS = ("facts", "notes", "rows", "outcomes", "devices", "ledger", "files", "params")


def _register_updates(app: Dash, source: Source) -> None:
    """Register the callbacks that update the page."""
    _register_subject(app, source)
    _register_news(app, source)
    _register_figures(app, source)
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
                raise PreventUpdate from None  # keep the content while a database is unreachable
            return error_page(error, source.address), None


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


def _register_browser(app: Dash) -> None:
    """Register callbacks that run in the browser only (static/workload.js)."""
    done = Output("workload-done", "data", allow_duplicate=True)
    in_browser(
        app,
        "workloadPick",
        done,
        Input("workload-pick", "data-value"),
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
        app,
        "workloadFollow",
        done,
        Input("tick", "data"),
        Input("workload-shown", "data"),
        prevent_initial_call="initial_duplicate",
    )
