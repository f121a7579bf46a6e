"""The table of runs: which runs, in which order and groups, with which columns.

Everything is in arrays over all runs of the store, so that ten thousand runs can be searched,
sorted and grouped within the response time of a click. Cells are created only for the visible rows.

Options of the view: ``runs.status`` the states to list, ``runs.sort`` the columns to sort by (keys,
percent-encoded, ``-`` for descending), ``runs.group`` the column to group by, ``runs.open`` whether
groups are open at first. The experiment of the view restricts the table.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import unquote

import numpy as np

from radt.analysis.estimates import CONFIDENCE, student_quantile
from radt.analysis.quantities import Direction, Statistic, direction_of
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.catalog import (
    Catalog,
    RunEntry,
    WorkloadEntry,
    read_catalog,
    read_experiments,
    tint,
)
from radt.frontend.data.connections import NothingRecordedError
from radt.frontend.data.metric_columns import metric_columns, metric_names
from radt.frontend.data.metrics import OWN_STEPS
from radt.frontend.data.run_columns import (
    FIELDS,
    PARAM,
    WHOLE_COMMANDS,
    Columns,
    RunColumn,
    note,
)
from radt.frontend.data.run_facts import time_per_epoch_s
from radt.frontend.data.spec import ID_DIGITS, ColumnChoice
from radt.frontend.search.find import Found, find, recent
from radt.frontend.view import View
from radt.model import RunStatus
from radt.store.records import BoolArray, Int64Array

#: Maximum number of metric and parameter columns that the dashboard chooses.
_METRIC_COLUMNS, _PARAM_COLUMNS = 4, 8
#: Number of metrics considered for these columns.
_CANDIDATES = 12
NO_GROUPS, BY_WORKLOAD = "none", "workload"
#: The column that always comes first. Among the user's columns, it only has a width.
NAME = "run name"


@dataclass(frozen=True, eq=False)
class Group:
    """Runs with the same value, in the order of the table; ``workload`` if they are one."""

    id: str
    label: str
    places: Int64Array
    is_open: bool
    workload: WorkloadEntry | None = None


@dataclass(frozen=True)
class AllRuns:
    """All runs of the store, those of the newest workload first, and their columns."""

    columns: Columns
    workload_ids: tuple[str, ...]
    workloads: Mapping[str, WorkloadEntry]
    catalogs: Mapping[str, Catalog]

    def tint(self, run: RunEntry) -> int:
        """Return the colour index of a run."""
        return tint(self.catalogs[run.record.experiment], run.run_id, run)

    @property
    def runs(self) -> Sequence[RunEntry]:
        return self.columns.runs

    @cached_property
    def places(self) -> Mapping[str, int]:
        """The index of each run, by id."""
        return {run_id: place for place, run_id in enumerate(self.columns.run_ids)}

    @cached_property
    def counts(self) -> BoolArray:
        """Return whether each run counts (`radt.analysis.selection`)."""
        return np.array([run.omission is None for run in self.runs], dtype=bool)

    @cached_property
    def experiments(self) -> np.ndarray[tuple[int], np.dtype[np.str_]]:
        return np.array([run.record.experiment for run in self.runs])


@dataclass(frozen=True)
class RunTable:
    """The table of a view.

    Attributes:
        all_runs: All runs of the store.
        found: The result of the search.
        key: Changes with everything except the store's content.
        scope_count: Number of runs of the experiment, or of the store.
        order: Indices of the found runs, in the order of the table without groups.
        lines: The lines of the table from top to bottom: groups, and indices of runs.
        columns: The shown columns.
        widths_px: Column widths set by the user, by key.
        grouped_by: The key of the column of the groups.
        is_partial: Slow columns are left out.
    """

    all_runs: AllRuns
    found: Found
    key: str
    scope_count: int
    order: Int64Array
    lines: Sequence[Group | int]
    columns: Sequence[RunColumn]
    widths_px: Mapping[str, int]
    grouped_by: str
    is_partial: bool = False

    @cached_property
    def best(self) -> Mapping[str, float]:
        """The best value of each column that has one, by key, among the runs that count."""
        places = self.order[self.all_runs.counts[self.order]]
        best = {column.key: column.best(places) for column in self.columns}
        return {key: value for key, value in best.items() if math.isfinite(value)}

    def group(self, id_: str) -> Group | None:
        """Return a group by its id."""
        return next((one for one in self.lines if isinstance(one, Group) and one.id == id_), None)


def read_all(source: CachedStore) -> AllRuns:
    """Return all runs of the store.

    Raises:
        StoreError: The store cannot be read.
    """

    def read(_: object) -> AllRuns:
        catalogs = [read_catalog(source, one.name) for one in read_experiments(source)]
        workloads = [workload for catalog in catalogs for workload in catalog.workloads]
        workloads.sort(key=lambda workload: workload.record.created_ns, reverse=True)
        runs = [run for workload in workloads for run in workload.runs]
        return AllRuns(
            Columns(source, runs),
            tuple(run.record.workload_id for run in runs),
            {workload.record.workload_id: workload for workload in workloads},
            {catalog.experiment: catalog for catalog in catalogs},
        )

    return source.remember("all runs", read)


def read_table(
    source: CachedStore, view: View, toggled: Collection[str] = (), *, patient: bool = True
) -> RunTable:
    """Read the table for a view.

    Args:
        source: The store.
        view: The view.
        toggled: Ids of groups whose state differs from the default.
        patient: Read all columns, however long it takes.

    Raises:
        NothingRecordedError: The store has no run.
        StoreError: The store cannot be read.
    """
    statuses = statuses_of(view)
    found = find(source, view.search, statuses)
    if not (read_experiments(source) or view.search.strip() or statuses):
        raise NothingRecordedError(source.address)
    all_runs = read_all(source)
    scope = _scope(all_runs, view)
    choices = columns_of(source, view, all_runs, scope, patient=patient)
    keys = [choice.key for choice in choices]
    sort = parse_sort(view.options.get("runs.sort", ""))
    grouped_by = view.options.get("runs.group", BY_WORKLOAD)
    is_open = view.options.get("runs.open", "" if grouped_by == BY_WORKLOAD else "no") != "no"
    all_runs.columns.prepare([*keys, *(key for key, _ in sort), grouped_by])
    columns = [column for key in keys if (column := all_runs.columns.get(key)) is not None]
    key = repr((view.search, sorted(statuses), view.experiment, sort, grouped_by))

    def arranged() -> tuple[Found, Int64Array, list[Group | int]]:
        order = _sorted(all_runs, _found_in(all_runs, found, scope), sort)
        return found, order, _lines(all_runs, order, grouped_by, sort, is_open, frozenset(toggled))

    # The cache entry keeps the results alive, so that their ids are not reused.
    place = ("table", key, id(found), is_open, frozenset(toggled))
    _, order, lines = recent(source).get(place, arranged)
    widths_px = {one.key: one.width_px for one in choices if one.width_px is not None}
    return RunTable(
        *(all_runs, found, key, len(scope), order, lines, columns, widths_px, grouped_by),
        is_partial=not patient,
    )


def statuses_of(view: View) -> frozenset[RunStatus]:
    """Return the states to list; an empty set stands for all."""
    names = view.options.get("runs.status", "").split(",")
    return frozenset(RunStatus(name) for name in names if name in list(RunStatus))


def is_narrowed(view: View) -> bool:
    """Return True if the table lists only some runs."""
    return bool(view.search.strip() or view.experiment or statuses_of(view))


def parse_sort(text: str) -> list[tuple[str, bool]]:
    """Return the columns to sort by, in order, and True for each descending one."""
    parts = [part for part in text.split(",") if part.strip("-")]
    return [(unquote(part.removeprefix("-")), part.startswith("-")) for part in parts]


# -- which runs ----------------------------------------------------------------------------------


def _scope(all_runs: AllRuns, view: View) -> Int64Array:
    """Return the indices of the experiment's runs."""
    if view.experiment:
        return np.flatnonzero(all_runs.experiments == view.experiment)
    return np.arange(len(all_runs.runs), dtype=np.int64)


def _found_in(all_runs: AllRuns, found: Found, scope: Int64Array) -> Int64Array:
    """Return the indices of the found runs within a scope, in order."""
    if found.runs is None:
        return scope
    matching = np.zeros(len(all_runs.runs), dtype=bool)
    matching[[all_runs.places[run.run_id] for run in found.runs]] = True
    return scope[matching[scope]]


# -- order and groups ----------------------------------------------------------------------------


def _sorted(all_runs: AllRuns, places: Int64Array, sort: Sequence[tuple[str, bool]]) -> Int64Array:
    """Return the sorted indices. Runs without a value come last in both directions."""
    keys = []
    for key, descending in reversed(sort):
        if (column := all_runs.columns.get(key)) is not None:
            ranks = column.ranks[places]
            keys.append(-ranks if descending else ranks)
    return places[np.lexsort(keys)] if keys else places


def _lines(
    all_runs: AllRuns,
    order: Int64Array,
    grouped_by: str,
    sort: Sequence[tuple[str, bool]],
    is_open: bool,
    toggled: Collection[str],
) -> list[Group | int]:
    if grouped_by == NO_GROUPS:
        return list(order.tolist())
    by_workload = grouped_by == BY_WORKLOAD
    values: Sequence[str]
    if by_workload:
        values = all_runs.workload_ids
    elif (column := all_runs.columns.get(grouped_by)) is None:
        return list(order.tolist())
    else:
        values = [_text(column.cell(place)) for place in range(len(all_runs.runs))]
    members: dict[str, list[int]] = {}
    for place in order.tolist():
        members.setdefault(values[place], []).append(place)
    groups = []
    for value, places in members.items():
        id_ = f"w{value[:ID_DIGITS]}" if by_workload else f"g{value}"
        workload = all_runs.workloads[value] if by_workload else None
        label = workload.runs[0].workload_name if workload else value
        own = is_open is not (id_ in toggled)
        groups.append(Group(id_, label, np.array(places, dtype=np.int64), own, workload))
    if not by_workload:
        groups = _sorted_groups(all_runs, groups, sort or [(grouped_by, False)])
    lines: list[Group | int] = []
    for group in groups:
        if group.workload is not None and len(group.workload.runs) == 1:
            lines.extend(group.places.tolist())  # a script run on its own
            continue
        lines.append(group)
        if group.is_open:
            lines.extend(group.places.tolist())
    return lines


def text_of(column: RunColumn, place: int) -> str:
    """Return the cell of a run as text."""
    if column.write is not None:
        value = float(column.ranks[place])
        return column.write(value) if math.isfinite(value) else str(column.cell(place) or "")
    return _text(column.cell(place))


def _text(cell: object) -> str:
    return str(cell[1]) if isinstance(cell, list) else str(cell or "")


def _sorted_groups(
    all_runs: AllRuns, groups: Sequence[Group], sort: Sequence[tuple[str, bool]]
) -> list[Group]:
    """Sort groups by the means of numbers. A workload has the position of its first run instead."""
    keys = []
    for key, descending in reversed(sort):
        if (column := all_runs.columns.get(key)) is not None:
            means = np.array([_mean(column, group) for group in groups])
            keys.append(-means if descending else means)
    return [groups[place] for place in np.lexsort(keys)] if keys else list(groups)


def _mean(column: RunColumn, group: Group) -> float:
    ranks = column.ranks[group.places]
    ranks = ranks[np.isfinite(ranks)]
    if not len(ranks):
        return math.nan
    return float(ranks.mean() if column.is_number else ranks[0])


def group_cell(column: RunColumn, group: Group) -> str:
    """Return a group's cell: the mean of numbers or the common text.

    A mean has its 95 % interval, except for a workload, whose runs are not repeats.
    """
    if column.write is not None:
        values = column.ranks[group.places]
        values = values[np.isfinite(values)]
        if not len(values):
            return ""
        mean = column.write(float(values.mean()))
        spread = float(values.std(ddof=1)) if len(values) > 1 and group.workload is None else 0.0
        if not spread:
            return mean
        half = student_quantile(len(values) - 1, CONFIDENCE) * spread / math.sqrt(len(values))
        return f"{mean} ± {column.write(half)}"
    first = column.cell(int(group.places[0]))
    ranks = column.ranks[group.places]
    is_common = bool((ranks == ranks[0]).all())
    return _text(first) if is_common and not isinstance(first, int) else ""


# -- which columns -------------------------------------------------------------------------------


def columns_of(
    source: CachedStore, view: View, all_runs: AllRuns, scope: Int64Array, *, patient: bool
) -> Sequence[ColumnChoice]:
    """Return the user's columns, or the dashboard's choice, without slow ones unless ``patient``.

    Raises:
        StoreError: The store cannot be read.
    """
    choices = view.columns
    if choices is None:
        key = ("columns", view.experiment, patient)
        keys = recent(source).get(key, lambda: _automatic(source, all_runs, scope, patient=patient))
        return [ColumnChoice(key) for key in keys]
    if patient:
        return choices
    return [choice for choice in choices if choice.key in _FAST or choice.key == NAME]


#: Columns whose values are loaded with the runs.
_FAST = frozenset(FIELDS) - {"time_per_epoch", "vs_solo", "energy", "energy_of_runs"}


def _automatic(
    source: CachedStore, all_runs: AllRuns, scope: Int64Array, *, patient: bool
) -> Sequence[str]:
    """Return state and duration, logged metrics, differing parameters, and age."""
    runs = [all_runs.runs[place] for place in scope.tolist()]
    keys = ["status", "duration"]
    if patient:
        keys += _metrics(source, [run.run_id for run in runs])
        times_s = time_per_epoch_s(source)
        keys += ["time_per_epoch"] if any(run.run_id in times_s for run in runs) else []
        keys += _differing(all_runs, runs)
        student_quantile(1, CONFIDENCE)  # imports scipy before the first interval
    records = [run.record for run in runs]
    keys += ["device"] if len({(r.devices, r.collocation) for r in records}) > 1 else []
    keys += ["host"] if len({record.host for record in records}) > 1 else []
    keys += ["experiment"] if len({record.experiment for record in records}) > 1 else []
    keys += ["note"] if any(map(note, runs)) else []
    return [*keys, "age"]


def _metrics(source: CachedStore, run_ids: Sequence[str]) -> list[str]:
    """Return columns of metrics that scripts of these runs logged, a loss first."""
    names = [one for one in metric_names(source) if one.is_logged and one.metric not in OWN_STEPS]
    names.sort(key=lambda one: ("loss" not in one.metric.lower(), -one.run_count, one.metric))
    columns = metric_columns(source, [one.metric for one in names[:_CANDIDATES]])
    wanted = set(run_ids)
    return [
        f"{column.metric}.{_BEST[direction_of(column.metric, Statistic.LAST, column.unit)]}"
        for column in columns.values()
        if not wanted.isdisjoint(column.run_ids)
    ][:_METRIC_COLUMNS]


_BEST: Mapping[Direction, Statistic] = {
    Direction.NEITHER: Statistic.LAST,
    Direction.LOWER: Statistic.MIN,
    Direction.HIGHER: Statistic.MAX,
}


def _differing(all_runs: AllRuns, runs: Sequence[RunEntry]) -> list[str]:
    """Return columns of parameters that differ between runs, in alphabetical order."""
    values: dict[str, set[str]] = {}
    counts: dict[str, int] = {}
    for run in runs:
        for key, value in all_runs.columns.params.get(run.run_id, {}).items():
            values.setdefault(key, set()).add(value)
            counts[key] = counts.get(key, 0) + 1
    differing = (key for key, seen in values.items() if len(seen) > 1 or counts[key] < len(runs))
    names = sorted(key for key in differing if key not in WHOLE_COMMANDS)
    return [f"{PARAM}{key}" for key in names[:_PARAM_COLUMNS]]
