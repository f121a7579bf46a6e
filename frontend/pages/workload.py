"""Workload: one workload on one page, from its set-up to what each of its runs left behind."""

from __future__ import annotations

from dash import Dash, dcc, html
from dash.development.base_component import Component

from radt.frontend import files
from radt.frontend.pages import workload_follow
from radt.frontend.pages.page import Page
from radt.frontend.pages.workload_body import (
    body,
    shown_of,
)
from radt.frontend.source import Source
from radt.frontend.view import View
from radt.frontend.workload.subject import find_subject


def layout(source: Source, view: View) -> Component:
    """The page for a view.

    Raises:
        RunNotFoundError: There is no such workload.
        NothingRecordedError: There is no experiment.
        StoreError: The store cannot be read.
    """
    subject = find_subject(source, view)
    return html.Section(
        [
            dcc.Store(id="workload-shown", data=shown_of(subject)),
            html.Div(body(source, subject, view), id="workload-body"),
        ],
        className="workload",
    )


def register(app: Dash, source: Source) -> None:
    """Callbacks of the page, and the routes of its files."""
    files.register(app, source)
    workload_follow.register(app, source)


PAGE = Page("/workload", "Workload", layout, register)
