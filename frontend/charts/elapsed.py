"""The axis of elapsed time: round ticks, written as people read a stopwatch."""

from __future__ import annotations

import math

_STEPS_S = (
    *(base * 10.0**exponent for exponent in range(-6, 1) for base in (1, 2, 5)),
    *(10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0),
    *(3600.0, 7200.0, 10800.0, 21600.0, 43200.0, 86400.0, 172800.0, 432000.0, 864000.0),
)


def ticks(start_s: float, end_s: float, about: int = 6) -> tuple[list[float], list[str]]:
    """Positions in seconds and their labels, at most ``about`` + 1 of them."""
    span_s = end_s - start_s
    step_s = next((s for s in _STEPS_S if span_s / s <= about), span_s / about)
    first = math.ceil(start_s / step_s - 1e-9)
    last = math.floor(end_s / step_s + 1e-9)
    positions = [index * step_s for index in range(first, last + 1)]
    return positions, [label(position, step_s) for position in positions]


def label(seconds: float, step_s: float = 1.0) -> str:
    """``0:07``, ``1:30``, ``2:05:00``; with decimals where ticks are closer than a second."""
    decimals = max(0, -math.floor(math.log10(step_s) + 1e-9)) if step_s < 1 else 0
    sign = "−" if round(seconds, decimals) < 0 else ""
    # Rounded first: 59.9999 must not become 0:60.
    total = round(abs(seconds), decimals)
    whole = int(total)
    fraction = f"{total - whole:.{decimals}f}"[1:] if decimals else ""
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        days, hours = divmod(hours, 24)
        return f"{sign}{days}d {hours}:{minutes:02}"
    text = f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
    return sign + text + fraction
