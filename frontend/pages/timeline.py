"""The Timeline page: all runs of an experiment, or of a day, over machines and their devices."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any

from dash import Dash, html
from dash.development.base_component import Component

from radt import units
from radt.frontend.charts.layout import utc_offset_s
from radt.frontend.charts.machine_timeline import lane_px, machine_timeline, place_px
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.catalog import read_experiments
from radt.frontend.data.machine_timeline import (
    MachineTimeline,
    TimelineScope,
    read_days,
    read_timeline,
)
from radt.frontend.data.spec import AxisRange
from radt.frontend.pages.json_routes import Answer, add_json_routes, asked_view
from radt.frontend.pages.page import Page
from radt.frontend.pages.parts import KeyFigure, asked_scheme, changed, followed, template
from radt.frontend.view import View
from radt.model import STATUS_WORDS

DATA_PATH = "timeline/data"


def layout(source: CachedStore, view: View) -> Component:
    """Return the page, whose parts `DATA_PATH` fills.

    Raises:
        NothingRecordedError: There is no experiment.
        StoreError: The store cannot be read.
    """
    TimelineScope.of(source, view)
    return html.Section(
        [
            html.Div(id="timeline-head", className="workload-head"),
            html.Dl(id="timeline-facts", className="workload-facts"),
            html.Div(id="timeline-panel"),
        ],
        className="workload timeline",
        **followed(DATA_PATH),
    )


def register(app: Dash, source: CachedStore) -> None:
    """Register the route of the page."""
    add_json_routes(app.server, source, {DATA_PATH: answer})


def answer(source: CachedStore, asked: Answer) -> Answer | None:
    """Return the parts of the page that changed.

    Raises:
        NothingRecordedError: There is no experiment.
        StoreError: The store cannot be read.
    """
    view = asked_view(asked)
    scope = TimelineScope.of(source, view)
    timeline = read_timeline(source, scope)
    zoom, whole, places = timeline.zoomed(view), timeline.whole, timeline.places
    window, lane = zoom or whole, lane_px(timeline.places)
    heights_px = [place_px(place, lane) for place in places]
    machines: dict[str, list[tuple[str, int]]] = {}
    for place, px in zip(places, heights_px, strict=True):
        machines.setdefault(place.host, []).append((place.device, px))
    shares = [(p.busy(window), p.runs, px) for p, px in zip(places, heights_px, strict=True)]
    macros: Any = template("timeline.html")
    parts = {
        "head": macros.head(_label(scope), _choices(source, scope), _value(scope)),
        "facts": template("common.html").facts(_facts(timeline)),
        "panel": macros.panel(),
        "zoom-text": _zoom_text(zoom) if zoom else "",
        "labels": macros.labels(machines),
        "shares": macros.shares(shares),
    }
    return changed(
        asked,
        {f"timeline-{name}": html for name, html in parts.items()},
        {"timeline-graph": machine_timeline(places, window, asked_scheme(asked))},
        whole=[whole.start, whole.end],
        offset_s=utc_offset_s(whole),
    )


def _choices(source: CachedStore, scope: TimelineScope) -> list[dict[str, Any]]:
    """Return all experiments, the most recently active first, and all days."""
    names = [experiment.name for experiment in read_experiments(source)]
    scopes = {
        "Experiments": [TimelineScope(experiment=name) for name in names],
        "All experiments of a day": [TimelineScope(day=day) for day in read_days(source)],
    }
    if scope.day is not None and scope not in scopes["All experiments of a day"]:
        scopes["All experiments of a day"].insert(0, scope)
    return [
        {"group": group, "items": [{"value": _value(one), "label": _label(one)} for one in ones]}
        for group, ones in scopes.items()
    ]


def _value(scope: TimelineScope) -> str:
    return f"day {scope.day}" if scope.day is not None else f"experiment {scope.experiment}"


def _label(scope: TimelineScope) -> str:
    return f"{scope.day:%a} {scope.day.day} {scope.day:%b %Y}" if scope.day else scope.experiment


def _facts(timeline: MachineTimeline) -> list[KeyFigure]:
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
        "Started": f"{began.day} {began:%b %Y, %H:%M:%S}",
        "First start to last end": units.duration(whole.end - whole.start),
        "At the same time": f"at most {units.plural(timeline.most_at_once, 'run')}",
    }
    return [KeyFigure(name, text) for name, text in facts.items()]


def _zoom_text(window: AxisRange) -> str:
    start, end = (datetime.fromtimestamp(at).astimezone() for at in (window.start, window.end))
    length = units.duration(window.end - window.start)
    return f"{start.day} {start:%b %H:%M:%S} – {end:%H:%M:%S} · {length}"


PAGE = Page(
    "timeline",
    "Timeline",
    layout,
    register,
    lambda source, view: _label(TimelineScope.of(source, view)),
)
