"""The three lists of the page Select: what is in them, in which order, with which columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Generic, TypeVar

from radt.frontend.catalog import Catalog, RunEntry, WorkloadEntry, read_catalog
from radt.frontend.chosen import await_server
from radt.frontend.keepers import NothingRecordedError
from radt.frontend.pages.select_columns import (
    Column,
    differing,
    experiment_columns,
    ordered,
    run_columns,
    workload_columns,
)
from radt.frontend.picks import ID_DIGITS, Pick
from radt.frontend.searching.finding import Found, FoundExperiment, Recent, find, recent
from radt.frontend.source import Source
from radt.frontend.view import View
from radt.model import RunStatus

#: Parameters of more runs are read after the page has come, not before.
_EAGER_RUNS = 1_000
#: More columns of parameters than these nobody reads.
MAX_PARAM_COLUMNS = 12

EntryT = TypeVar("EntryT", FoundExperiment, WorkloadEntry, RunEntry)


class Pane(StrEnum):
    """The lists, from left to right."""

    EXPERIMENTS = "experiments"
    WORKLOADS = "workloads"
    RUNS = "runs"

    @property
    def sort_option(self) -> str:
        """The name in `View.options` of what it is sorted by; absent for the newest first."""
        return "select.sort" if self is Pane.RUNS else f"select.sort.{self}"


STATUS_OPTION = "select.status"


@dataclass(frozen=True)
class Listing(Generic[EntryT]):
    """A whole list in its order. ``key`` changes when it is about something else."""

    key: str
    columns: Sequence[Column[EntryT]]
    entries: Sequence[EntryT]
    ids: Sequence[str]

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Where each id stands."""
        return {one: place for place, one in enumerate(self.ids)}


@dataclass(frozen=True)
class Lists:
    """All that the page lists for a view.

    ``is_partial`` says that columns of parameters have yet to come, ``params_left_out`` how many
    parameters that differ have no column.
    """

    found: Found
    catalog: Catalog
    focus: WorkloadEntry | None
    experiments: Listing[FoundExperiment]
    workloads: Listing[WorkloadEntry]
    runs: Listing[RunEntry]
    is_partial: bool = False
    params_left_out: int = 0


def statuses_of(view: View) -> frozenset[RunStatus]:
    """The states that are chosen; none stands for all."""
    names = view.options.get(STATUS_OPTION, "").split(",")
    return frozenset(RunStatus(name) for name in names if name in list(RunStatus))


def read_lists(source: Source, view: View, *, patient: bool) -> Lists:
    """Everything that is listed for a view; ``patient`` waits for what takes long.

    Raises:
        NothingRecordedError: There is no experiment.
        ListingError: It is not known yet what the MLflow server has.
        TrackingError: The server does not answer, and the store has nothing.
        StoreError: The store cannot be read.
    """
    found = find(source, view.search, statuses_of(view))
    if not found.experiments and not found.total_count:
        await_server(source)
        if not (view.search.strip() or statuses_of(view)):
            raise NothingRecordedError(source.address)
    focus = found.of(view.experiment) or next(iter(found.experiments), None)
    name = focus.summary.name if focus else view.experiment or ""
    catalog = read_catalog(source, name)
    in_focus = _workloads_of(focus, catalog)
    workload = _focused(view, catalog, in_focus)
    memory = recent(source)
    params, is_partial = _params(source, memory, catalog, patient=patient)
    searched = bool(view.search.strip() or statuses_of(view))
    workload_ones, run_ones, left_out = memory.get(
        ("columns", name, is_partial), lambda: _columns(catalog, params)
    )

    def listing(
        pane: Pane, about: Sequence[str], columns: Sequence[Column[EntryT]], rows: Sequence[EntryT]
    ) -> Listing[EntryT]:
        sort = view.options.get(pane.sort_option, "")
        key = repr((*about, view.search, sorted(statuses_of(view)), sort))
        # What is kept keeps what was found, too: no other can have its id.
        _, kept = memory.get(
            ("list", pane, key, id(found), is_partial),
            lambda: (found, _listing(key, columns, rows, sort)),
        )
        return kept

    rows = [workload] if workload else in_focus
    return Lists(
        found,
        catalog,
        workload,
        listing(Pane.EXPERIMENTS, (), experiment_columns(searched=searched), found.experiments),
        listing(Pane.WORKLOADS, (name,), workload_ones, in_focus),
        listing(
            Pane.RUNS,
            (name, workload.record.workload_id if workload else ""),
            run_ones,
            [run for one in rows for run in one.runs],
        ),
        is_partial,
        left_out,
    )


def _columns(
    catalog: Catalog, params: Mapping[str, Mapping[str, str]] | None
) -> tuple[list[Column[WorkloadEntry]], list[Column[RunEntry]], int]:
    """Columns of workloads and runs, and how many parameters that differ have none."""
    keys = differing(params or {}, len(catalog.runs))
    runs = run_columns(catalog, params or {}, keys[:MAX_PARAM_COLUMNS])
    return workload_columns(), runs, max(0, len(keys) - MAX_PARAM_COLUMNS)


def _workloads_of(focus: FoundExperiment | None, catalog: Catalog) -> Sequence[WorkloadEntry]:
    """The newest first."""
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
    return next((one for one in workloads if one.record.workload_id in ids), None)


def _params(
    source: Source, memory: Recent, catalog: Catalog, *, patient: bool
) -> tuple[Mapping[str, Mapping[str, str]] | None, bool]:
    """Parameters of an experiment's runs by run, and whether they have yet to be read."""
    key = ("params", catalog.experiment)
    if not (patient or len(catalog.runs) <= _EAGER_RUNS or key in memory):
        return None, True
    params = source.remember(key, lambda reader: reader.params_of(tuple(catalog.runs)))
    memory.get(key, lambda: params)
    return params, False


def _listing(
    key: str, columns: Sequence[Column[EntryT]], rows: Sequence[EntryT], sort: str
) -> Listing[EntryT]:
    entries = (ordered(rows, columns, sort) if sort else None) or list(rows)
    return Listing(key, columns, entries, [_id(entry) for entry in entries])


def _id(entry: FoundExperiment | WorkloadEntry | RunEntry) -> str:
    if isinstance(entry, FoundExperiment):
        return entry.summary.name
    if isinstance(entry, WorkloadEntry):
        return entry.record.workload_id[:ID_DIGITS]
    return entry.run_id[:ID_DIGITS]


def everything(lists: Lists, pane: Pane) -> tuple[Pick, ...]:
    """Picks of all that the pane of workloads or of runs lists."""
    if pane is Pane.WORKLOADS:
        return tuple(
            Pick.workload(one.record.experiment, one.record.workload_id)
            for one in lists.workloads.entries
        )
    return tuple(Pick.run(run.record.experiment, run.run_id) for run in lists.runs.entries)
