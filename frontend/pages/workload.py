"""Workload: one workload on one page, from its set-up to what each of its runs left behind."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dash_mantine_components as dmc
from dash import ALL, MATCH, Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate
from plotly.utils import PlotlyJSONEncoder

from radt import units
from radt.errors import RadtError
from radt.frontend import files
from radt.frontend.charts import timeseries
from radt.frontend.charts.elapsed import label as clock
from radt.frontend.charts.spec import Window, XAxis
from radt.frontend.dashing import attributes, in_browser, triggers
from radt.frontend.metrics import series_of
from radt.frontend.pages import states
from radt.frontend.pages.page import Page
from radt.frontend.pages.workload_cards import devices_section
from radt.frontend.pages.workload_log import chosen_run, log_panel, read_log
from radt.frontend.pages.workload_parts import (
    facts_bar,
    notes,
    row_labels,
    row_outcomes,
    strip_label,
    strip_legend,
)
from radt.frontend.pages.workload_tables import facts_section, files_section, ledger_section
from radt.frontend.palette import Scheme
from radt.frontend.source import Source
from radt.frontend.view import View
from radt.frontend.workload.baseline import slowdowns
from radt.frontend.workload.cards import devices_of
from radt.frontend.workload.drawing import STRIP_PX, strip_figure
from radt.frontend.workload.facts import Machine, facts_of, machine_of, tags_of
from radt.frontend.workload.frame import blank
from radt.frontend.workload.ledger import gaps_of, ledger_of
from radt.frontend.workload.life import Life, lives, whole_window
from radt.frontend.workload.readings import Summaries, summaries_of
from radt.frontend.workload.spool import list_artifacts
from radt.frontend.workload.stacked import stack_data
from radt.frontend.workload.strips import MAX_STRIPS, Strip, strips_of
from radt.frontend.workload.subject import Subject, find_subject, offered
from radt.frontend.workload.timeline import AXIS_PX, timeline, timeline_px

#: Parts of the page that follow the store, by the end of their element's id.
SECTIONS = ("facts", "notes", "rows", "outcomes", "devices", "ledger", "files", "params")


@dataclass(frozen=True)
class Reading:
    """What is read of a workload for all parts of the page."""

    subject: Subject
    summaries: Summaries
    lives: tuple[Life, ...]
    strips: tuple[Strip, ...]

    @property
    def several_hosts(self) -> bool:
        return len(self.subject.workload.hosts) > 1

    @property
    def whole(self) -> Window:
        return whole_window(self.lives)


def read_all(source: Source, subject: Subject) -> Reading:
    """Read what all parts need, once for all of them.

    Raises:
        StoreError: The store cannot be read.
    """
    key = ("workload", subject.workload_id, subject.run_ids)
    return source.remember(key, lambda _: _read_all(source, subject))


def _read_all(source: Source, subject: Subject) -> Reading:
    run_ids = subject.run_ids
    summaries = summaries_of(source, run_ids)
    found = lives(source, subject, summaries.values())
    # What was declared and never read has no curve.
    known = {
        metric: tuple(one for one in records if (one.run_id, one.series_no) in summaries)
        for metric, records in series_of(source, run_ids).items()
    }
    strips = strips_of(subject, {metric: records for metric, records in known.items() if records})
    return Reading(subject, summaries, found, strips)


def layout(source: Source, view: View) -> Component:
    """The page for a view.

    Raises:
        RunNotFoundError: There is no such workload.
        NothingRecordedError: There is no experiment.
        StoreError: The store cannot be read.
    """
    subject = find_subject(source, view)
    return html.Section(
        [
            dcc.Store(id="workload-shown", data=_shown(subject)),
            html.Div(_body(source, subject, view), id="workload-body"),
        ],
        className="workload",
    )


def _shown(subject: Subject) -> dict[str, Any]:
    """What the browser keeps of the workload: which it is, and whether the newest is followed."""
    return {
        "id": subject.workload_id,
        "auto": subject.automatic,
        "live": subject.is_live,
        "runs": len(subject.workload.runs),
    }


def _body(source: Source, subject: Subject, view: View) -> list[Component]:
    reading = read_all(source, subject)
    sections = _sections(source, reading)
    slots = arranged([None] * MAX_STRIPS, [strip.key for strip in reading.strips])
    by_key = {strip.key: strip for strip in reading.strips}
    left_out = max(0, len(reading.strips) - MAX_STRIPS)
    return [
        _head(subject),
        html.Dl(sections["facts"], id="workload-facts", className="workload-facts"),
        html.Div(sections["notes"], id="workload-notes"),
        html.Section(
            [
                _time_head(),
                html.Div(
                    [
                        html.Div(className="workload-cursor", hidden=True, id="workload-cursor"),
                        html.Div(
                            [
                                html.Div(
                                    [
                                        html.Div(
                                            "since barrier"
                                            if subject.workload.record.barrier_ns
                                            else "since start",
                                            className="workload-axis workload-dim",
                                            style={"height": f"{AXIS_PX}px"},
                                        ),
                                        html.Div(sections["rows"], id="workload-rows"),
                                    ]
                                ),
                                html.Div(
                                    _graph("workload-timeline", timeline_px(len(reading.lives))),
                                    role="group",
                                    **attributes(aria_label="Timeline of the runs"),
                                ),
                                html.Div(
                                    sections["outcomes"],
                                    id="workload-outcomes",
                                    style={"paddingTop": f"{AXIS_PX}px"},
                                ),
                            ],
                            className="workload-line",
                        ),
                        *(
                            html.Div(
                                _strip(by_key[key], reading) if key else [],
                                id={"type": "workload-slot", "index": index},
                                className="workload-slot",
                                style=_place(key, by_key),
                            )
                            for index, key in enumerate(slots)
                        ),
                    ],
                    id="workload-time",
                    className="workload-time",
                ),
                *(
                    [html.P(f"{left_out} more strips not shown", className="workload-dim")]
                    if left_out
                    else []
                ),
                dcc.Store(id="workload-slots", data=slots),
                dcc.Store(id="workload-stamp"),
                dcc.Store(id="workload-digests", data=_digests(sections)),
                dcc.Store(id="workload-window"),
                dcc.Store(id="workload-done"),
                dcc.Store(id="workload-follow"),
                dcc.Store(id="workload-log-stamp", data=""),
            ],
            className="workload-panel",
            **attributes(aria_label="Over time"),
        ),
        _panel("Devices", "devices", sections),
        _panel("Listeners", "ledger", sections),
        html.Section(
            [html.H2("Log"), log_panel(source, subject, view)],
            className="workload-panel",
        ),
        _panel("Files", "files", sections),
        _panel("Parameters and tags", "params", sections),
    ]


def _head(subject: Subject) -> Component:
    earlier, later = subject.neighbour(-1), subject.neighbour(1)
    return html.Div(
        [
            html.H1(subject.title),
            html.Span(subject.catalog.experiment, className="workload-dim"),
            html.Span("newest", className="workload-mark", hidden=not subject.automatic),
            html.Span(className="push"),
            _step("‹", "Workload before this one", earlier.record.workload_id if earlier else ""),
            _step("›", "Workload after this one", later.record.workload_id if later else ""),
            dmc.Select(
                id="workload-pick",
                data=offered(subject, ""),
                value=subject.workload_id,
                searchable=True,
                allowDeselect=False,
                size="xs",
                w=320,
                maxDropdownHeight=400,
                nothingFoundMessage="No such workload in this experiment",
                comboboxProps={"shadow": "sm", "width": 400, "position": "bottom-end"},
                **attributes(aria_label="Another workload"),
            ),
        ],
        className="workload-head",
    )


def _step(sign: str, title: str, workload_id: str) -> Component:
    return html.Button(
        sign,
        id={"type": "workload-step", "to": workload_id or title},
        className="quiet workload-step",
        title=title,
        disabled=not workload_id,
        **attributes(aria_label=title, data_to=workload_id),
    )


def _time_head() -> Component:
    def button(sign: str, action: str, title: str) -> Component:
        return html.Button(
            sign,
            id={"type": "workload-zoom", "action": action},
            className="quiet",
            title=title,
            **attributes(aria_label=title),
        )

    return html.Div(
        [
            html.H2("Over time"),
            html.Span(className="push"),
            html.Span("", id="workload-zoom-text", className="workload-dim"),
            button("‹", "earlier", "Earlier"),
            button("›", "later", "Later"),
            button("+", "in", "Zoom in"),
            button("−", "out", "Zoom out"),
            html.Button("all", id={"type": "workload-zoom", "action": "all"}, className="quiet"),
        ],
        className="workload-panel-head",
        role="group",
        **attributes(aria_label="Time that is shown"),
    )


def _panel(title: str, name: str, sections: Mapping[str, list[Component]]) -> Component:
    return html.Section(
        [html.H2(title), html.Div(sections[name], id=f"workload-{name}")],
        className="workload-panel",
    )


def _graph(identity: Any, height_px: int) -> Component:
    config = timeseries.config("radt workload") | {"doubleClick": False}
    config["modeBarButtons"] = [["toImage"]]
    return dcc.Graph(
        id=identity,
        figure=blank(height_px),
        config=config,
        style={"height": f"{height_px}px"},
        responsive=True,
    )


def _strip(strip: Strip, reading: Reading) -> list[Component]:
    label = strip_label(strip, several_hosts=reading.several_hosts)
    return [
        html.Div(
            [
                html.Div(label, className="workload-strip-label"),
                html.Div(
                    _graph({"type": "workload-strip", "key": strip.key}, STRIP_PX),
                    className="workload-strip-body",
                    role="group",
                    **attributes(aria_label=f"{strip.title} over time"),
                ),
                html.Div(
                    id={"type": "workload-legend", "key": strip.key}, className="workload-legend"
                ),
                dcc.Store(id={"type": "workload-strip-stamp", "key": strip.key}),
            ],
            className="workload-line workload-strip",
            **attributes(data_strip=strip.resource.key, data_device=strip.device),
        )
    ]


def _sections(source: Source, reading: Reading) -> dict[str, list[Component]]:
    subject, found = reading.subject, reading.lives
    slowed = slowdowns(source, subject)
    ledger = ledger_of(source, subject)
    tags = tags_of(source, subject)
    machines: dict[str, Machine] = {}
    for run in subject.workload.runs:
        if run.record.host not in machines:
            machines[run.record.host] = machine_of(source, run.record, tags.get(run.run_id, {}))
    devices = devices_of(subject, tags, machines, reading.summaries.values())
    listings = {
        run.run_id: list_artifacts(run.record, source.address) for run in subject.workload.runs
    }
    sampled = {run_id for run_id, _ in reading.summaries}
    return {
        "facts": facts_bar(subject, found, ledger, slowed),
        "notes": notes(subject),
        "rows": row_labels(found),
        "outcomes": row_outcomes(found, slowed),
        "devices": devices_section(devices),
        "ledger": ledger_section(ledger, subject),
        "files": files_section(subject, listings, has_samples=sampled),
        "params": facts_section(facts_of(source, subject), subject),
    }


def _digests(sections: Mapping[str, list[Component]]) -> dict[str, str]:
    """By these it is known which parts have changed: whatever is written is drawn anew."""
    return {
        name: hashlib.blake2b(
            json.dumps(content, cls=PlotlyJSONEncoder).encode(), digest_size=8
        ).hexdigest()
        for name, content in sections.items()
    }


def arranged(before: Sequence[str | None], keys: Sequence[str]) -> list[str | None]:
    """Put the strips into the slots of the page; in their order if that moves none that is there.

    Whatever a callback writes is drawn anew. So strips stay in their elements while others come;
    `_place` makes their order that of the resources.
    """
    slots = [key if key in keys else None for key in before]
    new = [key for key in keys if key not in slots]
    free = iter([index for index, key in enumerate(slots) if key is None])
    for key, index in zip(new, free, strict=False):
        slots[index] = key
    return slots


def _place(key: str | None, by_key: Mapping[str, Strip]) -> dict[str, int]:
    """The style of a strip's slot: after the timeline, in order of the resources."""
    return {"order": list(by_key).index(key) + 1 if key is not None and key in by_key else 0}


def register(app: Dash, source: Source) -> None:
    """Callbacks of the page, and the routes of its files."""
    files.register(app, source)
    _register_subject(app, source)
    _register_news(app, source)
    _register_figures(app, source)
    _register_log(app, source)
    _register_browser(app)


def _subject_of(source: Source, shown: Mapping[str, Any] | None) -> Subject:
    """The workload that the page shows.

    Raises:
        PreventUpdate: It shows none, or it is gone; the router says what is wrong.
    """
    if not shown:
        raise PreventUpdate
    try:
        return find_subject(source, View(workload=str(shown["id"])))
    except RadtError:
        raise PreventUpdate from None


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
            now = _shown(subject)
            if shown and now["id"] == shown["id"] and now["runs"] == shown["runs"]:
                return no_update, no_update if now == shown else now
            return _body(source, subject, view), now
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
        subject = _subject_of(source, shown)
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
        subject = _subject_of(source, shown)
        try:
            reading = read_all(source, subject)
            sections = _sections(source, reading)
        except RadtError:
            raise PreventUpdate from None
        now = _digests(sections)
        before = known or {}
        by_key = {strip.key: strip for strip in reading.strips}
        placed = arranged(slots, list(by_key))
        return (
            *(no_update if now[name] == before.get(name) else sections[name] for name in SECTIONS),
            no_update if now == known else now,
            [
                no_update if old == new else _strip(by_key[new], reading) if new else []
                for old, new in zip(slots, placed, strict=True)
            ],
            [no_update if placed == slots else _place(key, by_key) for key in placed],
            no_update if placed == slots else placed,
        )


def _register_figures(app: Dash, source: Source) -> None:
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
            raise PreventUpdate  # all are on their way and come here next
        subject, window = _subject_of(source, shown), _window(view_data)
        stamp = _stamp(subject, window, scheme_name, revision)
        if stamp == known:
            raise PreventUpdate
        try:
            reading = read_all(source, subject)
        except RadtError as error:
            return timeseries.notice(error.message, Scheme(scheme_name)), *[no_update] * 4
        seen = window or reading.whole
        height = timeline_px(len(reading.lives))
        return (
            timeline(reading.lives, seen, Scheme(scheme_name)),
            {"height": f"{height}px"},
            stamp,
            {
                "start": seen.start,
                "end": seen.end,
                "zoomed": window is not None,
                "whole": [reading.whole.start, reading.whole.end],
            },
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
        subject, window = _subject_of(source, shown), _window(view_data)
        stamp = _stamp(subject, window, scheme_name, revision)
        if stamp == known:
            raise PreventUpdate
        scheme = Scheme(scheme_name)
        try:
            reading = read_all(source, subject)
            strip = next((one for one in reading.strips if one.key == identity["key"]), None)
            if strip is None:
                raise PreventUpdate
            machine = _machine(source, subject, strip)
            data = stack_data(
                source,
                subject,
                strip,
                reading.summaries,
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
        if run.record.host == strip.host:
            found = machine_of(source, run.record, tags.get(run.run_id, {}))
            if found.logical_cores is not None:
                return found
    return Machine(host=strip.host)


def _window(view_data: Mapping[str, Any]) -> Window | None:
    return View.from_json(view_data).windows.get(XAxis.BARRIER)


def _stamp(subject: Subject, window: Window | None, scheme: str, revision: str) -> str:
    """Stays the same as long as a figure would: ended runs get no new points."""
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
        subject = _subject_of(source, shown)
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


PAGE = Page("/workload", "Workload", layout, register)
