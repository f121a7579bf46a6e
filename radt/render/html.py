"""Documents as one HTML file: nothing is fetched, nothing runs, and it prints."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from radt.render.model import BarChart, Cell, Column, Document, Table, Tone, printable
from radt.render.svg import MAX_BARS, bars_svg, width_of

#: Even a name with markup in it could load or run nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
#: Pixels that a figure has around its chart.
_FIGURE_EDGES = 34
#: Texts up to here stay on one line.
_SHORT_CHARS = 28


def as_html(document: Document) -> str:
    """Return the whole page."""
    blocks = [
        (type(block).__name__.lower(), block.whole if isinstance(block, Table) else block)
        for block in document
    ]
    return _template().render(
        document=document,
        blocks=blocks,
        policy=_POLICY,
        style=Markup(_resource("style.css")),  # noqa: S704 - our own
    )


@cache
def _template() -> Template:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, finalize=_visible
    )
    environment.globals |= {
        "bars_svg": bars_svg,
        "chart_unit": _chart_unit,
        "chart_width": lambda chart: f"{width_of(chart.bars) + _FIGURE_EDGES:.0f}",
        "cell_class": _cell_class,
    }
    return environment.from_string(_resource("document.html.jinja"))


def _visible(value: object) -> object:
    """Spell out control characters in texts; markup is ours."""
    return printable(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _resource(name: str) -> str:
    return files("radt.render").joinpath("templates", name).read_text(encoding="utf-8")


def _cell_class(column: Column, cell: Cell) -> str:
    is_long = not column.is_number and len(cell.text) > _SHORT_CHARS
    classes = ["number"] * column.is_number + ["wrap"] * is_long + ["heat"] * bool(cell.heat)
    return " ".join(classes + [cell.tone.value] * (cell.tone is not Tone.NORMAL))


def _chart_unit(chart: BarChart) -> str:
    parts = [chart.unit] if chart.unit else []
    if len(chart.bars) > MAX_BARS:
        parts.append(f"the first {MAX_BARS} of {len(chart.bars):,}")
    return " · ".join(parts)
