"""Columns of the Explore page: one value a run, of a param, of a metric, or of its times."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from statistics import fmean
from typing import Any

from sqlalchemy import text

from radt.analysis.quantities import THROUGHPUT_METRICS
from radt.analysis.reading import of_runs, rows_of
from radt.frontend.data.catalog import Catalog, RunEntry, read_catalog
from radt.frontend.data.metric_columns import metric_columns
from radt.frontend.data.model import unit_scale
from radt.frontend.data.source import Source
from radt.frontend.search.find import duration_s, find
from radt.frontend.search.query import as_number
from radt.frontend.selection import latest_experiment
from radt.frontend.view import View
from radt.model import SOFTWARE, MarkerKind, SeriesKind
from radt.store.counters import rate_unit
from radt.store.metric_columns import Statistic
from radt.store.reader import StoreReader

PARAM, METRIC, TIME = "param", "metric", "time"
LOGGED = "Logged by scripts"
#: What accuracy is compared with at first, if it was measured.
_COSTS = ("metric:process.gpu.energy.last", "metric:gpu.energy.last", "metric:gpu.power.mean")
#: Params of rows that describe how radt starts a run, or repeat the others.
_NOT_VARIED = frozenset({"Params", "Cpus", "Timeout", "Environment"})
#: A text that is different in each of more runs than this (a path, a name) orders nothing.
_MOST_TEXTS = 20
#: Names of metrics of which less is better.
_LESS = re.compile(
    "loss|error|perplexity|time|latency|duration|wait|energy|power|memory|carbon|temperature",
    re.IGNORECASE,
)

_METRICS = text(
    "SELECT series.metric, MIN(series.kind), "
    "MAX(CASE WHEN series.listener = :software THEN 1 ELSE 0 END) "
    "FROM series JOIN run ON run.run_id = series.run_id "
    "WHERE run.experiment = :experiment GROUP BY series.metric ORDER BY series.metric"
).bindparams(software=SOFTWARE)
_EPOCHS = of_runs(
    "SELECT run_id, start_ns, end_ns FROM marker WHERE run_id IN :ids AND kind = :kind "
    "AND process = '' AND end_ns IS NOT NULL ORDER BY run_id, start_ns, marker_no",
    kind=MarkerKind.EPOCH.value,
)


@dataclass(frozen=True, slots=True)
class Choice:
    """A column to choose.

    Attributes:
        key: ``param:lr``, ``metric:accuracy.max``, ``time:epoch``.
        title: Its name on an axis.
        group: Its heading in the list of columns.
        less: Whether less is better; None for params, of which nothing is better.
    """

    key: str
    title: str
    group: str
    less: bool | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """Values of all runs, None where a run has none.

    Those of a text are places in ``texts``, which are sorted; numbers are in ``unit`` (UCUM).
    """

    values: Sequence[float | None]
    texts: Sequence[str] | None = None
    unit: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it for the browser, with the factor and the name of the unit to show."""
        known = [abs(value) for value in self.values if value is not None]
        scale = unit_scale(self.unit, max(known, default=0.0))
        return {
            "values": self.values,
            "texts": self.texts,
            "factor": scale.factor,
            "unit": scale.label,
        }


@dataclass(frozen=True)
class Explored:
    """The runs of an experiment that match the search, and what there is to compare of them."""

    source: Source
    experiment: str
    runs: tuple[RunEntry, ...]

    @cached_property
    def run_ids(self) -> list[str]:
        return [run.run_id for run in self.runs]

    @cached_property
    def params(self) -> Mapping[str, Column]:
        """The params that differ between the runs, by name."""
        of_runs = self.source.remember(
            ("params", self.experiment),
            lambda reader: reader.params_of(list(self._catalog.runs)),
        )
        names = dict.fromkeys(key for run_id in self.run_ids for key in of_runs.get(run_id, ()))
        columns = {}
        for name in names:
            texts = [of_runs.get(run_id, {}).get(name) for run_id in self.run_ids]
            distinct = len(set(texts))
            column = column_of(texts)
            is_name = column.texts is not None and _MOST_TEXTS < distinct == len(texts)
            if name not in _NOT_VARIED and distinct > 1 and not is_name:
                columns[name] = column
        return columns

    @cached_property
    def choices(self) -> Mapping[str, Choice]:
        """The columns by key: params, logged metrics, times, hardware metrics."""
        rows = self.source.remember(("explored", self.experiment), self._metrics)
        choices = [Choice(f"{PARAM}:{name}", name, "Params") for name in self.params]
        choices += _choices([row for row in rows if row[2]], LOGGED)
        choices += [
            Choice(f"{TIME}:epoch", "time per epoch", "Times", less=True),
            Choice(f"{TIME}:duration", "duration", "Times", less=True),
        ]
        choices += _choices([row for row in rows if not row[2]], "Measured by listeners")
        return {choice.key: choice for choice in choices}

    def column(self, key: str) -> Column:
        """Return a column of `choices`.

        Raises:
            StoreError: The store cannot be read.
        """
        kind, _, name = key.partition(":")
        if kind == PARAM:
            return self.params[name]
        if kind == TIME:
            if name == "epoch":
                epochs = self.source.remember(("epochs", self.experiment), self._epochs_s)
                return Column([epochs.get(run_id) for run_id in self.run_ids], unit="s")
            return Column([duration_s(run) for run in self.runs], unit="s")
        metric, _, statistic = name.rpartition(".")
        found = metric_columns(self.source, [metric]).get(metric)
        if found is None:
            return Column([None] * len(self.runs))
        values = found.values(Statistic(statistic), self.run_ids).tolist()
        is_rate = found.kind is SeriesKind.COUNTER and statistic == Statistic.MEAN
        return Column(
            [value if math.isfinite(value) else None for value in values],
            unit=rate_unit(found.unit).unit if is_rate else found.unit,
        )

    @property
    def _catalog(self) -> Catalog:
        """All runs of the experiment, for what is remembered whatever the search."""
        return read_catalog(self.source, self.experiment)

    def _metrics(self, reader: StoreReader) -> list[tuple[str, str, bool]]:
        with reader.snapshot() as connection:
            rows = connection.execute(_METRICS, {"experiment": self.experiment}).all()
        return [(metric, kind, bool(is_logged)) for metric, kind, is_logged in rows]

    def _epochs_s(self, reader: StoreReader) -> dict[str, float]:
        """Return the time per epoch by run, without the first of several, as in reports."""
        lengths: dict[str, list[float]] = {}
        for run_id, start_ns, end_ns in rows_of(reader, _EPOCHS, list(self._catalog.runs)):
            lengths.setdefault(run_id, []).append((end_ns - start_ns) / 1e9)
        return {run_id: fmean(of_run[1:] or of_run) for run_id, of_run in lengths.items()}


def explored(source: Source, view: View) -> Explored:
    """Return the runs of a view's experiment that match its search, without services.

    Raises:
        NothingRecordedError: There is no experiment.
        StoreError: The store cannot be read.
    """
    experiment = view.experiment or latest_experiment(source)
    found = find(source, view.search).of(experiment)
    workloads = () if found is None else found.workloads
    if workloads is None:  # all match
        workloads = read_catalog(source, experiment).workloads
    runs = (run for workload in workloads for run in workload.runs if not run.is_service)
    return Explored(source, experiment, tuple(runs))


def column_of(texts: Sequence[str | None]) -> Column:
    """Return the values of a param: numbers if all of them are."""
    numbers = {each: as_number(each) for each in set(texts) if each is not None}
    if None not in numbers.values():
        return Column([None if each is None else numbers[each] for each in texts])
    places = {each: place for place, each in enumerate(sorted(numbers))}
    return Column([None if each is None else places[each] for each in texts], tuple(places))


#: The names of statistics of a gauge; a counter has its growth, and that by time.
_OF_GAUGES = {Statistic.LAST: "last", Statistic.MAX: "max", Statistic.MIN: "min"}
_OF_READINGS = {Statistic.MEAN: "mean", Statistic.MAX: "max", Statistic.MIN: "min"}
_OF_COUNTERS = {Statistic.LAST: "total", Statistic.MEAN: "rate"}


def _choices(rows: Iterable[tuple[str, str, bool]], group: str) -> Iterator[Choice]:
    for metric, kind, is_logged in rows:
        if kind == SeriesKind.COUNTER:
            statistics = _OF_COUNTERS
        else:
            statistics = _OF_GAUGES | _OF_READINGS if is_logged else _OF_READINGS
        for statistic, word in statistics.items():
            yield Choice(
                f"{METRIC}:{metric}.{statistic}",
                f"{metric} {word}",
                group,
                less=bool(_LESS.search(metric)),
            )


#: Options of a view: the columns that are shown, and the direction of an axis.
X, Y, COLOUR, AXES, TARGET = (f"explore.{name}" for name in ("x", "y", "colour", "axes", "target"))
X_BEST, Y_BEST = "explore.xbest", "explore.ybest"
SEPARATOR = ";"
#: The limit on axes side by side, and how many are shown at first.
MAX_AXES = 32
_FIRST_AXES = 5


class Best(StrEnum):
    """Which values of an axis are better."""

    LOW = "low"
    HIGH = "high"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Shown:
    """What the page shows: keys of columns, ``colour`` empty for none.

    An empty ``x`` says that there is nothing to compare.
    """

    x: str
    y: str
    colour: str
    axes: tuple[str, ...]
    target: str
    x_best: Best
    y_best: Best

    @classmethod
    def of(cls, options: Mapping[str, str], choices: Mapping[str, Choice]) -> Shown:
        """Return what a view's options name, as far as it is there, else what tells most.

        At first that is the highest (or lowest) value of the first logged metric over the energy,
        or else over the time per epoch; its colours show in parallel coordinates what gives it.
        """
        logged = [key for key, one in choices.items() if one.group == LOGGED]
        measured = [key for key in choices if key.startswith(_COSTS)]
        best_metric = next(
            (
                key
                for key in logged
                if key.endswith(".min" if choices[key].less else ".max")
                and not choices[key].title.startswith(THROUGHPUT_METRICS)
            ),
            next(iter(logged), f"{TIME}:duration"),
        )
        params = [key for key in choices if key.startswith(f"{PARAM}:")]

        def chosen(name: str, default: str) -> str:
            return options[name] if options.get(name) in choices else default

        x = chosen(X, next(iter(measured), f"{TIME}:epoch"))
        y = chosen(Y, best_metric)
        target = chosen(TARGET, y if choices[y].less is not None else best_metric)
        axes = [key for key in options.get(AXES, "").split(SEPARATOR) if key in choices]
        return cls(
            x,
            y,
            "" if options.get(COLOUR) == Best.NONE else chosen(COLOUR, y),
            tuple(axes[:MAX_AXES]) or tuple(dict.fromkeys((*params[:_FIRST_AXES], x, y))),
            target,
            _best(options.get(X_BEST), choices[x]),
            _best(options.get(Y_BEST), choices[y]),
        )


def _best(option: str | None, choice: Choice) -> Best:
    if option in list(Best):
        return Best(option)
    if choice.less is None:
        return Best.NONE
    return Best.LOW if choice.less else Best.HIGH
