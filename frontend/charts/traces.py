"""The parts of a figure that show data: lines and their bands, marks of epochs."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from radt.frontend.charts.lines import BoolArray, Line
from radt.frontend.charts.quantity import UnitScale
from radt.frontend.palette import Scheme, colour, translucent
from radt.store.records import Float64Array

Figure = dict[str, Any]

RUG_ROW_PX = 6
_MAX_HAIRLINES = 12  # more would hatch the chart; the marks below it stay


@dataclass(frozen=True, slots=True)
class Tick:
    """The beginning of an epoch in one run; ``row`` counts the runs of the chart from 0."""

    row: int
    ordinal: int
    x: float
    text: str


def typed(values: Float64Array) -> dict[str, str]:
    """An array as Plotly reads it without parsing numbers; NaN stays a gap."""
    data = np.ascontiguousarray(values, dtype="<f8")
    return {"dtype": "f8", "bdata": base64.b64encode(data.tobytes()).decode("ascii")}


def line_traces(line: Line, scale: UnitScale, scheme: Scheme, *, marked: bool) -> list[Figure]:
    """A line with its band; dotted where not all runs took part; ``marked`` dots each point."""
    stroke = colour(line.ordinal, scheme)
    values = line.curve.values * scale.factor
    traces = []
    if line.low is not None and line.high is not None and np.any(line.high > line.low):
        traces.append(_band(line, line.low, line.high, scale, stroke))
    if line.partial is None or not line.partial.any():
        return [*traces, _stroke(line, values, scale, stroke, marked=marked)]
    # Dotted as far as the neighbouring points, so that the two parts meet.
    partial = line.partial
    reach = partial | np.append(partial[1:], False) | np.insert(partial[:-1], 0, False)
    dotted = _stroke(line, np.where(reach, values, np.nan), scale, stroke, marked=False)
    dotted["line"]["dash"] = "1px,3px"
    dotted["hovertemplate"] = dotted["hovertemplate"].replace("<extra>", " · not all runs<extra>")
    whole = _stroke(line, np.where(partial, np.nan, values), scale, stroke, marked=False)
    return [*traces, whole, dotted]


def _stroke(
    line: Line, values: Float64Array, scale: UnitScale, stroke: str, *, marked: bool
) -> Figure:
    unit = f" {scale.label}" if scale.label else ""
    estimated = " estimated" if line.estimated else ""
    dots = np.isfinite(values) if marked else _lonely_points(values)
    trace: Figure = {
        "type": "scatter",
        "mode": "lines+markers" if dots.any() else "lines",
        "name": line.label,
        "meta": {"key": line.key},
        "x": typed(line.curve.x),
        "y": typed(values),
        "line": {"color": stroke, "width": 1.4, "simplify": True},
        "connectgaps": False,
        "hovertemplate": f"%{{y:.4~g}}{unit}{estimated}<extra>{escaped(line.short)}</extra>",
    }
    if line.estimated:
        trace["line"]["dash"] = "6px,3px"
    if dots.any():
        trace["marker"] = {
            "size": typed(np.where(dots, 4.0, 0.0)),
            "color": stroke,
            "line": {"width": 0},
        }
    return trace


def _lonely_points(values: Float64Array) -> BoolArray:
    """Points without a neighbour to draw a line to: without a dot nobody would see them."""
    finite = np.isfinite(values)
    beside = np.concatenate(([False], finite[:-1])) | np.concatenate((finite[1:], [False]))
    return finite & ~beside


def _band(
    line: Line, low: Float64Array, high: Float64Array, scale: UnitScale, stroke: str
) -> Figure:
    """One closed outline for each stretch without gaps."""
    finite = np.isfinite(low) & np.isfinite(high)
    edges = np.flatnonzero(np.diff(np.concatenate(([0], finite.view(np.int8), [0]))))
    xs: list[npt.ArrayLike] = []
    ys: list[npt.ArrayLike] = []
    for start, stop in zip(edges[::2], edges[1::2], strict=True):
        x = line.curve.x[start:stop]
        xs += [x, x[::-1], [math.nan]]
        ys += [high[start:stop], low[start:stop][::-1], [math.nan]]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": typed(np.concatenate(xs)),
        "y": typed(np.concatenate(ys) * scale.factor),
        "fill": "toself",
        "fillcolor": translucent(stroke, 0.16),
        "line": {"width": 0},
        "hoverinfo": "skip",
        "name": f"{line.label} min–max",
        "meta": {"key": line.key},
    }


def epoch_marks(ticks: Sequence[Tick], rows: int, scheme: Scheme) -> list[Figure]:
    """A row of marks for each run, one where an epoch begins."""
    traces = []
    for row in range(rows):
        own = [tick for tick in ticks if tick.row == row]
        if not own:
            continue
        stroke = colour(own[0].ordinal, scheme)
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "yaxis": "y2",
                "x": [tick.x for tick in own],
                "y": [row] * len(own),
                "text": [tick.text for tick in own],
                "marker": {
                    "symbol": "line-ns-open",
                    "size": RUG_ROW_PX - 1,
                    "color": stroke,
                    "line": {"width": 1.4, "color": stroke},
                },
                "hovertemplate": "%{text}<extra></extra>",
                "name": "epochs",
            }
        )
    return traces


def epoch_hairlines(ticks: Sequence[Tick], scheme: Scheme) -> list[Figure]:
    """Epochs as vertical hairlines, as long as they do not become a hatching."""
    if len(ticks) > _MAX_HAIRLINES:
        return []
    return [
        {
            "type": "line",
            "layer": "below",
            "x0": tick.x,
            "x1": tick.x,
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "line": {"width": 0.6, "color": translucent(colour(tick.ordinal, scheme), 0.38)},
        }
        for tick in ticks
    ]


def escaped(text: str) -> str:
    """Plotly reads a little HTML in texts; names are only names."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
