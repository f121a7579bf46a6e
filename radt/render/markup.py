"""Documents as markup for pages: HTML with inline SVG charts, and Markdown.

HTML is a single printable file without scripts or external resources. SVG needs no script or
library, and takes its colours from the page's style sheet: blocks by the number of runs that share
the hardware, colours by the way of sharing, whiskers for the 95 % confidence interval. A run
without a value keeps its place and shows its status. Markdown has GitHub's tables, for pages,
issues and pull requests.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup, escape

from radt.analysis.quantities import Combine
from radt.render.bars import Bar, BarChart, blocks_of
from radt.render.labels import apart, shortened
from radt.render.model import Cell, ColumnHead, Document, Table, Tone, printable
from radt.render.numbers import INTERVAL_NOTE, error_bar
from radt.render.report_content import SharingMode, is_shared
from radt.units import plural

#: Content security policy, so that even a name with markup in it can load or run nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
#: Margins of a figure around its chart, in pixels.
_FIGURE_EDGES = 34
#: A single value above this multiple of the mean is not drawn.
_MOST_ABOVE = 4
#: Maximum length of a text on one line.
_SHORT_CHARS = 28


def as_html(document: Document) -> str:
    """Return the whole page."""
    return _written("document.html.jinja", document)


def _written(name: str, document: Document) -> str:
    blocks = [
        (type(block).__name__.lower(), block.whole if isinstance(block, Table) else block)
        for block in document
    ]
    return _template(name).render(document=document, blocks=blocks)


def bars_svg(chart: BarChart, colours_of: Callable[[Bar], tuple[str, str]] | None = None) -> Markup:
    """Draw a chart. Screen readers get only its title, as the table beside it has the numbers.

    Args:
        chart: The bars.
        colours_of: Returns the colour of a bar on light and on dark paper. By default, the colour
            shows the way of sharing.
    """
    drawn = _template("bars.svg.jinja").render(plot=_Plot(chart), colours_of=colours_of)
    return Markup(drawn)  # noqa: S704 - escaped


def table_html(table: Table) -> Markup:
    """Return a table with numbers aligned at their decimal points."""
    texts = [_aligned(cells) for cells in zip(*(row.cells for row in table.rows), strict=True)]
    made = _template("table.html.jinja").render(table=table, texts=texts)
    return Markup(made)  # noqa: S704 - escaped


#: Spaces as wide as a digit, and as a point.
_DIGIT_SPACE, _POINT_SPACE = "\N{FIGURE SPACE}", "\N{PUNCTUATION SPACE}"


def _aligned(cells: Sequence[Cell]) -> list[Markup]:
    """Return the texts of a column, with numbers padded on the right to align decimal points."""
    behind = [len(cell.number.partition(".")[2]) for cell in cells]
    widest = max(behind)
    texts = []
    for cell, count in zip(cells, behind, strict=True):
        point = _POINT_SPACE if cell.number and widest and not count else ""
        padding = point + _DIGIT_SPACE * (widest - count) if cell.number else ""
        texts.append(escape(printable(cell.number or cell.text)) + padding)
    return texts


def bars_file(chart: BarChart, title: str) -> str:
    """Return a chart as an SVG file, in light colours, with a title and a legend."""
    colours = dict(re.findall(r"--([\w-]+): ([^;]+);", resource("style.css").partition("}")[0]))
    # Programs that print SVG do not support CSS variables.
    style = re.sub(r"var\(--([\w-]+)\)", lambda name: colours[name[1]], resource("bars.css"))
    used = {bar.way for bar in chart.bars}
    return _template("bars_file.svg.jinja").render(
        plot=_Plot(chart),
        title=title,
        ways=[way for way in SharingMode if way in used],
        style=Markup(style),  # noqa: S704 - our own
    )


@cache
def _template(name: str) -> Template:
    is_markdown = name.endswith(".md.jinja")
    environment = Environment(
        autoescape=not is_markdown,  # noqa: S701 - `_in_markdown` escapes
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=_in_markdown if is_markdown else _visible,
    )
    environment.globals |= {
        "bars_svg": bars_svg,
        "table_html": table_html,
        "cell_class": _cell_class,
        "chart_width": lambda chart: f"{_Plot(chart).width + _FIGURE_EDGES:.0f}",
        "edge": _Edge,
        "error_bar": error_bar,
        "interval_note": INTERVAL_NOTE.replace("± or from–to", "Whiskers"),
        "plural": plural,
        "policy": _POLICY,
        "px": "{:g}".format,
        "style": Markup(resource("style.css") + resource("bars.css")),  # noqa: S704 - our own
    }
    return environment.from_string(resource(name))


def _visible(value: object) -> object:
    """Spell out control characters in text; leave our own markup alone."""
    return printable(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _in_markdown(value: object) -> object:
    return escape_markdown(value) if isinstance(value, str) else value


def resource(name: str) -> str:
    """Return the text of a template or style sheet."""
    return files("radt.render").joinpath("templates", name).read_text(encoding="utf-8")


def _cell_class(column: ColumnHead, cell: Cell) -> str:
    is_long = not column.is_number and len(cell.text) > _SHORT_CHARS
    classes = ["number"] * column.is_number + ["wrap"] * is_long + ["heat"] * bool(cell.heat)
    return " ".join(classes + [cell.tone.value] * (cell.tone is not Tone.NORMAL))


class _Edge:
    """Sizes of a chart in pixels, and the maximum length of a label."""

    top, bottom, names, below = 30, 170, 24, 13
    left, right, smallest = 48.0, 12.0, 300.0
    slot, bar, gap = 46.0, 30.0, 18.0
    character, label_chars, slant = 6.2, 18, math.radians(32)


class _Plot:
    """The geometry of a chart: centres of its bars, and its axis, in pixels."""

    def __init__(self, chart: BarChart) -> None:
        self.chart = chart
        self.factor = chart.axis.scale.factor
        self.blocks = blocks_of(bar.degree * chart.has_blocks for bar in chart.bars)
        names = apart([bar.label for bar in chart.bars])
        self.labels = [shortened(name, _Edge.label_chars) for name in names]
        self.is_slanted = max(map(len, names)) * _Edge.character > _Edge.slot + 2
        # Slanted names end below their bars and reach to the left.
        longest = max(map(len, self.labels)) * _Edge.character * self.is_slanted
        self.left = max(_Edge.left, longest * math.cos(_Edge.slant) - _Edge.slot / 2)
        self.centres = [
            self.left + (place + 0.5) * _Edge.slot + number * _Edge.gap
            for number, (start, stop) in enumerate(self.blocks)
            for place in range(start, stop)
        ]
        slanted = longest * math.sin(_Edge.slant) + _Edge.below
        self.height = _Edge.bottom + max(slanted, _Edge.names)
        self.width = max(_Edge.smallest, self.centres[-1] + _Edge.slot / 2 + _Edge.right)
        tops = [bar.known.mean + bar.whisker for bar in chart.bars if bar.known]
        tops += [bar.peak.mean for bar in chart.bars if bar.peak]
        lowest = min(0.0, *(bar.known.mean for bar in chart.bars if bar.known)) * self.factor
        tops += [part for bar in chart.bars for part in self.parts(bar)]
        largest = max(0.0, *tops) * self.factor
        self.step = _step(max(largest, -lowest))
        first, last = (math.ceil(round(reach / self.step, 6)) for reach in (-lowest, largest))
        self._first, self._last = -first, last if first or last else 1

    @property
    def ticks(self) -> list[float]:
        """Return the values of the grid lines, in the chart's unit; 0 is the zero line."""
        return [number * self.step for number in range(self._first, self._last + 1)]

    def y(self, value: float) -> float:
        """Return the y coordinate of a value, clamped to the axis."""
        share = (value / self.step - self._first) / (self._last - self._first)
        return _Edge.bottom - (_Edge.bottom - _Edge.top) * min(max(share, 0.0), 1.0)

    def parts(self, bar: Bar) -> Sequence[float]:
        """Return the values of single runs; none if the bar is their sum.

        Values far above the mean would shrink all bars, so they appear only in the explanation.
        """
        is_sum = self.chart.axis.quantity.info.combine is Combine.SUM
        if bar.known is None or is_sum or is_shared(self.chart.axis.quantity):
            return ()
        most = max(bar.known.parts, default=0.0)
        several = len(bar.known.parts) > 1 and most < _MOST_ABOVE * abs(bar.known.mean)
        return bar.known.parts if several else ()

    def highest_part(self, bar: Bar) -> float:
        """Return the y coordinate of the highest single value; the bottom if there is none."""
        return min((self.y(part * self.factor) for part in self.parts(bar)), default=_Edge.bottom)


def _step(largest: float) -> float:
    """Return a round distance of grid lines, given the largest value."""
    if largest <= 0:
        return 1.0
    rough = largest / 4
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough)


#: Characters that GitHub's Markdown would interpret.
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~&])")


def as_markdown(document: Document) -> str:
    """Return the document without its charts, whose numbers are in the tables."""
    return _written("document.md.jinja", document).rstrip() + "\n"


def escape_markdown(text: str) -> str:
    """Escape a text for Markdown, on one line."""
    return _SPECIAL.sub(r"\\\1", printable(" ".join(text.split())))
