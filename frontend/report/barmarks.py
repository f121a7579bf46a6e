"""What stands around bars: degrees of collocation, numbers, and how runs ended."""

from __future__ import annotations

from collections.abc import Sequence

from radt.frontend.catalog import STATUS_WORDS
from radt.frontend.charts.traces import Figure, escaped
from radt.frontend.report.bars import Bar
from radt.frontend.theme import Ink
from radt.report.estimates import Estimate
from radt.report.formats.columns import Column, reach_of
from radt.report.quantities import ABOUT, Combine
from radt.units import plural

_DIGIT_PX = 6.2


def whisker(estimate: Estimate) -> float:
    """How far the interval is drawn above the mean.

    That of two repeats may be many times the mean; then it is cut, and its numbers are told.
    """
    reach = reach_of(estimate)
    return min(reach.above, abs(estimate.mean)) if reach else 0.0


def reaches(estimates: Sequence[Estimate], factor: float) -> Figure:
    """What Plotly's error bars are made of: confidence intervals, where there are any."""
    found = [reach_of(one) for one in estimates]
    return {
        "array": [one.above * factor if one else None for one in found],
        "arrayminus": [one.below * factor if one else None for one in found],
        "symmetric": False,
        "visible": any(one and one.above for one in found),
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
    """``3 runs`` above each block."""
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
    """How it ended, where there is no value."""
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
            "hovertext": escaped(f"{bar.entry.name}  {bar.runs}"),
            "font": {"size": 11, "color": ink.dim},
        }
        for x, bar, estimate in drawn
        if estimate is None
    ]


def numbers(
    known: Sequence[tuple[float, Bar, Estimate]], axis: Column, room_px: float, ink: Ink
) -> list[Figure]:
    """The values above their bars, or of memory the peaks; none where they do not fit."""
    factor = axis.scale.factor
    labels = []
    for x, bar, estimate in known:
        highest = [estimate.mean + whisker(estimate)]
        if ABOUT[axis.quantity].combine is Combine.MEAN:
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
