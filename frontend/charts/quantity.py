"""Units on axes and in labels, and how values of several runs add up."""

from __future__ import annotations

from dataclasses import dataclass

from radt.frontend.charts.spec import Aggregate
from radt.model import Scope, SeriesKind
from radt.store.counters import rate_unit

_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SMALL_PREFIXES = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))
#: UCUM units that take a prefix, and how people write them.
_SCALED = {"By": "B", "By/s": "B/s"} | {
    unit: unit for unit in ("W", "J", "Hz", "V", "A", "g", "g/h")
}
_AS_IS = {"Cel": "°C", "cores": "cores", "1/s": "/s"}
_RATIO = "1"
#: A ratio as MLflow and others have it.
_PERCENT = "%"
#: What is counted stands in braces (UCUM's annotations): ``{threads}``.
_COUNTED = "{"
#: Units whose values add up over processes that run at the same time, besides all per second.
_ADDITIVE = frozenset({"By", "W", "J", "cores", "g", "g/h", "{threads}", "{processes}"})


@dataclass(frozen=True, slots=True)
class UnitScale:
    """A stored value times ``factor`` is what is drawn, in ``label``."""

    factor: float
    label: str


@dataclass(frozen=True, slots=True)
class Quantity:
    """What a metric measures, as far as charts need to know.

    ``methods`` are those of its series, each once; ``scopes`` all that it has, ``scope`` the first.
    """

    metric: str
    unit: str
    scope: Scope
    kind: SeriesKind
    listener: str
    methods: tuple[str, ...] = ()
    estimated: bool = False
    scopes: tuple[Scope, ...] = ()

    @property
    def drawn_unit(self) -> str:
        """Of what is drawn: counters as their rates."""
        return drawn_unit(self.unit, self.kind)

    @property
    def subtitle(self) -> str:
        """What has to be known at first sight: ``estimated rate · process tree``."""
        words = ["estimated"] if self.estimated else []
        words += ["rate"] if self.kind is SeriesKind.COUNTER else []
        scopes = [SCOPE_WORDS[scope] for scope in self.scopes or (self.scope,)]
        return " · ".join([*([" ".join(words)] if words else []), *scopes])

    @property
    def explanation(self) -> str:
        """How the values come about; empty where their name says it all."""
        sentences = list(self.methods)
        if self.kind is SeriesKind.COUNTER:
            sentences.append(
                f"Drawn is how fast the counter ({self.unit}) grew since the reading before"
            )
        if Scope.GPU in (*self.scopes, self.scope):
            sentences.append("Read of the whole GPU: all that runs on it together")
        if self.estimated:
            sentences.append("Estimated by this rule, not measured; drawn dashed")
        return "".join(f"{sentence[0].upper()}{sentence[1:]}. " for sentence in sentences).strip()

    @property
    def default_aggregate(self) -> Aggregate:
        """Sum for what processes share out among them (bytes, cores, watts); else the mean."""
        if self.scope in (Scope.PROCESS, Scope.RUN) and _adds_up(self.drawn_unit):
            return Aggregate.SUM
        return Aggregate.MEAN

    @property
    def from_zero(self) -> bool:
        """Whether the axis starts at zero, so that heights can be compared."""
        unit = self.drawn_unit
        return _adds_up(unit) or unit in (_RATIO, _PERCENT) or unit.startswith(_COUNTED)


def drawn_unit(unit: str, kind: SeriesKind) -> str:
    """The unit of what is drawn: counters as their rates."""
    return rate_unit(unit).unit if kind is SeriesKind.COUNTER else unit


def unit_scale(unit: str, largest: float) -> UnitScale:
    """Choose the prefix so that the largest magnitude reads well; ratios become per cent."""
    if unit == _RATIO:
        return UnitScale(100.0, "%")
    if unit == "s":
        small = next((p for p in _SMALL_PREFIXES if largest >= p[0]), _SMALL_PREFIXES[0])
        return UnitScale(1 / small[0], small[1] + "s")
    if unit not in _SCALED:
        return UnitScale(1.0, _AS_IS.get(unit, unit.replace("{", "").replace("}", "")))
    symbol = _SCALED[unit]
    for size, prefix in _PREFIXES:
        if largest >= size:
            # Memory is sold in powers of 1000 with a capital K; for thousands the SI has k.
            return UnitScale(
                1 / size, ("K" if prefix == "k" and symbol in ("B", "B/s") else prefix) + symbol
            )
    return UnitScale(1.0, symbol)


def _adds_up(unit: str) -> bool:
    return unit in _ADDITIVE or unit.endswith("/s")


SCOPE_WORDS = {
    Scope.RUN: "logged by the script",
    Scope.PROCESS: "process tree",
    Scope.MIG: "MIG instance",
    Scope.GPU: "whole GPU",
    Scope.HOST: "whole machine",
}
