"""The columns of the table of runs, each one array over all runs.

A column's key is what a search calls it: ``status``, ``duration``, ``accuracy.max``; parameters and
tags have a prefix, ``param.lr`` and ``tag.team``, as both may have the same name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

import numpy as np

from radt import units
from radt.analysis.energy import GPU_ENERGY, RUN_ENERGY
from radt.analysis.quantities import Quantity
from radt.analysis.series_quantities import Direction, SeriesQuantity
from radt.analysis.series_quantities import Statistic as AnyStatistic
from radt.frontend.data.catalog import RunEntry
from radt.frontend.data.metric_columns import metric_columns
from radt.frontend.data.model import STATUS_WORDS, unit_scale
from radt.frontend.data.run_facts import time_per_epoch_s, times_alone_s
from radt.frontend.data.source import Source
from radt.frontend.search.find import TEXTS, active_ns, duration_s, read_params, read_tags
from radt.frontend.search.query import as_number
from radt.store.metric_columns import MetricColumn, Statistic
from radt.store.records import Float64Array, Int64Array
from radt.tags import MLFLOW_NOTE

PARAM, TAG = "param.", "tag."
#: Parameters that describe the command as a whole; its parts are parameters of their own.
WHOLE_COMMANDS = frozenset({"File", "Params", "Environment"})
_NS_PER_MS = 1_000_000
_DIGITS = re.compile(r"(\d+)")
_MIN_PX, _MAX_PX, _PX_PER_CHARACTER, _PADDING_PX = 64, 240, 7, 32
#: How many values of a column are written to find its width.
_WRITTEN = 40


class Format(StrEnum):
    """How the browser shows a column's cells."""

    TEXT = "text"
    NUMBER = "number"  # a text, aligned right
    STATUS = "status"  # value and word
    CLOCK = "clock"  # start and end in ms since 1970; no end while the run goes on
    AGE = "age"  # ms since 1970


@dataclass(frozen=True)
class Column:
    """A column over all runs; ``place`` is a run's place among them.

    Attributes:
        key: Its name in addresses.
        label: Its heading.
        title: What it is, in a sentence.
        format: How cells are shown.
        cell: Returns what is shown of the run at a place.
        ranks: What runs are sorted by, NaN for none; the values themselves if ``is_number``.
        write: Returns a value as a text; None unless ``is_number``.
        better: Which values are better, if known.
    """

    key: str
    label: str
    title: str
    format: Format
    cell: Callable[[int], object]
    ranks: Float64Array
    write: Callable[[float], str] | None = None
    better: Direction | None = None
    width_px: int = 88

    @property
    def is_number(self) -> bool:
        """Whether means of its values make sense."""
        return self.write is not None

    def best(self, places: Int64Array) -> float:
        """Return the best value of the runs at the places; NaN if none is better than another."""
        values = self.ranks[places]
        values = values[np.isfinite(values)]
        is_known = self.better in (Direction.LOWER, Direction.HIGHER)
        if not is_known or not len(values) or values.min() == values.max():
            return math.nan
        return float(values.min() if self.better is Direction.LOWER else values.max())


class Columns:
    """The columns of some runs for one revision of the store, each made when first shown.

    Args:
        source: The store.
        runs: The runs, in the order of places.
    """

    def __init__(self, source: Source, runs: Sequence[RunEntry]) -> None:
        self.source = source
        self.runs = runs
        self.run_ids = tuple(run.run_id for run in runs)
        self._known: dict[str, Column | None] = {}

    def get(self, key: str) -> Column | None:
        """Return a column; None if there is none of this name.

        Raises:
            StoreError: The store cannot be read.
        """
        if key not in self._known:
            self._known[key] = self._make(key)
        return self._known[key]

    def prepare(self, keys: Iterable[str]) -> None:
        """Read the metrics of all these columns with one statement.

        Raises:
            StoreError: The store cannot be read.
        """
        metric_columns(self.source, [metric for key in keys if (metric := metric_of(key)[0])])

    @cached_property
    def params(self) -> Mapping[str, Mapping[str, str]]:
        """Parameters by run."""
        return read_params(self.source)

    @cached_property
    def tags(self) -> Mapping[str, Mapping[str, str]]:
        """Tags by run."""
        return read_tags(self.source)

    def _make(self, key: str) -> Column | None:
        if (field := FIELDS.get(key)) is not None:
            return field.make(self, field)
        for prefix, noun, texts in ((PARAM, "Parameter", "params"), (TAG, "Tag", "tags")):
            if key.startswith(prefix):
                name = key.removeprefix(prefix)
                of_run = getattr(self, texts)
                values = [of_run.get(run_id, {}).get(name, "") for run_id in self.run_ids]
                return text_column(key, name, f"{noun} {name}", values)
        metric, statistic = metric_of(key)
        found = metric_columns(self.source, [metric]).get(metric)
        if found is None or statistic is None:
            return None
        return _metric_column(key, found, statistic, self.run_ids)


def metric_of(key: str) -> tuple[str, Statistic | None]:
    """Return the metric and the statistic that a column's key names; empty and None for neither."""
    metric, _, statistic = key.rpartition(".")
    if key in FIELDS or key.startswith((PARAM, TAG)) or statistic not in list(Statistic):
        return "", None
    return metric, Statistic(statistic)


def better_of(metric: str, statistic: Statistic) -> Direction | None:
    """Return which values are better: the metric's name says it, else minima are to be low and
    maxima high.
    """
    named = SeriesQuantity(AnyStatistic(statistic.value), metric).better
    implied = {Statistic.MIN: Direction.LOWER, Statistic.MAX: Direction.HIGHER}
    return named or implied.get(statistic)


# -- kinds of columns ----------------------------------------------------------------------------


def text_column(key: str, label: str, title: str, values: Sequence[str]) -> Column:
    """Return a column of texts; of numbers if all of them are."""
    distinct = set(values) - {""}
    numbers = {text: number for text in distinct if (number := as_number(text)) is not None}
    width_px = _width_px(label, max(map(len, distinct), default=0))
    if distinct and len(numbers) == len(distinct):
        ranks = np.array([numbers.get(text, math.nan) for text in values])
        write = writer(ranks)
        cell, format_ = values.__getitem__, Format.NUMBER
        return Column(key, label, title, format_, cell, ranks, write, width_px=width_px)
    order = {text: float(rank) for rank, text in enumerate(sorted(distinct, key=natural))}
    ranks = np.array([order.get(text, math.nan) for text in values])
    return Column(key, label, title, Format.TEXT, values.__getitem__, ranks, width_px=width_px)


def number_column(
    key: str,
    label: str,
    title: str,
    values: Float64Array,
    better: Direction | None,
    write: Callable[[float], str] | None = None,
    has_value: Callable[[int], bool] = lambda _: False,
) -> Column:
    """Return a column of numbers; runs that ``has_value`` have NaN where it is not finite."""
    text = write or writer(values)

    def cell(place: int) -> str:
        value = values[place]
        if math.isfinite(value):
            return text(value)
        return "NaN" if has_value(place) else ""

    finite = values[np.isfinite(values)]
    some = finite[:: max(1, len(finite) // _WRITTEN)].tolist()
    return Column(
        *(key, label, title, Format.NUMBER, cell, values, text, better),
        width_px=_width_px(label, max((len(text(value)) for value in some), default=0)),
    )


def _metric_column(
    key: str, found: MetricColumn, statistic: Statistic, run_ids: Sequence[str]
) -> Column:
    values = found.values(statistic, run_ids)
    finite = np.abs(values[np.isfinite(values)])
    # A ratio stays one: a search compares the same number.
    scale = unit_scale("" if found.unit in ("1", "%") else found.unit, finite.max(initial=0.0))
    label = f"{found.metric} {statistic}" + (f", {scale.label}" if scale.label else "")
    scaled = writer(finite * scale.factor)
    return number_column(
        *(key, label, f"{found.metric}: {_MEANINGS[statistic]}", values),
        better_of(found.metric, statistic),
        lambda value: scaled(value * scale.factor),
        lambda place: run_ids[place] in found and statistic is Statistic.LAST,
    )


_MEANINGS = {
    Statistic.LAST: "last value; of a counter its growth",
    Statistic.MIN: "smallest value",
    Statistic.MAX: "largest value",
    Statistic.MEAN: "mean of all values; of a counter its growth a second",
}


def writer(values: Float64Array) -> Callable[[float], str]:
    """Return how values of a column are written: those of similar size with the same decimals."""
    sizes = np.abs(values[np.isfinite(values) & (values != 0)])
    if not len(sizes):
        return lambda value: units.significant(value, 4)
    decimals = 3 - math.floor(math.log10(sizes.max()))
    if sizes.max() > 1000 * sizes.min() or not 0 <= decimals <= 7:
        return lambda value: units.significant(value, 4)
    if bool((sizes == np.round(sizes)).all()):
        decimals = 0
    return lambda value: f"{value:,.{decimals}f}"


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a key that sorts ``w2`` before ``w10``."""
    return tuple(
        (0, int(part), "") if part.isdigit() and part.isascii() else (1, 0, part)
        for part in _DIGITS.split(text.casefold())
        if part
    )


def _width_px(label: str, characters: int) -> int:
    # The heading has room for the arrow of the sort order.
    needed_px = _PADDING_PX + _PX_PER_CHARACTER * max(len(label), characters)
    return max(_MIN_PX, min(_MAX_PX, needed_px))


# -- fields of every run -------------------------------------------------------------------------


def note(run: RunEntry) -> str:
    """Return why a run is not comparable, or not complete in this store."""
    notes = [f"profiled by {run.profiled}"] if run.profiled else []
    notes += ["thinned"] if run.pruned else []
    return " · ".join(notes)


@dataclass(frozen=True, slots=True)
class Field:
    """A column that every run may have."""

    label: str
    title: str
    make: Callable[[Columns, Field], Column]
    key: str = ""


def _of_text(label: str, read: Callable[[RunEntry], str]) -> Field:
    def make(columns: Columns, field: Field) -> Column:
        texts = [read(run) for run in columns.runs]
        return text_column(field.key, field.label, field.title, texts)

    return Field(label, label, make)


def _status(columns: Columns, field: Field) -> Column:
    statuses = [run.record.status for run in columns.runs]
    ranks = text_column("", "", "", [STATUS_WORDS[status] for status in statuses]).ranks
    return Column(
        *(field.key, field.label, field.title, Format.STATUS),
        lambda place: [statuses[place].value, STATUS_WORDS[statuses[place]]],
        ranks,
        width_px=80,
    )


def _duration(columns: Columns, field: Field) -> Column:
    values = np.array([_or_nan(duration_s(run)) for run in columns.runs])

    def cell(place: int) -> list[int | None] | None:
        run = columns.runs[place]
        if math.isnan(values[place]):
            return None
        end_ns = run.record.ended_ns
        start_ns = run.origin_ns if run.parent is None else run.record.started_ns or 0
        return [start_ns // _NS_PER_MS, None if end_ns is None else end_ns // _NS_PER_MS]

    return Column(
        *(field.key, field.label, field.title, Format.CLOCK),
        *(cell, values, units.duration),
        width_px=80,
    )


def _age(columns: Columns, field: Field) -> Column:
    moments = [active_ns(run) for run in columns.runs]
    return Column(
        *(field.key, field.label, field.title, Format.AGE),
        lambda place: moments[place] // _NS_PER_MS,
        -np.array(moments, dtype=np.float64),
        width_px=_MIN_PX,
    )


def _description(columns: Columns, field: Field) -> Column:
    texts = [columns.tags.get(run_id, {}).get(MLFLOW_NOTE, "") for run_id in columns.run_ids]
    return text_column(field.key, field.label, field.title, texts)


def _device(run: RunEntry) -> str:
    collocation = run.record.collocation.strip("-")
    return f"{run.record.devices} · {collocation}" if collocation else run.record.devices


def _quantity(
    quantity: Quantity, values_of: Callable[[Columns], Mapping[str, float]]
) -> tuple[str, Field]:
    """Return a report's quantity of each run, of which lower values are better."""
    info = quantity.info

    def make(columns: Columns, field: Field) -> Column:
        values = values_of(columns)
        numbers = np.array([values.get(run_id, math.nan) for run_id in columns.run_ids])
        return number_column(
            *(field.key, field.label, field.title, numbers, Direction.LOWER, info.text)
        )

    return quantity.value, Field(info.title[0].upper() + info.title[1:], info.explanation, make)


def _slowdowns(columns: Columns) -> Mapping[str, float]:
    times_s = time_per_epoch_s(columns.source)
    alone_s = times_alone_s(columns.source, columns.runs, columns.params)
    return {run_id: times_s[run_id] / alone_s[run_id] for run_id in alone_s if run_id in times_s}


def _energies(columns: Columns) -> Mapping[str, float]:
    """A run's share where a listener apportions energy, else that of its whole devices."""
    energies: dict[str, float] = {}
    found = metric_columns(columns.source, (RUN_ENERGY, GPU_ENERGY))
    for metric in (GPU_ENERGY, RUN_ENERGY):
        if (column := found.get(metric)) is not None:
            values = zip(column.run_ids, column.last.tolist(), strict=True)
            energies |= {run_id: value for run_id, value in values if math.isfinite(value)}
    return energies


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


_FIELDS = {
    "status": Field("State", "State", _status),
    "duration": Field("Took", "Time from the workload's barrier to the end", _duration),
    **dict(
        [
            _quantity(Quantity.TIME_PER_EPOCH, lambda columns: time_per_epoch_s(columns.source)),
            _quantity(Quantity.SLOWDOWN, _slowdowns),
            _quantity(Quantity.ENERGY, _energies),
        ]
    ),
    "device": _of_text("Device", _device),
    "host": _of_text("Machine", TEXTS["host"]),
    "experiment": _of_text("Experiment", TEXTS["experiment"]),
    "workload": _of_text("Workload", TEXTS["workload"]),
    "letter": _of_text("Letter", TEXTS["letter"]),
    "name": _of_text("File", TEXTS["name"]),
    "collocation": _of_text("Collocation", TEXTS["collocation"]),
    "reason": _of_text("Reason", TEXTS["reason"]),
    "command": _of_text("Command", TEXTS["command"]),
    "run": _of_text("Run id", lambda run: run.run_id),
    "note": _of_text("Note", note),
    "description": Field("Description", "What people wrote of the run", _description),
    "age": Field("Age", "Time since the last change of state", _age),
}
#: The columns that every run may have, by key, in the order of the list to choose from.
FIELDS: Mapping[str, Field] = {key: replace(field, key=key) for key, field in _FIELDS.items()}
