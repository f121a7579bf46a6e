"""Bars in the style of papers on collocation.

Blocks by how many runs share the hardware, whiskers for the 95 % confidence interval of the mean
over repeats. If a run did not finish, the word for how it ended replaces its bar.
"""

from __future__ import annotations

from collections.abc import Sequence

from radt.analysis.estimates import Estimate
from radt.analysis.quantities import Combine, Quantity
from radt.analysis.series_quantities import AnyQuantity
from radt.frontend.charts.traces import Figure, escaped, shortened
from radt.frontend.data.labels import apart
from radt.frontend.data.model import STATUS_WORDS
from radt.frontend.data.report_model import MAX_BARS, Bar, Size, column_of, peak_of
from radt.frontend.theme import FONT, INKS, Ink, Scheme, colour
from radt.render.markup import blocks_of
from radt.render.numbers import ScaledQuantity, describe, error_bar
from radt.render.report_content import is_shared
from radt.units import plural

_DIGIT_PX = 6.2


def whisker(estimate: Estimate) -> float:
    """Return the length of the interval's upper whisker.

    With two repeats it may be many times the mean; then it is cut, and its numbers are written out.
    """
    reach = error_bar(estimate)
    return min(reach.above, abs(estimate.mean)) if reach else 0.0


def reaches(estimates: Sequence[Estimate], factor: float) -> Figure:
    """Return Plotly's error bars for the confidence intervals; None without any."""
    bars = [error_bar(estimate) for estimate in estimates]
    return {
        "array": [estimate.above * factor if estimate else None for estimate in bars],
        "arrayminus": [estimate.below * factor if estimate else None for estimate in bars],
        "symmetric": False,
        "visible": any(estimate and estimate.above for estimate in bars),
    }


def separators(blocks: Sequence[tuple[int, int]], at: Sequence[float], ink: Ink) -> list[Figure]:
    return [
        {
            "type": "line",
            "xref": "x",
            "yref": "y domain",
            "x0": (at[start - 1] + at[start]) / 2,
            "x1": (at[start - 1] + at[start]) / 2,
            "y0": 0,
            "y1": 1.08,
            "line": {"color": ink.axis, "width": 1, "dash": "dot"},
        }
        for start, _ in blocks[1:]
    ]


def hairline(y: float, ink: Ink) -> Figure:
    return {
        "type": "line",
        "xref": "x domain",
        "yref": "y",
        "x0": 0,
        "x1": 1,
        "y0": y,
        "y1": y,
        "line": {"color": ink.axis, "width": 1},
    }


def block_labels(
    bars: Sequence[Bar], blocks: Sequence[tuple[int, int]], at: Sequence[float], ink: Ink
) -> list[Figure]:
    """Return a label such as ``3 runs`` above each block."""
    if len(blocks) < 2:
        return []
    return [
        {
            "xref": "x",
            "x": (at[start] + at[stop - 1]) / 2,
            "yref": "y domain",
            "y": 1,
            "yanchor": "bottom",
            "yshift": 6,
            "showarrow": False,
            "text": plural(bars[start].degree, "run"),
            "font": {"size": 11, "color": ink.dim},
        }
        for start, stop in blocks
    ]


def ends(drawn: Sequence[tuple[float, Bar, Estimate | None]], ink: Ink) -> list[Figure]:
    """Return labels that say how a run ended, in place of bars without a value."""
    return [
        {
            "xref": "x",
            "x": x,
            "yref": "y domain",
            "y": 0,
            "yanchor": "bottom",
            "yshift": 4,
            "textangle": -90,
            "showarrow": False,
            "text": escaped(STATUS_WORDS[bar.status]),
            "font": {"size": 11, "color": ink.dim},
        }
        for x, bar, estimate in drawn
        if estimate is None
    ]


def numbers(
    known: Sequence[tuple[float, Bar, Estimate]], axis: ScaledQuantity, room_px: float, ink: Ink
) -> list[Figure]:
    """Return the values above the bars (peaks for memory); none if they do not fit."""
    factor = axis.scale.factor
    labels = []
    for x, bar, estimate in known:
        highest = [estimate.mean + whisker(estimate)]
        if axis.quantity.info.combine is Combine.MEAN:
            highest += estimate.parts
        if bar.peak is not None:
            highest.append(bar.peak.mean)
        labels.append(
            {
                "xref": "x",
                "x": x,
                "yref": "y",
                "y": max(highest) * factor,
                "yanchor": "bottom",
                "yshift": 2,
                "showarrow": False,
                "text": axis.number((bar.peak or estimate).mean),
                "font": {"size": 11, "color": ink.text},
            }
        )
    widest = max((len(str(label["text"])) for label in labels), default=0)
    return labels if widest * _DIGIT_PX + 2 <= room_px else []


HEIGHT_PX = 264
_TOP_PX, _BOTTOM_PX, _LEFT_PX, _RIGHT_PX = 28, 28, 48, 12
_LABEL_CHARS = 18
_BLOCK_GAP = 0.7
_WIDTH = 0.72
_AIR = 1.16
_PLOT_PX = {Size.SMALL: 380.0, Size.MEDIUM: 600.0, Size.LARGE: 1200.0}
#: Quantities whose value 1 means no difference.
_AGAINST_ONE = (Quantity.SLOWDOWN, Quantity.SPEED_UP)


def figure(
    quantity: AnyQuantity, bars: Sequence[Bar], scheme: Scheme, size: Size, *, in_blocks: bool
) -> Figure:
    """Draw at most `MAX_BARS` bars."""
    ink = INKS[scheme]
    bars = bars[:MAX_BARS]
    axis = column_of(quantity, bars)
    factor = axis.scale.factor
    blocks = blocks_of([bar.degree for bar in bars]) if in_blocks else [(0, len(bars))]
    at = _positions(blocks)
    drawn = [(x, bar, bar.estimate) for x, bar in zip(at, bars, strict=True)]
    known = [(x, bar, estimate) for x, bar, estimate in drawn if estimate is not None]
    top = _top([bar for _, bar, _ in known]) * factor
    traces: list[Figure] = [
        {
            "type": "bar",
            "x": [x for x, _, _ in known],
            "y": [estimate.mean * factor for _, _, estimate in known],
            "width": _WIDTH,
            "marker": {
                "color": [colour(bar.tint, scheme) for _, bar, _ in known],
                "line": {"width": 0},
                "pattern": {
                    "shape": ["/" if estimate.is_estimated else "" for _, _, estimate in known],
                    "fillmode": "replace",
                    "size": 6,
                    "solidity": 0.35,
                },
            },
            "error_y": {
                "type": "data",
                **reaches([estimate for _, _, estimate in known], factor),
                "color": ink.text,
                "thickness": 1,
                "width": 3,
            },
            "showlegend": False,
            "name": "",
        }
    ]
    traces += _parts(quantity, known, factor, ink)
    traces += _peaks(quantity, known, factor, ink)
    # Only quantities of series may be negative.
    bottom = min([0.0, *(estimate.mean for _, _, estimate in known)]) * factor
    limits = (bottom * _AIR, top * _AIR or (0.0 if bottom else 1.0))
    layout = _layout(ink, bars, at, limits)
    layout["shapes"] = separators(blocks, at, ink)
    if bottom:
        layout["shapes"].append(hairline(0.0, ink))
    if quantity in _AGAINST_ONE and known:
        layout["shapes"].append(hairline(1.0, ink))
    layout["annotations"] = [
        *block_labels(bars, blocks, at, ink),
        *ends(drawn, ink),
        *numbers(known, axis, _room_px(at, size), ink),
    ]
    layout["meta"] = {
        "unit": axis.unit,
        "bars": len(bars),
        # For the page's own tooltip (static/report.js).
        "tips": [_tip(quantity, bar) for bar in bars],
    }
    return {"data": traces, "layout": layout}


def _top(bars: Sequence[Bar]) -> float:
    heights = [0.0]
    for bar in bars:
        if bar.estimate is not None:
            heights.append(bar.estimate.mean + whisker(bar.estimate))
            if bar.estimate.parts and max(bar.estimate.parts) < 4 * bar.estimate.mean:
                heights.append(max(bar.estimate.parts))
        if bar.peak is not None:
            heights.append(bar.peak.mean)
    return max(heights)


def _positions(blocks: Sequence[tuple[int, int]]) -> list[float]:
    return [
        place + number * _BLOCK_GAP
        for number, (start, stop) in enumerate(blocks)
        for place in range(start, stop)
    ]


def _tip(quantity: AnyQuantity, bar: Bar) -> Figure:
    """Return what the tooltip says about a bar: where it is, and what is there."""
    lines = [STATUS_WORDS[bar.status]]
    if bar.estimate is not None:
        lines = [describe(quantity, bar.estimate, bar.run_count)]
        peak = peak_of(quantity)
        if bar.peak is not None and peak is not None:
            lines.append(f"peak {describe(peak, bar.peak, bar.run_count)}")
        lines += bar.estimate.methods
    return {"at": f"{bar.entry.name}  {bar.runs}", "text": "\n".join(lines)}


def _parts(
    quantity: AnyQuantity, known: Sequence[tuple[float, Bar, Estimate]], factor: float, ink: Ink
) -> list[Figure]:
    """Return dots for single runs; none where the bar is their sum."""
    if quantity.info.combine is Combine.SUM or is_shared(quantity):
        return []
    xs, ys = [], []
    for x, _, estimate in known:
        count = len(estimate.parts)
        for place, value in enumerate(estimate.parts):
            xs.append(x + _WIDTH * 0.8 * ((place + 0.5) / count - 0.5))
            ys.append(value * factor)
    if not xs:
        return []
    marker = {"size": 4, "color": ink.paper, "line": {"width": 1, "color": ink.text}}
    return [_points(xs, ys, marker)]


def _peaks(
    quantity: AnyQuantity, known: Sequence[tuple[float, Bar, Estimate]], factor: float, ink: Ink
) -> list[Figure]:
    if peak_of(quantity) is None:
        return []
    peaks = [(x, bar.peak.mean * factor) for x, bar, _ in known if bar.peak is not None]
    marker = {
        "symbol": "line-ew",
        "size": 16,
        "color": ink.text,
        "line": {"width": 1.5, "color": ink.text},
    }
    return [_points([x for x, _ in peaks], [y for _, y in peaks], marker)]


def _points(xs: list[float], ys: list[float], marker: Figure) -> Figure:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": xs,
        "y": ys,
        "marker": marker,
        "showlegend": False,
        "name": "",
    }


def _room_px(at: Sequence[float], size: Size) -> float:
    """Return the approximate width of a bar's slot on a page of medium width."""
    return _PLOT_PX[size] / max(4.8, (at[-1] if at else 0.0) + 1.2)


def _layout(
    ink: Ink, bars: Sequence[Bar], at: Sequence[float], limits: tuple[float, float]
) -> Figure:
    names = apart([bar.label for bar in bars])
    labels = [escaped(shortened(name, _LABEL_CHARS)) for name in names]
    last = at[-1] if at else 0.0
    return {
        "height": HEIGHT_PX,
        "autosize": True,
        "paper_bgcolor": ink.paper,
        "plot_bgcolor": ink.paper,
        "font": {"family": FONT, "size": 12, "color": ink.text},
        "showlegend": False,
        "dragmode": False,
        "hovermode": False,
        "bargap": 0,
        "margin": {"l": _LEFT_PX, "r": _RIGHT_PX, "t": _TOP_PX, "b": _BOTTOM_PX, "pad": 0},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": ink.dim, "activecolor": ink.text},
        "transition": {"duration": 0},
        "xaxis": {
            # A single bar must not fill the chart.
            "range": [min(-0.6, last / 2 - 2.4), max(last + 0.6, last / 2 + 2.4)],
            "tickvals": list(at),
            "ticktext": labels,
            # Slanted only where they do not fit; the margins grow with them.
            "tickangle": "auto",
            "autotickangles": [0, -40],
            "automargin": True,
            "tickfont": {"size": 11, "color": ink.text},
            "ticks": "",
            "showgrid": False,
            "zeroline": False,
            "showline": True,
            "linecolor": ink.axis,
            "linewidth": 1,
            "fixedrange": True,
        },
        "yaxis": {
            "range": list(limits),
            "gridcolor": ink.grid,
            "gridwidth": 1,
            "zeroline": False,
            "nticks": 5,
            "ticks": "",
            "ticklabelstandoff": 4,
            "tickfont": {"size": 11, "color": ink.dim},
            "exponentformat": "SI",
            "fixedrange": True,
        },
    }
