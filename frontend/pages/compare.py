"""Compare: charts of the selection, on linked axes.

The server sends the frame and what is known of the selected runs; the browser draws the rest
(static/compare*.js) and requests figures by plain HTTP instead of Dash's callbacks: each visible
chart has a request of its own, which it can cancel, and no element is mounted anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from dash import Dash, Input, Output, State, dcc, html
from dash.development.base_component import Component
from flask import Flask, Response, request

from radt.errors import RadtError, UsageError
from radt.frontend.charts.timeseries import Look, figure
from radt.frontend.data.chart_data import axes_of, chart_data
from radt.frontend.data.metrics import hidden_keys
from radt.frontend.data.source import Source
from radt.frontend.data.spec import MAX_CHARTS
from radt.frontend.pages.compare_facts import facts, fingerprint, stamp
from radt.frontend.pages.page import (
    Page,
    attributes,
    chart_share_menu,
    in_browser,
    sentence,
    share_menu,
)
from radt.frontend.selection import read_selection
from radt.frontend.theme import Scheme
from radt.frontend.view import View

FACTS_PATH = "/compare/facts"
FIGURE_PATH = "/compare/figure"
#: The limit on a request; a view with 500 picks and 64 charts is far smaller.
_MAX_BYTES = 400_000
_UNCHANGED = 204

Answer = Mapping[str, Any]


def layout(source: Source, view: View) -> Component:
    """Return the page for a view.

    Raises:
        NothingRecordedError: The store has no experiment.
        StoreError: The store cannot be read.
    """
    initial = known(source, view)
    return html.Section(
        [
            html.Aside(id="compare-list", className="compare-list"),
            html.Div(
                [
                    html.Div(
                        [
                            html.Div(id="compare-tools", className="compare-tools"),
                            share_menu(),
                        ],
                        className="compare-bar",
                    ),
                    html.Div(id="compare-notes", className="compare-notes", role="status"),
                    html.Div(
                        [_slot(slot) for slot in range(MAX_CHARTS)],
                        id="charts",
                        className="charts",
                    ),
                    html.Div(id="compare-zoom", className="compare-zoom", hidden=True),
                    html.Div(id="compare-empty", className="compare-empty", hidden=True),
                ],
                className="board",
            ),
            html.Div(id="compare-status", className="unseen", **attributes(aria_live="polite")),
            dcc.Store(id="compare-known", data=dict(initial)),
            dcc.Store(id="compare-done"),
            _plotly(),
        ],
        id="compare",
        className="compare",
    )


def _slot(slot: int) -> Component:
    """Return the place of a chart, which the browser fills and shows."""
    return html.Article(
        [html.Div(className="card-chart"), chart_share_menu(slot)],
        className="card",
        hidden=True,
        **attributes(data_slot=str(slot)),
    )


def _plotly() -> Component:
    """Return a hidden graph, for which Dash loads Plotly."""
    figure: Any = {"data": [], "layout": {"width": 10, "height": 10}}
    return html.Div(dcc.Graph(id="compare-plotly", figure=figure), hidden=True)


def register(app: Dash, source: Source) -> None:
    """Register the routes and callbacks of the page."""
    _install(app.server, source)
    in_browser(
        app,
        "compareFollow",
        Output("compare-done", "data"),
        Input("view", "data"),
        Input("revision", "data"),
        Input("paper", "data"),
        State("compare-known", "data"),
    )


# -- routes -------------------------------------------------------------------------------------


def _install(server: Flask, source: Source) -> None:
    """Add the routes for facts and figures to the server."""
    for path, answer in ((FACTS_PATH, facts_answer), (FIGURE_PATH, figure_answer)):
        server.add_url_rule(
            path,
            f"radt{path}",
            _handler(source, answer),
            methods=["POST"],
            provide_automatic_options=False,
        )


def known(source: Source, view: View) -> Answer:
    """Return the facts that come with the page, so that it need not request them.

    Raises:
        StoreError, NothingRecordedError: As `read_selection`.
    """
    asked = view.to_json()
    picked = {name: asked[name] for name in ("picks", "experiment") if name in asked}
    revision = source.revision()
    facts_ = facts_answer(source, {"view": picked}) or {}
    return {"picked": picked, "revision": revision, **facts_}


def facts_answer(source: Source, asked: Answer) -> Answer | None:
    """Return the facts of the selection; None if the browser has them (``stamp``, ``fingerprint``).

    Raises:
        StoreError: The store cannot be read.
        NothingRecordedError: As `read_selection`.
    """
    view = _view(asked)
    revision = source.revision()
    selection = read_selection(source, view)
    content = facts(source, view, selection)
    versions = {
        "stamp": stamp(content),
        "fingerprint": fingerprint(selection.runs.values(), revision),
    }
    if all(asked.get(name) == value for name, value in versions.items()):
        return None
    return {**versions, "facts": None if asked.get("stamp") == versions["stamp"] else content}


def figure_answer(source: Source, asked: Answer) -> Answer | None:
    """Return the figure of the chart of a view; None if no run changed since ``fingerprint``.

    Raises:
        StoreError: The store cannot be read.
        UsageError: The view does not have exactly one chart.
        NothingRecordedError: As `read_selection`.
    """
    view = _view(asked)
    if not view.charts or len(view.charts) != 1:
        raise UsageError("expected a view with one chart", "Reload the page")
    (spec,) = view.charts
    revision = source.revision()
    selection = read_selection(source, view)
    now = fingerprint(selection.runs.values(), revision)
    if asked.get("fingerprint") == now:
        return None
    spec = replace(spec, hidden=spec.hidden + hidden_keys(source, selection, view, spec.metric))
    data = chart_data(source, selection, spec, view.board, view.windows.get(spec.x_of(view.board)))
    if data is None:
        text = "The selected runs do not have this metric"
        return {"fingerprint": now, "missing": text if selection.runs else "No run is selected"}
    scheme = Scheme.DARK if asked.get("scheme") == Scheme.DARK else Scheme.LIGHT
    look = Look(scheme, view.board.monochrome, spec.rows, spec.columns)
    return {
        "fingerprint": now,
        "axes": [str(x) for x in axes_of(source, selection, spec.metric)],
        "figure": figure(data, look),
    }


def problem(error: RadtError) -> Answer:
    """Return an error for the page to show."""
    return {
        "problem": {
            "cause": sentence(error.message),
            "remedy": sentence(error.remedy) if error.remedy else "",
        }
    }


def _handler(
    source: Source, answer: Callable[[Source, Answer], Answer | None]
) -> Callable[[], Response]:
    bad_request = problem(UsageError("expected a request of the Compare page", "Reload the page"))

    def handle() -> Response:
        # Pages of other origins may send forms, but no JSON.
        if not request.is_json or (request.content_length or 0) > _MAX_BYTES:
            return _json(bad_request, 400)
        asked = request.get_json(silent=True)
        if not isinstance(asked, dict):
            return _json(bad_request, 400)
        try:
            content = answer(source, asked)
        except RadtError as error:
            return _json(problem(error))
        return Response(status=_UNCHANGED) if content is None else _json(content)

    return handle


def _json(content: Answer, status: int = 200) -> Response:
    response = Response(
        json.dumps(content, separators=(",", ":")), status, mimetype="application/json"
    )
    response.headers["Cache-Control"] = "no-store"
    return response


def _view(asked: Answer) -> View:
    view = asked.get("view")
    return View.from_json(view) if isinstance(view, dict) else View()


PAGE = Page("/compare", "Compare", layout, register)
