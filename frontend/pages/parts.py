"""Parts of pages: HTML from templates, filled in by one route of the page (static/parts.js).

A page's layout has named elements within an element marked by `followed`. The browser calls the
route when the page opens, and whenever the view or the store changes. The answer has the HTML of
the parts that changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
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


@dataclass(frozen=True, slots=True)
class Section:
    """Parts and figures that are made together, and only if the browser lacks their ``basis``.

    A figure without traces could not be read: its section is made again with the next request.

    Attributes:
        names: Their elements, in the order of `make`'s results.
        basis: All that they depend on, with a ``repr`` that differs if it does.
        make: Returns the HTML of parts, and figures.
    """

    names: tuple[str, ...]
    basis: object
    make: Callable[[], Sequence[str | Figure]]


def changed(
    asked: Answer,
    parts: Mapping[str, str],
    figures: Mapping[str, Figure] | None = None,
    *,
    sections: Iterable[Section] = (),
    **more: Any,
) -> Answer | None:
    """Return the answer of a route: what the browser lacks; None if it has all.

    Args:
        asked: The request, with the ``stamps`` of the parts that the browser has.
        parts: The HTML of each part, by the name of its element; strings that are not Markup are
            escaped. A part within another one comes after it, and stays when that one is replaced.
        figures: Figures in Plotly's JSON, by the name of their element, which is in a part.
        sections: Further parts and figures, within those before.
        more: Further data for the page's script.
    """
    known = _known(asked)
    contents: dict[str, str | Figure] = {**parts, **(figures or {})}
    bases: dict[str, str] = {}
    stamps: dict[str, str] = {}
    for section in sections:
        basis = _stamp(repr(section.basis))
        if all(known.get(name, "").startswith(f"{basis} ") for name in section.names):
            stamps |= {name: known[name] for name in section.names}
            continue
        made = section.make()
        contents |= dict(zip(section.names, made, strict=True))
        if all(isinstance(each, str) or each["data"] for each in made):
            bases |= dict.fromkeys(section.names, basis)
    contents = {
        name: _encodable(escape(content)) if isinstance(content, str) else content
        for name, content in contents.items()
    }
    stamps |= {
        name: f"{bases.get(name, '')} {_stamp(repr(content))}" for name, content in contents.items()
    }
    stamps["more"] = _stamp(repr(more))
    if known == stamps:
        return None
    news = {
        name: content
        for name, content in contents.items()
        if known.get(name, "").partition(" ")[2] != stamps[name].partition(" ")[2]
    }
    return {
        "stamps": stamps,
        "parts": {name: html for name, html in news.items() if isinstance(html, str)},
        "figures": {name: each for name, each in news.items() if not isinstance(each, str)},
        **more,
    }


def _known(asked: Answer) -> dict[str, str]:
    known = asked.get("stamps")
    stamps = known.items() if isinstance(known, dict) else ()
    return {name: stamp for name, stamp in stamps if isinstance(stamp, str)}


def _encodable(html: str) -> str:
    """Replace what JSON cannot encode: file names may contain bytes that are not text."""
    return html.encode("utf-8", "replace").decode("utf-8")


def _stamp(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
