"""The specification of a page's content: picks, charts, boards; no data.

In addresses a pick is ``EXPERIMENT`` for a whole experiment, ``EXPERIMENT:wID,rID`` for workloads
and runs of it, with ids cut to 12 characters and names percent-encoded.

A `ChartSpec` holds the differences from the `BoardSpec` that all charts of a page share.
Both have a JSON form for pages, addresses and files: plain dictionaries without defaults.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Self, TypeVar
from urllib.parse import quote, unquote

MAX_CHARTS = 64
#: Prefix of a zoom's name if the x axis is a metric.
OVER = "over."
MAX_TABLE_COLUMNS = 60
MAX_EMA = 0.999
MAX_COLUMNS = 3
MAX_ROWS = 3
_MAX_TEXT = 300
_MAX_HIDDEN = 200

EnumT = TypeVar("EnumT", bound=StrEnum)


class Level(StrEnum):
    """The subject of one line.

    With AUTO, runs are the lines, except in experiments about collocation: if several things are
    compared there, a workload that was picked as a whole is one line.
    GROUP is all repeats of a run, or all runs with the same value of a parameter.
    """

    AUTO = "auto"
    RUN = "run"
    WORKLOAD = "workload"
    GROUP = "group"


class Aggregate(StrEnum):
    """Method that combines a workload's runs.

    AUTO follows the metric: resources that processes divide (memory, throughput) are summed, values
    that describe a device are averaged.
    """

    AUTO = "auto"
    MEAN = "mean"
    SUM = "sum"


class Band(StrEnum):
    """The quantity that a group's band shows."""

    CONFIDENCE = "confidence"  # 95 % interval of the mean, by Student's t
    DEVIATION = "deviation"  # ± one standard deviation
    RANGE = "range"  # minimum to maximum


class XAxis(StrEnum):
    """The quantity of the x axis."""

    BARRIER = "barrier"  # seconds since the workload's barrier
    START = "start"  # seconds since the run's own start
    WALL = "wall"  # date and time
    STEP = "step"  # as logged
    EPOCH = "epoch"  # epochs, with fractions by time
    METRIC = "metric"  # the values of another metric, which a chart names


class Relative(StrEnum):
    """Relation of values to a baseline."""

    OFF = "off"
    DIFFERENCE = "difference"
    RATIO = "ratio"


@dataclass(frozen=True, slots=True)
class AxisRange:
    """A range of an x axis: seconds (for WALL since 1970), steps or epochs."""

    start: float
    end: float

    @classmethod
    def parse(cls, text: str) -> AxisRange | None:
        """Parse ``12.5,60``; None for anything else."""
        try:
            start, end = (float(part) for part in text.split(","))
        except ValueError:
            return None
        return cls.of(start, end)

    @classmethod
    def of(cls, start: float, end: float) -> AxisRange | None:
        """Return the range; None if it is empty, reversed or not finite."""
        finite = math.isfinite(start) and math.isfinite(end)
        return cls(start, end) if finite and end > start else None

    def __str__(self) -> str:
        # Seconds since 1970 have ten digits before the decimal point.
        return f"{self.start:.13g},{self.end:.13g}"


@dataclass(frozen=True, slots=True)
class BoardSpec:
    """Settings that all charts of a page share.

    With ``x`` None, metrics that scripts logged with steps are drawn over steps, others over the
    time since the barrier (`radt.frontend.data.shown`). ``smoothing_pct`` is the width of a centred
    moving mean in per cent of the whole x range, 0 for none, ``ema`` the weight of an exponential
    mean like TensorBoard's. ``robust`` excludes outliers from the range of the y axis. ``group_by``
    names the parameter whose value the runs of a group share, empty for repeats; ``band`` is drawn
    around their mean. ``monochrome`` draws lines in one colour, distinguished by dashes, for print.
    """

    level: Level = Level.AUTO
    x: XAxis | None = None
    smoothing_pct: float = 0.0
    relative: Relative = Relative.OFF
    baseline: Pick | None = None
    monochrome: bool = False
    ema: float = 0.0
    robust: bool = False
    group_by: str = ""
    band: Band = Band.CONFIDENCE

    def to_json(self) -> dict[str, Any]:
        """Return the settings that differ from the default."""
        return _without_defaults(self, BoardSpec())

    @classmethod
    def from_json(cls, fields_: Mapping[str, Any]) -> Self:
        """Parse the output of `to_json`; invalid values are ignored."""
        return cls(
            level=_enum(Level, fields_.get("level"), Level.AUTO),
            x=_axis(fields_.get("x")),
            smoothing_pct=_number(fields_.get("smoothing_pct"), 0.0, 50.0) or 0.0,
            relative=_enum(Relative, fields_.get("relative"), Relative.OFF),
            baseline=_pick(fields_.get("baseline")),
            monochrome=fields_.get("monochrome") is True,
            ema=_number(fields_.get("ema"), 0.0, MAX_EMA) or 0.0,
            robust=fields_.get("robust") is True,
            group_by=str(fields_.get("group_by") or "")[:_MAX_TEXT],
            band=_enum(Band, fields_.get("band"), Band.CONFIDENCE),
        )


@dataclass(frozen=True, slots=True)
class ChartSpec:
    """Settings of one chart; None inherits the board's.

    ``slot`` is its element on the page, which it keeps when charts are reordered; their order is
    that of their list. ``over`` is the metric of the x axis (`radt.frontend.data.over`), empty if
    ``x`` applies. ``second`` is the metric of a second y axis, empty for none. ``log`` (for both y
    axes) and ``log_x`` make an axis logarithmic. ``y_min`` and ``y_max`` of the first y axis are in
    the metric's stored unit. ``hidden`` are the keys of lines that are not drawn. ``columns`` and
    ``rows`` are its size.
    """

    metric: str
    slot: int = -1
    level: Level | None = None
    aggregate: Aggregate = Aggregate.AUTO
    smoothing_pct: float | None = None
    x: XAxis | None = None
    over: str = ""
    second: str = ""
    log_x: bool = False
    log: bool = False
    y_min: float | None = None
    y_max: float | None = None
    relative: Relative | None = None
    baseline: Pick | None = None
    hidden: tuple[str, ...] = field(default=())
    columns: int = 1
    rows: int = 1

    def x_of(self, board: BoardSpec) -> XAxis:
        return XAxis.METRIC if self.over else self.x or board.x or XAxis.BARRIER

    def zoom_of(self, board: BoardSpec) -> str:
        """Return the name of the chart's zoom, which all charts over the same x share."""
        return f"{OVER}{self.over}" if self.over else self.x_of(board)

    @property
    def metrics(self) -> tuple[str, ...]:
        """All metrics that the chart shows."""
        return tuple(filter(None, (self.metric, self.second, self.over)))

    def level_of(self, board: BoardSpec) -> Level:
        return board.level if self.level is None else self.level

    def smoothing_of(self, board: BoardSpec) -> float:
        return board.smoothing_pct if self.smoothing_pct is None else self.smoothing_pct

    def ema_of(self, board: BoardSpec) -> float:
        return board.ema if self.smoothing_pct is None else 0.0

    def relative_of(self, board: BoardSpec) -> Relative:
        return board.relative if self.relative is None else self.relative

    def baseline_of(self, board: BoardSpec) -> Pick | None:
        return board.baseline if self.baseline is None else self.baseline

    def to_json(self) -> dict[str, Any]:
        """Return the metric, and the settings that differ from the default."""
        return {"metric": self.metric, **_without_defaults(self, ChartSpec(self.metric))}

    @classmethod
    def from_json(cls, fields_: Mapping[str, Any]) -> ChartSpec | None:
        """Parse the output of `to_json`, without invalid values; None without a metric."""
        metric = fields_.get("metric")
        if not isinstance(metric, str) or not metric or len(metric) > _MAX_TEXT:
            return None
        level, relative = fields_.get("level"), fields_.get("relative")
        hidden = fields_.get("hidden")
        low, high = _number(fields_.get("y_min")), _number(fields_.get("y_max"))
        if low is not None and high is not None and low >= high:
            low = high = None
        return cls(
            metric=metric,
            slot=_count(fields_.get("slot"), -1, MAX_CHARTS - 1, -1),
            level=Level(level) if level in list(Level) else None,
            aggregate=_enum(Aggregate, fields_.get("aggregate"), Aggregate.AUTO),
            smoothing_pct=_number(fields_.get("smoothing_pct"), 0.0, 50.0),
            x=_axis(fields_.get("x")),
            over=str(fields_.get("over") or "")[:_MAX_TEXT],
            second=str(fields_.get("second") or "")[:_MAX_TEXT],
            log_x=fields_.get("log_x") is True,
            log=fields_.get("log") is True,
            y_min=low,
            y_max=high,
            relative=Relative(relative) if relative in list(Relative) else None,
            baseline=_pick(fields_.get("baseline")),
            hidden=tuple(
                key for key in hidden[:_MAX_HIDDEN] if isinstance(key, str) and len(key) < _MAX_TEXT
            )
            if isinstance(hidden, list)
            else (),
            columns=_count(fields_.get("columns"), 1, MAX_COLUMNS, 1),
            rows=_count(fields_.get("rows"), 1, MAX_ROWS, 1),
        )


def with_slots(charts: tuple[ChartSpec, ...]) -> tuple[ChartSpec, ...]:
    """Give each chart a unique slot. Charts with a slot keep it."""
    taken: set[int] = set()
    placed: list[ChartSpec] = []
    for chart in charts[:MAX_CHARTS]:
        slot = chart.slot if chart.slot >= 0 and chart.slot not in taken else -1
        taken.add(slot)
        placed.append(replace(chart, slot=slot))
    free = iter(sorted(set(range(MAX_CHARTS)) - taken))
    return tuple(chart if chart.slot >= 0 else replace(chart, slot=next(free)) for chart in placed)


def _without_defaults(
    spec: BoardSpec | ChartSpec, default: BoardSpec | ChartSpec
) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    for name in spec.__slots__:
        value = getattr(spec, name)
        if value != getattr(default, name):
            plain = str(value) if isinstance(value, (Pick, StrEnum)) else value
            changed[name] = list(plain) if isinstance(plain, tuple) else plain
    return changed


def _enum(kind: type[EnumT], given: object, default: EnumT) -> EnumT:
    return kind(given) if given in [member.value for member in kind] else default


def _axis(given: object) -> XAxis | None:
    """Parse an axis that needs no metric; None for METRIC and invalid values."""
    known = given in list(XAxis) and given != XAxis.METRIC
    return XAxis(given) if known and isinstance(given, str) else None


def _number(given: object, low: float = -math.inf, high: float = math.inf) -> float | None:
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        return None
    return float(given) if math.isfinite(given) and low <= given <= high else None


def _count(given: object, low: int, high: int, default: int) -> int:
    fits = isinstance(given, int) and not isinstance(given, bool) and low <= given <= high
    return given if fits and isinstance(given, int) else default


def _pick(given: object) -> Pick | None:
    return Pick.parse(given) if isinstance(given, str) else None


@dataclass(frozen=True, slots=True)
class ColumnChoice:
    """A column of the table of runs (`radt.frontend.data.run_columns`) and the user's width."""

    key: str
    width_px: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``str(choice)``."""
        key, mark, width = text[:_MAX_TEXT].rpartition("~")
        is_width = mark and width.isdecimal() and width.isascii() and len(width) <= len("9999")
        return cls(key, int(width)) if is_width else cls(text[:_MAX_TEXT])

    def __str__(self) -> str:
        return self.key if self.width_px is None else f"{self.key}~{self.width_px}"


ID_DIGITS = 12


#: Maximum number of picks. More in one address are a mistake or an attack.
MAX_PICKS = 500


_MAX_NAME = 500


class PickKind(StrEnum):
    """Kind of object that a pick stands for."""

    EXPERIMENT = "e"
    WORKLOAD = "w"
    RUN = "r"


@dataclass(frozen=True, slots=True, order=True)
class Pick:
    """An experiment, workload or run of the selection. ``id`` is its id or a prefix of it."""

    experiment: str
    kind: PickKind = PickKind.EXPERIMENT
    id: str = ""

    @classmethod
    def workload(cls, experiment: str, workload_id: str) -> Self:
        """Pick a whole workload, which is drawn as one line if several are compared."""
        return cls(experiment, PickKind.WORKLOAD, workload_id[:ID_DIGITS])

    @classmethod
    def run(cls, experiment: str, run_id: str) -> Self:
        """Pick one run."""
        return cls(experiment, PickKind.RUN, run_id[:ID_DIGITS])

    @classmethod
    def parse(cls, text: str) -> Pick | None:
        """Parse ``str(pick)``; None for anything else."""
        return next(iter(parse_picks([text])), None)

    def __str__(self) -> str:
        name = quote(self.experiment, safe="")
        return name if self.kind is PickKind.EXPERIMENT else f"{name}:{self.kind}{self.id}"


def parse_picks(texts: Iterable[str]) -> tuple[Pick, ...]:
    """Parse picks, each once, in order; texts that are not picks are ignored."""
    picks: dict[Pick, None] = {}
    for text in texts:
        name, colon, items = text.partition(":")
        experiment = unquote(name)
        if not experiment or len(experiment) > _MAX_NAME:
            continue
        if not colon:
            picks[Pick(experiment)] = None
        for item in items.split(",") if colon else ():
            if item[1:] and item[0] in (PickKind.WORKLOAD, PickKind.RUN):
                picks[Pick(experiment, PickKind(item[0]), item[1 : 1 + ID_DIGITS])] = None
        if len(picks) >= MAX_PICKS:
            break
    return tuple(picks)[:MAX_PICKS]


def format_picks(picks: Iterable[Pick]) -> list[str]:
    """Format picks, in order, as few strings. Successive picks of one experiment share its name."""
    texts: list[str] = []
    last: str | None = None
    for pick in picks:
        if pick.kind is PickKind.EXPERIMENT:
            texts.append(str(pick))
            last = None
        elif pick.experiment == last:
            texts[-1] += f",{pick.kind}{pick.id}"
        else:
            texts.append(str(pick))
            last = pick.experiment
    return texts
