"""Data of charts: quantities with units, curves, marks. Nothing here reads a store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from radt.analysis.lines import Curve
from radt.frontend.data.spec import Aggregate, AxisRange, Band, ChartSpec, Level, Relative, XAxis
from radt.model import MarkerKind, Scope, SeriesKind
from radt.store.counters import rate_unit
from radt.store.records import (
    BoolArray,
    Float64Array,
)

_RATIO = "1"
#: The unit of a ratio in MLflow and other tools.
_PERCENT = "%"
#: Units of counts begin with a brace (UCUM's annotations): ``{threads}``.
_COUNTED = "{"
#: Units whose values add up over simultaneous processes, besides all rates per second.
_ADDITIVE = frozenset({"By", "W", "J", "cores", "g", "g/h", "{threads}", "{processes}"})


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """Properties of a metric that charts need.

    ``methods`` are those of its series, each once; ``scopes`` are all of its scopes, ``scope`` the
    first.
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
        """Unit of the drawn values: counters are drawn as rates."""
        return drawn_unit(self.unit, self.kind)

    @property
    def subtitle(self) -> str:
        """Kind and scope of the values: ``estimated rate · process tree``."""
        words = ["estimated"] if self.estimated else []
        words += ["rate"] if self.kind is SeriesKind.COUNTER else []
        scopes = [SCOPE_WORDS[scope] for scope in self.scopes or (self.scope,)]
        return " · ".join([*([" ".join(words)] if words else []), *scopes])

    @property
    def explanation(self) -> str:
        """How the values are obtained; empty if the name says it."""
        sentences = list(self.methods)
        if self.kind is SeriesKind.COUNTER:
            sentences.append(
                f"Shows the growth rate of the counter ({self.unit}) since the previous reading"
            )
        if Scope.GPU in (*self.scopes, self.scope):
            sentences.append("Measured for the whole GPU, including all processes on it")
        if self.estimated:
            sentences.append("Estimated by this rule, not measured; shown as a dashed line")
        return "".join(f"{sentence[0].upper()}{sentence[1:]}. " for sentence in sentences).strip()

    @property
    def default_aggregate(self) -> Aggregate:
        """Sum for resources that runs divide (bytes, cores, watts), else the mean."""
        if self.scope in (Scope.PROCESS, Scope.RUN) and _adds_up(self.drawn_unit):
            return Aggregate.SUM
        return Aggregate.MEAN

    @property
    def from_zero(self) -> bool:
        """True if the axis starts at zero, so that heights can be compared."""
        unit = self.drawn_unit
        return _adds_up(unit) or unit in (_RATIO, _PERCENT) or unit.startswith(_COUNTED)


def drawn_unit(unit: str, kind: SeriesKind) -> str:
    """Return the unit of the drawn values: counters are drawn as rates."""
    return rate_unit(unit).unit if kind is SeriesKind.COUNTER else unit


def _adds_up(unit: str) -> bool:
    return unit in _ADDITIVE or unit.endswith("/s")


SCOPE_WORDS = {
    Scope.RUN: "logged by the script",
    Scope.PROCESS: "process tree",
    Scope.MIG: "MIG instance",
    Scope.GPU: "whole GPU",
    Scope.HOST: "whole machine",
}


@dataclass(frozen=True, slots=True)
class NamedCurve:
    """A curve with its name and the ordinal that determines its colour.

    ``key`` identifies the line permanently: views name hidden and highlighted lines by it.
    ``label`` is the full name, ``short`` fits beside the line, ``facts`` are shown on hover;
    ``ordinal`` is for `radt.frontend.theme.colour`, ``dash`` for its `DASHES`. ``low`` and ``high``
    (N,) are the edges of its band; ``partial`` (N,) is True where some of the runs are missing;
    ``estimated`` says that the values were apportioned, not measured. A ``hidden`` line has no
    points: it is listed, not drawn. ``members`` are the keys of the runs of a group,
    ``samples_each`` is the mean number of samples behind each of its points.
    """

    key: str
    label: str
    short: str
    ordinal: int
    curve: Curve
    low: Float64Array | None = None
    high: Float64Array | None = None
    partial: BoolArray | None = None
    estimated: bool = False
    dash: int = 0
    hidden: bool = False
    facts: tuple[str, ...] = ()
    is_workload: bool = False
    members: tuple[str, ...] = ()
    samples_each: float = 1.0


@dataclass(frozen=True, slots=True)
class Tick:
    """An instant of a run, or a time span until ``end``.

    ``row`` counts the runs of the chart from 0, ``ordinal`` is its colour index, ``x`` and ``end``
    are on the chart's axis.
    """

    row: int
    ordinal: int
    x: float
    text: str
    kind: MarkerKind = MarkerKind.EPOCH
    end: float | None = None
    key: str = ""


@dataclass(frozen=True, slots=True)
class ChartData:
    """Everything that a chart shows.

    ``x``, ``level`` and ``relative`` are the settings resolved from ``spec``: ``level`` is AUTO if
    there are lines of both runs and workloads, ``relative`` OFF if there is nothing to compare
    with. ``aggregate`` says how runs were combined into lines of workloads, None without such
    lines. ``window`` is the visible part of the x axis, also without a zoom. ``x_unit`` is the unit
    of the metric on the x axis, and ``x_growth`` says that it is a counter's growth. ``second`` is
    the content of the second y axis. ``notes`` describe deviations from users' expectations.
    """

    quantity: MetricInfo
    spec: ChartSpec
    x: XAxis
    level: Level
    aggregate: Aggregate | None
    lines: Sequence[NamedCurve]
    ticks: Sequence[Tick]
    window: AxisRange
    relative: Relative = Relative.OFF
    smoothing_width: float = 0.0
    ema: float = 0.0
    robust: bool = False
    band: Band = Band.RANGE
    x_unit: str = ""
    x_growth: bool = False
    second: ChartData | None = None
    notes: tuple[str, ...] = ()
