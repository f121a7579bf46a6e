"""Parts of the System page's cards: facts, tables, bars, placeholders."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from dash import html
from dash.development.base_component import Component

from radt import units
from radt.errors import NoStoreError
from radt.frontend.data.connections import NothingRecordedError
from radt.frontend.data.machine import Reading
from radt.frontend.pages.page import attributes, sentence

ValueT = TypeVar("ValueT")
Cell = str | Component | Sequence[str | Component]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; numbers are right-aligned, columns that ``grow`` take spare width."""

    title: str
    is_figure: bool = False
    hint: str = ""
    grows: bool = False

    @property
    def kind(self) -> str | None:
        return "num" if self.is_figure else None


def shown(
    reading: Reading[ValueT], draw: Callable[[ValueT], Sequence[Component]]
) -> list[Component]:
    """Return the content of a card, its problem, or a placeholder while it is read."""
    parts: list[Component] = []
    if reading.is_late:
        parts.append(trouble(f"No answer for {units.duration(reading.waited_s)}."))
    if isinstance(reading.error, (NothingRecordedError, NoStoreError)):
        cause, remedy = reading.error.message, reading.error.remedy or ""
        parts.append(quiet(f"{sentence(cause)} {sentence(remedy)}"))
    elif reading.error is not None:
        parts.append(trouble(sentence(reading.error.message), reading.error.remedy or ""))
    elif reading.value is not None:
        parts += draw(reading.value)
    elif not parts:
        parts.append(html.P("Looking…", className="system-quiet"))
    return parts


def trouble(what: str, remedy: str = "") -> Component:
    """Return a problem and its remedy."""
    more = [html.Span(sentence(remedy))] if remedy else []
    return html.Div([html.Strong(what), *more], className="system-trouble", role="alert")


def quiet(text: str) -> Component:
    """Return a muted sentence for an empty card without a problem."""
    return html.P(text, className="system-quiet")


def facts(pairs: Iterable[tuple[str, Cell | None]], *, long_names: bool = False) -> Component:
    """Return names and values; entries without a value are left out."""
    rows = [
        html.Div([html.Dt(name), html.Dd(list(value) if isinstance(value, tuple) else value)])
        for name, value in pairs
        if value not in (None, "")
    ]
    return html.Dl(rows, className=f"system-facts{' system-long' if long_names else ''}")


def table(
    label: str, columns: Sequence[Column], rows: Iterable[Sequence[Cell]], note: str = ""
) -> Component:
    """Return a table that scrolls by itself if it is too wide; ``label`` is for screen readers."""
    width = f"{99 // max(1, sum(column.grows for column in columns))}%"
    head = html.Thead(
        html.Tr(
            [
                html.Th(
                    column.title,
                    scope="col",
                    title=column.hint or None,
                    className=column.kind,
                    style={"width": width} if column.grows else None,
                )
                for column in columns
            ]
        )
    )
    body = html.Tbody(
        [
            html.Tr(
                [
                    html.Td(
                        list(cell) if isinstance(cell, tuple) else cell,
                        className=column.kind,
                    )
                    for column, cell in zip(columns, row, strict=True)
                ]
            )
            for row in rows
        ]
    )
    parts: list[Component] = [
        html.Div(
            html.Table([head, body], **attributes(aria_label=label)),
            className="system-wide",
            tabIndex=0,
            role="region",
            **attributes(aria_label=label),
        )
    ]
    if note:
        parts.append(quiet(note))
    return html.Div(parts)


def bar(share: float | None, text: str, name: str) -> Component:
    """Return a bar that shows a share of a whole, with numbers beside it."""
    if share is None:
        return html.Span(text)
    percentage = min(max(share, 0.0), 1.0) * 100
    return html.Span(
        [
            html.Span(
                html.Span(style={"width": f"{percentage:.1f}%"}),
                className="system-bar",
                role="meter",
                **attributes(
                    aria_label=name,
                    aria_valuenow=f"{percentage:.0f}",
                    aria_valuemin="0",
                    aria_valuemax="100",
                ),
            ),
            html.Span(text),
        ],
        className="system-measure",
    )


def ago(time_ns: int | None, now_ns: int | None = None) -> str:
    """Return a time as ``12 s ago``, ``14:02`` or ``2026-06-03 14:02``."""
    if time_ns is None:
        return units.NO_VALUE
    now_ns = time.time_ns() if now_ns is None else now_ns
    age_s = (now_ns - time_ns) / 1e9
    if 0 <= age_s < 1:
        return "now"
    if 0 <= age_s < 60:
        return f"{age_s:.0f} s ago"
    if 0 <= age_s < 3600:
        return f"{age_s / 60:.0f} min ago"
    return clock(time_ns, now_ns)


def clock(time_ns: int, now_ns: int | None = None) -> str:
    """Return a time in this machine's time zone, with the date unless it is today."""
    at = datetime.fromtimestamp(time_ns / 1e9).astimezone()
    today = datetime.fromtimestamp((now_ns or time.time_ns()) / 1e9).astimezone().date()
    return f"{at:%H:%M}" if at.date() == today else f"{at:%Y-%m-%d %H:%M}"
