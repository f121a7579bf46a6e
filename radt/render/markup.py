"""Documents as markup for pages: HTML with inline SVG charts, and Markdown.

HTML is a single printable file without scripts or external resources. SVG needs no script or
library, and takes its colours from the page's style sheet: blocks by the number of runs that share
the hardware, colours by how they share it, whiskers for the 95 % confidence interval. A run without
a value keeps its place and shows its status. Markdown has GitHub's tables, for pages, issues and
pull requests.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import groupby

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup
from markupsafe import escape as html_escape

from radt.render.model import (
    Bar,
    BarChart,
    Block,
    Cell,
    Column,
    Document,
    Note,
    Notes,
    Table,
    Tone,
    printable,
)

#: Content security policy: even a name with markup in it can load or run nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
#: Margins of a figure around its chart, in pixels.
_FIGURE_EDGES = 34
#: Maximum length of a text on one line.
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


#: A chart with more bars is unreadable; the table has them.
MAX_BARS = 40
_HEIGHT, _TOP, _PLOT_HEIGHT = 236, 30, 140
_SLOT, _BAR, _BLOCK_GAP, _LEFT, _RIGHT = 46.0, 30.0, 18.0, 48.0, 12.0
_SMALLEST_WIDTH = 300.0
_CHARACTER, _LABEL_CHARS = 6.2, 18
_BOTTOM = _TOP + _PLOT_HEIGHT


def width_of(bars: Sequence[Bar]) -> float:
    """Return the width of a chart in pixels."""
    centres = _centres(bars[:MAX_BARS])
    return max(_SMALLEST_WIDTH, (centres[-1] if centres else 0.0) + _SLOT / 2 + _RIGHT)


def bars_svg(chart: BarChart) -> Markup:
    """Draw a chart; the table beside it has the numbers, so screen readers get its title."""
    bars = chart.bars[:MAX_BARS]
    centres = _centres(bars)
    width = width_of(bars)
    axis = _axis([_height(bar) for bar in bars], [bar.value or 0.0 for bar in bars])
    title = f"{chart.title} [{chart.unit}]" if chart.unit else chart.title
    parts = [
        f'<svg viewBox="0 0 {width:g} {_HEIGHT}" style="max-width:{width:g}px" role="img"'
        f' aria-label="{html_escape(title)}">',
        *_grid(axis, width),
        *_blocks(bars, centres),
    ]
    for x, bar in zip(centres, bars, strict=True):
        parts += _bar(bar, x, axis)
    return Markup("".join([*parts, "</svg>"]))  # noqa: S704 - every text in it is escaped


def blocks_of(values: Iterable[object]) -> list[tuple[int, int]]:
    """Return start and end of each run of equal values.

    >>> blocks_of([1, 1, 2])
    [(0, 2), (2, 3)]
    """
    blocks: list[tuple[int, int]] = []
    for _, group in groupby(values):
        start = blocks[-1][1] if blocks else 0
        blocks.append((start, start + len(list(group))))
    return blocks


def _centres(bars: Sequence[Bar]) -> list[float]:
    return [
        _LEFT + (place + 0.5) * _SLOT + number * _BLOCK_GAP
        for number, (start, stop) in enumerate(blocks_of(bar.block for bar in bars))
        for place in range(start, stop)
    ]


def _height(bar: Bar) -> float:
    if bar.value is None:
        return 0.0
    # The interval of two repeats may be many times the mean: it is clipped, and the explanation has
    # it in full.
    reach = 0.0 if bar.high is None else min(bar.high - bar.value, abs(bar.value))
    return bar.value + reach


def _step(largest: float) -> float:
    """Return the distance of grid lines up to a value, a round number."""
    if largest <= 0:
        return 1.0
    rough = largest / 4
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough)


@dataclass(frozen=True, slots=True)
class _Axis:
    """Grid lines ``step`` apart, from ``first`` to ``last`` of them; 0 is the zero line."""

    step: float
    first: int
    last: int

    def y(self, value: float) -> float:
        """Return a value's place in the picture, at the edge if it is beyond the axis."""
        share = (value / self.step - self.first) / (self.last - self.first)
        return _TOP + _PLOT_HEIGHT * (1 - min(max(share, 0.0), 1.0))


def _axis(heights: Sequence[float], values: Sequence[float]) -> _Axis:
    """Return an axis from zero, or from the lowest value if there are negative ones."""
    largest, lowest = max([0.0, *heights]), min([0.0, *values])
    step = _step(max(largest, -lowest))
    first, last = (math.ceil(round(reach / step, 6)) for reach in (-lowest, largest))
    return _Axis(step, -first, last if first or last else 1)


def _grid(axis: _Axis, width: float) -> Iterator[str]:
    for number in range(axis.first, axis.last + 1):
        y = axis.y(number * axis.step)
        kind = "axis" if number == 0 else "grid"
        yield f'<line class="{kind}" x1="{_LEFT}" x2="{width - _RIGHT:g}" y1="{y:g}" y2="{y:g}"/>'
        yield f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:g}">{number * axis.step:,.6g}</text>'


def _blocks(bars: Sequence[Bar], centres: Sequence[float]) -> Iterator[str]:
    blocks = blocks_of(bar.block for bar in bars)
    if len(blocks) < 2:
        return
    for start, stop in blocks:
        if start:
            x = (centres[start - 1] + centres[start]) / 2
            yield f'<line class="part" x1="{x:g}" x2="{x:g}" y1="8" y2="{_BOTTOM}"/>'
        middle = (centres[start] + centres[stop - 1]) / 2
        yield f'<text class="block" x="{middle:g}" y="14">{html_escape(bars[start].block)}</text>'


def _bar(bar: Bar, x: float, axis: _Axis) -> Iterator[str]:
    yield f"<g><title>{html_escape(bar.explanation)}</title>"
    if bar.value is None:
        yield (
            f'<text class="end" transform="translate({x + 4:g} {_BOTTOM - 4}) rotate(-90)">'
            f"{html_escape(bar.text)}</text>"
        )
    else:
        y, low_y = axis.y(max(bar.value, 0.0)), axis.y(min(bar.value, 0.0))
        estimated = " estimated" if bar.is_estimated else ""
        yield (
            f'<rect class="{bar.style}{estimated}" x="{x - _BAR / 2:g}" y="{y:g}"'
            f' width="{_BAR:g}" height="{max(low_y - y, 0.0):g}"/>'
        )
        if bar.high is not None and bar.low is not None:
            high_y, low_y = axis.y(bar.high), axis.y(bar.low)
            yield f'<path class="whisker" d="M{x - 4:g} {high_y:g}h8m-4 0V{low_y:g}m-4 0h8"/>'
            y = min(y, high_y)
        yield f'<text class="value" x="{x:g}" y="{y - 4:g}">{html_escape(bar.text)}</text>'
    yield from _label(bar.label, x)
    yield "</g>"


def _label(text: str, x: float) -> Iterator[str]:
    text = text if len(text) <= _LABEL_CHARS else f"{text[: _LABEL_CHARS - 1]}…"
    if len(text) * _CHARACTER <= _SLOT + 2:
        yield f'<text class="name" x="{x:g}" y="{_BOTTOM + 16}">{html_escape(text)}</text>'
    else:
        yield (
            f'<text class="slanted" transform="translate({x + 5:g} {_BOTTOM + 13}) rotate(-32)">'
            f"{html_escape(text)}</text>"
        )


#: Characters that GitHub's Markdown would interpret.
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~&])")


def as_markdown(document: Document) -> str:
    """Return the document without its charts, whose numbers are in the tables."""
    parts = [f"# {escape_markdown(document.title)}", escape_markdown(" · ".join(document.facts))]
    for block in document:
        parts += _block(block)
    return "\n\n".join(part for part in parts if part) + "\n"


def escape_markdown(text: str) -> str:
    """Escape a text for Markdown, on one line."""
    return _SPECIAL.sub(r"\\\1", printable(" ".join(text.split())))


def _block(block: Block) -> Iterator[str]:
    match block:
        case Table():
            if block.title:
                yield f"## {escape_markdown(block.title)}"
            yield escape_markdown(block.explanation)
            yield _table(block.whole)
        case Notes():
            if block.title:
                yield f"## {escape_markdown(block.title)}"
            yield "\n".join(line for note in block.notes for line in _note(note))


def _note(note: Note) -> Iterator[str]:
    text = escape_markdown(note.line)
    yield f"- **{text}**" if note.tone is Tone.STRONG else f"- {text}"
    for detail in note.details:
        yield f"  - {escape_markdown(detail)}"


def _table(table: Table) -> str:
    rows = [[escape_markdown(column.head) for column in table.columns]]
    rows.append(["---:" if column.is_number else "---" for column in table.columns])
    for row in table.rows:
        cells = [escape_markdown(cell.text_in_unit) for cell in row.cells]
        if row.note:
            cells[_note_place(table)] += f"; {escape_markdown(row.note)}"
        rows.append(cells)
    return "\n".join(map(_line, rows))


def _note_place(table: Table) -> int:
    """Return the position of the last column of words."""
    return max(place for place, column in enumerate(table.columns) if not column.is_number)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
