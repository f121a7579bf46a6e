"""Explore: find params of the best runs by scatter, parallel coordinates and importance.

The server sends columns of all runs that match the search, with one value per run. The browser
draws them (static/explore.js, canvas.js), so that choosing, brushing and hovering have no delay.
"""

from __future__ import annotations

import json
import math
from typing import Any
from weakref import WeakKeyDictionary

from dash import Dash, html
from dash.development.base_component import Component

from radt.errors import UsageError
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.catalog import read_experiments
from radt.frontend.data.explore import MAX_AXES, Explored, Shown, explored
from radt.frontend.data.importance import Importance, importance_of
from radt.frontend.data.probe import Probe, ProbeResult
from radt.frontend.data.spec import MAX_PICKS, Pick
from radt.frontend.pages.json_routes import Answer, add_json_routes, asked_view
from radt.frontend.pages.page import Page, attributes, choice_field, subject_list
from radt.frontend.pages.parts import followed, template
from radt.frontend.search.find import Recent
from radt.frontend.theme import HUE_COUNT, Scheme, colour
from radt.frontend.view import View

DATA_PATH = "explore/data"
IMPORTANCE_PATH = "explore/importance"
#: Maximum number of params for the tooltip, which has ten rows.
_MAX_PARAMS = 10
_BEST = [
    {"value": "high", "label": "higher is better"},
    {"value": "low", "label": "lower is better"},
    {"value": "none", "label": "neither is better"},
]


def layout(source: CachedStore, view: View) -> Component:
    """Return the page for a view.

    Raises:
        NothingRecordedError: There is no experiment.
        StoreError: The store cannot be read.
    """
    here = explored(source, view)
    return html.Section(
        [
            html.Div(
                [
                    html.H1("Explore", className="unseen"),
                    html.P(id="explore-facts", role="status"),
                    html.Span(id="explore-brushed", className="explore-brushed"),
                    html.Span(className="push"),
                    subject_list(
                        "explore-experiment",
                        [experiment.name for experiment in read_experiments(source)],
                        here.experiment,
                        label="Experiment",
                        nothing="No matching experiment",
                    ),
                ],
                className="explore-head",
            ),
            _panel(
                "scatter",
                "Scatter",
                [
                    html.Div([_columns("y", "y axis"), _best("y")], className="explore-choice"),
                    html.Div([_columns("x", "x axis"), _best("x")], className="explore-choice"),
                    _columns("colour", "colour"),
                ],
                html.Div(
                    [html.Div(id="explore-scatter"), html.Aside(id="explore-front")],
                    className="explore-two",
                ),
            ),
            _panel(
                "parallel",
                "Parallel coordinates",
                [
                    choice_field(
                        *("explore-axes", [], ""),
                        label="Axes",
                        most=MAX_AXES,
                        style="explore-axes",
                    ),
                    html.Span(id="explore-count", className="explore-wait"),
                ],
                html.Div(id="explore-parallel"),
            ),
            _panel(
                "importance",
                "Importance of params",
                [_columns("target", "for")],
                html.Div(id="explore-importance", **attributes(aria_live="polite")),
            ),
        ],
        id="explore",
        className="explore",
        **followed(DATA_PATH),
    )


def _panel(name: str, title: str, controls: list[Component], body: Component) -> Component:
    return html.Section(
        [html.Header([html.H2(title), *controls]), body],
        className="explore-panel",
        id=f"explore-panel-{name}",
        **attributes(aria_label=title),
    )


def _columns(name: str, label: str) -> Component:
    field = choice_field(
        *(f"explore-{name}", [], ""), label=label, nothing="No such column", style="explore-column"
    )
    return html.Div([html.Span(label), field], className="explore-choice")


def _best(axis: str) -> Component:
    label = f"Which end of the {axis} axis is better"
    return choice_field(f"explore-{axis}best", _BEST, "", label=label, style="explore-best")


def register(app: Dash, source: CachedStore) -> None:
    """Register the routes of the page."""
    add_json_routes(
        app.server, source, {DATA_PATH: data_answer, IMPORTANCE_PATH: importance_answer}
    )


def data_answer(source: CachedStore, asked: Answer) -> Answer:
    """Return the page's content, without runs and columns that the browser already has.

    Raises:
        NothingRecordedError: There is no experiment.
        StoreError: The store cannot be read.
    """
    view = asked_view(asked)
    revision = source.revision()  # before all reads: the stamp may not be newer than the data
    here = explored(source, view)
    stamp = [revision, here.experiment, view.search]
    has = asked.get("have") if asked.get("stamp") == stamp else None
    have = set(has) if isinstance(has, list) else set()
    shown = Shown.of(view.options, here)
    params = [f"param:{name}" for name in list(here.params)[:_MAX_PARAMS]]
    needed = dict.fromkeys([shown.x, shown.y, shown.colour, shown.target, *shown.axes, *params])
    answer: dict[str, Any] = {
        "stamp": stamp,
        "shown": {
            "x": shown.x,
            "y": shown.y,
            "colour": shown.colour,
            "axes": shown.axes,
            "target": shown.target,
            "xbest": shown.x_best,
            "ybest": shown.y_best,
        },
        "columns": {
            key: {"title": here.choices[key].title, **here.column(key).to_json()}
            for key in needed
            if key and key not in have
        },
    }
    if not have:
        answer |= {
            "experiment": here.experiment,
            "pick": str(Pick.run(here.experiment, "")),
            "ids": here.run_ids,
            "names": here.names,
            "statuses": [run.record.status for run in here.runs],
            "counts": here.counts,
            "choices": _grouped(here),
            "hues": {
                str(scheme): [colour(place, scheme) for place in range(HUE_COUNT)]
                for scheme in Scheme
            },
            "mostPicks": MAX_PICKS,
        }
    return answer


def _grouped(here: Explored) -> list[dict[str, Any]]:
    """Return the columns in groups, for the lists of choices."""
    groups: dict[str, list[dict[str, str]]] = {}
    for choice in here.choices.values():
        item = {"value": choice.key, "label": choice.title}
        groups.setdefault(choice.group, []).append(item)
    return [{"group": group, "items": items} for group, items in groups.items()]


def importance_answer(source: CachedStore, asked: Answer) -> Answer:
    """Return the importance of params, or a note that it is being computed.

    Raises:
        NothingRecordedError: There is no experiment.
        StoreError: The store cannot be read.
        UsageError: It cannot be computed from these runs.
    """
    view = asked_view(asked)
    here = explored(source, view)
    target = Shown.of(view.options, here).target
    # Keyed by the browser's content: while runs are running, the revision changes every second.
    key = json.dumps([asked.get("stamp"), target])
    params = {
        name: here.counted(column)
        for name, column in here.params.items()
        if target != f"param:{name}"
    }
    column = here.counted(here.column(target))
    probe = _computed.setdefault(source, Recent(_COMPUTED)).get(
        key, lambda: Probe("importance", lambda: importance_of(params, column), math.inf)
    )
    reading: ProbeResult[Importance] = probe.look()
    if reading.error is not None:
        raise UsageError(reading.error.message, reading.error.remedy)
    found = reading.value
    if found is None:
        return {"computing": True}
    macros: Any = template("explore.html")
    return {"html": macros.importance(found)}


#: Importances that are computed or being computed, by source.
_computed: WeakKeyDictionary[CachedStore, Recent] = WeakKeyDictionary()
_COMPUTED = 16


PAGE = Page("explore", "Explore", layout, register)
