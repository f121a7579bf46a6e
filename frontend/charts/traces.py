"""Traces of a figure: lines with their bands, marks of epochs, phases and spans."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from radt.frontend.data.model import NamedCurve, Tick
from radt.frontend.theme import DASHES, Scheme, colour, inks, translucent
from radt.model import MarkerKind
from radt.store.records import BoolArray, Float64Array

Figure = dict[str, Any]

RUG_ROW_PX = 6
_MAX_HAIRLINES = 12  # more would hatch the chart; the marks below it remain
_ESTIMATED_DASH, _PARTIAL_DASH, _SECOND_DASH = "6px,3px", "1px,3px", "2px,2px"
_GREYS = 3


@dataclass(frozen=True, slots=True)
class Pen:
    """Style of a line."""

    colour: str
    dash: str = "solid"
    width: float = 1.4

    @classmethod
    def of(cls, line: NamedCurve, place: int, scheme: Scheme, *, monochrome: bool) -> Pen:
        """Return the pen of a line. ``place`` is its index among the drawn lines."""
        if monochrome:
            greys = inks(_GREYS, scheme)
            return cls(greys[place // len(DASHES) % _GREYS], DASHES[place % len(DASHES)])
        dash = DASHES[line.dash % len(DASHES)]
        if line.estimated and line.dash == 0:
            dash = _ESTIMATED_DASH
        return cls(colour(line.ordinal, scheme), dash)

    def beside(self, *, monochrome: bool) -> Pen:
        """Return the pen of the same run's line on the second y axis, which is dotted in colour."""
        return self if monochrome else Pen(self.colour, _SECOND_DASH, self.width)


@dataclass(frozen=True, slots=True)
class Ordinate:
    """Scale of the y axis: ``factor`` times the stored value, in ``unit``.

    ``signed`` values are differences. ``log`` cannot show values of 0 or less.
    """

    factor: float
    unit: str
    signed: bool = False
    log: bool = False

    def of(self, values: Float64Array) -> Float64Array:
        scaled = values * self.factor
        if not self.log:
            return scaled
        with np.errstate(invalid="ignore"):
            positive: Float64Array = np.where(scaled > 0, scaled, np.nan)
        return positive


def typed(values: Float64Array) -> dict[str, str]:
    """Encode an array for Plotly as typed binary data; NaN stays a gap."""
    data = np.ascontiguousarray(values, dtype="<f8")
    return {"dtype": "f8", "bdata": base64.b64encode(data.tobytes()).decode("ascii")}


def line_traces(
    line: NamedCurve, pen: Pen, ordinate: Ordinate, *, marked: bool, smoothed: bool
) -> list[Figure]:
    """Return a line with its band. The line is dotted where runs are missing.

    ``marked`` adds a dot at each point. ``smoothed`` says that the band has the measured values.
    """
    traces = []
    if line.low is not None and line.high is not None:
        low, high = ordinate.of(line.low), ordinate.of(line.high)
        if ordinate.log and np.isfinite(high).any():
            low = np.where(np.isfinite(high) & np.isnan(low), np.nanmin(high), low)
        if smoothed or np.any(high > low):
            traces.append(_band(line, low, high, pen, edged=smoothed))
    values = ordinate.of(line.curve.values)
    whole = _stroke(line, values, pen, marked=marked)
    if line.partial is None or not line.partial.any():
        return [*traces, whole]
    # Dotted up to the neighbouring points, so that the two parts meet.
    partial = line.partial
    reach = partial | np.append(partial[1:], False) | np.insert(partial[:-1], 0, False)
    pen = Pen(pen.colour, _PARTIAL_DASH, pen.width)
    dotted = _stroke(line, np.where(reach, values, np.nan), pen, marked=False)
    dotted["meta"] = {"key": line.key, "partial": True}
    whole["y"] = typed(np.where(partial, np.nan, values))
    return [*traces, whole, dotted]


def _stroke(line: NamedCurve, values: Float64Array, pen: Pen, *, marked: bool) -> Figure:
    dots = np.isfinite(values) if marked else _lonely_points(values)
    trace: Figure = {
        "type": "scatter",
        "mode": "lines+markers" if dots.any() else "lines",
        "name": line.label,
        "meta": {"key": line.key},
        "x": typed(line.curve.x),
        "y": typed(values),
        "line": {"color": pen.colour, "width": pen.width, "simplify": True},
        "connectgaps": False,
    }
    if pen.dash != "solid":
        trace["line"]["dash"] = pen.dash
    if dots.any():
        trace["marker"] = {
            "size": typed(np.where(dots, 4.0, 0.0)),
            "color": pen.colour,
            "line": {"width": 0},
        }
    return trace


def _lonely_points(values: Float64Array) -> BoolArray:
    """Return the points between two gaps, which need a dot to be visible."""
    finite = np.isfinite(values)
    beside = np.concatenate(([False], finite[:-1])) | np.concatenate((finite[1:], [False]))
    return finite & ~beside


def _band(
    line: NamedCurve, low: Float64Array, high: Float64Array, pen: Pen, *, edged: bool
) -> Figure:
    """Return a closed outline per part without gaps. ``edged`` if its height may be zero."""
    finite = np.isfinite(low) & np.isfinite(high)
    edges = np.flatnonzero(np.diff(np.concatenate(([0], finite.view(np.int8), [0]))))
    xs: list[npt.ArrayLike] = []
    ys: list[npt.ArrayLike] = []
    for start, stop in zip(edges[::2], edges[1::2], strict=True):
        x = line.curve.x[start:stop]
        xs += [x, x[::-1], [math.nan]]
        ys += [high[start:stop], low[start:stop][::-1], [math.nan]]
    outline = {"width": 0.8, "color": translucent(pen.colour, 0.35)} if edged else {"width": 0}
    return {
        "type": "scatter",
        "mode": "lines",
        "x": typed(np.concatenate(xs) if xs else np.empty(0)),
        "y": typed(np.concatenate(ys) if ys else np.empty(0)),
        "fill": "toself",
        "fillcolor": translucent(pen.colour, 0.16),
        "line": outline,
        "name": f"{line.label} min–max",
        "meta": {"key": line.key},
    }


#: Marks by kind: name, symbol in text, Plotly symbol, size difference from a row's height.
_MARKS = (
    ("epochs", "❘", "line-ns-open", 1, (MarkerKind.EPOCH,)),
    ("spans", "◆", "diamond", 2, (MarkerKind.PHASE, MarkerKind.SPAN)),
    ("events", "●", "circle", 2, (MarkerKind.EVENT,)),
)


def mark_words(ticks: Sequence[Tick]) -> str:
    """Return the legend of marks, to follow an axis's title; empty without marks."""
    kinds = {tick.kind for tick in ticks}
    words = [f"{sign} {name}" for name, sign, _, _, own in _MARKS if kinds.intersection(own)]
    return "".join(f"   {word}" for word in words)


def rug(ticks: Sequence[Tick], rows: int, stroke: dict[int, str]) -> list[Figure]:
    """Draw a row of marks per run: starts of epochs, phases, spans and events."""
    traces = []
    for row in range(rows):
        own = [tick for tick in ticks if tick.row == row]
        for name, _, symbol, less_px, kinds in _MARKS:
            shown = [tick for tick in own if tick.kind in kinds]
            if shown:
                size = RUG_ROW_PX - less_px
                traces.append(_marks(shown, row, name, symbol, size, stroke[shown[0].ordinal]))
    return traces


def _marks(
    shown: Sequence[Tick], row: int, name: str, symbol: str, size: int, stroke: str
) -> Figure:
    return {
        "type": "scatter",
        "mode": "markers",
        "yaxis": "y2",
        "x": [tick.x for tick in shown],
        "y": [row] * len(shown),
        "text": [tick.text for tick in shown],
        "marker": {
            "symbol": symbol,
            "size": size,
            "color": stroke,
            "line": {"width": 1.4 if symbol.endswith("open") else 0, "color": stroke},
        },
        "name": name,
        "meta": {"key": shown[0].key},
    }


def hairlines(ticks: Sequence[Tick], stroke: dict[int, str]) -> list[Figure]:
    """Draw epochs and phases as vertical hairlines, unless there are too many to distinguish."""
    for kinds in ((MarkerKind.EPOCH, MarkerKind.PHASE), (MarkerKind.PHASE,)):
        shown = [tick for tick in ticks if tick.kind in kinds]
        if 0 < len(shown) <= _MAX_HAIRLINES:
            return [_hairline(tick, stroke[tick.ordinal]) for tick in shown]
    return []


def _hairline(tick: Tick, stroke: str) -> Figure:
    return {
        "type": "line",
        "layer": "below",
        "x0": tick.x,
        "x1": tick.x,
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "line": {"width": 0.6, "color": translucent(stroke, 0.38)},
    }


def escaped(text: str) -> str:
    """Escape a name, as Plotly interprets some HTML in texts."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
