"""What pages show when there is nothing to show: no store, no runs, something broken."""

from __future__ import annotations

from dash import html
from dash.development.base_component import Component

from radt.errors import RadtError
from radt.frontend.keepers import NothingRecordedError
from radt.store.address import StoreAddress


def empty(store: StoreAddress) -> Component:
    """Nothing is recorded yet; the one command that changes it."""
    command = "radt train.py"
    return html.Div(
        [
            html.H1("Nothing recorded yet"),
            html.P(f"This page fills as soon as a run writes to {store}."),
            html.Pre(f"{command} --store-uri …" if store.is_postgres else command),
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


def away(error: RadtError) -> list[Component]:
    """What a page that stays says while the database is away."""
    return [
        html.Strong(sentence(error.message)),
        html.Span(f"{error.remedy}. This page goes on by itself." if error.remedy else ""),
    ]


def sentence(text: str) -> str:
    """With a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:]}".rstrip(".") + "."


def trouble(error: RadtError, store: StoreAddress) -> Component:
    """The page for an error."""
    return empty(store) if isinstance(error, NothingRecordedError) else broken(error)
