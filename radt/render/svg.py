"""Bar charts as inline SVG: no script, no library; colours come from the page's style sheet.

Blocks by how many runs share the hardware, colours by how they share it, whiskers for the 95 %
confidence interval. A run without a value stands in its place with its status.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from markupsafe import Markup, escape

from radt.render.model import Bar, BarChart

#: A chart of more bars cannot be read; the table has them.
MAX_BARS = 40
_HEIGHT, _TOP, _PLOT_HEIGHT = 236, 30, 140
_SLOT, _BAR, _BLOCK_GAP, _LEFT, _RIGHT = 46.0, 30.0, 18.0, 48.0, 12.0
_SMALLEST_WIDTH = 300.0
_CHARACTER, _LABEL_CHARS = 6.2, 18
_BOTTOM = _TOP + _PLOT_HEIGHT


def width_of(bars: Sequence[Bar]) -> float:
    """Return the pixels that a chart takes."""
    centres = _centres(bars[:MAX_BARS])
    return max(_SMALLEST_WIDTH, (centres[-1] if centres else 0.0) + _SLOT / 2 + _RIGHT)


def bars_svg(chart: BarChart) -> Markup:
    """Draw a chart; the table beside it has the numbers, so screen readers get its title."""
    bars = chart.bars[:MAX_BARS]
    centres = _centres(bars)
    width = width_of(bars)
    step, top = _steps(max(map(_height, bars), default=0.0))
    title = f"{chart.title} [{chart.unit}]" if chart.unit else chart.title
    parts = [
        f'<svg viewBox="0 0 {width:g} {_HEIGHT}" style="max-width:{width:g}px" role="img"'
        f' aria-label="{escape(title)}">',
        *_grid(step, top, width),
        *_blocks(bars, centres),
    ]
    for x, bar in zip(centres, bars, strict=True):
        parts += _bar(bar, x, top)
    return Markup("".join([*parts, "</svg>"]))  # noqa: S704 - every text in it is escaped


def blocks_of(values: Iterable[object]) -> list[tuple[int, int]]:
    """Return start and end of each stretch of equal values.

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
    # The interval of two repeats may be many times the mean: it is cut, the explanation has it all.
    return bar.value + (min(bar.high - bar.value, bar.value) if bar.high is not None else 0.0)


def _steps(largest: float) -> tuple[float, float]:
    """Distance of grid lines, and the upper end of the axis, in round numbers."""
    if largest <= 0:
        return 1.0, 1.0
    rough = largest / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough)
    return step, step * math.ceil(round(largest / step, 6))


def _y(value: float, top: float) -> float:
    return _TOP + _PLOT_HEIGHT * (1 - min(max(value / top, 0.0), 1.0))


def _grid(step: float, top: float, width: float) -> Iterator[str]:
    for number in range(round(top / step) + 1):
        y = _y(number * step, top)
        kind = "axis" if number == 0 else "grid"
        yield f'<line class="{kind}" x1="{_LEFT}" x2="{width - _RIGHT:g}" y1="{y:g}" y2="{y:g}"/>'
        yield f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:g}">{number * step:,.6g}</text>'


def _blocks(bars: Sequence[Bar], centres: Sequence[float]) -> Iterator[str]:
    blocks = blocks_of(bar.block for bar in bars)
    if len(blocks) < 2:
        return
    for start, stop in blocks:
        if start:
            x = (centres[start - 1] + centres[start]) / 2
            yield f'<line class="part" x1="{x:g}" x2="{x:g}" y1="8" y2="{_BOTTOM}"/>'
        middle = (centres[start] + centres[stop - 1]) / 2
        yield f'<text class="block" x="{middle:g}" y="14">{escape(bars[start].block)}</text>'


def _bar(bar: Bar, x: float, top: float) -> Iterator[str]:
    yield f"<g><title>{escape(bar.explanation)}</title>"
    if bar.value is None:
        yield (
            f'<text class="end" transform="translate({x + 4:g} {_BOTTOM - 4}) rotate(-90)">'
            f"{escape(bar.text)}</text>"
        )
    else:
        y = _y(bar.value, top)
        estimated = " estimated" if bar.is_estimated else ""
        yield (
            f'<rect class="{bar.style}{estimated}" x="{x - _BAR / 2:g}" y="{y:g}"'
            f' width="{_BAR:g}" height="{max(_BOTTOM - y, 0.0):g}"/>'
        )
        if bar.high is not None and bar.low is not None:
            y = _y(bar.high, top)
            yield f'<path class="whisker" d="M{x - 4:g} {y:g}h8m-4 0V{_y(bar.low, top):g}m-4 0h8"/>'
        yield f'<text class="value" x="{x:g}" y="{y - 4:g}">{escape(bar.text)}</text>'
    yield from _label(bar.label, x)
    yield "</g>"


def _label(text: str, x: float) -> Iterator[str]:
    text = text if len(text) <= _LABEL_CHARS else f"{text[: _LABEL_CHARS - 1]}…"
    if len(text) * _CHARACTER <= _SLOT + 2:
        yield f'<text class="name" x="{x:g}" y="{_BOTTOM + 16}">{escape(text)}</text>'
    else:
        yield (
            f'<text class="slanted" transform="translate({x + 5:g} {_BOTTOM + 13}) rotate(-32)">'
            f"{escape(text)}</text>"
        )
