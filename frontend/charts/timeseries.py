"""The figure of one metric.

Figures are plain dictionaries in Plotly's own JSON, as `plotly.graph_objects` would validate every
attribute in Python on every update. The server determines the ranges of both axes, so that all
charts of a page show the same x range and each uses its height for the visible data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from radt.analysis.lines import Curve
from radt.frontend.charts.layout import (
    CHAR_PX,
    MAX_LABELS,
    RUG_GAP_PX,
    TITLES,
    Abscissa,
    Look,
    add_second_axis,
    end_labels,
    label_chars,
    layout_of,
    note,
    utc_offset_s,
)
from radt.frontend.charts.traces import (
    RUG_ROW_PX,
    Figure,
    Ordinate,
    Pen,
    hairlines,
    line_traces,
    mark_words,
    rug,
)
from radt.frontend.data.model import ChartData, NamedCurve
from radt.frontend.data.spec import AxisRange, Band, Level, Relative, XAxis
from radt.frontend.theme import INKS, Scheme, colour
from radt.render.labels import apart
from radt.units import plural, scale_of

__all__ = ["Figure", "Look", "figure", "y_range"]

_MAX_RUG_ROWS = 12
_MARKED_POINTS = 24
_NO_VALUES = "no values yet in the selected runs"
_BANDS = {
    Band.CONFIDENCE: "band 95 % interval of the mean",
    Band.DEVIATION: "band ± standard deviation",
    Band.RANGE: "band min–max",
}
_NOTHING = {
    XAxis.STEP: "this metric has no steps",
    XAxis.EPOCH: "the selected runs have no values within epochs",
    XAxis.METRIC: "no run has values of both metrics at the same time",
}

# Plotly fails if a subplot first appears in an update that changes nothing else. So both always
# exist: one for the lines and one for the marks below them.
_ANCHORS: tuple[Figure, ...] = tuple(
    {"type": "scatter", "x": [None], "y": [None], "yaxis": axis, "name": ""} for axis in ("y", "y2")
)


def figure(data: ChartData, look: Look) -> Figure:
    """Draw a chart.

    ``layout.meta`` describes the drawing: ``unit``, the ``factor`` of values in it, whether they
    are ``signed``, ``points``, ``x`` (``x_metric``, ``x_unit`` and ``x_factor`` if it is a metric),
    ``utc_offset_s`` of times of day, ``aggregate`` (None without one), ``level``, ``relative``,
    ``notes`` in words, ``lines``, and ``second``, which is ``metric``, ``unit``, ``signed`` and
    ``lines`` of the second y axis (None without one). ``meta.key`` of a trace is the key of its
    line.
    """
    ink = INKS[look.scheme]
    shorts = apart([line.short for line in data.lines])
    lines = [replace(line, short=short) for line, short in zip(data.lines, shorts, strict=True)]
    x = abscissa_of(data, lines)
    if x.log:
        lines = [_positive(line) for line in lines]
    shown = [line for line in lines if not line.hidden]
    drawn = [
        (line, Pen.of(line, place, look.scheme, monochrome=look.monochrome))
        for place, line in enumerate(shown)
    ]
    ordinate = ordinate_of(data, shown)
    limits = y_limits(data, shown, ordinate, x.window)
    # A second axis on the right leaves no space for the names of lines.
    labelled = drawn if len(drawn) <= MAX_LABELS and not look.small and not data.second else []
    ticks = [tick for tick in data.ticks if tick.x > 0 or not x.log]
    rug_rows = max((tick.row for tick in ticks), default=-1) + 1
    if rug_rows > _MAX_RUG_ROWS:
        rug_rows = 0
    rug_px = rug_rows * RUG_ROW_PX + (RUG_GAP_PX if rug_rows else 0)
    ticks = ticks if rug_rows else []
    title = "" if look.small or look.paper else ordinate.unit
    if data.second:
        title = _titled(data.spec.metric, ordinate)
    layout = layout_of(ink, x, limits, look, rug_px, rug_rows, title, mark_words(ticks))
    margin = layout["margin"]
    characters = label_chars([line for line, _ in labelled], look)
    margin["r"] += CHAR_PX * characters
    plot_px = look.height_px - margin["t"] - margin["b"] - rug_px
    # A few points are drawn as single readings, in all lines of a chart or in none.
    marked = _has_few_points(shown)
    traces = [*_ANCHORS]
    for line, pen in drawn:
        traces += line_traces(
            line,
            pen,
            ordinate,
            marked=marked,
            smoothed=data.smoothing_width > 0 or data.ema > 0,
        )
    strokes = {
        tick.ordinal: ink.dim if look.monochrome else colour(tick.ordinal, look.scheme)
        for tick in ticks
    }
    traces += rug(ticks, rug_rows, strokes)
    layout["annotations"] = end_labels(labelled, x.window, ordinate, limits, plot_px, characters)
    layout["shapes"] = hairlines(ticks, strokes)
    if not drawn:
        text = "all lines are hidden" if data.lines else _NOTHING.get(data.x, _NO_VALUES)
        layout["annotations"] = [note(text, ink)]
    _scale(layout["yaxis"], shown, ordinate, limits)
    second = _add_second(data.second, layout, traces, x, look, len(drawn)) if data.second else None
    layout["meta"] = {
        "unit": ordinate.unit,
        "factor": ordinate.factor,
        "signed": ordinate.signed,
        "points": sum(len(line.curve.values) for line in shown),
        "x": data.x.value,
        "x_metric": data.spec.over,
        "x_unit": x.scale.label,
        "x_factor": x.scale.factor,
        "utc_offset_s": utc_offset_s(data.window) if data.x is XAxis.WALL else None,
        "aggregate": None if data.aggregate is None else data.aggregate.value,
        "level": data.level.value,
        "relative": data.relative.value,
        "band": _band_text(data, shown),
        "second": second,
        "notes": [*data.notes, *_left_out(shown, ordinate), *_before_zero(data, x)],
        "lines": _listed(lines, {line.key: pen for line, pen in drawn}, look.scheme),
    }
    return {"data": traces, "layout": layout}


def _add_second(
    data: ChartData, layout: Figure, traces: list[Figure], x: Abscissa, look: Look, place: int
) -> Figure:
    """Draw the lines of the second y axis. ``place`` is the number of lines on the first."""
    shorts = apart([line.short for line in data.lines])
    lines = [replace(line, short=short) for line, short in zip(data.lines, shorts, strict=True)]
    if x.log:
        lines = [_positive(line) for line in lines]
    shown = [line for line in lines if not line.hidden]
    ordinate = ordinate_of(data, shown)
    limits = y_limits(data, shown, ordinate, x.window)
    add_second_axis(layout, limits, _titled(data.spec.metric, ordinate), INKS[look.scheme])
    _scale(layout["yaxis3"], shown, ordinate, limits)
    pens: dict[str, Pen] = {}
    marked = _has_few_points(shown)
    smoothed = data.smoothing_width > 0 or data.ema > 0
    for number, line in enumerate(shown, start=place):
        pen = Pen.of(line, number, look.scheme, monochrome=look.monochrome)
        pens[line.key] = pen.beside(monochrome=look.monochrome)
        own = line_traces(line, pens[line.key], ordinate, marked=marked, smoothed=smoothed)
        traces += [trace | {"yaxis": "y3"} for trace in own]
    return {
        "metric": data.spec.metric,
        "unit": ordinate.unit,
        "signed": ordinate.signed,
        "lines": _listed(lines, pens, look.scheme),
    }


def _has_few_points(lines: Sequence[NamedCurve]) -> bool:
    most = max((int(np.isfinite(line.curve.values).sum()) for line in lines), default=0)
    return most <= _MARKED_POINTS and all(line.low is None for line in lines)


def _titled(metric: str, ordinate: Ordinate) -> str:
    return f"{metric} ({ordinate.unit})" if ordinate.unit else metric


def _scale(
    axis: Figure, lines: Sequence[NamedCurve], ordinate: Ordinate, limits: tuple[float, float]
) -> None:
    """Set the ticks of a y axis, which are whole numbers if all values are."""
    axis["type"] = "log" if ordinate.log else "linear"
    if ordinate.log:
        axis["dtick"] = "D1" if limits[1] - limits[0] < 2 else 1
    elif limits[1] - limits[0] < axis["nticks"] and _are_whole(lines, ordinate):
        axis["dtick"] = 1
    if _is_small(limits, log=ordinate.log):
        axis["exponentformat"] = "e"
    if ordinate.signed:
        axis["tickformat"] = "+~g"


def _are_whole(lines: Sequence[NamedCurve], ordinate: Ordinate) -> bool:
    values = [ordinate.of(line.curve.values) for line in lines]
    return all(bool((each[np.isfinite(each)] % 1 == 0).all()) for each in values)


def _listed(
    lines: Sequence[NamedCurve], pens: dict[str, Pen], scheme: Scheme
) -> list[dict[str, Any]]:
    """Return the entries of the list beside the chart, hidden lines included."""
    traces = []
    for line in lines:
        pen = pens.get(line.key) or Pen.of(line, 0, scheme, monochrome=False)
        traces.append(
            {
                "key": line.key,
                "label": line.label,
                "short": line.short,
                "colour": pen.colour,
                "dash": line.dash,
                "stroke": pen.dash,
                "hidden": line.hidden,
                "estimated": line.estimated,
                "facts": list(line.facts),
                "workload": line.is_workload,
                "members": list(line.members),
            }
        )
    return traces


def abscissa_of(data: ChartData, lines: Sequence[NamedCurve]) -> Abscissa:
    """Choose title, unit and range of the x axis. A logarithmic one begins at the first value > 0.

    Times of day have no natural zero, so they have no logarithm.
    """
    window, log = data.window, data.spec.log_x and data.x is not XAxis.WALL
    if log:
        positive = [line.curve.x[line.curve.x > 0] for line in lines]
        first = min((float(x.min()) for x in positive if len(x)), default=0.0)
        start = max(window.start, first)
        log = 0 < start < window.end
        window = AxisRange(start, window.end) if log else window
    if data.x is not XAxis.METRIC:
        return Abscissa(data.x, window, TITLES[data.x], log=log)
    scale = scale_of(data.x_unit, max(abs(window.start), abs(window.end)))
    title = f"growth of {data.spec.over}" if data.x_growth else data.spec.over
    title += f" ({scale.label})" if scale.label else ""
    return Abscissa(data.x, window, title, scale, log=log)


def _positive(line: NamedCurve) -> NamedCurve:
    """Return the part of a line at x above 0."""
    seen = line.curve.x > 0
    return replace(
        line,
        curve=Curve(line.curve.x[seen], line.curve.values[seen]),
        low=None if line.low is None else line.low[seen],
        high=None if line.high is None else line.high[seen],
        partial=None if line.partial is None else line.partial[seen],
    )


def ordinate_of(data: ChartData, lines: Sequence[NamedCurve]) -> Ordinate:
    """Choose a unit and factor for readable tick values."""
    log = data.spec.log
    if data.relative is Relative.RATIO:
        return Ordinate(1.0, "×", log=log)
    scale = scale_of(data.quantity.drawn_unit, max(map(_largest, lines), default=0.0))
    if data.relative is Relative.DIFFERENCE:
        # The difference of two shares is not a share.
        label = "pp" if scale.label == "%" else scale.label
        return Ordinate(scale.factor, label, signed=True)
    return Ordinate(scale.factor, scale.label, log=log)


def y_limits(
    data: ChartData, lines: Sequence[NamedCurve], ordinate: Ordinate, window: AxisRange
) -> tuple[float, float]:
    """Return the limits of the y axis; exponents of ten if it is logarithmic.

    They enclose the data visible in the window with a small margin, except for limits that the user
    set.
    """
    spec = data.spec
    plain = data.relative is Relative.OFF
    from_zero = data.quantity.from_zero and plain
    low, high = y_range(lines, window, ordinate, from_zero=from_zero, robust=data.robust)
    if data.relative is not Relative.RATIO:
        hand_low, hand_high = (
            None if limit is None else limit * ordinate.factor for limit in (spec.y_min, spec.y_max)
        )
    else:
        hand_low, hand_high = spec.y_min, spec.y_max
    if ordinate.log:
        low, high = math.log10(low), math.log10(high)
        hand_low, hand_high = (
            math.log10(limit) if limit is not None and limit > 0 else None
            for limit in (hand_low, hand_high)
        )
    low = low if hand_low is None else hand_low
    high = high if hand_high is None else hand_high
    if low < high:
        return low, high
    # A limit set by the user leaves no range for the other.
    if hand_low is None:
        return high - (1.0 if ordinate.log else abs(high) or 1.0), high
    return low, low + (1.0 if ordinate.log else abs(low) or 1.0)


def _is_small(limits: tuple[float, float], *, log: bool) -> bool:
    """Return True if ticks would get an SI prefix below 1 (``100µ``), wrong for unitless values."""
    return limits[0] < -3 if log else max(abs(end) for end in limits) < 0.005


def y_range(
    lines: Sequence[NamedCurve],
    window: AxisRange,
    ordinate: Ordinate,
    *,
    from_zero: bool,
    robust: bool = False,
) -> tuple[float, float]:
    """Return the lowest and highest value within the window, scaled, with a margin.

    A ``robust`` range excludes the lowest and highest 5 % of the points, as in TensorBoard.
    """
    lows, highs = [], []
    for line in lines:
        seen = (line.curve.x >= window.start) & (line.curve.x <= window.end)
        if not seen.any():  # a zoom between two points shows the line that joins them
            seen[:] = True
        drawn = (line.curve.values,) if robust else (line.curve.values, line.low, line.high)
        for array in drawn:
            if array is not None:
                finite = ordinate.of(array[seen])
                finite = finite[np.isfinite(finite)]
                if len(finite):
                    ends = np.quantile(finite, (0.05, 0.95)) if robust else finite
                    lows.append(float(ends.min()))
                    highs.append(float(ends.max()))
    if not lows:
        return (0.1, 1.0) if ordinate.log else (0.0, 1.0)
    low, high = min(lows), max(highs)
    if ordinate.log:
        # Values that differ only by rounding count as one.
        air = (high / low) ** 0.06 if high > low * (1 + 1e-9) else 2.0
        return low / air, high * air
    if from_zero and low >= 0:
        return 0.0, high * 1.06 if high > 0 else 1.0
    air = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return low - air, high + air


def _largest(line: NamedCurve) -> float:
    values = line.curve.values if line.high is None else line.high
    finite = values[np.isfinite(values)]
    return float(np.abs(finite).max()) if len(finite) else 0.0


def _band_text(data: ChartData, lines: Sequence[NamedCurve]) -> str:
    """Return the meaning of lines and bands that are not single samples, for the chart's head."""
    each = max((line.samples_each for line in lines), default=1.0)
    words = []
    if data.ema > 0:
        words.append(f"exponential mean {data.ema:g}")
    elif data.smoothing_width > 0:
        words.append("moving mean")
    elif each > 1:
        words.append(f"mean of {each:,.0f} samples a point")
    if data.level is Level.GROUP:
        words.append(_BANDS[data.band])
    elif any(line.low is not None for line in lines):
        words.append(_BANDS[Band.RANGE])
    if data.robust:
        words.append("without outliers")
    return ", ".join(words)


def _before_zero(data: ChartData, x: Abscissa) -> list[str]:
    if data.spec.log_x and not x.log:
        why = "times of day have no zero" if data.x is XAxis.WALL else "no value of x is above 0"
        return [f"the x axis is not logarithmic: {why}"]
    count = sum(int((line.curve.x <= 0).sum()) for line in data.lines) if x.log else 0
    return [f"{plural(count, 'value')} at x of 0 or less left out"] if count else []


def _left_out(lines: Sequence[NamedCurve], ordinate: Ordinate) -> list[str]:
    if not ordinate.log:
        return []
    with np.errstate(invalid="ignore"):
        count = sum(int((line.curve.values <= 0).sum()) for line in lines)
    return [f"{plural(count, 'value')} of 0 or less left out"] if count else []
