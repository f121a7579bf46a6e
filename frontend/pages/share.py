"""The menus that take something away: a link, a file, data, pictures, lines of Python.

What they offer and do is in ``assets/share.js``; what comes is made in `radt.frontend.export`.
"""

from __future__ import annotations

from dash import Dash, html
from dash.development.base_component import Component

from radt.frontend.dashing import attributes
from radt.frontend.export.routes import install
from radt.frontend.source import Source

_WHOLE_PAGE = "page"


def menu() -> Component:
    """The button of the menu for all that the page shows."""
    return _button(_WHOLE_PAGE, "Share", "Share and export")


def chart_menu(slot: int) -> Component:
    """The button of the menu for the chart in one slot."""
    return _button(str(slot), "⤓", "Share and export this chart")


def register(app: Dash, source: Source) -> None:
    """Add the routes that the menus use."""
    install(app.server, source)


def _button(subject: str, text: str, title: str) -> Component:
    word = "share-button" if subject == _WHOLE_PAGE else "share-button quiet"
    return html.Button(
        text,
        type="button",
        className=word,
        title=title,
        **attributes(data_share=subject, aria_haspopup="menu", aria_label=title),
    )
