"""Compare: any number of charts of what is picked, on linked axes.

The server sends the frame with what is known of the picked runs; ``assets/compare*.js`` draws the
rest and asks for figures (`radt.frontend.pages.comparing.routes`). All choices are in the view.
"""

from __future__ import annotations

from typing import Any

from dash import Dash, Input, Output, State, dcc, html
from dash.development.base_component import Component

from radt.frontend.charts.spec import MAX_CHARTS
from radt.frontend.dashing import attributes, in_browser
from radt.frontend.pages import share
from radt.frontend.pages.comparing import routes
from radt.frontend.pages.page import Page
from radt.frontend.source import Source
from radt.frontend.view import View


def layout(source: Source, view: View) -> Component:
    """The page for a view.

    Raises:
        NothingRecordedError: There is no experiment.
        ListingError: It is not known yet what the MLflow server has.
        TrackingError: The server does not answer, and the store has nothing.
        StoreError: The store cannot be read.
    """
    known = routes.known(source, view)
    return html.Section(
        [
            html.Aside(id="compare-list", className="compare-list"),
            html.Div(
                [
                    html.Div(
                        [
                            html.Div(id="compare-tools", className="compare-tools"),
                            share.menu(),
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
            html.Div(id="compare-said", className="unseen", **attributes(aria_live="polite")),
            dcc.Store(id="compare-known", data=dict(known)),
            dcc.Store(id="compare-done"),
            _plotly(),
        ],
        id="compare",
        className="compare",
    )


def _slot(slot: int) -> Component:
    """The place of a chart: the page fills it in the browser, and shows it while it has one."""
    return html.Article(
        [html.Div(className="card-chart"), share.chart_menu(slot)],
        className="card",
        hidden=True,
        **attributes(data_slot=str(slot)),
    )


def _plotly() -> Component:
    """A graph that nobody sees: Dash loads Plotly for it."""
    figure: Any = {"data": [], "layout": {"width": 10, "height": 10}}
    return html.Div(dcc.Graph(id="compare-plotly", figure=figure), hidden=True)


def register(app: Dash, source: Source) -> None:
    """Routes and callbacks of the page."""
    routes.install(app.server, source)
    in_browser(
        app,
        "compareFollow",
        Output("compare-done", "data"),
        Input("view", "data"),
        Input("revision", "data"),
        Input("paper", "data"),
        State("compare-known", "data"),
    )


PAGE = Page("/compare", "Compare", layout, register)
