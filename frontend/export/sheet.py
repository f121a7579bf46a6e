"""Several figures as one, on a sheet: Plotly draws one figure at a time.

Each figure keeps its axes, marks and labels, under names of their own; what is placed relative to
the paper is placed relative to its cell.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Figure = dict[str, Any]

_AXIS = re.compile(r"^([xy])axis(\d*)$")
_REFERENCES = ("anchor", "overlaying", "matches", "scaleanchor")


@dataclass(frozen=True, slots=True)
class Box:
    """A part of the sheet in pixels from its left and bottom edge."""

    left: float
    bottom: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Sheet:
    """Size of the sheet in pixels."""

    width: float
    height: float

    def domain(self, box: Box, letter: str, share: Sequence[float]) -> list[float]:
        """Where on the sheet a part of a box is, both from 0 to 1."""
        start, length, whole = (
            (box.left, box.width, self.width)
            if letter == "x"
            else (box.bottom, box.height, self.height)
        )
        return [min(1.0, max(0.0, (start + length * one) / whole)) for one in share]


class Merger:
    """Puts figures on a sheet, one after the other."""

    def __init__(self, sheet: Sheet) -> None:
        self._sheet = sheet
        self._counts = {"x": 0, "y": 0}
        self.traces: list[Figure] = []
        self.axes: dict[str, Figure] = {}
        self.annotations: list[Figure] = []
        self.shapes: list[Figure] = []

    def add(self, figure: Figure, box: Box) -> None:
        """Put a figure's plot into a box; its ticks are outside of it."""
        layout = figure["layout"]
        found = [match for key in layout if (match := _AXIS.match(key))]
        found = found or [match for key in ("xaxis", "yaxis") if (match := _AXIS.match(key))]
        names: dict[str, str] = {}
        for match in found:
            letter = match[1]
            self._counts[letter] += 1
            number = self._counts[letter]
            names[letter + match[2]] = letter + (str(number) if number > 1 else "")
        for match in found:
            self._add_axis(
                layout.get(match[0], {}), match[1], names[match[1] + match[2]], names, box
            )
        for trace in figure["data"]:
            own = {**trace, "showlegend": False}
            own["xaxis"] = names[trace.get("xaxis", "x")]
            own["yaxis"] = names[trace.get("yaxis", "y")]
            self.traces.append(own)
        self.annotations += [self._placed(one, names) for one in layout.get("annotations", ())]
        self.shapes += [self._placed(one, names) for one in layout.get("shapes", ())]

    def _add_axis(
        self, given: Mapping[str, Any], letter: str, name: str, names: Mapping[str, str], box: Box
    ) -> None:
        axis = copy.deepcopy(dict(given))
        axis["domain"] = self._sheet.domain(box, letter, axis.get("domain", (0.0, 1.0)))
        for key in _REFERENCES:
            if axis.get(key) in names:
                axis[key] = names[axis[key]]
        # Without an anchor an axis belongs to the first of the other kind, of another chart.
        other = "y" if letter == "x" else "x"
        axis.setdefault("anchor", names.get(other, "free"))
        self.axes[f"{letter}axis{name[1:]}"] = axis

    def _placed(self, mark: Mapping[str, Any], names: Mapping[str, str]) -> Figure:
        """An annotation or shape that refers to the axes of its figure."""
        own = dict(mark)
        for letter in ("x", "y"):
            reference = str(own.get(f"{letter}ref", letter))
            if reference == "paper":
                own[f"{letter}ref"] = f"{names[letter]} domain"
                continue
            name, _, rest = reference.partition(" ")
            own[f"{letter}ref"] = f"{names.get(name, name)} {rest}".strip()
        return own
