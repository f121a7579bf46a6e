"""Compare: charts of what is picked."""

from __future__ import annotations

from dash import Dash, html
from dash.development.base_component import Component

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
    return html.Section(html.H1("Compare"), className="compare")


def register(app: Dash, source: Source) -> None:
    """Callbacks of the page."""


PAGE = Page("/compare", "Compare", layout, register)
