"""Select: pick experiments, workloads and runs to look at."""

from __future__ import annotations

from dash import Dash, html
from dash.development.base_component import Component

from radt.frontend.pages.page import Page
from radt.frontend.source import Source
from radt.frontend.view import View


def layout(source: Source, view: View) -> Component:
    """The page for a view.

    Raises:
        StoreError: The store cannot be read.
    """
    return html.Section(html.H1("Select"), className="select")


def register(app: Dash, source: Source) -> None:
    """Callbacks of the page."""


PAGE = Page("/", "Select", layout, register)
