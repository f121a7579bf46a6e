"""Parts that all pages share: `Page`, fields with a list, the share menu, error pages."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dash import Dash, html
from dash.development.base_component import Component

from radt.errors import RadtError, TrackingError
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.connections import NothingRecordedError
from radt.frontend.view import View
from radt.store.backend import StoreAddress

_RETRIES = " The dashboard retries by itself."


def _experiment(_: CachedStore, view: View) -> str:
    return view.experiment or ""


@dataclass(frozen=True, slots=True)
class Page:
    """A page: its path and title, its layout for a view, its routes, and its subject's name.

    ``layout`` may raise `RadtError`; the application then shows the error and its remedy instead.
    ``chosen`` returns the name of the view's subject, for the browser's tab; it may raise
    `RadtError`, too.
    """

    path: str
    title: str
    layout: Callable[[CachedStore, View], Component]
    register: Callable[[Dash, CachedStore], None]
    chosen: Callable[[CachedStore, View], str] = _experiment

    def tab_title(self, source: CachedStore, view: View) -> str:
        """Return the text of the browser's tab: ``three of quickstart · Workload · radt``."""
        try:
            chosen = self.chosen(source, view)
        except RadtError:  # the page shows it
            chosen = ""
        return " · ".join([*filter(None, [chosen]), self.title, "radt"])


def attributes(**values: str) -> Any:
    """Return attributes such as ``data-level``, given as ``data_level``, for ``**``."""
    return {name.replace("_", "-"): value for name, value in values.items()}


def choice_field(
    name: str,
    choices: Sequence[Any],
    value: str | None,
    *,
    label: str,
    nothing: str = "Nothing matches",
    placeholder: str = "",
    most: int = 1,
    style: str = "",
    is_free: bool = False,
    search: str = "",
) -> Component:
    """Return a field for one value, or up to `most`, from a list (static/fields.js).

    The user's choice is an event ``choice``, whose detail is the value, several joined by ";". The
    page's script may set the value and the choices through ``data-value`` and ``data-choices``.

    Args:
        name: The name of the element.
        choices: Texts, ``{"value": …, "label": …}``, or ``{"group": …, "items": […]}`` of these.
        value: The initial value.
        label: For screen readers.
        nothing: Shown if no choice matches the typed text.
        placeholder: Shown in an empty field.
        most: Maximum number of values.
        style: Additional class name.
        is_free: Allow typed values that are in no list.
        search: The route that finds the choices for the typed text.
    """
    more = {"data_free": "yes"} if is_free else {}
    if search:
        more["data_search"] = search
    return html.Div(
        id=name,
        className=f"choice-field {style}".rstrip(),
        **attributes(
            data_choices=json.dumps(choices),
            data_value=value or "",
            data_label=label,
            data_nothing=nothing,
            data_placeholder=placeholder,
            data_most=str(most),
            **more,
        ),
    )


def subject_list(
    name: str,
    choices: Sequence[Any],
    value: str | None,
    *,
    label: str,
    nothing: str,
    search: str = "",
) -> Component:
    """Return the field ``name`` for choosing a page's subject (`choice_field`)."""
    return choice_field(
        *(name, choices, value),
        label=label,
        nothing=nothing,
        style="subject",
        search=search,
    )


# -- the share menu (static/share.js, radt.frontend.export) -------------------------------------


def share_menu() -> Component:
    """Return the button that shares and exports the whole page."""
    return _share_button("page", "Share", "Share and export", "button")


def chart_share_menu(slot: int) -> Component:
    """Return the button that shares and exports the chart in a slot."""
    return _share_button(str(slot), "⤓", "Share and export this chart", "share-button quiet")


def _share_button(subject: str, text: str, title: str, class_name: str) -> Component:
    return html.Button(
        text,
        type="button",
        className=class_name,
        title=title,
        **attributes(data_share=subject, aria_haspopup="menu", aria_label=title),
    )


# -- error pages ---------------------------------------------------------------------------------


def error_page(error: RadtError, store: StoreAddress) -> Component:
    """Return the page for an error, shown in place of the requested one."""
    if isinstance(error, NothingRecordedError):
        return _empty(store)
    cause, detail = _split(error.message)
    remedy = sentence(error.remedy or "See the terminal of `radt dashboard`")
    retries = _RETRIES if store.is_postgres or isinstance(error, TrackingError) else ""
    details = [html.P(detail, className="detail")] if detail else []
    return _state(cause, html.P(remedy + retries), *details, role="alert")


def outage(error: RadtError) -> list[Component]:
    """Return the note for a page that stays open while the database or server is unreachable."""
    cause, detail = _split(error.message)
    remedy = sentence(error.remedy) if error.remedy else ""
    return [
        html.Strong(sentence(cause)),
        html.Span((remedy + _RETRIES).strip()),
        *([html.Span(detail, className="detail")] if detail else []),
    ]


def sentence(text: str) -> str:
    """Return the text with a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:]}".rstrip(".") + "."


def _empty(store: StoreAddress) -> Component:
    """Return the page of an empty store, with the command that fills it."""
    command = "radt train.py"
    return _state(
        "No runs yet",
        html.P(f"This page updates when a run writes to {store}."),
        html.Pre(f"{command} --store-uri …" if store.is_postgres else command),
    )


def _state(title: str, *content: Component, role: str = "status") -> Component:
    return html.Div([html.H1(title), *content], className="state", role=role)


def _split(message: str) -> tuple[str, str]:
    """Split off a driver's own message, which is in brackets at the end of a message."""
    cause, bracket, detail = message.partition(" (")
    if not bracket or not detail.endswith(")"):
        cause, detail = message, ""
    return f"{cause[:1].upper()}{cause[1:]}", detail.removesuffix(")")
