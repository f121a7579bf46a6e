"""The three lists of the Select page: their columns, rows and order."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Generic, TypeVar

from radt.frontend.data.catalog import Catalog, RunEntry, WorkloadEntry, read_catalog
from radt.frontend.data.connections import NothingRecordedError
from radt.frontend.data.model import STATUS_WORDS
from radt.frontend.data.source import Source
from radt.frontend.data.spec import ID_DIGITS, Pick
from radt.frontend.search.find import (
    Found,
    FoundExperiment,
    Recent,
    active_ns,
    duration_s,
    find,
    recent,
)
from radt.frontend.search.query import as_number
from radt.frontend.view import View
from radt.model import RunStatus
from radt.run_name import letter_order

#: Parameters of more runs than this are read after the page has loaded.
_EAGER_RUNS = 1_000
#: The limit on columns for parameters.
MAX_PARAM_COLUMNS = 12
#: The option of a view with the statuses to list.
STATUS_OPTION = "select.status"
_NS_PER_MS = 1_000_000
_DIGITS = re.compile(r"(\d+)")

EntryT = TypeVar("EntryT", FoundExperiment, WorkloadEntry, RunEntry)


class Kind(StrEnum):
    """Format of a cell in the browser."""

    TEXT = "text"
    NUMBER = "number"  # text, aligned right
    STATUS = "status"  # value and word
    OUTCOME = "outcome"  # value, word and time: the time of finished runs, else the word
    CLOCK = "clock"  # start and end in ms since 1970; no end while the run goes on
    AGE = "age"  # ms since 1970


@dataclass(frozen=True, slots=True)
class Column(Generic[EntryT]):
    """A column: ``cell`` is sent to the browser, ``order`` is the key to sort by (None is last)."""

    key: str
    label: str
    kind: Kind
    min_px: int
    flex: float
    cell: Callable[[EntryT], Any]
    order: Callable[[EntryT], Any]
    title: str = ""

    def to_json(self) -> dict[str, str | float]:
        """Return the data that the browser needs to draw the column."""
        return {
            "key": self.key,
            "label": self.label,
            "kind": self.kind.value,
            "min_px": self.min_px,
            "flex": self.flex,
            "title": self.title or self.label,
        }


class Pane(StrEnum):
    """A list of the page, from left to right."""

    EXPERIMENTS = "experiments"
    WORKLOADS = "workloads"
    RUNS = "runs"

    @property
    def sort_option(self) -> str:
        """The option of a view with the sort order; without it the newest come first."""
        return "select.sort" if self is Pane.RUNS else f"select.sort.{self}"


@dataclass(frozen=True)
class Listing(Generic[EntryT]):
    """A whole list in its order. ``key`` changes with the experiment, search, status or order."""

    key: str
    columns: Sequence[Column[EntryT]]
    entries: Sequence[EntryT]
    ids: Sequence[str]

    @cached_property
    def places(self) -> Mapping[str, int]:
        """The place of each id."""
        return {id_: place for place, id_ in enumerate(self.ids)}


@dataclass(frozen=True)
class Lists:
    """All lists of the page for a view.

    ``is_partial`` is true while the columns of parameters are missing; ``params_left_out`` counts
    the differing parameters beyond `MAX_PARAM_COLUMNS`.
    """

    results: Found
    catalog: Catalog
    focus: WorkloadEntry | None
    experiments: Listing[FoundExperiment]
    workloads: Listing[WorkloadEntry]
    runs: Listing[RunEntry]
    is_partial: bool = False
    params_left_out: int = 0

    def all_picks(self, pane: Pane) -> tuple[Pick, ...]:
        """Return a pick for each row of the pane of workloads or of runs."""
        if pane is Pane.WORKLOADS:
            workloads = (workload.record for workload in self.workloads.entries)
            return tuple(
                Pick.workload(workload.experiment, workload.workload_id) for workload in workloads
            )
        return tuple(Pick.run(run.record.experiment, run.run_id) for run in self.runs.entries)


def read_lists(source: Source, view: View, *, patient: bool) -> Lists:
    """Read the lists for a view; without ``patient`` only the fast parts.

    Raises:
        NothingRecordedError: The store has no experiment.
        StoreError: The store cannot be read.
    """
    statuses = statuses_of(view)
    is_narrowed = bool(view.search.strip() or statuses)
    results = find(source, view.search, statuses)
    if not (results.experiments or results.total_count or is_narrowed):
        raise NothingRecordedError(source.address)
    focus = results.of(view.experiment) or next(iter(results.experiments), None)
    name = focus.summary.name if focus else view.experiment or ""
    catalog = read_catalog(source, name)
    workloads = _workloads_of(focus, catalog)
    workload = _focused(view, catalog, workloads)
    memory = recent(source)
    params, is_partial = _params(source, memory, catalog, patient=patient)
    workload_columns, run_columns, left_out = memory.get(
        ("columns", name, is_partial), lambda: _columns(catalog, params)
    )

    def listing(
        pane: Pane, about: Sequence[str], columns: Sequence[Column[EntryT]], rows: Sequence[EntryT]
    ) -> Listing[EntryT]:
        sort = view.options.get(pane.sort_option, "")
        key = repr((*about, view.search, sorted(statuses), sort))
        # The entry keeps the results alive, so that another result cannot get the same id.
        _, kept = memory.get(
            ("list", pane, key, id(results), is_partial),
            lambda: (results, _listing(key, columns, rows, sort)),
        )
        return kept

    workload_id = workload.record.workload_id if workload else ""
    runs = [run for entry in ([workload] if workload else workloads) for run in entry.runs]
    experiment_columns = _experiment_columns(searched=is_narrowed)
    return Lists(
        results,
        catalog,
        workload,
        listing(Pane.EXPERIMENTS, (), experiment_columns, results.experiments),
        listing(Pane.WORKLOADS, (name,), workload_columns, workloads),
        listing(Pane.RUNS, (name, workload_id), run_columns, runs),
        is_partial,
        left_out,
    )


def statuses_of(view: View) -> frozenset[RunStatus]:
    """Return the statuses to list; none stands for all."""
    names = view.options.get(STATUS_OPTION, "").split(",")
    return frozenset(RunStatus(name) for name in names if name in list(RunStatus))


def note(run: RunEntry) -> str:
    """Return why a run is not comparable, or not complete in this store."""
    notes = [f"profiled by {run.profiled}"] if run.profiled else []
    notes += ["thinned"] if run.pruned else []
    return " · ".join(notes)


# -- rows ---------------------------------------------------------------------------------------


def _workloads_of(focus: FoundExperiment | None, catalog: Catalog) -> Sequence[WorkloadEntry]:
    """Return the matching workloads, the newest first."""
    if focus is None:
        return ()
    workloads = catalog.workloads if focus.workloads is None else focus.workloads
    return tuple(reversed(workloads))


def _focused(
    view: View, catalog: Catalog, workloads: Sequence[WorkloadEntry]
) -> WorkloadEntry | None:
    if not view.workload:
        return None
    ids = catalog.workloads_like(view.workload[:ID_DIGITS])
    return next((workload for workload in workloads if workload.record.workload_id in ids), None)


def _params(
    source: Source, memory: Recent, catalog: Catalog, *, patient: bool
) -> tuple[Mapping[str, Mapping[str, str]] | None, bool]:
    """Return the parameters of an experiment's runs by run, and whether they are still missing."""
    key = ("params", catalog.experiment)
    if not (patient or len(catalog.runs) <= _EAGER_RUNS or key in memory):
        return None, True
    params = source.remember(key, lambda reader: reader.params_of(tuple(catalog.runs)))
    memory.get(key, lambda: params)
    return params, False


def _listing(
    key: str, columns: Sequence[Column[EntryT]], rows: Sequence[EntryT], sort: str
) -> Listing[EntryT]:
    entries = _sorted(rows, columns, sort)
    return Listing(key, columns, entries, [_id(entry) for entry in entries])


def _sorted(
    rows: Iterable[EntryT], columns: Sequence[Column[EntryT]], sort: str
) -> Sequence[EntryT]:
    """Sort by the column ``key`` or, descending, ``-key``; rows without a value come last."""
    column = next(
        (candidate for candidate in columns if candidate.key == sort.removeprefix("-")), None
    )
    if column is None:
        return list(rows)
    keyed = [(column.order(row), row) for row in rows]
    present = [pair for pair in keyed if pair[0] is not None]
    present.sort(key=lambda pair: pair[0], reverse=sort.startswith("-"))
    return [row for _, row in present] + [row for key, row in keyed if key is None]


def _id(entry: FoundExperiment | WorkloadEntry | RunEntry) -> str:
    if isinstance(entry, FoundExperiment):
        return entry.summary.name
    if isinstance(entry, WorkloadEntry):
        return entry.record.workload_id[:ID_DIGITS]
    return entry.run_id[:ID_DIGITS]


# -- columns ------------------------------------------------------------------------------------


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a key that sorts ``w2`` before ``w10``."""
    return tuple(
        (0, int(part), "") if part.isdigit() and part.isascii() else (1, 0, part)
        for part in _DIGITS.split(text.casefold())
        if part
    )


def _text(
    key: str, label: str, min_px: int, flex: float, text: Callable[[EntryT], str]
) -> Column[EntryT]:
    """Return a column of texts in natural order."""
    return Column(key, label, Kind.TEXT, min_px, flex, text, lambda row: natural(text(row)))


def _age(cell: Callable[[EntryT], Any], at_ns: Callable[[EntryT], int], title: str = "") -> Any:
    return Column("age", "Age", Kind.AGE, 48, 0, cell, lambda row: -at_ns(row), title)


def _experiment_columns(*, searched: bool) -> list[Column[FoundExperiment]]:
    """Return the columns of experiments; ``searched`` if they count matching runs only."""
    runs: Column[FoundExperiment] = Column(
        *("runs", "Found" if searched else "Runs", Kind.NUMBER, 44, 0),
        lambda experiment: f"{experiment.run_count:,}",
        lambda experiment: experiment.run_count,
        "Runs",
    )
    return [
        _text("name", "Experiment", 80, 1, lambda experiment: experiment.summary.name),
        runs,
        _age(
            _experiment_age,
            lambda experiment: experiment.summary.last_activity_ns or 0,
            "Time since the last activity",
        ),
    ]


def _experiment_age(experiment: FoundExperiment) -> Any:
    if running := experiment.summary.statuses.get(RunStatus.RUNNING, 0):
        return f"{running:,} live"
    return (experiment.summary.last_activity_ns or 0) // _NS_PER_MS


def _columns(
    catalog: Catalog, params: Mapping[str, Mapping[str, str]] | None
) -> tuple[list[Column[WorkloadEntry]], list[Column[RunEntry]], int]:
    """Return the columns of workloads and runs, and how many parameters are left out."""
    keys = _differing(params or {}, len(catalog.runs))
    runs = _run_columns(catalog, params or {}, keys[:MAX_PARAM_COLUMNS])
    return _workload_columns(), runs, max(0, len(keys) - MAX_PARAM_COLUMNS)


def _workload_columns() -> list[Column[WorkloadEntry]]:
    took: Column[WorkloadEntry] = Column(
        *("duration", "Took", Kind.OUTCOME, 60, 0),
        lambda workload: [*_status(workload.status), _workload_clock(workload)],
        _workload_duration,
    )
    return [
        _text("label", "Workload", 64, 0.7, lambda workload: workload.record.label),
        _text("what", "What", 96, 1.5, _content),
        took,
        _age(lambda workload: _workload_active(workload) // _NS_PER_MS, _workload_active),
    ]


def _run_columns(
    catalog: Catalog, params: Mapping[str, Mapping[str, str]], keys: Iterable[str]
) -> list[Column[RunEntry]]:
    """Return the columns of an experiment's runs; the last are the parameters ``keys``."""
    columns: list[Column[RunEntry]] = [
        Column(
            *("run", "Run", Kind.TEXT, 80, 0.6),
            lambda run: run.own_name,
            lambda run: (natural(run.record.workload), letter_order(run.record.letter)),
        ),
        _text("name", "Name", 88, 1, lambda run: run.record.name),
        Column(
            *("status", "Status", Kind.STATUS, 60, 0),
            lambda run: _status(run.record.status),
            lambda run: STATUS_WORDS[run.record.status],
        ),
        Column("duration", "Took", Kind.CLOCK, 60, 0, _run_clock, duration_s),
        _age(lambda run: active_ns(run) // _NS_PER_MS, active_ns),
        _text("device", "Device", 56, 0.6, _device),
    ]
    if len(catalog.hosts) > 1:
        columns.append(_text("host", "Host", 64, 0.6, lambda run: run.record.host))
    if any(map(note, catalog.runs.values())):
        columns.append(
            Column("note", "Note", Kind.TEXT, 72, 0.6, note, lambda run: note(run) or None)
        )
    return [*columns, *(_param_column(key, params) for key in keys)]


def _differing(params: Mapping[str, Mapping[str, str]], run_count: int) -> list[str]:
    """Return the parameters that are not the same in all runs, in alphabetical order."""
    values: dict[str, set[str]] = {}
    counts: dict[str, int] = {}
    for of_run in params.values():
        for key, value in of_run.items():
            values.setdefault(key, set()).add(value)
            counts[key] = counts.get(key, 0) + 1
    return sorted(key for key, seen in values.items() if len(seen) > 1 or counts[key] < run_count)


def _param_column(key: str, params: Mapping[str, Mapping[str, str]]) -> Column[RunEntry]:
    def value(run: RunEntry) -> str:
        return params.get(run.run_id, {}).get(key, "")

    def order(run: RunEntry) -> tuple[int, float, Any] | None:
        text = value(run)
        if not text:
            return None
        number = as_number(text)
        return (1, 0.0, natural(text)) if number is None else (0, number, ())

    numbers = all(as_number(param[key]) is not None for param in params.values() if param.get(key))
    kind, flex = (Kind.NUMBER, 0.0) if numbers else (Kind.TEXT, 0.6)
    # Wide enough for the name and the arrow of the sort order.
    min_px = max(64, min(144, 24 + 7 * len(key)))
    return Column(f"param.{key}", key, kind, min_px, flex, value, order, f"Parameter {key}")


# -- cells --------------------------------------------------------------------------------------


def _content(workload: WorkloadEntry) -> str:
    """Return the files of a workload and its device sharing: ``3× cnn-small · mps``."""
    counts: dict[str, int] = {}
    for run in workload.runs:
        if run.parent is not None:
            continue
        name = run.record.name or run.record.letter
        counts[name] = counts.get(name, 0) + 1
    names = " + ".join(f"{count}× {name}" if count > 1 else name for name, count in counts.items())
    collocations = dict.fromkeys(
        run.record.collocation for run in workload.runs if run.record.collocation.strip("-")
    )
    return " · ".join([names, *collocations]) if names else " · ".join(collocations)


def _device(run: RunEntry) -> str:
    collocation = run.record.collocation.strip("-")
    return f"{run.record.devices} · {collocation}" if collocation else run.record.devices


def _status(status: RunStatus) -> list[str]:
    return [status.value, STATUS_WORDS[status]]


def _run_clock(run: RunEntry) -> list[int | None] | None:
    record = run.record
    if duration_s(run) is None:
        return None
    end_ms = None if record.ended_ns is None else record.ended_ns // _NS_PER_MS
    return [run.origin_ns // _NS_PER_MS, end_ms]


def _workload_clock(workload: WorkloadEntry) -> list[int | None] | None:
    clocks = [clock for run in workload.runs if (clock := _run_clock(run))]
    if not clocks:
        return None
    ends = [end for _, end in clocks]
    running = any(end is None for end in ends)
    return [
        min(start for start, _ in clocks if start is not None),
        None if running else max(end for end in ends if end is not None),
    ]


def _workload_duration(workload: WorkloadEntry) -> float | None:
    return max((s for run in workload.runs if (s := duration_s(run)) is not None), default=None)


def _workload_active(workload: WorkloadEntry) -> int:
    return max(
        (active_ns(run) for run in workload.runs),
        default=workload.record.ended_ns or workload.record.created_ns,
    )
