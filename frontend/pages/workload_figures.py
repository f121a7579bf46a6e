"""The figures of the Workload page: the timeline, and one strip a resource."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from dash import MATCH, Dash, Input, Output, State, html, no_update
from dash.exceptions import PreventUpdate

from radt import units
from radt.errors import RadtError
from radt.frontend.charts import timeseries
from radt.frontend.charts.elapsed import label as clock
from radt.frontend.charts.spec import Window, XAxis
from radt.frontend.pages.workload_parts import (
    strip_legend,
)
from radt.frontend.palette import Scheme
from radt.frontend.source import Source
from radt.frontend.view import View
from radt.frontend.workload.drawing import STRIP_PX, strip_figure
from radt.frontend.workload.facts import Machine, machine_of, tags_of
from radt.frontend.workload.frame import blank
from radt.frontend.workload.ledger import gaps_of
from radt.frontend.workload.stacked import stack_data
from radt.frontend.workload.strips import Strip
from radt.frontend.workload.subject import Subject, find_subject
from radt.frontend.workload.timeline import timeline, timeline_px
from radt.frontend.workload.whole import read_all


def shown_subject(source: Source, shown: Mapping[str, Any] | None) -> Subject:
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


def register(app: Dash, source: Source) -> None:
    """Callbacks of the timeline and the strips."""

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
        subject, window = shown_subject(source, shown), _window(view_data)
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
        subject, window = shown_subject(source, shown), _window(view_data)
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
