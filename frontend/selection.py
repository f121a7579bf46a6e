"""The selection: the runs that picked experiments, workloads and runs stand for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from radt.frontend.data.catalog import (
    Catalog,
    RunEntry,
    WorkloadEntry,
    read_catalog,
    read_experiments,
)
from radt.frontend.data.connections import NothingRecordedError
from radt.frontend.data.source import Source
from radt.frontend.data.spec import Pick, PickKind

if TYPE_CHECKING:
    from radt.frontend.data.spec import Level
    from radt.frontend.view import View

#: The limit on runs in one chart.
MAX_RUNS = 200


@dataclass(frozen=True, slots=True)
class Unit:
    """A workload of the selection: ``whole`` if all of it was picked, else with its picked runs."""

    workload: WorkloadEntry
    whole: bool

    @property
    def runs(self) -> tuple[RunEntry, ...]:
        return self.workload.runs


@dataclass(frozen=True)
class Selection:
    """The selected runs, in the order of experiments, workloads and letters.

    ``left_out`` counts picked runs beyond `MAX_RUNS`; ``missing`` are picks that this store does
    not have (deleted, or from another store); ``automatic`` is true if the dashboard picked.
    """

    units: tuple[Unit, ...]
    automatic: bool = False
    left_out: int = 0
    missing: tuple[Pick, ...] = ()

    @cached_property
    def runs(self) -> Mapping[str, RunEntry]:
        """Runs by id."""
        return {run.run_id: run for unit in self.units for run in unit.runs}

    @property
    def experiments(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(run.record.experiment for run in self.runs.values()))

    def drawn_at(self, level: Level) -> Mapping[str, bool]:
        """Whether each run (by id) is drawn as part of its workload's one line."""
        several = len(self.units) > 1
        return {
            run.run_id: level.merges(whole=unit.whole, several=several)
            for unit in self.units
            for run in unit.runs
        }

    def find(self, pick: Pick) -> tuple[RunEntry, ...]:
        """Return the selected runs that ``pick`` means."""
        return tuple(run for run in self.runs.values() if _means(pick, run))


def read_selection(source: Source, view: View) -> Selection:
    """Return what a view shows: its picks, or what the dashboard picks if it has none.

    Raises:
        NothingRecordedError: The store has no experiment.
        StoreError: The store cannot be read.
    """
    if view.picks is None:
        catalog = read_catalog(source, view.experiment or latest_experiment(source))
        picks = [Pick.run(catalog.experiment, run_id) for run_id in catalog.automatic()]
        return replace(_selection([(catalog, picks)]), automatic=True)
    return resolve(source, view.picks)


def resolve(source: Source, picks: Iterable[Pick]) -> Selection:
    """Return the runs of ``picks`` that are known now.

    Raises:
        StoreError: The store cannot be read.
    """
    by_experiment: dict[str, list[Pick]] = {}
    for pick in picks:
        by_experiment.setdefault(pick.experiment, []).append(pick)
    return _selection([(read_catalog(source, name), own) for name, own in by_experiment.items()])


def latest_experiment(source: Source) -> str:
    """Return the name of the experiment that was active last.

    Raises:
        NothingRecordedError: The store has no experiment.
    """
    experiments = read_experiments(source)
    if not experiments:
        raise NothingRecordedError(source.address)
    return experiments[0].name


def _selection(picked: Sequence[tuple[Catalog, Iterable[Pick]]]) -> Selection:
    """Return the selection; runs of several experiments get a prefix and dashes of their own."""
    units: list[Unit] = []
    missing: list[Pick] = []
    count = left_out = 0
    for place, (catalog, picks) in enumerate(picked):
        prefix = catalog.experiment if len(picked) > 1 else ""
        for workload, runs, whole in _picked_of(catalog, picks, missing):
            shown = runs[: max(0, MAX_RUNS - count)]
            left_out += len(runs) - len(shown)
            count += len(shown)
            if shown:
                named = tuple(replace(run, prefix=prefix, dash=place) for run in shown)
                units.append(Unit(replace(workload, runs=named), whole))
    return Selection(tuple(units), left_out=left_out, missing=tuple(missing))


def _picked_of(
    catalog: Catalog, picks: Iterable[Pick], missing: list[Pick]
) -> Iterable[tuple[WorkloadEntry, tuple[RunEntry, ...], bool]]:
    """Yield each workload with picked runs, those runs, and whether all of it is picked."""
    whole: set[str] = set()
    single: set[str] = set()
    for pick in picks:
        if pick.kind is PickKind.RUN:
            ids = catalog.runs_like(pick.id)
            single.update(ids)
        else:
            ids = catalog.workloads_like(pick.id)
            whole.update(ids)
        if not ids:
            missing.append(pick)
    for workload in catalog.workloads:
        if workload.record.workload_id in whole:
            yield workload, workload.runs, True
        elif runs := tuple(run for run in workload.runs if run.run_id in single):
            yield workload, runs, False


def _means(pick: Pick, run: RunEntry) -> bool:
    if pick.experiment != run.record.experiment:
        return False
    identity = run.run_id if pick.kind is PickKind.RUN else run.record.workload_id
    return identity.startswith(pick.id)
