"""From picks to runs: what is looked at, with the names, colours and dashes that tell it apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from radt.frontend.catalog import (
    Catalog,
    RunEntry,
    WorkloadEntry,
    read_catalog,
    read_experiments,
)
from radt.frontend.charts.spec import Level
from radt.frontend.keepers import ListingError, NothingRecordedError
from radt.frontend.picks import Pick, PickKind
from radt.frontend.source import Source
from radt.frontend.view import View

#: Beyond these nobody sees anything.
MAX_RUNS = 200


@dataclass(frozen=True, slots=True)
class Unit:
    """What is compared as one: a workload that was picked whole, or runs picked singly of one."""

    workload: WorkloadEntry
    whole: bool

    @property
    def runs(self) -> tuple[RunEntry, ...]:
        return self.workload.runs


@dataclass(frozen=True)
class Chosen:
    """The runs to be shown, in the order of experiments, workloads and letters.

    ``left_out`` counts picked runs beyond `MAX_RUNS`; ``missing`` are picks of what is not there
    (deleted, or of another store); ``automatic`` says that the dashboard chose.
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
        follow = level is Level.AUTO and len(self.units) > 1
        return {
            run.run_id: level is Level.WORKLOAD or (follow and unit.whole)
            for unit in self.units
            for run in unit.runs
        }

    def find(self, pick: Pick) -> tuple[RunEntry, ...]:
        """The shown runs that a pick means, as a baseline; none if it is not shown."""
        return tuple(run for run in self.runs.values() if _means(pick, run))


def choose(source: Source, view: View) -> Chosen:
    """What a view shows.

    Raises:
        NothingRecordedError: There is no experiment.
        ListingError: It is not known yet what the MLflow server has.
        TrackingError: The server does not answer, and the store has nothing.
        StoreError: The store cannot be read.
    """
    if view.picks is None:
        catalog = read_catalog(source, view.experiment or latest_experiment(source))
        picks = [Pick.run(catalog.experiment, run_id) for run_id in catalog.automatic()]
        return replace(_chosen([(catalog, picks)]), automatic=True)
    chosen = resolve(source, view.picks)
    if chosen.missing:
        await_server(source)
    return chosen


def resolve(source: Source, picks: Iterable[Pick]) -> Chosen:
    """The runs of some picks, without those that a server may yet name.

    Raises:
        StoreError: The store cannot be read.
    """
    by_experiment: dict[str, list[Pick]] = {}
    for pick in picks:
        by_experiment.setdefault(pick.experiment, []).append(pick)
    return _chosen([(read_catalog(source, name), own) for name, own in by_experiment.items()])


def latest_experiment(source: Source) -> str:
    """The experiment in which something happened last.

    Raises:
        NothingRecordedError: There is none.
        ListingError, TrackingError: As `choose`.
    """
    experiments = read_experiments(source)
    if not experiments:
        await_server(source)
        raise NothingRecordedError(source.address)
    return experiments[0].name


def await_server(source: Source) -> None:
    """What is missing may be in the list of runs that has yet to come.

    Raises:
        ListingError: It is on its way.
        TrackingError: The server does not answer.
    """
    server = source.server
    if server is None or server.listed:
        return
    if server.problem is not None:
        raise server.problem
    raise ListingError(server.where)


def _chosen(found: Sequence[tuple[Catalog, Iterable[Pick]]]) -> Chosen:
    """Runs of several catalogs; with more than one experiment, names and dashes tell them apart."""
    units: list[Unit] = []
    missing: list[Pick] = []
    count = left_out = 0
    for place, (catalog, picks) in enumerate(found):
        prefix = catalog.experiment if len(found) > 1 else ""
        for workload, picked, whole in _picked(catalog, picks, missing):
            shown = picked[: max(0, MAX_RUNS - count)]
            left_out += len(picked) - len(shown)
            count += len(shown)
            if shown:
                runs = tuple(replace(run, prefix=prefix, dash=place) for run in shown)
                units.append(Unit(replace(workload, runs=runs), whole))
    return Chosen(tuple(units), left_out=left_out, missing=tuple(missing))


def _picked(
    catalog: Catalog, picks: Iterable[Pick], missing: list[Pick]
) -> Iterable[tuple[WorkloadEntry, tuple[RunEntry, ...], bool]]:
    """Workloads of which something was picked, with those runs, and whether as a whole."""
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
