"""The Timeline page: all runs of an experiment, or of a day, over machines and their devices."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

from dash import ALL, Dash, Input, Output, State, dcc, html
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate
from plotly.utils import PlotlyJSONEncoder

from radt import units
from radt.errors import RadtError
from radt.frontend.charts.layout import utc_offset_s
from radt.frontend.charts.machine_timeline import (
    lane_px,
    machine_timeline,
    machines_px,
    place_px,
)
from radt.frontend.data.catalog import read_experiments
from radt.frontend.data.machine_timeline import (
    MachineTimeline,
    Place,
    Scope,
    read_days,
    read_timeline,
)
from radt.frontend.data.source import Source
from radt.frontend.data.spec import Window, XAxis
from radt.frontend.pages.page import Page, attributes, choices_json, in_browser, subject_list
from radt.frontend.pages.workload_body import time_graph, time_head
from radt.frontend.theme import Scheme
from radt.frontend.view import View
from radt.model import STATUS_WORDS

_HINT = "drag to zoom, click a bar to open its workload"
_KEYS = "Bars: the arrow keys move from one to the next, Enter opens its workload"


def layout(source: Source, view: View) -> Component:
    """Return the page for a view.

    Raises:
        NothingRecordedError: There is no experiment.
        StoreError: The store cannot be read.
    """
    scope = Scope.of(source, view)
    timeline = read_timeline(source, scope)
    window = timeline.zoomed(view) or timeline.whole
    return html.Section(
        [
            html.Div(
                [
                    html.H1(_label(scope), id="timeline-title"),
                    html.Span(className="push"),
                    subject_list(
                        *("timeline-pick", _choices(source, scope), _value(scope)),
                        label="Experiment or day",
                        nothing="No such experiment or day",
                    ),
                ],
                className="workload-head",
            ),
            html.Dl(_facts(timeline), id="timeline-facts", className="workload-facts"),
            html.Section(
                [
                    time_head("timeline", html.Span(_HINT, className="workload-dim timeline-hint")),
                    _body(timeline, window),
                    dcc.Store(id="timeline-stamp"),
                    dcc.Store(id="timeline-window"),
                    dcc.Store(id="timeline-done"),
                ],
                className="workload-panel",
                **attributes(aria_label="Over time"),
            ),
        ],
        className="workload timeline",
    )


def _body(timeline: MachineTimeline, window: Window) -> Component:
    """Return the rows: machine and device, bars, share of the time."""
    return html.Div(
        [
            html.Div(className="workload-cursor", hidden=True),
            html.Div(
                [
                    html.Div(_labels(timeline.places), id="timeline-labels"),
                    html.Div(
                        [
                            time_graph("timeline-graph", machines_px(timeline.places)),
                            html.Button(
                                id="timeline-bar", type="button", **attributes(aria_label=_KEYS)
                            ),
                        ],
                        className="timeline-bars",
                        role="group",
                        **attributes(aria_label="Timeline of the machines"),
                    ),
                    html.Div(_shares(timeline.places, window), id="timeline-shares"),
                ],
                className="workload-line",
            ),
        ],
        className="workload-time",
        **attributes(data_axis=str(XAxis.WALL), data_offset=str(utc_offset_s(timeline.whole))),
    )


def _choices(source: Source, scope: Scope) -> list[dict[str, Any]]:
    """Return all experiments, the most recently active first, and all days."""
    names = [experiment.name for experiment in read_experiments(source)]
    scopes = {
        "Experiments": [Scope(experiment=name) for name in names],
        "All experiments of a day": [Scope(day=day) for day in read_days(source)],
    }
    if scope.day is not None and scope not in scopes["All experiments of a day"]:
        scopes["All experiments of a day"].insert(0, scope)
    return [
        {"group": group, "items": [{"value": _value(one), "label": _label(one)} for one in ones]}
        for group, ones in scopes.items()
    ]


def _value(scope: Scope) -> str:
    return f"day {scope.day}" if scope.day is not None else f"experiment {scope.experiment}"


def _label(scope: Scope) -> str:
    return f"{scope.day:%a} {scope.day.day} {scope.day:%b %Y}" if scope.day else scope.experiment


def _facts(timeline: MachineTimeline) -> list[Component]:
    runs, whole = timeline.runs, timeline.whole
    if not runs:
        return []
    states = Counter(run.record.status for run in runs)
    counts = ", ".join(f"{count:,} {STATUS_WORDS[state]}" for state, count in states.most_common())
    began = datetime.fromtimestamp(whole.start).astimezone()
    facts = {
        "Machines": f"{len({place.host for place in timeline.places}):,}",
        "Workloads": f"{len({run.record.workload_id for run in runs}):,}",
        "Runs": f"{len(runs):,}: {counts}",
        "Began": f"{began.day} {began:%b %Y, %H:%M:%S}",
        "First start to last end": units.duration(whole.end - whole.start),
        "At the same time": f"at most {units.plural(timeline.most_at_once, 'run')}",
    }
    return [
        html.Div([html.Dt(name), html.Dd(value)], **attributes(data_fact=name))
        for name, value in facts.items()
    ]


def _labels(places: Sequence[Place]) -> list[Component]:
    lane = lane_px(places)
    return [
        html.Div("time of day", className="workload-axis workload-dim timeline-clock"),
        *(
            html.Div(
                [
                    html.Strong(host, className="timeline-host", title=host),
                    html.Div([_row(place, lane, place.device) for place in group]),
                ],
                className="timeline-machine",
            )
            for host, group in groupby(places, key=lambda place: place.host)
        ),
    ]


def _shares(places: Sequence[Place], window: Window) -> list[Component]:
    lane = lane_px(places)
    head = html.Div("in use", className="workload-axis workload-dim timeline-clock")
    return [head, *(_row(place, lane, *_share(place, window)) for place in places)]


def _share(place: Place, window: Window) -> Iterator[Component]:
    share = units.percent(place.busy(window))
    yield html.Span(share, className="timeline-share", title="Share of the shown time with a run")
    yield html.Span(units.plural(place.runs, "run"), className="workload-dim")


def _row(place: Place, lane: int, *content: str | Component) -> Component:
    height = {"height": f"{place_px(place, lane)}px"}
    return html.Div(list(content), className="timeline-row", style=height)


def register(app: Dash, source: Source) -> None:
    """Register the callbacks of the page."""

    @app.callback(
        Output("timeline-title", "children"),
        Output("timeline-facts", "children"),
        Output("timeline-labels", "children"),
        Output("timeline-shares", "children"),
        Output("timeline-graph", "figure"),
        Output("timeline-graph", "style"),
        Output("timeline-zoom-text", "children"),
        Output("timeline-pick", "data-choices"),
        Output("timeline-window", "data"),
        Output("timeline-stamp", "data"),
        Input("view", "data"),
        Input("paper", "data"),
        Input("revision", "data"),
        State("timeline-stamp", "data"),
    )
    def draw(
        view_data: dict[str, Any] | None,
        scheme_name: str | None,
        revision: str | None,
        known: str | None,
    ) -> tuple[Any, ...]:
        if scheme_name is None or revision is None or view_data is None:
            raise PreventUpdate  # several are in progress, and trigger this callback next
        view = View.from_json(view_data)
        try:
            scope = Scope.of(source, view)
            timeline = read_timeline(source, scope)
            choices = _choices(source, scope)
        except RadtError:
            raise PreventUpdate from None  # the router shows the error
        zoom = timeline.zoomed(view)
        window = zoom or timeline.whole
        content = (
            _label(scope),
            _facts(timeline),
            _labels(timeline.places),
            _shares(timeline.places, window),
            machine_timeline(timeline.places, window, Scheme(scheme_name)),
            {"height": f"{machines_px(timeline.places)}px"},
            "" if zoom is None else _zoom_text(zoom),
            choices_json(choices),
            {"whole": [timeline.whole.start, timeline.whole.end]},
        )
        stamp = hashlib.blake2b(
            json.dumps(content, cls=PlotlyJSONEncoder).encode(), digest_size=12
        ).hexdigest()
        if stamp == known:
            raise PreventUpdate
        return *content, stamp

    done = Output("timeline-done", "data", allow_duplicate=True)
    for function, *inputs in (
        ("timelinePick", Input("timeline-pick", "data-value")),
        ("timelineOpen", Input("timeline-graph", "clickData")),
        ("workloadZoom", Input("timeline-graph", "relayoutData")),
        (
            "workloadMove",
            Input({"type": "timeline-zoom", "action": ALL}, "n_clicks"),
            State("timeline-window", "data"),
        ),
    ):
        in_browser(app, function, done, *inputs, prevent_initial_call=True)


def _zoom_text(window: Window) -> str:
    start, end = (datetime.fromtimestamp(at).astimezone() for at in (window.start, window.end))
    length = units.duration(window.end - window.start)
    return f"{start.day} {start:%b %H:%M:%S} – {end:%H:%M:%S} · {length}"


PAGE = Page(
    "timeline", "Timeline", layout, register, lambda source, view: _label(Scope.of(source, view))
)
