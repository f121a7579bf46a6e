"""The Workload page's timeline, and the layout that all figures of the page share.

All have the same left and right margin and the same time axis, so that an instant is at the same
position in each of them. Figures are plain dictionaries in Plotly's JSON (`charts.timeseries`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from radt.frontend.charts.layout import elapsed_ticks
from radt.frontend.charts.traces import escaped
from radt.frontend.data.spec import AxisRange
from radt.frontend.data.workload.lanes import Lane, lanes_of
from radt.frontend.data.workload.model import BarKind, LaneSpan, Life, binned
from radt.frontend.theme import FONT, INKS, Ink, Scheme, colour, translucent
from radt.model import RunStatus

Figure = dict[str, Any]

LEFT_PX, RIGHT_PX = 56, 12


def frame_layout(ink: Ink, window: AxisRange, height_px: int) -> Figure:
    """Return the layout of a figure, without margins and y axis."""
    positions, texts = elapsed_ticks(window.start, window.end, about=8)
    return {
        "height": height_px,
        "autosize": True,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 12, "color": ink.text},
        "showlegend": False,
        "dragmode": "zoom",
        "transition": {"duration": 0},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": ink.dim, "activecolor": ink.text},
        "xaxis": {
            "showspikes": False,  # the page's own cursor line crosses all rows
            "range": [window.start, window.end],
            "tickvals": positions,
            "ticktext": texts,
            "tickfont": {"size": 11, "color": ink.dim},
            "ticks": "",
            "showgrid": True,
            "gridcolor": ink.grid,
            "zeroline": False,
            "showline": False,
        },
    }


def frame_note(text: str, ink: Ink) -> Figure:
    """Return a sentence in the middle of an empty figure."""
    return {
        "xref": "paper",
        "yref": "paper",
        "x": 0.5,
        "y": 0.5,
        "showarrow": False,
        "text": escaped(text),
        "font": {"size": 12, "color": ink.dim},
    }


AXIS_PX = 24
#: Row heights of the timeline, for few runs and for many.
ROW_PX, SMALL_ROW_PX = 40, 24
#: Height of a lane below a run's bar, and of its bars.
LANE_PX = 14
_LANE_BAR_PX = 8
_BELOW_LANES_PX = 6
FEW_RUNS = 12
#: Width for which bars are merged. On wider screens, merged bars are slightly too wide.
_PLOT_PX = 1000
_THINNEST_PX = 2.5
_LABELLED_PX = 18
_MAX_LABELS = 400
#: The alternating opacities of epochs.
_STRONG, _WEAK = 0.92, 0.62
#: The opacity of merged spans that cover little of their time.
_FAINTEST = 0.5
#: The colour of failures.
BAD = {Scheme.LIGHT: "#c22f2f", Scheme.DARK: "#ff8080"}
_ENDED_BADLY = (RunStatus.FAILED, RunStatus.KILLED, RunStatus.OOM, RunStatus.TIMEOUT)


def row_px(runs: int) -> int:
    """Return the height of a run's row in the timeline."""
    return ROW_PX if runs <= FEW_RUNS else SMALL_ROW_PX


def life_px(runs: int, lanes: Sequence[Lane]) -> int:
    """Return the height of a run's row with its lanes."""
    return row_px(runs) + (len(lanes) * LANE_PX + _BELOW_LANES_PX if lanes else 0)


def timeline(lives: Sequence[Life], window: AxisRange, scheme: Scheme) -> Figure:
    """Draw one row per run: set-up, lifetime, epochs, events, end; below it a lane per span name.

    The y axis is in pixels from the top.
    """
    ink = INKS[scheme]
    shortest_s = (window.end - window.start) * _THINNEST_PX / _PLOT_PX
    setup, alive, epochs, inside, events = [], [], [], [], []
    in_lanes: list[tuple[float, LaneSpan]] = []
    lane_fills: list[str] = []
    height = row_px(len(lives))
    middles: list[float] = []
    top = 0.0
    for row, (life, lanes) in enumerate(zip(lives, lanes_of(lives), strict=True)):
        middles.append(top + height / 2)
        bars: dict[BarKind, list[LaneSpan]] = {kind: [] for kind in BarKind}
        for bar in life.bars:
            bars[bar.kind].append(bar)
        setup += [(row, bar) for bar in binned(bars[BarKind.SETUP], window, 0.0)]
        alive += [(row, bar) for bar in binned(bars[BarKind.ALIVE], window, 0.0)]
        epochs += [(row, bar) for bar in binned(bars[BarKind.EPOCH], window, shortest_s)]
        if not lanes:
            inside += [(row, bar) for bar in binned(bars[BarKind.INSIDE], window, shortest_s)]
        events += [(row, bar) for bar in binned(bars[BarKind.EVENT], window, shortest_s)]
        for place, lane in enumerate(lanes):
            fill = ink.dim if lane.hue is None else colour(lane.hue, scheme)
            for bar in binned(lane.bars, window, shortest_s):
                in_lanes.append((top + height + (place + 0.4) * LANE_PX, bar))
                lane_fills.append(translucent(fill, _FAINTEST + (1 - _FAINTEST) * bar.busy))
        top += life_px(len(lives), lanes)
    strokes = [colour(life.run.ordinal, scheme) for life in lives]

    def placed(
        bars: Sequence[tuple[int, LaneSpan]], shift: float = 0.0
    ) -> list[tuple[float, LaneSpan]]:
        return [(middles[row] + shift * height, bar) for row, bar in bars]

    traces = [
        bars_trace(
            *("set-up", placed(setup), window, 0.22 * height),
            [translucent(ink.dim, 0.45)] * len(setup),
        ),
        bars_trace(
            *("alive", placed(alive), window, 0.56 * height),
            [translucent(strokes[row], 0.2) for row, _ in alive],
        ),
        _epochs(epochs, placed(epochs), window, scheme, strokes, 0.56 * height),
        bars_trace(
            *("inside", placed(inside, 0.2), window, 0.12 * height),
            [translucent(ink.text, 0.62)] * len(inside),
        ),
        bars_trace("lanes", in_lanes, window, _LANE_BAR_PX, lane_fills),
        _instants(placed(events, -0.38), ink),
        _ends(lives, middles, window, scheme),
    ]
    layout = frame_layout(ink, window, AXIS_PX + int(top or height))
    layout["margin"] = {"l": LEFT_PX, "r": RIGHT_PX, "t": AXIS_PX, "b": 0, "pad": 0}
    layout["barmode"] = "overlay"
    layout["hovermode"] = "closest"
    layout["xaxis"] |= {"side": "top", "showgrid": True, "gridcolor": ink.grid}
    layout["yaxis"] = {
        "range": [top or height, 0],
        "fixedrange": True,
        "visible": False,
        "zeroline": False,
    }
    layout["shapes"] = [
        {
            "type": "line",
            "x0": 0,
            "x1": 0,
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "line": {"width": 1, "color": ink.text},
        }
    ]
    layout["meta"] = {"rows": len(lives), "bars": len(epochs) + len(inside) + len(in_lanes)}
    return {"data": traces, "layout": layout}


def bars_trace(
    name: str,
    bars: Sequence[tuple[float, LaneSpan]],
    window: AxisRange,
    width: float,
    fills: Sequence[str],
) -> Figure:
    """Return a trace of bars, each with its y and its fill.

    Their texts are for the page's own tooltip (static/workload.js), which learns from Plotly only
    which bar is under the pointer.
    """
    edge_s = 0.1 * (window.end - window.start)
    starts = [max(bar.start_s, window.start - edge_s) for _, bar in bars]
    ends = [min(bar.end_s, window.end + edge_s) for _, bar in bars]
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "base": starts,
        "x": [max(0.0, end - start) for start, end in zip(starts, ends, strict=True)],
        "y": [middle for middle, _ in bars],
        "width": width,
        "marker": {"color": list(fills), "line": {"width": 0}},
        "customdata": [bar.text for _, bar in bars],
        "hoverinfo": "none",
    }


def _epochs(
    bars: Sequence[tuple[int, LaneSpan]],
    placed: Sequence[tuple[float, LaneSpan]],
    window: AxisRange,
    scheme: Scheme,
    strokes: Sequence[str],
    width: float,
) -> Figure:
    """Draw epochs with two alternating opacities, which shows their boundaries without lines."""
    opacities, places = [], dict.fromkeys(range(len(strokes)), 0)
    for row, _ in bars:
        opacities.append(_STRONG if places[row] % 2 == 0 else _WEAK)
        places[row] += 1
    fills = [
        translucent(strokes[row], opacity)
        for (row, _), opacity in zip(bars, opacities, strict=True)
    ]
    trace = bars_trace("epochs", placed, window, width, fills)
    if len(bars) <= _MAX_LABELS:
        px_per_s = _PLOT_PX / (window.end - window.start)
        trace["text"] = [
            escaped(bar.label) if (bar.end_s - bar.start_s) * px_per_s >= _LABELLED_PX else ""
            for _, bar in bars
        ]
        trace["textposition"] = "inside"
        trace["insidetextanchor"] = "start"
        trace["textangle"] = 0
        trace["constraintext"] = "none"
        trace["insidetextfont"] = {
            "size": 11,
            "color": [
                contrasting(strokes[row], opacity, scheme)
                for (row, _), opacity in zip(bars, opacities, strict=True)
            ],
        }
    return trace


def contrasting(fill: str, opacity: float, scheme: Scheme) -> str:
    """Return black or white, whichever contrasts more with the fill (WCAG relative luminance)."""
    paper = INKS[scheme].paper
    mixed = [
        opacity * int(fill[at : at + 2], 16) + (1 - opacity) * int(paper[at : at + 2], 16)
        for at in (1, 3, 5)
    ]
    linear = [
        part / 255 / 12.92 if part <= 10.31 else ((part / 255 + 0.055) / 1.055) ** 2.4
        for part in mixed
    ]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if luminance > 0.179 else "#ffffff"


def _instants(events: Sequence[tuple[float, LaneSpan]], ink: Ink) -> Figure:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "events",
        "x": [bar.start_s for _, bar in events],
        "y": [middle for middle, _ in events],
        "marker": {"symbol": "triangle-down", "size": 7, "color": ink.text},
        "customdata": [bar.text for _, bar in events],
        "hoverinfo": "none",
    }


def _ends(
    lives: Sequence[Life], middles: Sequence[float], window: AxisRange, scheme: Scheme
) -> Figure:
    """Mark the end of each run that did not finish. The reason is written beside the row."""
    bad = [
        (middle, life)
        for middle, life in zip(middles, lives, strict=True)
        if life.run.record.status in _ENDED_BADLY and window.start <= life.end_s <= window.end
    ]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "ends",
        "x": [life.end_s for _, life in bad],
        "y": [middle for middle, _ in bad],
        "cliponaxis": False,
        "marker": {
            "symbol": "x-thin",
            "size": 9,
            "line": {"width": 2.4, "color": BAD[scheme]},
            "color": BAD[scheme],
        },
        "customdata": [f"{life.end_text}: {life.reason}".rstrip(": ") for _, life in bad],
        "hoverinfo": "none",
    }
