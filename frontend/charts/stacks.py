"""Figures of the Workload page's strips: stacked shares of the runs, and the device's line."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from radt.frontend.charts.timeline import LEFT_PX, RIGHT_PX, Figure, frame_layout, frame_note
from radt.frontend.charts.traces import typed
from radt.frontend.data.model import UnitScale, unit_scale
from radt.frontend.data.spec import Window
from radt.frontend.data.workload.model import Band, StackData, Total
from radt.frontend.theme import INKS, Ink, Scheme, colour, translucent
from radt.store.records import Float64Array

STRIP_PX = 128
_TOP_PX, _BOTTOM_PX = 8, 20
#: A device's value that exceeds the runs' by this factor is written, not drawn: it would press
#: the runs flat.
_OFF_SCALE = 6.0
_AIR = 1.06


@dataclass(frozen=True, slots=True)
class Reading:
    """One line of a strip's legend; ``ordinal`` None for the device."""

    name: str
    text: str
    ordinal: int | None
    is_estimated: bool = False


@dataclass(frozen=True, slots=True)
class DrawnStrip:
    """A strip's figure with its legend and notes."""

    figure: Figure
    unit: str
    readings: tuple[Reading, ...]
    notes: tuple[str, ...]


def strip_figure(data: StackData, scheme: Scheme, cores: int | None) -> DrawnStrip:
    """Stack the shares, first run on top as in the list, and draw the device's line above."""
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
    layout = frame_layout(ink, data.window, STRIP_PX)
    layout["margin"] = {"l": LEFT_PX, "r": RIGHT_PX, "t": _TOP_PX, "b": _BOTTOM_PX, "pad": 0}
    layout["hovermode"] = False  # the tooltip is the page's own (static/workload.js)
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
    scale: UnitScale,
    scheme: Scheme,
) -> tuple[Figure, Figure]:
    """Return one closed outline per stretch without gaps, and its upper edge for the cursor."""
    stroke = colour(band.runs[0].ordinal, scheme) if len(band.runs) == 1 else INKS[scheme].dim
    edges = np.flatnonzero(np.diff(np.concatenate(([0], data.known.view(np.int8), [0]))))
    xs: list[Any] = []
    ys: list[Any] = []
    for start, stop in zip(edges[::2], edges[1::2], strict=True):
        # Cells are drawn to their borders, so that a single one is visible.
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
        # Neighbours may have the same hue.
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


def _total_trace(
    total: Total, scale: UnitScale, scheme: Scheme, ink: Ink, *, first: bool, stacked: bool
) -> Figure:
    stroke = ink.text if total.owner is None else colour(total.owner.ordinal, scheme)
    name = total_name(total)
    trace: Figure = {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": typed(total.readings.at_s),
        "y": typed(total.readings.values * scale.factor),
        "line": {"color": stroke, "width": 1.4},
        "connectgaps": False,
        "meta": {"name": name, "colour": stroke},
    }
    if first and not stacked and total.owner is None:
        trace["fill"] = "tozeroy"
        trace["fillcolor"] = translucent(ink.dim, 0.12)
    return trace


def total_name(total: Total) -> str:
    """Return the name of a total: ``machine``, ``gpu0``, ``a on gi1/ci0``, ``a``."""
    if total.owner is None:
        return total.name
    part = total.name.partition("/")[2]
    name = total.owner.record.letter or total.owner.record.name
    return f"{name} on {part}" if part else name


def _readings(data: StackData, scale: UnitScale) -> tuple[Reading, ...]:
    """Return the mean (or the peak, where that counts) of each line within the visible time."""
    is_peak = data.strip.resource.peak
    lines = [
        Reading(
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
        lines.append(Reading(total_name(total), _figure_text(value, scale), ordinal))
    return tuple(lines)


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
        notes.append("machine not drawn: its core count is not known")
    if is_off:
        notes.append("machine beyond this scale")
    return tuple(notes)


def _figure_text(value: float, scale: UnitScale) -> str:
    if not math.isfinite(value):
        return "–"
    if not value:
        return "0"
    scaled = value * scale.factor
    digits = max(0, 2 - math.floor(math.log10(abs(scaled))))
    return f"{scaled:,.{min(digits, 4)}f} {scale.label}".rstrip()


def _seen(total: Total, window: Window) -> Float64Array:
    at_s = total.readings.at_s
    values: Float64Array = total.readings.values[(at_s >= window.start) & (at_s <= window.end)]
    return values


def _largest(values: Float64Array) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.max()) if len(finite) else 0.0
