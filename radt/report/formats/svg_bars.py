"""Bars as inline SVG: no script, no library; colours come from the page's style sheet.

Blocks by how many runs share the hardware, colours by the way they share it, whiskers for the 95 %
confidence interval. What did not finish stands in its place with the word for how it ended.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from radt.report.formats.chart_bars import ChartBar, Way, blocks_of
from radt.report.formats.columns import Column, Reach, reach_of, told
from radt.units import plural

#: More are a table.
MAX_BARS = 40
_HEIGHT, _TOP, _PLOT_HEIGHT = 236, 30, 140
_SLOT, _BAR, _BLOCK_GAP, _LEFT, _RIGHT = 46.0, 30.0, 18.0, 48.0, 12.0
_SMALLEST_WIDTH = 300.0
_CHARACTER, _LABEL_CHARS = 6.2, 18


def _width(at: Sequence[float]) -> float:
    return max(_SMALLEST_WIDTH, (at[-1] if at else 0.0) + _SLOT / 2 + _RIGHT)


def width_of(bars: Sequence[ChartBar]) -> float:
    """Pixels that a chart takes."""
    return _width(_places(bars[:MAX_BARS]))


def _places(bars: Sequence[ChartBar]) -> list[float]:
    return [
        _LEFT + (place + 0.5) * _SLOT + number * _BLOCK_GAP
        for number, (start, stop) in enumerate(blocks_of([bar.degree for bar in bars]))
        for place in range(start, stop)
    ]


def bars_svg(column: Column, bars: Sequence[ChartBar], title: str) -> str:
    """The chart; the table beside it has the numbers, so readers of screens hear its title."""
    bars = bars[:MAX_BARS]
    blocks = blocks_of([bar.degree for bar in bars])
    at = _places(bars)
    width = _width(at)
    step, top = _steps(max(map(_height, bars), default=0.0) * column.scale.factor)
    parts = [
        f'<svg viewBox="0 0 {width:g} {_HEIGHT}" style="max-width:{width:g}px" role="img"'
        f' aria-label="{escape(title)}">',
        *_grid(step, top, width),
        *_blocks(bars, blocks, at),
    ]
    for x, bar in zip(at, bars, strict=True):
        parts += _bar(column, bar, x, top)
    return "".join([*parts, "</svg>"])


def legend(bars: Sequence[ChartBar]) -> str:
    """What the colours mean; empty where there is one."""
    ways = [way for way in Way if any(bar.way is way for bar in bars)]
    if len(ways) < 2:
        return ""
    entries = "".join(
        f'<span><i class="way-{way.name.lower()}"></i>{escape(way.value)}</span>' for way in ways
    )
    return f'<p class="legend">{entries}</p>'


def _height(bar: ChartBar) -> float:
    if bar.estimate is None or not math.isfinite(bar.estimate.mean):
        return 0.0
    # An interval of two repeats may be many times the mean: it is cut, and its numbers are told.
    reach = reach_of(bar.estimate)
    return bar.estimate.mean + (min(reach.above, bar.estimate.mean) if reach else 0.0)


def _steps(largest: float) -> tuple[float, float]:
    """Distance of grid lines, and the upper end of the axis, in round numbers."""
    if largest <= 0:
        return 1.0, 1.0
    rough = largest / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * one for one in (1, 2, 2.5, 5, 10) if power * one >= rough)
    return step, step * math.ceil(round(largest / step, 6))


def _y(value: float, top: float) -> float:
    return _TOP + _PLOT_HEIGHT * (1 - min(max(value / top, 0.0), 1.0))


def _grid(step: float, top: float, width: float) -> Iterator[str]:
    for number in range(round(top / step) + 1):
        y = _y(number * step, top)
        kind = "axis" if number == 0 else "grid"
        yield f'<line class="{kind}" x1="{_LEFT}" x2="{width - _RIGHT:g}" y1="{y:g}" y2="{y:g}"/>'
        yield f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:g}">{number * step:,.6g}</text>'


def _blocks(
    bars: Sequence[ChartBar], blocks: Sequence[tuple[int, int]], at: Sequence[float]
) -> Iterator[str]:
    if len(blocks) < 2:
        return
    for start, stop in blocks:
        if start:
            x = (at[start - 1] + at[start]) / 2
            yield (f'<line class="part" x1="{x:g}" x2="{x:g}" y1="8" y2="{_TOP + _PLOT_HEIGHT}"/>')
        middle = (at[start] + at[stop - 1]) / 2
        degree = plural(bars[start].degree, "run")
        yield f'<text class="block" x="{middle:g}" y="14">{degree}</text>'


def _bar(column: Column, bar: ChartBar, x: float, top: float) -> Iterator[str]:
    bottom = _TOP + _PLOT_HEIGHT
    yield "<g>"
    yield f"<title>{escape(_about(column, bar))}</title>"
    if bar.estimate is None or not math.isfinite(bar.estimate.mean):
        yield (
            f'<text class="end" transform="translate({x + 4:g} {bottom - 4}) rotate(-90)">'
            f"{escape(bar.status.value)}</text>"
        )
    else:
        value = bar.estimate.mean * column.scale.factor
        y = _y(value, top)
        estimated = " estimated" if bar.estimate.is_estimated else ""
        yield (
            f'<rect class="way-{bar.way.name.lower()}{estimated}" x="{x - _BAR / 2:g}" y="{y:g}"'
            f' width="{_BAR:g}" height="{max(bottom - y, 0.0):g}"/>'
        )
        reach = reach_of(bar.estimate) or Reach(0.0, 0.0)
        upper = _y(value + reach.above * column.scale.factor, top)
        if reach.above:
            lower = _y(value - reach.below * column.scale.factor, top)
            yield (f'<path class="whisker" d="M{x - 4:g} {upper:g}h8m-4 0V{lower:g}m-4 0h8"/>')
        number = column.number(bar.estimate.mean)
        yield f'<text class="value" x="{x:g}" y="{upper - 4:g}">{number}</text>'
    yield from _label(bar, x, bottom)
    yield "</g>"


def _label(bar: ChartBar, x: float, bottom: float) -> Iterator[str]:
    text = bar.label
    text = text if len(text) <= _LABEL_CHARS else f"{text[: _LABEL_CHARS - 1]}…"
    if len(text) * _CHARACTER <= _SLOT + 2:
        yield f'<text class="name" x="{x:g}" y="{bottom + 16}">{escape(text)}</text>'
    else:
        yield (
            f'<text class="slanted" transform="translate({x + 5:g} {bottom + 13}) rotate(-32)">'
            f"{escape(text)}</text>"
        )


def _about(column: Column, bar: ChartBar) -> str:
    head = f"{bar.item.name}  {bar.runs}"
    if bar.estimate is None:
        return f"{head}: {bar.status.value}"
    return f"{head}: {told(column.quantity, bar.estimate, bar.run_count)}"
