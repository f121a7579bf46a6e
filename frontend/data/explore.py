"""Columns of the Explore page: one value per run, of a param, of a metric, or of its times."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from itertools import compress
from typing import Any, NamedTuple

from sqlalchemy import text

from radt.analysis.names import differing_params
from radt.analysis.quantities import THROUGHPUT_METRICS, Direction, Statistic, direction_of
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.catalog import Catalog, RunEntry, read_catalog
from radt.frontend.data.metric_columns import metric_columns
from radt.frontend.data.run_facts import time_per_epoch_s
from radt.frontend.search.find import find
from radt.frontend.search.query import as_number
from radt.frontend.selection import focused_experiment, sweep_labels
from radt.frontend.view import View
from radt.model import SOFTWARE, SeriesKind
from radt.store.reader import StoreReader
from radt.units import scale_of

PARAM, METRIC, TIME = "param", "metric", "time"
EPOCH, DURATION = f"{TIME}:epoch", f"{TIME}:duration"
LOGGED = "Logged by scripts"
#: Default metrics on the x axis, against accuracy, if they were measured.
_COSTS = ("metric:process.gpu.energy.last", "metric:gpu.energy.last")
#: Maximum number of distinct texts in a column. With more, it is a path or a name and has no useful
#: order.
_MOST_TEXTS = 20
_METRICS = text(
    "SELECT series.metric, MIN(series.kind), MAX(series.unit), "
    "MAX(CASE WHEN series.listener = :software THEN 1 ELSE 0 END), COUNT(DISTINCT run.run_id) "
    "FROM series JOIN run ON run.run_id = series.run_id "
    "WHERE run.experiment = :experiment GROUP BY series.metric ORDER BY series.metric"
).bindparams(software=SOFTWARE)


@dataclass(frozen=True, slots=True)
class Choice:
    """A column to choose.

    Attributes:
        key: ``param:lr``, ``metric:accuracy.max``, ``time:epoch``.
        title: Its name on an axis.
        group: Its heading in the list of columns.
        better: Which values are better.
        run_count: Number of the experiment's runs that recorded it; 0 if unknown.
    """

    key: str
    title: str
    group: str
    better: Direction = Direction.NEITHER
    run_count: int = 0


@dataclass(frozen=True, slots=True)
class ExploreColumn:
    """Values of all runs, None where a run has none.

    The browser gets only finite values, as no axis can show others. Text values are indices into
    ``texts``, which are sorted; numbers are in ``unit`` (UCUM).
    """

    values: Sequence[float | None]
    texts: Sequence[str] | None = None
    unit: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it for the browser, with the factor and the name of the displayed unit."""
        values = [
            None if value is None or not math.isfinite(value) else value for value in self.values
        ]
        known = [abs(value) for value in values if value is not None]
        scale = scale_of(self.unit, max(known, default=0.0))
        return {
            "values": values,
            "texts": self.texts,
            "factor": scale.factor,
            "unit": scale.label,
        }


@dataclass(frozen=True)
class Explored:
    """The runs of an experiment that match the search, and the columns to compare them by."""

    source: CachedStore
    experiment: str
    runs: tuple[RunEntry, ...]

    @cached_property
    def run_ids(self) -> list[str]:
        return [run.run_id for run in self.runs]

    @cached_property
    def counts(self) -> list[bool]:
        """Return whether each run counts. Other runs are shown, but never as the best."""
        return [run.omission is None for run in self.runs]

    @cached_property
    def params(self) -> Mapping[str, ExploreColumn]:
        """Params that differ between the runs, by name."""
        of_runs = [self._params.get(run_id, {}) for run_id in self.run_ids]
        columns = {}
        for name in differing_params(of_runs):
            texts = [params.get(name) for params in of_runs]
            column = column_of(texts)
            is_name = column.texts is not None and _MOST_TEXTS < len(set(texts)) == len(texts)
            if not is_name:
                columns[name] = column
        return columns

    @cached_property
    def names(self) -> list[str]:
        """Return the runs' names: what differs in a sweep, else their titles."""
        labels: Mapping[str, str] = {}
        if not self._catalog.is_about_collocation:
            labels = sweep_labels(self.runs, self._params)
        return [labels.get(run.run_id) or run.title for run in self.runs]

    @cached_property
    def _params(self) -> Mapping[str, Mapping[str, str]]:
        return self.source.remember(
            ("params", self.experiment),
            lambda reader: reader.params_of(list(self._catalog.runs)),
        )

    @cached_property
    def choices(self) -> Mapping[str, Choice]:
        """All columns by key: params, logged metrics, times, hardware metrics."""
        rows = self.source.remember(("explored", self.experiment), self._metrics)
        choices = [Choice(f"{PARAM}:{name}", name, "Params") for name in self.params]
        choices += _choices([row for row in rows if row.is_logged], LOGGED)
        choices += [
            Choice(EPOCH, "time per epoch", "Times", Direction.LOWER),
            Choice(DURATION, "duration", "Times", Direction.LOWER),
        ]
        choices += _choices([row for row in rows if not row.is_logged], "Measured by listeners")
        return {choice.key: choice for choice in choices}

    def column(self, key: str) -> ExploreColumn:
        """Return a column of `choices`.

        Raises:
            StoreError: The store cannot be read.
        """
        kind, _, name = key.partition(":")
        if kind == PARAM:
            return self.params[name]
        if kind == TIME:
            if key == EPOCH:
                epochs = time_per_epoch_s(self.source)
                return ExploreColumn([epochs.get(run_id) for run_id in self.run_ids], unit="s")
            now_ns = time.time_ns()
            return ExploreColumn([run.record.lasted_s(now_ns) for run in self.runs], unit="s")
        metric, _, statistic = name.rpartition(".")
        found = metric_columns(self.source, [metric]).get(metric)
        if found is None:
            return ExploreColumn([None] * len(self.runs))
        values = found.values(Statistic(statistic), self.run_ids).tolist()
        diverged = found if statistic == Statistic.LAST else ()
        return ExploreColumn(
            [
                None if math.isnan(value) and run_id not in diverged else value
                for run_id, value in zip(self.run_ids, values, strict=True)
            ],
            unit=found.unit_of(Statistic(statistic)),
        )

    def counted(self, column: ExploreColumn) -> ExploreColumn:
        """Return a column with only the runs that count."""
        return replace(column, values=list(compress(column.values, self.counts)))

    def is_common(self, key: str) -> bool:
        """Return whether at least half of the experiment's runs have a value of a column."""
        count = self.choices[key].run_count
        if key == EPOCH:
            count = len(self._catalog.runs.keys() & time_per_epoch_s(self.source).keys())
        return 2 * count >= len(self._catalog.runs)

    @property
    def _catalog(self) -> Catalog:
        """All runs of the experiment, for data cached independently of the search."""
        return read_catalog(self.source, self.experiment)

    def _metrics(self, reader: StoreReader) -> list[_Metric]:
        with reader.snapshot() as connection:
            rows = connection.execute(_METRICS, {"experiment": self.experiment}).all()
        return [_Metric(*row) for row in rows]


class _Metric(NamedTuple):
    """A metric of an experiment, and the number of runs that recorded it."""

    name: str
    kind: str
    unit: str
    is_logged: int
    run_count: int


def explored(source: CachedStore, view: View) -> Explored:
    """Return the runs of a view's experiment that match its search, without services.

    Raises:
        NothingRecordedError: There is no experiment.
        RunNotFoundError: There is no such experiment.
        StoreError: The store cannot be read.
    """
    experiment = focused_experiment(source, view)
    found = find(source, view.search).runs
    if found is None:
        found = tuple(read_catalog(source, experiment).runs.values())
    runs = (r for r in found if r.record.experiment == experiment and not r.is_service)
    return Explored(source, experiment, tuple(runs))


def column_of(texts: Sequence[str | None]) -> ExploreColumn:
    """Return the values of a param, as numbers if all of them are."""
    numbers = {each: as_number(each) for each in set(texts) if each is not None}
    if None not in numbers.values():
        return ExploreColumn([None if each is None else numbers[each] for each in texts])
    places = {each: place for place, each in enumerate(sorted(numbers))}
    return ExploreColumn([None if each is None else places[each] for each in texts], tuple(places))


#: Names of a gauge's statistics. A counter has its growth, and its growth rate.
_OF_GAUGES = {Statistic.LAST: "last", Statistic.MAX: "max", Statistic.MIN: "min"}
_OF_READINGS = {Statistic.MEAN: "mean", Statistic.MAX: "max", Statistic.MIN: "min"}
_OF_COUNTERS = {Statistic.LAST: "total", Statistic.MEAN: "rate"}


def _choices(metrics: Iterable[_Metric], group: str) -> Iterator[Choice]:
    for metric in metrics:
        if metric.kind == SeriesKind.COUNTER:
            statistics = _OF_COUNTERS
        else:
            statistics = _OF_GAUGES | _OF_READINGS if metric.is_logged else _OF_READINGS
        for statistic, word in statistics.items():
            yield Choice(
                f"{METRIC}:{metric.name}.{statistic}",
                f"{metric.name} {word}",
                group,
                direction_of(metric.name, statistic, metric.unit),
                metric.run_count,
            )


#: Options of a view: the shown columns, and the direction of an axis.
X, Y, COLOUR, AXES, TARGET = (f"explore.{name}" for name in ("x", "y", "colour", "axes", "target"))
X_BEST, Y_BEST = "explore.xbest", "explore.ybest"
SEPARATOR = ";"
#: Maximum number of parallel axes, and the number shown at first.
MAX_AXES = 32
_FIRST_AXES = 5


class Best(StrEnum):
    """Which values of an axis are better."""

    LOW = "low"
    HIGH = "high"
    NONE = "none"


_BEST = {
    Direction.LOWER: Best.LOW,
    Direction.HIGHER: Best.HIGH,
    Direction.NEITHER: Best.NONE,
}
#: Suffix of the statistic with the best value of a logged metric.
_BEST_OF = {Direction.LOWER: ".min", Direction.HIGHER: ".max"}


@dataclass(frozen=True, slots=True)
class Shown:
    """The page's choices: keys of columns, ``colour`` empty for none.

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
    def of(cls, options: Mapping[str, str], here: Explored) -> Shown:
        """Return the columns that a view's options name, if they exist, else the most informative.

        The default is the highest (or lowest) value of the logged metric that most runs have, over
        the energy, the time per epoch or the duration, the first that at least half of them have.
        Its colours show in parallel coordinates which params lead to it.
        """
        choices = here.choices

        def rank(key: str) -> tuple[bool, bool, int]:
            choice = choices[key]
            is_best = key.endswith(_BEST_OF.get(choice.better, ()))
            is_result = is_best and not choice.title.startswith(THROUGHPUT_METRICS)
            return here.is_common(key), is_result, choice.run_count

        logged = [key for key, choice in choices.items() if choice.group == LOGGED]
        best_metric = max(logged, key=rank, default=DURATION)
        costs = (*(key for key in choices if key.startswith(_COSTS)), EPOCH)
        params = [key for key in choices if key.startswith(f"{PARAM}:")]

        def chosen(name: str, default: str) -> str:
            return options[name] if options.get(name) in choices else default

        rest = EPOCH if best_metric == DURATION else DURATION
        x = chosen(X, next((key for key in costs if here.is_common(key)), rest))
        y = chosen(Y, best_metric)
        target = chosen(TARGET, best_metric if y.startswith(f"{PARAM}:") else y)
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
    return _BEST[choice.better]
