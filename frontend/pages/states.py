"""What pages show when there is nothing to show: no store, no runs, something broken."""

from __future__ import annotations

from dash import html
from dash.development.base_component import Component

from radt.errors import RadtError, TrackingError
from radt.frontend.keepers import ListingError, NothingRecordedError
from radt.store.address import StoreAddress

_GOES_ON = " This page goes on by itself."


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


def broken(error: RadtError, *, by_itself: bool) -> Component:
    """Why there is nothing to see, and what to do. ``by_itself``: it is tried again."""
    cause, detail = _split(error.message)
    remedy = error.remedy or "The terminal of `radt dashboard` may say more"
    return html.Div(
        [
            html.H1(cause),
            html.P(f"{remedy}.{_GOES_ON if by_itself else ''}"),
            *([html.P(detail, className="detail")] if detail else []),
        ],
        className="state",
        role="alert",
    )


def listing(error: ListingError) -> Component:
    """What is shown is on its way."""
    return html.Div(
        [html.H1(sentence(error.message)), html.P(sentence(error.remedy or ""))],
        className="state",
        role="status",
    )


def away(error: RadtError) -> list[Component]:
    """What a page that stays says while the database or the server is away."""
    cause, detail = _split(error.message)
    return [
        html.Strong(sentence(cause)),
        html.Span(f"{error.remedy}.{_GOES_ON}" if error.remedy else _GOES_ON),
        *([html.Span(detail, className="detail")] if detail else []),
    ]


def sentence(text: str) -> str:
    """With a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:]}".rstrip(".") + "."


def _split(message: str) -> tuple[str, str]:
    """What is wrong, and what a driver said of it in brackets at the end."""
    cause, bracket, detail = message.partition(" (")
    if not bracket or not detail.endswith(")"):
        cause, detail = message, ""
    return f"{cause[:1].upper()}{cause[1:]}", detail.removesuffix(")")


def trouble(error: RadtError, store: StoreAddress) -> Component:
    """The page for an error."""
    if isinstance(error, NothingRecordedError):
        return empty(store)
    if isinstance(error, ListingError):
        return listing(error)
    return broken(error, by_itself=store.is_postgres or isinstance(error, TrackingError))
