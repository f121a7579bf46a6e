"""What pages show when there is nothing to show: no store, no runs, something broken."""

from __future__ import annotations

from dash import html
from dash.development.base_component import Component

from radt.errors import RadtError
from radt.frontend.source import NothingRecordedError


def empty(where: str) -> Component:
    """Nothing is recorded yet; the one command that changes it."""
    return html.Div(
        [
            html.H1("Nothing recorded yet"),
            html.P(f"This page fills as soon as a run writes to {where}."),
            html.Pre("radt train.py"),
        ],
        className="state",
        role="status",
    )


def broken(error: RadtError) -> Component:
    """Why there is nothing to see, and what to do."""
    return html.Div(
        [
            html.H1(error.message[:1].upper() + error.message[1:]),
            html.P(error.remedy or "The terminal of `radt dashboard` may say more."),
        ],
        className="state",
        role="alert",
    )


def trouble(error: RadtError, where: str) -> Component:
    """The page for an error."""
    return empty(where) if isinstance(error, NothingRecordedError) else broken(error)
