"""Parts of pages: HTML from templates, filled in by one route of the page (static/parts.js).

A page's layout has named elements within an element marked by `followed`. The browser calls the
route when the page opens, and whenever the view or the store changes. The answer has the HTML of
the parts that changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import ModuleType
from typing import Any, cast

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import escape

from radt import units
from radt.frontend.addresses import address
from radt.frontend.charts.traces import Figure
from radt.frontend.pages.json_routes import Answer
from radt.frontend.pages.page import attributes, sentence
from radt.frontend.theme import Scheme, colour


def followed(path: str, *, every_s: float = 0.0) -> Any:
    """Return attributes of the element that contains parts.

    Args:
        path: The route that fills them.
        every_s: Seconds between requests while the page is open; 0 if only the view and the store
            change them.
    """
    return attributes(data_follow=path, data_every=f"{every_s:g}")


@cache
def template(name: str) -> ModuleType:
    """Return the macros of a file in ``templates``, which return HTML."""
    return cast("ModuleType", _environment().get_template(name).module)


@cache
def _environment() -> Environment:
    folder = files("radt.frontend").joinpath("templates")
    environment = Environment(
        loader=FunctionLoader(lambda name: folder.joinpath(name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters |= {
        "address": address,
        "duration": units.duration,
        "hue": lambda place, scheme: colour(place, Scheme(scheme)),
        "json": json.dumps,
        "percent": units.percent,
        "plural": units.plural,
        "sentence": sentence,
        "significant": units.significant,
        "size": units.size,
    }
    return environment


@dataclass(frozen=True, slots=True)
class KeyFigure:
    """A name and a value at the top of a page (``facts`` in ``templates/common.html``)."""

    name: str
    text: str
    title: str = ""
    status: str = ""
    is_bad: bool = False
    is_code: bool = False


def asked_scheme(asked: Answer) -> Scheme:
    """Return the colour scheme of the browser that sent a request."""
    return Scheme.DARK if asked.get("scheme") == Scheme.DARK else Scheme.LIGHT


def is_drawn(asked: Answer, basis: str) -> bool:
    """Return True if the browser has the figures that are drawn from ``basis`` (`changed`)."""
    return bool(basis) and _known(asked).get("basis") == basis


def changed(
    asked: Answer,
    parts: Mapping[str, str | None],
    figures: Mapping[str, Figure | None] | None = None,
    *,
    basis: str = "",
    **more: Any,
) -> Answer | None:
    """Return the answer of a route: what the browser lacks; None if it has all.

    Args:
        asked: The request, with the ``stamps`` of the parts that the browser has.
        parts: The HTML of each part, by the name of its element; strings that are not Markup are
            escaped. A part within another one comes after it, and stays when that one is replaced.
        figures: Figures in Plotly's JSON, by the name of their element, which is in a part. A part
            or a figure of None is as the browser has it.
        basis: Identifies what the figures are drawn from, if a page asks `is_drawn`.
        more: Further data for the page's script.
    """
    known, figures = _known(asked), figures or {}
    parts = {
        name: None if part is None else _encodable(escape(part)) for name, part in parts.items()
    }
    stamps = {
        name: known.get(name, "") if content is None else _stamp(repr(content))
        for name, content in (parts | dict(figures)).items()
    }
    stamps |= {"more": _stamp(repr(more)), "basis": basis}
    if known == stamps:
        return None
    news = {name for name, stamp in stamps.items() if known.get(name) != stamp}
    return {
        "stamps": stamps,
        "parts": {n: html for n, html in parts.items() if n in news and html is not None},
        "figures": {n: figure for n, figure in figures.items() if n in news and figure is not None},
        **more,
    }


def _known(asked: Answer) -> dict[str, str]:
    known = asked.get("stamps")
    return known if isinstance(known, dict) else {}


def _encodable(html: str) -> str:
    """Replace what JSON cannot encode: file names may contain bytes that are not text."""
    return html.encode("utf-8", "replace").decode("utf-8")


def _stamp(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
