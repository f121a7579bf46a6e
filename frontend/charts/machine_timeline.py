"""The timeline of machines: one row per device, with a lane for each simultaneous run.

With many runs, neighbours thinner than a line become one bar, so that there are never more bars
than browsers can draw. Zooming in shows each run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from radt.frontend.charts.layout import axis_ticks
from radt.frontend.charts.timeline import (
    BAD,
    LEFT_PX,
    RIGHT_PX,
    Figure,
    bars_trace,
    contrasting,
    frame_layout,
    frame_note,
)
from radt.frontend.charts.traces import escaped
from radt.frontend.data.spec import AxisRange, XAxis
from radt.frontend.data.workload.model import LaneSpan, binned
from radt.frontend.theme import INKS, Ink, Scheme, colour, translucent

if TYPE_CHECKING:
    from radt.frontend.data.machine_timeline import TimelineDevice

#: The axis has times of day, with the date below.
CLOCK_PX = 40
#: Heights of a lane, for few lanes and for many, and of the space around a device's lanes.
_LANE_PX, _SMALL_LANE_PX = 24, 16
_FEW_LANES = 40
_SPACE_PX = 8
_EMPTY_PX = 120
_THINNEST_SHARE = 1 / 1000
_MOST_BARS = 4000
_MOST_LABELS = 400
_LABELLED_SHARE = 1 / 50
_STRONG, _FAINTEST = 0.88, 0.4


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A bar in the lane whose middle is ``y``."""

    y: float
    bar: LaneSpan


def lane_px(places: Sequence[TimelineDevice]) -> int:
    """Return the height of a lane."""
    return _LANE_PX if sum(len(place.lanes) for place in places) <= _FEW_LANES else _SMALL_LANE_PX


def place_px(place: TimelineDevice, lane: int) -> int:
    """Return the height of a device with all of its lanes, each ``lane`` pixels high."""
    return len(place.lanes) * lane + _SPACE_PX


def machine_timeline(places: Sequence[TimelineDevice], window: AxisRange, scheme: Scheme) -> Figure:
    """Draw the runs of all devices. The y axis is in pixels from the top.

    ``customdata`` of a bar are its text, its workload ("" for several), start and end.
    """
    ink, lane = INKS[scheme], lane_px(places)
    lanes: list[tuple[float, Sequence[LaneSpan]]] = []
    ends: list[_Drawn] = []
    borders: list[float] = []
    top, host = 0.0, ""
    shortest_s = (window.end - window.start) * _THINNEST_SHARE
    for place in places:
        if place.host != host and host:
            borders.append(top)
        host = place.host
        for number, (bars, bad) in enumerate(zip(place.lanes, place.ends, strict=True)):
            y = top + _SPACE_PX / 2 + (number + 0.5) * lane
            lanes.append((y, bars))
            ends += [_Drawn(y, bar) for bar in binned(bad, window, 4 * shortest_s)]
        top += place_px(place, lane)
    drawn = _drawn(lanes, window, shortest_s)
    height = top or _EMPTY_PX
    layout = frame_layout(ink, window, CLOCK_PX + int(height))
    positions, texts = axis_ticks(XAxis.WALL, window)
    layout["xaxis"] |= {"side": "top", "tickvals": positions, "ticktext": texts}
    layout["yaxis"] = {
        "range": [height, 0],
        "fixedrange": True,
        "visible": False,
        "zeroline": False,
    }
    layout["margin"] = {"l": LEFT_PX, "r": RIGHT_PX, "t": CLOCK_PX, "b": 0, "pad": 0}
    layout["barmode"], layout["hovermode"] = "overlay", "closest"
    layout["uniformtext"] = {"mode": "hide", "minsize": 11}
    layout["shapes"] = [_border(y, ink) for y in borders]
    layout["meta"] = {"bars": len(drawn), "runs": sum(one.bar.count for one in drawn)}
    if not places:
        layout["annotations"] = [frame_note("No run has started yet.", ink)]
    return {
        "data": [_runs(drawn, window, lane, scheme), _ends(ends, scheme)],
        "layout": layout,
    }


def _drawn(
    lanes: Sequence[tuple[float, Sequence[LaneSpan]]], window: AxisRange, shortest_s: float
) -> list[_Drawn]:
    """Return the bars in the window, merging the thinnest until there are few enough."""
    while True:
        drawn = [_Drawn(y, bar) for y, bars in lanes for bar in binned(bars, window, shortest_s)]
        if len(drawn) <= max(_MOST_BARS, len(lanes)) or shortest_s > window.end - window.start:
            return drawn
        shortest_s *= 2


def _runs(drawn: Sequence[_Drawn], window: AxisRange, lane: int, scheme: Scheme) -> Figure:
    ink = INKS[scheme]
    fills, labels, letters = [], [], []
    shortest_s = (window.end - window.start) * _LABELLED_SHARE
    for one in drawn:
        bar = one.bar
        base = ink.dim if bar.hue is None else colour(bar.hue, scheme)
        opacity = _STRONG if bar.count == 1 else _FAINTEST + (_STRONG - _FAINTEST) * bar.busy
        fills.append(translucent(base, opacity))
        letters.append(contrasting(base, opacity, scheme))
        seen_s = min(bar.end_s, window.end) - max(bar.start_s, window.start)
        label = f"{bar.label} {bar.mark}".strip() if seen_s >= shortest_s else ""
        labels.append(escaped(label))
    if len(drawn) > _MOST_LABELS:
        labels = [""] * len(drawn)
    trace = bars_trace("runs", [(one.y, one.bar) for one in drawn], window, lane - 4, fills)
    return trace | {
        "customdata": [
            [one.bar.text, one.bar.key, one.bar.start_s, one.bar.end_s] for one in drawn
        ],
        "text": labels,
        "textposition": "inside",
        "insidetextanchor": "start",
        "textangle": 0,
        "insidetextfont": {"size": 11, "color": letters},
    }


def _ends(ends: Sequence[_Drawn], scheme: Scheme) -> Figure:
    """Mark the ends of runs that did not finish."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "ends",
        "x": [one.bar.start_s for one in ends],
        "y": [one.y for one in ends],
        "marker": {
            "symbol": "x-thin",
            "size": 9,
            "line": {"width": 2.4, "color": BAD[scheme]},
            "color": BAD[scheme],
        },
        "customdata": [[one.bar.text, one.bar.key, one.bar.start_s, one.bar.end_s] for one in ends],
        "hoverinfo": "none",
    }


def _border(y: float, ink: Ink) -> Figure:
    """Return a line between two machines."""
    line = {"width": 1, "color": ink.axis}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": line}
