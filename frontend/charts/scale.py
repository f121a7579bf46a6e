"""Ticks of each kind of x axis, written so that they read well."""

from __future__ import annotations

import math
from datetime import datetime

from radt.frontend.charts import elapsed
from radt.frontend.charts.spec import Window, XAxis

_DAY_S = 86_400.0
_WALL_STEPS_S = (
    *(base * 10.0**exponent for exponent in range(-6, 0) for base in (1, 2, 5)),
    *(1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0),
    *(3600.0, 7200.0, 10_800.0, 21_600.0, 43_200.0),
    *(days * _DAY_S for days in (1, 2, 7, 14, 28, 56, 112, 364)),
)

#: What the axis is called where there is room, as on paper.
TITLES = {
    XAxis.BARRIER: "time since the barrier",
    XAxis.START: "time since the run's start",
    XAxis.WALL: "time of day",
    XAxis.STEP: "step",
    XAxis.EPOCH: "epochs done",
}
#: What stands above the values at a place, as Plotly formats it. Of instants nothing: seconds since
#: 1970 say nobody anything.
HOVER_TITLES = {
    XAxis.BARRIER: "%{x:.2f} s",
    XAxis.START: "%{x:.2f} s after its start",
    XAxis.WALL: "",
    XAxis.STEP: "step %{x:,.0f}",
    XAxis.EPOCH: "epoch %{x:.2f}",
}


def ticks(kind: XAxis, window: Window, about: int = 8) -> tuple[list[float], list[str]]:
    """Positions on the axis and their labels."""
    match kind:
        case XAxis.WALL:
            return _wall(window, about)
        case XAxis.STEP:
            return _numbers(window, about, smallest=1.0)
        case XAxis.EPOCH:
            return _numbers(window, about, smallest=0.0)
    return elapsed.ticks(window.start, window.end, about=about)


def _numbers(window: Window, about: int, smallest: float) -> tuple[list[float], list[str]]:
    """Round numbers; ``1,000``."""
    rough = max((window.end - window.start) / about, smallest, 1e-9)
    power = 10.0 ** math.floor(math.log10(rough) + 1e-9)
    step = next(base * power for base in (1, 2, 5, 10) if base * power >= rough * (1 - 1e-9))
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    first, last = math.ceil(window.start / step - 1e-9), math.floor(window.end / step + 1e-9)
    positions = [number * step for number in range(first, last + 1)]
    return positions, [f"{position:,.{decimals}f}" for position in positions]


def _wall(window: Window, about: int) -> tuple[list[float], list[str]]:
    """Times of day of this machine; the date at the first and wherever it changes."""
    span_s = window.end - window.start
    step_s = next((s for s in _WALL_STEPS_S if span_s / s <= about), _WALL_STEPS_S[-1])
    shift_s = utc_offset_s(window)  # round in local time
    first = math.ceil((window.start + shift_s) / step_s - 1e-9)
    last = math.floor((window.end + shift_s) / step_s + 1e-9)
    positions = [number * step_s - shift_s for number in range(first, last + 1)]
    labels = []
    day = ""
    for position in positions:
        labels.append(wall_label(position, step_s, day))
        day = labels[-1].split("<br>")[-1] if "<br>" in labels[-1] else day
    return positions, labels


def utc_offset_s(window: Window) -> float:
    """What this machine's time of day is ahead of UTC, at the window's start."""
    local = datetime.fromtimestamp(window.start).astimezone().utcoffset()
    return 0.0 if local is None else local.total_seconds()


def wall_label(at_s: float, step_s: float, day: str = "") -> str:
    """``14:30``, ``14:30:05.2``, with the date below where it is not ``day``."""
    moment = datetime.fromtimestamp(round(at_s, 6)).astimezone()
    date = f"{moment.day} {moment:%b}"
    if step_s >= _DAY_S:
        return date if f"{moment:%H:%M}" == "00:00" else f"{moment:%H:%M}<br>{date}"
    text = f"{moment:%H:%M}" if step_s >= 60 else f"{moment:%H:%M:%S}"
    if step_s < 1:
        decimals = -math.floor(math.log10(step_s) + 1e-9)
        text += f".{moment.microsecond:06}"[: 1 + decimals]
    return text if date == day else f"{text}<br>{date}"
