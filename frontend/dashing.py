"""Dash where its type hints end: attributes with a dash in their name, callbacks in the browser."""

from __future__ import annotations

from typing import Any

from dash import ClientsideFunction, Dash, ctx


def attributes(**values: str) -> Any:
    """Attributes such as ``data-level`` (given as ``data_level``), for a component's ``**``."""
    return {name.replace("_", "-"): value for name, value in values.items()}


def triggers() -> set[str]:
    """What set off the callback that is running, as ``id.property``."""
    return {str(one["prop_id"]) for one in ctx.triggered}


def in_browser(app: Dash, function: str, *arguments: object, **options: object) -> None:
    """Register a callback that runs ``window.dash_clientside.radt.FUNCTION`` (assets/radt.js)."""
    register: Any = app.clientside_callback
    register(ClientsideFunction("radt", function), *arguments, **options)
