"""Figures of the Workload page's strips: stacked shares of the runs, and the device's line."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from radt.frontend.charts.timeline import LEFT_PX, RIGHT_PX, Figure, frame_layout, frame_note
from radt.frontend.charts.traces import Ordinate, Pen, line_traces, typed
from radt.frontend.data.spec import AxisRange
from radt.frontend.data.workload.model import Band, StackData, Total
from radt.frontend.theme import INKS, Ink, Scheme, colour, translucent
from radt.store.records import Float64Array
from radt.units import Scale, scale_of

STRIP_PX = 128
_TOP_PX, _BOTTOM_PX = 8, 20
#: If a device's value exceeds the runs' by this factor, it is written rather than drawn, as it
#: would flatten the runs.
_OFF_SCALE = 6.0
_AIR = 1.06


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """One line of a strip's legend. ``ordinal`` is None for the device."""

    name: str
    text: str
    ordinal: int | None
    is_estimated: bool = False


@dataclass(frozen=True, slots=True)
class DrawnStrip:
    """A strip's figure with its legend and notes."""

    figure: Figure
    unit: str
    readings: tuple[LegendEntry, ...]
    notes: tuple[str, ...]


def strip_figure(data: StackData, scheme: Scheme, cores: int | None) -> DrawnStrip:
    """Stack the shares, first run on top as in the list. Draw the device's line above them."""
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
    scale = scale_of(quantity.drawn_unit, drawn_top)
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
        for place, total in enumerate(data.totals):
            traces += _total_traces(
                total, scale, scheme, ink, first=place == 0, stacked=bool(data.bands)
            )
    layout = frame_layout(ink, data.window, STRIP_PX)
    layout["margin"] = {"l": LEFT_PX, "r": RIGHT_PX, "t": _TOP_PX, "b": _BOTTOM_PX, "pad": 0}
    layout["hovermode"] = False  # the page has its own tooltip (static/workload.js)
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
        layout["annotations"] = [frame_note("no values in this stretch", ink)]
        layout["yaxis"]["visible"] = False
    layout["meta"] = {"unit": scale.label, "bands": len(data.bands)}
    figure = {"data": traces, "layout": layout}
    return DrawnStrip(
        figure, scale.label, _readings(data, scale), _notes(data, cores, is_off=is_off)
    )


def y_ticks(highest: float) -> list[float]:
    """Return up to three round values above zero, which needs no label.

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
    scale: Scale,
    scheme: Scheme,
) -> tuple[Figure, Figure]:
    """Return a closed outline per part without gaps, and its upper edge for the cursor."""
    stroke = colour(band.runs[0].ordinal, scheme) if len(band.runs) == 1 else INKS[scheme].dim
    edges = np.flatnonzero(np.diff(np.concatenate(([0], data.known.view(np.int8), [0]))))
    xs: list[Any] = []
    ys: list[Any] = []
    for start, stop in zip(edges[::2], edges[1::2], strict=True):
        # Cells are drawn to their edges, so that a single one is visible.
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
        # Neighbours may have the same hue, so outline them.
        "line": {"width": 0.8, "color": INKS[scheme].paper},
        "hoverinfo": "skip",
    }
    values = np.where(data.known, band.values, np.nan) * scale.factor
    hover: Figure = {
        "type": "scatter",
        "mode": "lines",
        "name": band.name,
        "x": typed(data.at_s),
        "y": typed(np.where(data.known, ceiling, np.nan) * scale.factor),
        "customdata": [None if not np.isfinite(v) else float(f"{v:.4g}") for v in values],
        "line": {"width": 1, "color": stroke, "shape": "hvh"},
        "meta": {"name": band.name, "colour": stroke, "estimated": data.strip.is_estimated},
    }
    return area, hover


def _total_traces(
    total: Total, scale: Scale, scheme: Scheme, ink: Ink, *, first: bool, stacked: bool
) -> list[Figure]:
    stroke = ink.text if total.owner is None else colour(total.owner.ordinal, scheme)
    name = total_name(total)
    ordinate = Ordinate(scale.factor, scale.label)
    *band, trace = line_traces(total.line, Pen(stroke), ordinate, marked=False, smoothed=False)
    for part in band:
        del part["meta"]  # no values for the tooltip
    trace |= {"name": name, "meta": {"name": name, "colour": stroke}}
    if first and not stacked and total.owner is None:
        trace |= {"fill": "tozeroy", "fillcolor": translucent(ink.dim, 0.12)}
    return [*band, trace]


def total_name(total: Total) -> str:
    """Return the name of a total: ``machine``, ``gpu0``, ``a on gi1/ci0``, ``a``."""
    if total.owner is None:
        return total.line.label
    part = total.line.label.partition("/")[2]
    name = total.owner.letter_or_name
    return f"{name} on {part}" if part else name


def _readings(data: StackData, scale: Scale) -> tuple[LegendEntry, ...]:
    """Return the mean of each line within the visible time, or the peak where that counts."""
    is_peak = data.strip.resource.peak
    lines = [
        LegendEntry(
            band.name,
            _figure_text(band.peak if is_peak else band.mean, scale),
            band.runs[0].ordinal if len(band.runs) == 1 else None,
            data.strip.is_estimated,
        )
        for band in data.bands
    ]
    for total in data.totals:
        value = total.peak if is_peak else total.mean
        ordinal = None if total.owner is None else total.owner.ordinal
        lines.append(LegendEntry(total_name(total), _figure_text(value, scale), ordinal))
    return tuple(lines)


def _notes(data: StackData, cores: int | None, *, is_off: bool) -> tuple[str, ...]:
    strip = data.strip
    notes = []
    if strip.is_estimated:
        notes.append("runs: estimated")
    if not strip.is_stacked:
        notes.append(strip.resource.whole)
    if strip.without:
        letters = ", ".join(run.letter_or_name for run in strip.without)
        notes.append(f"not recorded: {letters}")
    if strip.resource.of_cores and strip.is_stacked and strip.totals and not cores:
        notes.append("machine not drawn: its core count is not known")
    if is_off:
        notes.append("machine beyond this scale")
    return tuple(notes)


def _figure_text(value: float, scale: Scale) -> str:
    if not math.isfinite(value):
        return "–"
    if not value:
        return "0"
    scaled = value * scale.factor
    digits = max(0, 2 - math.floor(math.log10(abs(scaled))))
    return f"{scaled:,.{min(digits, 4)}f} {scale.label}".rstrip()


def _seen(total: Total, window: AxisRange) -> Float64Array:
    x, values = total.line.curve.x, total.line.curve.values
    values = values if total.line.high is None else total.line.high
    seen: Float64Array = values[(x >= window.start) & (x <= window.end)]
    return seen


def _largest(values: Float64Array) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.max()) if len(finite) else 0.0
