"""Figures of the Workload page: the timeline of its runs, and the strips below it.

All have the same left and right margin and the same time axis, so that an instant is at the same
place in each of them. Figures are plain dictionaries in Plotly's JSON (`charts.timeseries`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from radt.frontend.charts import elapsed
from radt.frontend.charts.quantity import UnitScale, unit_scale
from radt.frontend.charts.spec import Window
from radt.frontend.charts.traces import escaped, typed
from radt.frontend.palette import Scheme, colour, translucent
from radt.frontend.theme import FONT, INKS, Ink
from radt.frontend.workload.life import Bar, BarKind, Life, binned
from radt.frontend.workload.stacked import Band, StackData, Total
from radt.model import RunStatus
from radt.store.records import Float64Array

Figure = dict[str, Any]

LEFT_PX, RIGHT_PX = 56, 12
AXIS_PX = 24
#: Rows of the timeline: of a few runs, and of many.
ROW_PX, SMALL_ROW_PX = 40, 24
FEW_RUNS = 12
STRIP_PX = 128
_TOP_PX, _BOTTOM_PX = 8, 20
#: What bars are thinned for; on wider screens they are a little wider than needed.
_PLOT_PX = 1000
_THINNEST_PX = 2.5
_LABELLED_PX = 18
_MAX_LABELS = 400
_BAD = {Scheme.LIGHT: "#c22f2f", Scheme.DARK: "#ff8080"}
_ENDED_BADLY = (RunStatus.FAILED, RunStatus.KILLED, RunStatus.OOM, RunStatus.TIMEOUT)
#: How opaque epochs are, in turn.
_STRONG, _WEAK = 0.92, 0.62
#: A device's value this many times that of the runs would press them flat: it is said, not drawn.
_OFF_SCALE = 6.0
_AIR = 1.06


def row_px(runs: int) -> int:
    """The height of a run's row in the timeline."""
    return ROW_PX if runs <= FEW_RUNS else SMALL_ROW_PX


def timeline_px(runs: int) -> int:
    return AXIS_PX + max(1, runs) * row_px(runs)


def timeline(found: Sequence[Life], window: Window, scheme: Scheme) -> Figure:
    """One row a run: set-up, life, epochs, what lay inside them, events, the end."""
    ink = INKS[scheme]
    shortest_s = (window.end - window.start) * _THINNEST_PX / _PLOT_PX
    setup, alive, epochs, inside, events = [], [], [], [], []
    for row, life in enumerate(found):
        bars: dict[BarKind, list[Bar]] = {kind: [] for kind in BarKind}
        for bar in life.bars:
            bars[bar.kind].append(bar)
        setup += [(row, bar) for bar in binned(bars[BarKind.SETUP], window, 0.0)]
        alive += [(row, bar) for bar in binned(bars[BarKind.ALIVE], window, 0.0)]
        epochs += [(row, bar) for bar in binned(bars[BarKind.EPOCH], window, shortest_s)]
        inside += [(row, bar) for bar in binned(bars[BarKind.INSIDE], window, shortest_s)]
        events += [(row, bar) for bar in binned(bars[BarKind.EVENT], window, shortest_s)]
    strokes = [colour(life.run.ordinal, scheme) for life in found]
    traces = [
        _bars("set-up", setup, window, 0.22, [translucent(ink.dim, 0.45)] * len(setup)),
        _bars("alive", alive, window, 0.56, [translucent(strokes[row], 0.2) for row, _ in alive]),
        _epochs(epochs, window, scheme, strokes),
        _bars(
            "inside",
            inside,
            window,
            0.12,
            [translucent(ink.text, 0.62)] * len(inside),
            lower=True,
        ),
        _instants(events, ink),
        _ends(found, window, scheme),
    ]
    rows = max(1, len(found))
    layout = _layout(ink, window, timeline_px(len(found)))
    layout["margin"] = {"l": LEFT_PX, "r": RIGHT_PX, "t": AXIS_PX, "b": 0, "pad": 0}
    layout["barmode"] = "overlay"
    layout["hovermode"] = "closest"
    layout["xaxis"] |= {"side": "top", "showgrid": True, "gridcolor": ink.grid}
    layout["yaxis"] = {
        "range": [rows - 0.5, -0.5],
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
    layout["meta"] = {"rows": len(found), "bars": len(epochs) + len(inside)}
    return {"data": traces, "layout": layout}


def _bars(
    name: str,
    bars: Sequence[tuple[int, Bar]],
    window: Window,
    width: float,
    fills: Sequence[str],
    *,
    lower: bool = False,
) -> Figure:
    edge_s = 0.1 * (window.end - window.start)
    starts = [max(bar.start_s, window.start - edge_s) for _, bar in bars]
    ends = [min(bar.end_s, window.end + edge_s) for _, bar in bars]
    shift = 0.2 if lower else 0.0
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "base": starts,
        "x": [max(0.0, end - start) for start, end in zip(starts, ends, strict=True)],
        "y": [row + shift for row, _ in bars],
        "width": width,
        "marker": {"color": list(fills), "line": {"width": 0}},
        "customdata": [escaped(bar.text) for _, bar in bars],
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _epochs(
    bars: Sequence[tuple[int, Bar]], window: Window, scheme: Scheme, strokes: Sequence[str]
) -> Figure:
    """Epochs alternate in strength, so that their borders are seen without lines."""
    opacities, places = [], dict.fromkeys(range(len(strokes)), 0)
    for row, _ in bars:
        opacities.append(_STRONG if places[row] % 2 == 0 else _WEAK)
        places[row] += 1
    fills = [
        translucent(strokes[row], opacity)
        for (row, _), opacity in zip(bars, opacities, strict=True)
    ]
    trace = _bars("epochs", bars, window, 0.56, fills)
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
    """Black or white, whichever is read better on the fill (WCAG's relative luminance)."""
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


def _instants(events: Sequence[tuple[int, Bar]], ink: Ink) -> Figure:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "events",
        "x": [bar.start_s for _, bar in events],
        "y": [row - 0.38 for row, _ in events],
        "marker": {"symbol": "triangle-down", "size": 7, "color": ink.text},
        "customdata": [escaped(bar.text) for _, bar in events],
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _ends(found: Sequence[Life], window: Window, scheme: Scheme) -> Figure:
    """A mark at the end of each run that ended badly; the reason is beside its row."""
    bad = [
        (row, life)
        for row, life in enumerate(found)
        if life.run.record.status in _ENDED_BADLY and window.start <= life.end_s <= window.end
    ]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "ends",
        "x": [life.end_s for _, life in bad],
        "y": [row for row, _ in bad],
        "cliponaxis": False,
        "marker": {
            "symbol": "x-thin",
            "size": 9,
            "line": {"width": 2.4, "color": _BAD[scheme]},
            "color": _BAD[scheme],
        },
        "customdata": [escaped(f"{life.end_text}: {life.reason}".rstrip(": ")) for _, life in bad],
        "hovertemplate": "%{customdata}<extra></extra>",
    }


@dataclass(frozen=True, slots=True)
class Reading:
    """One line of a strip's legend; ``ordinal`` None for the device."""

    name: str
    text: str
    ordinal: int | None
    is_estimated: bool = False


@dataclass(frozen=True, slots=True)
class DrawnStrip:
    """A strip's figure with what stands beside it."""

    figure: Figure
    unit: str
    readings: tuple[Reading, ...]
    notes: tuple[str, ...]


def strip_figure(data: StackData, scheme: Scheme, cores: int | None) -> DrawnStrip:
    """Shares stacked, the first run on top as in the list; the device's line over them."""
    ink = INKS[scheme]
    stacked: Float64Array = np.zeros(len(data.at_s))
    for band in data.bands:
        stacked = stacked + np.nan_to_num(band.values)
    visible = (data.at_s >= data.window.start) & (data.at_s <= data.window.end)
    top = _largest(stacked[data.known & visible])
    total_top = max((_largest(_seen(total, data.window)) for total in data.totals), default=0.0)
    is_off = bool(data.bands) and total_top > _OFF_SCALE * top > 0
    drawn_top = top if is_off else max(top, total_top)
    quantity = data.strip.quantity
    scale = unit_scale(quantity.drawn_unit, drawn_top)
    traces: list[Figure] = []
    floor: Float64Array = np.zeros(len(data.at_s))
    hovers: list[Figure] = []
    for band in reversed(data.bands):
        ceiling = floor + np.nan_to_num(band.values)
        area, hover = _area(data, band, floor, ceiling, scale, scheme)
        traces.append(area)
        hovers.insert(0, hover)
        floor = ceiling
    traces += hovers
    if not is_off:
        traces += [
            _total_trace(total, scale, scheme, ink, first=place == 0, stacked=bool(data.bands))
            for place, total in enumerate(data.totals)
        ]
    layout = _layout(ink, data.window, STRIP_PX)
    layout["margin"] = {"l": LEFT_PX, "r": RIGHT_PX, "t": _TOP_PX, "b": _BOTTOM_PX, "pad": 0}
    layout["hovermode"] = "x unified"
    highest = drawn_top * scale.factor * _AIR or 1.0
    layout["yaxis"] = {
        "range": [0, highest],
        "tickvals": y_ticks(highest),
        "fixedrange": True,
        "gridcolor": ink.grid,
        "gridwidth": 1,
        "zeroline": False,
        "showline": False,
        "ticks": "",
        "tickfont": {"size": 11, "color": ink.dim},
        "ticklabelstandoff": 4,
    }
    if not traces:
        traces = [{"type": "scatter", "x": [None], "y": [None], "hoverinfo": "skip"}]
        layout["annotations"] = [_note("no values in this stretch", ink)]
        layout["yaxis"]["visible"] = False
    layout["meta"] = {"unit": scale.label, "bands": len(data.bands)}
    figure = {"data": traces, "layout": layout}
    return DrawnStrip(
        figure, scale.label, _readings(data, scale), _notes(data, cores, is_off=is_off)
    )


def y_ticks(highest: float) -> list[float]:
    """Up to three round values above zero, which needs no label.

    >>> y_ticks(2.1), y_ticks(52)
    ([1.0, 2.0], [20.0, 40.0])
    """
    size = 10.0 ** math.floor(math.log10(highest))
    step = next(size * part for part in (0.5, 1, 2, 5) if highest / (size * part) < 4)
    return [step * number for number in range(1, int(highest / step + 1e-9) + 1)]


def _area(
    data: StackData,
    band: Band,
    floor: Float64Array,
    ceiling: Float64Array,
    scale: UnitScale,
    scheme: Scheme,
) -> tuple[Figure, Figure]:
    """One closed outline for each stretch without gaps, and its edge, which can be pointed at."""
    stroke = colour(band.runs[0].ordinal, scheme) if len(band.runs) == 1 else INKS[scheme].dim
    edges = np.flatnonzero(np.diff(np.concatenate(([0], data.known.view(np.int8), [0]))))
    xs: list[Any] = []
    ys: list[Any] = []
    for start, stop in zip(edges[::2], edges[1::2], strict=True):
        # Cells are drawn to their borders, so that a lone one is seen.
        left = np.repeat(data.edges_s[start : stop + 1], 2)[1:-1]
        xs += [left, left[::-1], [math.nan]]
        ys += [np.repeat(ceiling[start:stop], 2), np.repeat(floor[start:stop], 2)[::-1], [math.nan]]
    area: Figure = {
        "type": "scatter",
        "mode": "lines",
        "name": band.name,
        "x": typed(np.concatenate(xs)) if xs else [None],
        "y": typed(np.concatenate(ys) * scale.factor) if ys else [None],
        "fill": "toself",
        "fillcolor": translucent(stroke, 0.72),
        # Neighbours may be shades of one hue.
        "line": {"width": 0.8, "color": INKS[scheme].paper},
        "hoverinfo": "skip",
    }
    values = np.where(data.known, band.values, np.nan) * scale.factor
    unit = f" {scale.label}" if scale.label else ""
    estimated = " estimated" if data.strip.is_estimated else ""
    hover: Figure = {
        "type": "scatter",
        "mode": "lines",
        "name": escaped(band.name),
        "x": typed(data.at_s),
        "y": typed(np.where(data.known, ceiling, np.nan) * scale.factor),
        "customdata": [None if not np.isfinite(v) else float(f"{v:.4g}") for v in values],
        "line": {"width": 1, "color": stroke, "shape": "hvh"},
        "hovertemplate": f"%{{customdata}}{unit}{estimated}<extra>{escaped(band.name)}</extra>",
    }
    return area, hover


def _total_trace(
    total: Total, scale: UnitScale, scheme: Scheme, ink: Ink, *, first: bool, stacked: bool
) -> Figure:
    stroke = ink.text if total.owner is None else colour(total.owner.ordinal, scheme)
    unit = f" {scale.label}" if scale.label else ""
    name = total_name(total)
    trace: Figure = {
        "type": "scatter",
        "mode": "lines",
        "name": escaped(name),
        "x": typed(total.readings.at_s),
        "y": typed(total.readings.values * scale.factor),
        "line": {"color": stroke, "width": 1.4},
        "connectgaps": False,
        "hovertemplate": f"%{{y:.4~g}}{unit}<extra>{escaped(name)}</extra>",
    }
    if first and not stacked and total.owner is None:
        trace["fill"] = "tozeroy"
        trace["fillcolor"] = translucent(ink.dim, 0.12)
    return trace


def total_name(total: Total) -> str:
    """``machine``, ``gpu0``, ``a on gi1/ci0``."""
    if total.owner is None:
        return total.name
    part = total.name.partition("/")[2] or total.name
    return f"{total.owner.record.letter or total.owner.record.name} on {part}"


def _readings(data: StackData, scale: UnitScale) -> tuple[Reading, ...]:
    """Of the visible time: the mean of each, or the peak where that is what counts."""
    found = []
    visible = (data.at_s >= data.window.start) & (data.at_s <= data.window.end) & data.known
    is_peak = data.strip.resource.peak
    for band in data.bands:
        there = band.values[visible & (band.values != 0)] if not is_peak else band.values[visible]
        found.append(
            Reading(
                band.name,
                _figure_text(_one_value(there, peak=is_peak), scale),
                band.runs[0].ordinal if len(band.runs) == 1 else None,
                data.strip.is_estimated,
            )
        )
    for total in data.totals:
        value = _one_value(_seen(total, data.window), peak=is_peak)
        ordinal = None if total.owner is None else total.owner.ordinal
        found.append(Reading(total_name(total), _figure_text(value, scale), ordinal))
    return tuple(found)


def _notes(data: StackData, cores: int | None, *, is_off: bool) -> tuple[str, ...]:
    strip = data.strip
    notes = []
    if strip.is_estimated:
        notes.append("runs: estimated")
    if not strip.is_stacked:
        notes.append(strip.resource.whole)
    if strip.without:
        letters = ", ".join(run.record.letter or run.record.name for run in strip.without)
        notes.append(f"not recorded: {letters}")
    if strip.resource.of_cores and strip.is_stacked and strip.totals and not cores:
        notes.append("machine not drawn: its number of cores is not known")
    if is_off:
        notes.append("machine beyond this scale")
    return tuple(notes)


def _one_value(values: Float64Array, *, peak: bool) -> float | None:
    finite = values[np.isfinite(values)]
    if not len(finite):
        return None
    return float(finite.max() if peak else finite.mean())


def _figure_text(value: float | None, scale: UnitScale) -> str:
    if value is None:
        return "–"
    scaled = value * scale.factor
    digits = max(0, 2 - math.floor(math.log10(abs(scaled)))) if scaled else 0
    return f"{scaled:,.{min(digits, 4)}f} {scale.label}".rstrip()


def _seen(total: Total, window: Window) -> Float64Array:
    at_s = total.readings.at_s
    values: Float64Array = total.readings.values[(at_s >= window.start) & (at_s <= window.end)]
    return values


def _largest(values: Float64Array) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.max()) if len(finite) else 0.0


def _layout(ink: Ink, window: Window, height_px: int) -> Figure:
    positions, texts = elapsed.ticks(window.start, window.end, about=8)
    return {
        "height": height_px,
        "autosize": True,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 12, "color": ink.text},
        "showlegend": False,
        "dragmode": "zoom",
        "hoverlabel": {
            "bgcolor": ink.hover,
            "bordercolor": ink.axis,
            "font": {"family": FONT, "size": 12, "color": ink.text},
            "namelength": -1,
            "align": "left",
        },
        "transition": {"duration": 0},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": ink.dim, "activecolor": ink.text},
        "xaxis": {
            "showspikes": False,  # the page's own line runs through all rows
            "range": [window.start, window.end],
            "tickvals": positions,
            "ticktext": texts,
            "tickfont": {"size": 11, "color": ink.dim},
            "ticks": "",
            "showgrid": True,
            "gridcolor": ink.grid,
            "zeroline": False,
            "showline": False,
            "unifiedhovertitle": {"text": "%{x:.2f} s"},
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
        "font": {"size": 12, "color": ink.dim},
    }


def blank(height_px: int) -> Figure:
    """What a graph shows until its data come."""
    return {
        "data": [],
        "layout": {
            "height": height_px,
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "margin": {"l": LEFT_PX, "r": RIGHT_PX, "t": 0, "b": 0},
            "xaxis": {"visible": False},
            "yaxis": {"visible": False},
        },
    }
