"""Select: pick experiments, workloads and runs to look at.

The lists may be long, so the browser draws the rows in sight only (assets/select.js) and asks for
them here: what it wants goes into the store ``select-ask``, what it gets comes in
``select-answer``. The first answer comes with the page. Boxes that were clicked go into
``select-tick``, and what becomes of the picks comes in ``select-said``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import Dash, Input, Output, State, dcc, html
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate

from radt.errors import RadtError, UsageError
from radt.frontend.catalog import read_catalog
from radt.frontend.dashing import in_browser
from radt.frontend.pages.page import Page
from radt.frontend.pages.select_answer import answer
from radt.frontend.pages.select_lists import Pane, everything, read_lists
from radt.frontend.pages.select_ticks import ticked
from radt.frontend.pages.states import sentence
from radt.frontend.picks import Pick, parse_picks
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
    return html.Section(
        [
            html.H1("Select", className="select-title"),
            html.Div(id="select-root", className="select-root"),
            dcc.Store(id="select-ask"),
            dcc.Store(id="select-answer", data=answer(source, view)),
            dcc.Store(id="select-tick"),
            dcc.Store(id="select-said"),
            dcc.Store(id="select-drawn"),
        ],
        className="select",
    )


def register(app: Dash, source: Source) -> None:
    """Callbacks of the page."""
    in_browser(app, "select_draw", Output("select-drawn", "data"), Input("select-answer", "data"))
    in_browser(
        app,
        "select_follow",
        Output("select-drawn", "data", allow_duplicate=True),
        Input("view", "data"),
        Input("revision", "data"),
        Input("select-root", "id"),
        prevent_initial_call="initial_duplicate",
    )
    in_browser(
        app,
        "select_said",
        Output("select-drawn", "data", allow_duplicate=True),
        Input("select-said", "data"),
        prevent_initial_call=True,
    )

    @app.callback(
        Output("select-answer", "data"),
        Input("select-ask", "data"),
        State("view", "data"),
        prevent_initial_call=True,
    )
    def asked(ask: Mapping[str, Any] | None, view: Mapping[str, Any] | None) -> dict[str, Any]:
        if ask is None or view is None:
            raise PreventUpdate
        try:
            return answer(source, View.from_json(view), ask)
        except RadtError:  # the page says what is wrong; what is on it stays
            raise PreventUpdate from None

    @app.callback(
        Output("select-said", "data"),
        Input("select-tick", "data"),
        State("view", "data"),
        prevent_initial_call=True,
    )
    def clicked(given: Mapping[str, Any] | None, view: Mapping[str, Any] | None) -> dict[str, Any]:
        if given is None or view is None:
            raise PreventUpdate
        said: dict[str, Any] = {"n": given.get("n")}
        try:
            picks = _after(source, given, View.from_json(view))
        except UsageError as error:
            return said | {"text": f"{sentence(error.message)} {error.remedy}."}
        except RadtError as error:
            return said | {"text": sentence(error.message)}
        # The browser puts them into the view: it may have changed in other ways meanwhile.
        return said | {"picks": [str(pick) for pick in picks]}


def _after(source: Source, given: Mapping[str, Any], view: View) -> tuple[Pick, ...]:
    """The picks after the clicks; ``all`` in one means everything that a pane lists."""
    picks = parse_picks(_texts(given.get("picks")))
    for step in given.get("steps") or ():
        targets = parse_picks(_texts(step.get("picks")))
        if step.get("all") in (Pane.WORKLOADS, Pane.RUNS):
            targets = everything(read_lists(source, view, patient=True), Pane(step["all"]))
        picks = ticked(
            picks, targets, lambda name: read_catalog(source, name), on=step.get("on") is True
        )
    return picks


def _texts(given: object) -> list[str]:
    return [text for text in given if isinstance(text, str)] if isinstance(given, list) else []


PAGE = Page("/", "Select", layout, register)
