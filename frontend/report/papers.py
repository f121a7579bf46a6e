"""Figures of a report on paper: with title, unit and legend, because a picture stands alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from radt.frontend.charts.traces import Figure, escaped
from radt.frontend.export.sheet import Box, Merger, Sheet
from radt.frontend.palette import Scheme, colour
from radt.frontend.report.barfigure import figure
from radt.frontend.report.bars import MAX_BARS, PEAKS, Bar, column_of, size_of, title_of
from radt.frontend.report.data import Shown
from radt.frontend.theme import FONT, INKS
from radt.report.formats.chart_bars import Way, way_of
from radt.report.formats.columns import INTERVAL_WORDS, reach_of
from radt.report.quantities import Quantity

_INK = INKS[Scheme.LIGHT]
_LEFT_PX, _RIGHT_PX, _TOP_PX, _BOTTOM_PX = 72, 24, 88, 104
_BAR_PX, _SMALLEST_PX, _PLOT_PX = 44, 360, 240
_TITLE_CHARS = 60
_CHARACTER_PX = 6.4


def in_order(bars: Sequence[Bar]) -> list[Bar]:
    """By degree of collocation, then by the way of sharing, which is their colour."""
    ways = [(way_of(bar.entry.summary), bar) for bar in bars]
    order = list(Way)
    ways.sort(key=lambda pair: (pair[1].degree, order.index(pair[0])))
    return [replace(bar, tint=order.index(way)) for way, bar in ways]


def single(quantity: Quantity, bars: Sequence[Bar], shown: Shown) -> Figure:
    """One quantity of all workloads."""
    return _sheet(", ".join(shown.experiments), [(quantity, bars)], shown.window)


def panels(title: str, of: Sequence[tuple[Quantity, Sequence[Bar]]]) -> Figure:
    """Several quantities of the same workloads side by side."""
    return _sheet(title, of, "")


def _sheet(title: str, of: Sequence[tuple[Quantity, Sequence[Bar]]], window: str) -> Figure:
    blocks = [len({bar.degree for bar in bars}) for _, bars in of]
    widths = [
        max(_SMALLEST_PX, min(len(bars), MAX_BARS) * _BAR_PX + count * _BAR_PX // 2)
        for (_, bars), count in zip(of, blocks, strict=True)
    ]
    width = sum(widths) + len(of) * (_LEFT_PX + _RIGHT_PX)
    height = _TOP_PX + _PLOT_PX + _BOTTOM_PX
    merger = Merger(Sheet(width, height))
    left = 0
    for place, ((quantity, bars), wide) in enumerate(zip(of, widths, strict=True)):
        made = figure(quantity, bars, Scheme.LIGHT, size_of(len(bars)), in_blocks=True)
        names = made["layout"]["xaxis"]["ticktext"]
        # On paper a bar has its own width, whatever a page has room for.
        fits = max(map(len, names), default=0) * _CHARACTER_PX <= _BAR_PX
        made["layout"]["xaxis"]["tickangle"] = 0 if fits else -40
        merger.add(made, Box(left + _LEFT_PX, _BOTTOM_PX, wide, _PLOT_PX))
        letter = f"({chr(ord('a') + place)}) " if len(of) > 1 else ""
        merger.annotations.append(
            text_at(
                f"<b>{letter}{title_of(quantity)}</b>  {escaped(_unit(quantity, bars))}",
                (left + _LEFT_PX) / width,
                1 - 42 / height,
                size=13,
            )
        )
        left += wide + _LEFT_PX + _RIGHT_PX
    words = [title[:_TITLE_CHARS], *([window] if window else [])]
    merger.annotations.append(
        text_at(escaped(" · ".join(words)), _LEFT_PX / width, 1 - 14 / height, size=15)
    )
    if any(bar.estimate and reach_of(bar.estimate) for _, bars in of for bar in bars):
        note = escaped(INTERVAL_WORDS.replace("± or from–to", "Whiskers"))
        merger.annotations.append(text_at(note, _LEFT_PX / width, 6 / height, size=11))
    ways = {way_of(bar.entry.summary) for _, bars in of for bar in bars}
    return {
        "data": [*merger.traces, *_legend([way for way in Way if way in ways])],
        "layout": {
            **base(width, height),
            **merger.axes,
            "annotations": merger.annotations,
            "shapes": merger.shapes,
            "bargap": 0,
            "showlegend": len(ways) > 1,
            "legend": {
                "orientation": "h",
                "x": 1 - _RIGHT_PX / width,
                "xanchor": "right",
                "y": 1 - 8 / height,
                "yanchor": "top",
            },
        },
    }


def _unit(quantity: Quantity, bars: Sequence[Bar]) -> str:
    words = [column_of(quantity, bars).unit]
    if quantity in PEAKS and any(bar.peak is not None for bar in bars):
        words.append("bar mean, line and number peak")
    if len(bars) > MAX_BARS:
        words.append(f"the first {MAX_BARS} of {len(bars):,}")
    return ", ".join(word for word in words if word)


def _legend(ways: Sequence[Way]) -> list[Figure]:
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "x": [None],
            "y": [None],
            "name": way.value,
            "marker": {
                "symbol": "square",
                "size": 11,
                "color": colour(list(Way).index(way), Scheme.LIGHT),
            },
            "showlegend": True,
        }
        for way in ways
    ]


def base(width: float, height: float) -> Figure:
    """The layout of a figure of that size in pixels."""
    return {
        "width": width,
        "height": height,
        "margin": {"l": 0, "r": 0, "t": 0, "b": 0, "pad": 0},
        "paper_bgcolor": _INK.paper,
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 12, "color": _INK.text},
    }


def text_at(text: str, x: float, y: float, *, size: int) -> Figure:
    """A text on the paper, from 0 to 1 in both directions; ``size`` in points."""
    return {
        "xref": "paper",
        "yref": "paper",
        "x": x,
        "y": y,
        "xanchor": "left",
        "yanchor": "middle",
        "showarrow": False,
        "text": text,
        "font": {"size": size, "color": _INK.text},
    }
