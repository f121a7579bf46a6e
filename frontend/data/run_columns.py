"""The columns of the table of runs, each one array over all runs.

A column's key is its name in searches: ``status``, ``duration``, ``accuracy.max``. Parameters and
tags have a prefix, ``param.lr`` and ``tag.team``, as both may have the same name.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

import numpy as np

from radt import units
from radt.analysis.energy import GPU_ENERGY, RUN_ENERGY
from radt.analysis.metric_columns import STATISTICS, MetricColumn
from radt.analysis.missing import why_missing
from radt.analysis.quantities import Direction, Quantity, Statistic, direction_of
from radt.analysis.selection import Omission
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.catalog import RunEntry, read_catalog
from radt.frontend.data.metric_columns import metric_columns
from radt.frontend.data.run_facts import slowdowns, time_per_epoch_s
from radt.frontend.search.find import TEXTS, active_ns, read_params, read_tags
from radt.frontend.search.query import as_number
from radt.model import STATUS_WORDS
from radt.render.labels import natural
from radt.store.records import Float64Array, Int64Array
from radt.tags import MLFLOW_NOTE
from radt.units import scale_of

PARAM, TAG = "param.", "tag."
#: Parameters that describe the command as a whole. Its parts are separate parameters.
WHOLE_COMMANDS = frozenset({"File", "Params", "Environment"})
_NS_PER_MS = 1_000_000
_MIN_PX, _MAX_PX, _PX_PER_CHARACTER, _PADDING_PX = 64, 240, 7, 32
#: Number of a column's values that are formatted to estimate its width.
_WRITTEN = 40


class Format(StrEnum):
    """How the browser shows a column's cells."""

    TEXT = "text"
    NUMBER = "number"  # text, aligned right
    STATUS = "status"  # value and word
    CLOCK = "clock"  # text; for a running run, its start in ms since 1970
    AGE = "age"  # ms since 1970


@dataclass(frozen=True)
class RunColumn:
    """A column over all runs. ``place`` is a run's index among them.

    Attributes:
        key: Its name in addresses.
        label: Its heading.
        title: A one-sentence description.
        format: How cells are shown.
        cell: Returns the cell of the run at an index.
        ranks: Sort values of runs, NaN for none; the values themselves if ``is_number``.
        write: Returns a value as text; None unless ``is_number``.
        better: Which values are better.
        why: Returns why the run at an index has no value; None if unknown.
    """

    key: str
    label: str
    title: str
    format: Format
    cell: Callable[[int], object]
    ranks: Float64Array
    write: Callable[[float], str] | None = None
    better: Direction = Direction.NEITHER
    width_px: int = 88
    why: Callable[[int], str] | None = None

    @property
    def is_number(self) -> bool:
        """True if means of its values make sense."""
        return self.write is not None

    @property
    def has_values(self) -> bool:
        """Return whether any run has a value."""
        return not np.isnan(self.ranks).all()

    def best(self, places: Int64Array) -> float:
        """Return the best value of the runs at these indices; NaN if no value is preferred."""
        values = self.ranks[places]
        values = values[np.isfinite(values)]
        if self.better is Direction.NEITHER or not len(values) or values.min() == values.max():
            return math.nan
        return float(values.min() if self.better is Direction.LOWER else values.max())


class Columns:
    """The columns of some runs for one revision of the store, each created when first shown.

    Args:
        source: The store.
        runs: The runs, in the order of their indices.
    """

    def __init__(self, source: CachedStore, runs: Sequence[RunEntry]) -> None:
        self.source = source
        self.runs = runs
        self.run_ids = tuple(run.run_id for run in runs)
        self._known: dict[str, RunColumn | None] = {}

    def get(self, key: str) -> RunColumn | None:
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

    def _make(self, key: str) -> RunColumn | None:
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
    if key in FIELDS or key.startswith((PARAM, TAG)) or statistic not in STATISTICS:
        return "", None
    return metric, Statistic(statistic)


# -- kinds of columns ----------------------------------------------------------------------------


def text_column(key: str, label: str, title: str, values: Sequence[str]) -> RunColumn:
    """Return a column of texts, or of numbers if all of them are."""
    distinct = set(values) - {""}
    numbers = {text: number for text in distinct if (number := as_number(text)) is not None}
    width_px = _width_px(label, max(map(len, distinct), default=0))
    if distinct and len(numbers) == len(distinct):
        ranks = np.array([numbers.get(text, math.nan) for text in values])
        grouped = writer(ranks)

        def write(value: float) -> str:
            return grouped(value).replace(",", "")  # as values are written: 15154

        cell, format_ = values.__getitem__, Format.NUMBER
        return RunColumn(key, label, title, format_, cell, ranks, write, width_px=width_px)
    order = {text: float(rank) for rank, text in enumerate(sorted(distinct, key=natural))}
    ranks = np.array([order.get(text, math.nan) for text in values])
    return RunColumn(key, label, title, Format.TEXT, values.__getitem__, ranks, width_px=width_px)


def number_column(
    key: str,
    label: str,
    title: str,
    values: Float64Array,
    better: Direction,
    unit: str,
    has_value: Callable[[int], bool] = lambda _: False,
) -> RunColumn:
    """Return a column of numbers in one unit, which the heading names.

    Runs with NaN have a value only if ``has_value`` says so.
    """
    finite = values[np.isfinite(values)]
    # Ratios are not scaled, so that a search compares the same number.
    scale = scale_of("" if unit in ("1", "%") else unit, np.abs(finite).max(initial=0.0))
    label += f", {scale.label}" if scale.label else ""
    scaled = writer(finite * scale.factor)

    def text(value: float) -> str:
        return scaled(value * scale.factor)

    def cell(place: int) -> str:
        value = float(values[place])
        if math.isfinite(value):
            return text(value)
        return "" if math.isnan(value) and not has_value(place) else units.not_finite(value)

    some = finite[:: max(1, len(finite) // _WRITTEN)].tolist()
    return RunColumn(
        *(key, label, title, Format.NUMBER, cell, values, text, better),
        width_px=_width_px(label, max((len(text(value)) for value in some), default=0)),
    )


def _metric_column(
    key: str, found: MetricColumn, statistic: Statistic, run_ids: Sequence[str]
) -> RunColumn:
    values = found.values(statistic, run_ids)
    unit = found.unit_of(statistic)
    return number_column(
        *(key, f"{found.metric} {statistic}", f"{found.metric}: {_MEANINGS[statistic]}", values),
        direction_of(found.metric, statistic, unit),
        unit,
        lambda place: run_ids[place] in found and statistic is Statistic.LAST,
    )


_MEANINGS = {
    Statistic.LAST: "last value; of a counter its growth",
    Statistic.MIN: "smallest value",
    Statistic.MAX: "largest value",
    Statistic.MEAN: "mean of all values; of a counter its growth a second",
}


def writer(values: Float64Array) -> Callable[[float], str]:
    """Return a formatter of a column: values of similar size have the same number of decimals.

    Whole numbers have none, except for their means.
    """
    sizes = np.abs(values[np.isfinite(values) & (values != 0)])
    if not len(sizes):
        return lambda value: units.significant(value, 4)
    decimals = 3 - math.floor(math.log10(sizes.max()))
    if sizes.max() > 1000 * sizes.min() or not 0 <= decimals <= 7:
        return lambda value: units.significant(value, 4)
    whole = bool((sizes == np.round(sizes)).all())
    return lambda value: f"{value:,.{0 if whole and value.is_integer() else decimals}f}"


def _width_px(label: str, characters: int) -> int:
    # The heading needs space for the arrow of the sort order.
    needed_px = _PADDING_PX + _PX_PER_CHARACTER * max(len(label), characters)
    return max(_MIN_PX, min(_MAX_PX, needed_px))


# -- fields of every run -------------------------------------------------------------------------


def note(run: RunEntry) -> str:
    """Return why a run is not comparable, or not complete in this store."""
    notes = [f"profiled by {run.profiled}"] if run.profiled else []
    if run.omission is Omission.PROFILED and not run.profiled:
        notes.append("beside a profiled run")
    elif isinstance(run.omission, Omission) and not run.profiled:
        notes.append(run.omission.value)
    notes += ["thinned"] if run.pruned else []
    return " · ".join(notes)


@dataclass(frozen=True, slots=True)
class RunField:
    """A column that every run may have."""

    label: str
    title: str
    make: Callable[[Columns, RunField], RunColumn]
    key: str = ""


def _of_text(label: str, read: Callable[[RunEntry], str]) -> RunField:
    def make(columns: Columns, field: RunField) -> RunColumn:
        texts = [read(run) for run in columns.runs]
        return text_column(field.key, field.label, field.title, texts)

    return RunField(label, label, make)


def _status(columns: Columns, field: RunField) -> RunColumn:
    statuses = [run.record.status for run in columns.runs]
    ranks = text_column("", "", "", [STATUS_WORDS[status] for status in statuses]).ranks
    return RunColumn(
        *(field.key, field.label, field.title, Format.STATUS),
        lambda place: [statuses[place].value, STATUS_WORDS[statuses[place]]],
        ranks,
        width_px=80,
    )


#: From here on, a duration is easier to read in minutes and seconds.
_MINUTE_S = 60.0


def _duration(columns: Columns, field: RunField) -> RunColumn:
    now_ns = time.time_ns()
    values = np.array([_or_nan(run.record.lasted_s(now_ns)) for run in columns.runs])

    def cell(place: int) -> str | int | None:
        record = columns.runs[place].record
        if math.isnan(values[place]):
            return None
        if record.ended_ns is None:
            return (record.started_ns or 0) // _NS_PER_MS
        return write(values[place])

    longest_s = values[np.isfinite(values)].max(initial=0.0)
    is_long = longest_s >= _MINUTE_S or any(run.record.ended_ns is None for run in columns.runs)
    seconds = writer(values)

    def write(value_s: float) -> str:
        return units.stopwatch(round(value_s)) if is_long else f"{seconds(value_s)} s"

    return RunColumn(
        *(field.key, field.label, field.title, Format.CLOCK),
        *(cell, values, write),
        width_px=80,
    )


def _age(columns: Columns, field: RunField) -> RunColumn:
    moments = [active_ns(run) for run in columns.runs]
    return RunColumn(
        *(field.key, field.label, field.title, Format.AGE),
        lambda place: moments[place] // _NS_PER_MS,
        -np.array(moments, dtype=np.float64),
        width_px=_MIN_PX,
    )


def _description(columns: Columns, field: RunField) -> RunColumn:
    texts = [columns.tags.get(run_id, {}).get(MLFLOW_NOTE, "") for run_id in columns.run_ids]
    return text_column(field.key, field.label, field.title, texts)


def _device(run: RunEntry) -> str:
    collocation = run.record.collocation.strip("-")
    return f"{run.record.devices} · {collocation}" if collocation else run.record.devices


def _quantity(
    quantity: Quantity, values_of: Callable[[Columns], Mapping[str, float]]
) -> tuple[str, RunField]:
    """Return a quantity of reports as a field of each run."""
    info = quantity.info

    def make(columns: Columns, field: RunField) -> RunColumn:
        values = values_of(columns)
        numbers = np.array([values.get(run_id, math.nan) for run_id in columns.run_ids])

        def why(place: int) -> str:
            run = columns.runs[place]
            if quantity is Quantity.ENERGY and not run.alone:
                return "the energy of its GPUs is the workload's"
            has_epochs = run.run_id in time_per_epoch_s(columns.source)
            found = metric_columns(columns.source, (GPU_ENERGY, RUN_ENERGY))
            there = [metric for metric, column in found.items() if run.run_id in column]
            return why_missing(
                quantity, run.record, there, is_alone=run.alone, has_epochs=has_epochs
            )

        return replace(
            number_column(
                *(field.key, field.label, field.title, numbers, info.direction, info.unit)
            ),
            why=why,
        )

    return quantity.value, RunField(info.title[0].upper() + info.title[1:], info.explanation, make)


def _slowdowns(columns: Columns) -> Mapping[str, float]:
    experiments = dict.fromkeys(run.record.experiment for run in columns.runs)
    return {
        run_id: slowdown.ratio
        for name in experiments
        for run_id, slowdown in slowdowns(
            columns.source, read_catalog(columns.source, name), columns.params
        ).items()
    }


def _energies(columns: Columns) -> Mapping[str, float]:
    """Return the energy of whole GPUs. It is a workload's, so only single runs have their own."""
    alone = {run.run_id for run in columns.runs if run.alone}
    return {
        run_id: value for run_id, value in _last(columns, GPU_ENERGY).items() if run_id in alone
    }


def _last(columns: Columns, metric: str) -> Mapping[str, float]:
    column = metric_columns(columns.source, [metric]).get(metric)
    if column is None:
        return {}
    values = zip(column.run_ids, column.numbers[Statistic.LAST].tolist(), strict=True)
    return {run_id: value for run_id, value in values if math.isfinite(value)}


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


_FIELDS = {
    "status": RunField("State", "State", _status),
    "duration": RunField("Took", "Time from the start of the process to its end", _duration),
    **dict(
        [
            _quantity(Quantity.TIME_PER_EPOCH, lambda columns: time_per_epoch_s(columns.source)),
            _quantity(Quantity.SLOWDOWN, _slowdowns),
            _quantity(Quantity.ENERGY, _energies),
            _quantity(Quantity.ENERGY_OF_RUNS, lambda columns: _last(columns, RUN_ENERGY)),
        ]
    ),
    "device": _of_text("Device", _device),
    "host": _of_text("Machine", TEXTS["host"]),
    "experiment": _of_text("Experiment", TEXTS["experiment"]),
    "workload": _of_text("Workload", TEXTS["workload"]),
    "letter": _of_text("Letter", TEXTS["letter"]),
    "name": _of_text("Name", TEXTS["name"]),
    "collocation": _of_text("Collocation", TEXTS["collocation"]),
    "reason": _of_text("Reason", TEXTS["reason"]),
    "command": _of_text("Command", TEXTS["command"]),
    "run": _of_text("Run id", lambda run: run.run_id),
    "note": _of_text("Note", note),
    "description": RunField("Description", "What people wrote of the run", _description),
    "age": RunField("Age", "Time since the last change of state", _age),
}
#: The columns that every run may have, by key, in the order of the list to choose from.
FIELDS: Mapping[str, RunField] = {key: replace(field, key=key) for key, field in _FIELDS.items()}
