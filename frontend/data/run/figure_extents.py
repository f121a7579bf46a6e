"""Compute the extent of a figure's numbers, which limits the number of its ticks."""

from __future__ import annotations

import base64
import math
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

MAX_DEPTH = 20
#: Maximum number of values of traces, and of values that are each drawn as an element.
_MAX_VALUES = 1_000_000
_MAX_ELEMENTS = 50_000
#: Traces whose axes show sums or counts of values.
_ADDING = frozenset({"bar", "box", "violin", "histogram", "histogram2d", "histogram2dcontour"})
#: Scalar attributes that extend axes and colour scales.
_COORDINATES = frozenset({"x", "y", "x0", "x1", "y0", "y1", "cmin", "cmax", "zmin", "zmax", "sum"})
_DATE = re.compile(r"\s*(-?\d{4}|\d\d)(?:-(\d?\d)(?:-(\d?\d))?)?")
_DAY_MS = 24 * 3600 * 1000


class NotDrawnError(Exception):
    """A figure goes beyond a limit."""


class Extents:
    """The maximum extent of a figure's numbers along x, along y and otherwise ("").

    Args:
        traces: The traces, with their types.
        layout: The layout.

    Raises:
        NotDrawnError: There are too many values, or numbers of an unknown type.
    """

    def __init__(self, traces: list[dict[str, Any]], layout: dict[str, Any]) -> None:
        self.values = self.elements = 0
        self._ranges: dict[str, tuple[float, float]] = {}
        self._texts: Counter[str] = Counter()
        self._total = 0.0  # sum of values that may be stacked or counted
        for trace in traces:
            before = self.values
            adds = trace.get("type") in _ADDING or "stackgroup" in trace
            for direction, value in _numbers(trace):
                number = self._add(direction, value)
                self._total += abs(number) + 1 if adds else 0
            count = self.values - before
            self.elements += count if _has_elements(trace) else 0
            for direction in ("x", "y"):
                if not trace.get(direction):  # counts on this axis
                    self._add(direction, 0)
                    self._add(direction, count)
                if "fill" in trace:  # may extend to zero
                    self._add(direction, 0)
        if self.values > _MAX_VALUES or self.elements > _MAX_ELEMENTS:
            raise NotDrawnError(f"A figure with {max(self.values, self.elements):,} values")
        for direction, value in _numbers(layout):
            self._add(direction, value)

    def span(self, direction: str) -> float:
        low, high = self._ranges.get(direction, (0.0, 0.0))
        if not direction:
            low = min(low, *(each for each, _ in self._ranges.values()), 0.0)
            high = max(high, *(each for _, each in self._ranges.values()), 1.0)
        # Plotly draws a single value in the middle of a range.
        return max((high - low) or 2.0, self._texts[direction], self._total)

    def _add(self, direction: str, value: object) -> float:
        self.values += 1
        if isinstance(value, str):
            self._texts[direction] += 1
            numbers = _numbers_in(value)
        else:
            numbers = [float(value)] if isinstance(value, int | float) else []
        for number in filter(math.isfinite, numbers):
            low, high = self._ranges.get(direction, (number, number))
            self._ranges[direction] = min(low, number), max(high, number)
        return numbers[0] if numbers and math.isfinite(numbers[0]) else 0.0


def _numbers_in(text: str) -> list[float]:
    """Return the numbers that Plotly may read from a text: a number, or both ends of a date."""
    numbers = []
    with suppress(ValueError):
        numbers.append(float(text))
    if (date := _DATE.match(text)) is not None:
        year, month, day = (int(part or 0) for part in date.groups())
        days = (12 * year + month) * 31 + day
        numbers += [days * _DAY_MS, (days + (1 if day else 31 if month else 372)) * _DAY_MS]
    return numbers


def _has_elements(trace: dict[str, Any]) -> bool:
    """Return True if a trace draws each value as an element, rather than a line or a picture."""
    kind = trace.get("type")
    if kind in ("scatter", "scatterternary"):
        return bool(trace.get("mode", "lines") != "lines")
    return kind in ("bar", "pie") or bool(trace.get("points") or trace.get("boxpoints"))


def direction_of(along: str, name: str) -> str:
    """Return the direction of an attribute inside one with direction ``along``."""
    first = name.removeprefix("error_").removeprefix("d")[:1]
    return first if first in ("x", "y") else along


def _numbers(value: object, along: str = "", depth: int = 0) -> Iterator[tuple[str, object]]:
    """Yield array items (also base64-encoded) and coordinates, with their direction."""
    if depth > MAX_DEPTH:
        return
    if isinstance(value, list):
        for item in value:
            if isinstance(item, dict | list):
                yield from _numbers(item, along, depth + 1)
            else:
                yield along, item
    elif isinstance(value, dict) and isinstance(value.get("bdata"), str):
        for number in _packed(value["bdata"], str(value.get("dtype"))):
            yield along, number
    elif isinstance(value, dict):
        for key, item in value.items():
            direction = direction_of(along, key)
            if isinstance(item, dict | list):
                yield from _numbers(item, direction, depth + 1)
            elif (reached := _reached(key, item)) is not None:
                yield direction, reached


def _reached(key: str, value: object) -> object:
    """Return the farthest coordinate that an attribute can produce; None if it sets none."""
    if key in _COORDINATES:
        return value
    if key == "rangemode":  # may extend from zero
        return 0
    return value * _MAX_VALUES if key in ("dx", "dy") and isinstance(value, int | float) else None


def _packed(data: str, kind: str) -> Iterator[float]:
    import numpy as np  # takes a tenth of a second to import

    try:
        numbers = np.frombuffer(base64.b64decode(data), np.dtype(kind.replace("u1c", "u1")))
        yield from map(float, numbers.tolist())
    except (TypeError, ValueError) as error:
        raise NotDrawnError(f"A figure with numbers of type {kind[:20]}") from error
