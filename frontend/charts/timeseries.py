"""The figure of one metric over elapsed time.

Figures are plain dictionaries in Plotly's own JSON: `plotly.graph_objects` would check every
attribute in Python on every update. The server decides both axes' ranges, so that all charts of a
page show the same time and each uses its height for what is seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from radt.frontend.charts import elapsed
from radt.frontend.charts.chartdata import ChartData
from radt.frontend.charts.lines import Line
from radt.frontend.charts.quantity import UnitScale, unit_scale
from radt.frontend.charts.spec import Window
from radt.frontend.charts.traces import (
    RUG_ROW_PX,
    Figure,
    epoch_hairlines,
    epoch_marks,
    escaped,
    line_traces,
)
from radt.frontend.palette import Scheme, colour
from radt.frontend.theme import FONT, INKS, Ink

HEIGHT_PX = 280
_TOP_PX, _BOTTOM_PX, _LEFT_PX = 8, 28, 52
_RUG_GAP_PX, _MAX_RUG_ROWS = 6, 12
_LABEL_PX, _MAX_LABELS, _LABEL_CHARS = 14, 8, 14
_UNIFIED_HOVER_LINES = 12
_MARKED_POINTS = 24

# Plotly fails when a subplot first appears in an update that changes nothing else, so both are
# always there: that of the lines and that of the epochs' marks below it.
_ANCHORS: tuple[Figure, ...] = tuple(
    {"type": "scatter", "x": [None], "y": [None], "yaxis": axis, "hoverinfo": "skip", "name": ""}
    for axis in ("y", "y2")
)


#: What a graph shows until its data come: nothing, so that the page's sketch is seen.
BLANK: Figure = {
    "data": [*_ANCHORS],
    "layout": {
        "height": HEIGHT_PX,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "xaxis": {"visible": False},
        "yaxis": {"visible": False},
        "yaxis2": {"visible": False, "domain": [0, 0.001]},
        "showlegend": False,
        "modebar": {"orientation": "v"},
    },
}


def config(filename: str) -> Any:
    """Options of every graph on every page; ``filename`` is that of a saved picture."""
    return {
        "displaylogo": False,
        # Plotly's "Share chart" uploads the data to its cloud.
        "showSendToCloud": False,
        "showTips": False,
        "responsive": True,
        "doubleClick": "autosize",
        "modeBarButtons": [["toImage", "autoScale2d"]],
        "toImageButtonOptions": {"format": "svg", "filename": filename},
    }


@dataclass(frozen=True, slots=True)
class Look:
    """How a figure is drawn: colours, size in cells of the grid, for ``paper`` or the screen."""

    scheme: Scheme = Scheme.LIGHT
    monochrome: bool = False
    rows: int = 1
    columns: int = 1
    paper: bool = False


def figure(data: ChartData, look: Look) -> Figure:
    """Draw a chart.

    ``layout.meta`` says what is drawn: ``unit``, ``points``, ``x``, ``aggregate`` (None where none
    is), ``level``, ``lines``. ``meta.key`` of a trace is the key of its line.
    """
    scheme = look.scheme
    ink = INKS[scheme]
    drawn = [line for line in data.lines if not line.hidden]
    largest = max((_largest(line) for line in drawn), default=0.0)
    scale = unit_scale(data.quantity.drawn_unit, largest)
    low, high = y_range(drawn, data.window, scale, from_zero=data.quantity.from_zero)
    labelled = drawn if len(drawn) <= _MAX_LABELS else ()
    rug_rows = max((tick.row for tick in data.ticks), default=-1) + 1
    if rug_rows > _MAX_RUG_ROWS:
        rug_rows = 0
    right_px = 12
    if labelled:
        right_px += 7 * min(_LABEL_CHARS, max(len(line.short) for line in labelled))
    rug_px = rug_rows * RUG_ROW_PX + (_RUG_GAP_PX if rug_rows else 0)
    plot_px = HEIGHT_PX - _TOP_PX - _BOTTOM_PX - rug_px
    # Few points are shown as the single readings they are, in all lines of a chart or in none.
    few = max((int(np.isfinite(line.curve.values).sum()) for line in drawn), default=0)
    marked = few <= _MARKED_POINTS and all(line.low is None for line in drawn)
    traces = [*_ANCHORS]
    for line in drawn:
        traces += line_traces(line, scale, scheme, marked=marked)
    if rug_rows:
        traces += epoch_marks(data.ticks, rug_rows, scheme)
    layout = _layout(ink, data.window, (low, high), rug_px, rug_rows)
    layout["margin"] = {"l": _LEFT_PX, "r": right_px, "t": _TOP_PX, "b": _BOTTOM_PX, "pad": 0}
    layout["hovermode"] = "x unified" if len(drawn) <= _UNIFIED_HOVER_LINES else "closest"
    layout["annotations"] = _labels(labelled, data.window, scale, (low, high), plot_px, scheme)
    layout["shapes"] = epoch_hairlines(data.ticks if rug_rows else (), scheme)
    if not drawn:
        layout["annotations"] = [_note("no values yet in the selected runs", ink)]
    layout["meta"] = {
        "unit": scale.label,
        "points": sum(len(line.curve.values) for line in drawn),
        "x": data.x.value,
        "aggregate": None if data.aggregate is None else data.aggregate.value,
        "level": data.level.value,
        "notes": list(data.notes),
        "lines": [
            {
                "key": line.key,
                "label": line.label,
                "short": line.short,
                "colour": colour(line.ordinal, scheme),
                "dash": line.dash,
                "hidden": line.hidden,
                "estimated": line.estimated,
            }
            for line in data.lines
        ],
    }
    return {"data": traces, "layout": layout}


def notice(text: str, scheme: Scheme) -> Figure:
    """An empty chart that says why it is empty."""
    ink = INKS[scheme]
    layout = _layout(ink, Window(0.0, 1.0), (0.0, 1.0), 0, 0)
    layout["xaxis"]["visible"] = layout["yaxis"]["visible"] = False
    layout["annotations"] = [_note(text, ink)]
    return {"data": [*_ANCHORS], "layout": layout}


def y_range(
    lines: Sequence[Line], window: Window, scale: UnitScale, *, from_zero: bool
) -> tuple[float, float]:
    """Lowest and highest value seen in the window, scaled, with a little air."""
    lows, highs = [], []
    for line in lines:
        seen = (line.curve.x >= window.start) & (line.curve.x <= window.end)
        if not seen.any():  # a zoom between two points shows the stretch that joins them
            seen[:] = True
        for array in (line.curve.values, line.low, line.high):
            if array is not None and np.isfinite(array[seen]).any():
                finite = array[seen][np.isfinite(array[seen])]
                lows.append(float(finite.min()))
                highs.append(float(finite.max()))
    if not lows:
        return 0.0, 1.0
    low, high = min(lows) * scale.factor, max(highs) * scale.factor
    if from_zero and low >= 0:
        return 0.0, high * 1.06 if high > 0 else 1.0
    air = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return low - air, high + air


def _largest(line: Line) -> float:
    values = line.curve.values if line.high is None else line.high
    finite = values[np.isfinite(values)]
    return float(np.abs(finite).max()) if len(finite) else 0.0


def _labels(
    lines: Sequence[Line],
    window: Window,
    scale: UnitScale,
    limits: tuple[float, float],
    plot_px: float,
    scheme: Scheme,
) -> list[Figure]:
    """Names beside the lines' ends, moved apart where lines end close to each other."""
    ends = []
    for line in lines:
        x, finite = line.curve.x, np.isfinite(line.curve.values)
        seen = np.flatnonzero(finite & (x <= window.end))
        # A line that ended before what is seen has no end here, unless it reaches across.
        if len(seen) and finite[x >= window.start].any():
            value = float(line.curve.values[seen[-1]]) * scale.factor
            share = (value - limits[0]) / (limits[1] - limits[0])
            ends.append((min(1.0, max(0.0, share)) * plot_px, line))
    ends.sort(key=lambda end: end[0])
    heights = spread([end[0] for end in ends], _LABEL_PX, plot_px)
    return [
        {
            "xref": "paper",
            "x": 1,
            "xanchor": "left",
            "xshift": 4,
            "yref": "y domain",
            "y": height / plot_px,
            "yanchor": "middle",
            "showarrow": False,
            "text": escaped(_shortened(line.short)),
            "font": {"size": 11, "color": colour(line.ordinal, scheme)},
        }
        for height, (_, line) in zip(heights, ends, strict=True)
    ]


def spread(heights: Sequence[float], gap: float, limit: float) -> list[float]:
    """Move sorted positions apart to at least ``gap``, but little, within 0 to ``limit``.

    Positions that are too close form a block around their common centre; blocks that touch merge.
    """
    blocks: list[tuple[float, int]] = []  # bottom of the block, positions in it
    for height in heights:
        bottom, count = height, 1
        while blocks and blocks[-1][0] + blocks[-1][1] * gap > bottom:
            below, many = blocks.pop()
            # The mean of the centres, weighted: each position pulls alike.
            centre = (
                (below + (many - 1) * gap / 2) * many + (bottom + (count - 1) * gap / 2) * count
            ) / (many + count)
            count += many
            bottom = min(max(0.0, centre - (count - 1) * gap / 2), limit - (count - 1) * gap)
        blocks.append((bottom, count))
    return [bottom + index * gap for bottom, count in blocks for index in range(count)]


def _layout(
    ink: Ink,
    window: Window,
    limits: tuple[float, float],
    rug_px: int,
    rug_rows: int,
) -> Figure:
    plot_px = HEIGHT_PX - _TOP_PX - _BOTTOM_PX
    floor = rug_px / plot_px
    positions, texts = elapsed.ticks(window.start, window.end, about=8)
    axis = {
        "gridcolor": ink.grid,
        "gridwidth": 1,
        "zeroline": False,
        "linecolor": ink.axis,
        "linewidth": 1,
        "ticks": "",
        "tickfont": {"size": 11, "color": ink.dim},
    }
    return {
        "height": HEIGHT_PX,
        "autosize": True,
        "paper_bgcolor": ink.paper,
        "plot_bgcolor": ink.paper,
        "font": {"family": FONT, "size": 12, "color": ink.text},
        "showlegend": False,
        "dragmode": "zoom",
        "hoverlabel": {
            "bgcolor": ink.hover,
            "bordercolor": ink.axis,
            "font": {"family": FONT, "size": 12, "color": ink.text},
            "namelength": -1,
        },
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": ink.dim, "activecolor": ink.text},
        "transition": {"duration": 0},
        "xaxis": {
            **axis,
            "range": [window.start, window.end],
            "tickvals": positions,
            "ticktext": texts,
            "showgrid": False,
            "showline": True,
            "unifiedhovertitle": {"text": "%{x:.2f} s"},
            "showspikes": True,
            "spikemode": "across",
            "spikethickness": 1,
            "spikedash": "solid",
            "spikecolor": ink.axis,
            "anchor": "y2" if rug_rows else "y",
        },
        "yaxis": {
            **axis,
            "range": list(limits),
            "domain": [floor, 1],
            "fixedrange": True,
            "nticks": 6,
            "ticklabelstandoff": 4,
            "showline": False,
            "exponentformat": "SI",
        },
        "yaxis2": {
            "domain": [0, max(0.0, floor - _RUG_GAP_PX / plot_px)] if rug_rows else [0, 0.001],
            "range": [max(rug_rows, 1) - 0.5, -0.5],
            "fixedrange": True,
            "visible": False,
        },
    }


def _note(text: str, ink: Ink) -> Figure:
    return {
        "xref": "paper",
        "yref": "paper",
        "x": 0.5,
        "y": 0.5,
        "showarrow": False,
        "text": escaped(text),
        "font": {"size": 13, "color": ink.dim},
    }


def _shortened(text: str) -> str:
    return text if len(text) <= _LABEL_CHARS else text[: _LABEL_CHARS - 1] + "…"
