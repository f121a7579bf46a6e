"""Lines against a baseline: how much more, or how many times as much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from radt.frontend.charts.lines import Curve, Line
from radt.frontend.charts.spec import Relative
from radt.store.records import Float64Array


@dataclass(frozen=True, slots=True)
class Baseline:
    """What others are compared with: a curve for each thing that was measured.

    ``curves`` are by what comes behind the run or workload in a line's key (a device, a listener);
    ``keys`` are those of the baseline's own lines.
    """

    name: str
    curves: dict[str, Curve]
    keys: frozenset[str]

    def curve_for(self, line: Line) -> Curve | None:
        """The one of the same device; the only one if there is only one."""
        if len(self.curves) == 1:
            return next(iter(self.curves.values()))
        return self.curves.get(suffix(line.key))


def suffix(key: str) -> str:
    """What a key says besides the run or workload."""
    places = [key.index(sign) for sign in "/@" if sign in key]
    return key[min(places) :] if places else ""


def against(
    lines: Sequence[Line], baseline: Baseline, relative: Relative
) -> tuple[tuple[Line, ...], tuple[str, ...]]:
    """The lines against the baseline, and what has to be said of it."""
    found: list[Line] = []
    apart: list[str] = []
    zeros = 0
    for line in lines:
        if line.hidden:
            found.append(line)
            continue
        curve = baseline.curve_for(line)
        if line.key in baseline.keys:
            found.append(_straight(line, 0.0 if relative is Relative.DIFFERENCE else 1.0))
            continue
        beside = np.full(len(line.curve.x), np.nan) if curve is None else at(curve, line.curve.x)
        if relative is Relative.RATIO:
            zeros += int((beside == 0).sum())
        compared = _compared(line, beside, relative)
        if not np.isfinite(compared.curve.values).any():
            apart.append(line.short)
        found.append(compared)
    notes = []
    if apart:
        names = ", ".join(apart[:3]) + (f" and {len(apart) - 3} more" if len(apart) > 3 else "")
        notes.append(f"{names}: no value where {baseline.name} has one")
    if zeros:
        notes.append(f"left out where {baseline.name} is 0")
    return tuple(found), tuple(notes)


def at(curve: Curve, x: Float64Array) -> Float64Array:
    """Values between neighbouring points; NaN outside them and within gaps."""
    if not len(curve.x):
        return np.full(len(x), np.nan)
    # A NaN among the points is a gap: whatever leads to or from it is none.
    result: Float64Array = np.interp(x, curve.x, curve.values, left=np.nan, right=np.nan)
    return result


def _compared(line: Line, beside: Float64Array, relative: Relative) -> Line:
    def one(values: Float64Array | None) -> Float64Array | None:
        if values is None:
            return None
        if relative is Relative.DIFFERENCE:
            return values - beside
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(beside == 0, np.nan, values / beside)

    values, low, high = one(line.curve.values), one(line.low), one(line.high)
    assert values is not None
    if low is not None and high is not None:
        low, high = np.minimum(low, high), np.maximum(low, high)
    return replace(line, curve=Curve(line.curve.x, values), low=low, high=high)


def _straight(line: Line, value: float) -> Line:
    values = np.where(np.isfinite(line.curve.values), value, np.nan)
    return replace(line, curve=Curve(line.curve.x, values), low=None, high=None)
