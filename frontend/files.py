"""Files of a run that the browser may have: what it printed, its artifacts, a trace made of it."""

from __future__ import annotations

from dash import Dash

from radt.frontend.source import Source


def register(app: Dash, source: Source) -> None:
    """Routes of the files, behind the same checks as every page."""
