"""Units on axes and in labels, and how values of several runs add up."""

from __future__ import annotations

from dataclasses import dataclass

from radt.frontend.selection import Aggregate
from radt.model import Scope, SeriesKind

_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SMALL_PREFIXES = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))
#: UCUM units that take a prefix, and how people write them.
_SCALED = {"By": "B", "By/s": "B/s", "W": "W", "J": "J", "Hz": "Hz", "V": "V", "A": "A"}
_AS_IS = {"Cel": "°C", "cores": "cores"}
_RATIO = "1"
#: Units whose values add up over processes that run at the same time.
_ADDITIVE = frozenset({"By", "By/s", "W", "J", "cores", "samples/s", "{samples}/s", "/s"})


@dataclass(frozen=True, slots=True)
class UnitScale:
    """A stored value times ``factor`` is what is drawn, in ``label``."""

    factor: float
    label: str


@dataclass(frozen=True, slots=True)
class Quantity:
    """What a metric measures, as far as charts need to know."""

    metric: str
    unit: str
    scope: Scope
    kind: SeriesKind
    listener: str

    @property
    def default_aggregate(self) -> Aggregate:
        """Sum for what processes share out among them (bytes, cores, watts); else the mean."""
        if self.scope in (Scope.PROCESS, Scope.RUN) and self.unit in _ADDITIVE:
            return Aggregate.SUM
        return Aggregate.MEAN

    @property
    def from_zero(self) -> bool:
        """Whether the axis starts at zero, so that heights can be compared."""
        return self.unit in _ADDITIVE or self.unit == _RATIO


def unit_scale(unit: str, largest: float) -> UnitScale:
    """Choose the prefix so that the largest magnitude reads well; ratios become per cent."""
    if unit == _RATIO:
        return UnitScale(100.0, "%")
    if unit == "s":
        small = next((p for p in _SMALL_PREFIXES if largest >= p[0]), _SMALL_PREFIXES[0])
        return UnitScale(1 / small[0], small[1] + "s")
    if unit not in _SCALED:
        return UnitScale(1.0, _AS_IS.get(unit, unit.strip("{}")))
    symbol = _SCALED[unit]
    for size, prefix in _PREFIXES:
        if largest >= size:
            # Memory is sold in powers of 1000 with a capital K; for thousands the SI has k.
            return UnitScale(
                1 / size, ("K" if prefix == "k" and symbol == "B" else prefix) + symbol
            )
    return UnitScale(1.0, symbol)


SCOPE_WORDS = {
    Scope.RUN: "logged by the script",
    Scope.PROCESS: "process tree",
    Scope.MIG: "MIG instance",
    Scope.GPU: "whole GPU",
    Scope.HOST: "whole machine",
}
