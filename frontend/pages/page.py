"""What a page of the dashboard is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dash import Dash
from dash.development.base_component import Component

from radt.frontend.source import Source
from radt.frontend.view import View


@dataclass(frozen=True, slots=True)
class Page:
    """A page: its address and name, what it shows of a view, and its callbacks.

    ``layout`` may raise `RadtError`; the application then shows cause and remedy instead.
    """

    path: str
    title: str
    layout: Callable[[Source, View], Component]
    register: Callable[[Dash, Source], None]
