"""Resolve picks to the selected runs, and compute the three-state checkboxes that change them.

An experiment or a workload is picked as a whole, without archived runs, or by its parts. When a
part of a whole is unticked, the other parts stay picked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

from radt.analysis.collocated import output_params
from radt.analysis.names import brief_names
from radt.errors import RunNotFoundError, UsageError
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.catalog import (
    Catalog,
    RunEntry,
    WorkloadEntry,
    read_catalog,
    read_experiments,
)
from radt.frontend.data.connections import NothingRecordedError
from radt.frontend.data.lines import params_of, without
from radt.frontend.data.spec import MAX_PICKS, Level, Pick, PickKind
from radt.units import plural

if TYPE_CHECKING:
    from radt.frontend.view import View

#: Maximum number of runs in one chart.
MAX_RUNS = 200
#: Maximum length of a list of other runs or workloads.
MAX_OFFERED = 80


@dataclass(frozen=True, slots=True)
class Unit:
    """A workload of the selection.

    ``whole`` if all of it was picked, else it has its picked runs. ``collocated`` if its experiment
    is about collocation, else its runs merely ran at the same time.
    """

    workload: WorkloadEntry
    whole: bool
    collocated: bool

    @property
    def runs(self) -> tuple[RunEntry, ...]:
        return self.workload.runs


@dataclass(frozen=True)
class SelectedRuns:
    """The selected runs, in the order of experiments, workloads and letters.

    ``left_out`` counts picked runs beyond `MAX_RUNS`. ``missing`` are picks that this store does
    not have (deleted, or from another store). ``automatic`` is True if the dashboard chose the
    picks.
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
        """Return for each run, by id, whether it is drawn as part of its workload's one line."""
        always = level in (Level.WORKLOAD, Level.GROUP)
        perhaps = level is Level.AUTO and len(self.units) > 1
        return {
            run.run_id: always or (perhaps and unit.whole and unit.collocated)
            for unit in self.units
            for run in unit.runs
        }

    def find(self, pick: Pick) -> tuple[RunEntry, ...]:
        """Return the selected runs that belong to ``pick``."""
        return tuple(run for run in self.runs.values() if _means(pick, run))


def read_selection(source: CachedStore, view: View) -> SelectedRuns:
    """Return the selection of a view: its picks, or the dashboard's choice without picks.

    Raises:
        NothingRecordedError: The store has no experiment.
        RunNotFoundError: The store does not have the view's experiment.
        StoreError: The store cannot be read.
    """
    if view.picks is None:
        catalog = read_catalog(source, focused_experiment(source, view))
        picks = [Pick.run(catalog.experiment, run_id) for run_id in catalog.automatic()]
        return replace(_selection(source, [(catalog, picks)]), automatic=True)
    return resolve(source, view.picks)


def resolve(source: CachedStore, picks: Iterable[Pick]) -> SelectedRuns:
    """Return the currently known runs of ``picks``.

    Raises:
        StoreError: The store cannot be read.
    """
    by_experiment: dict[str, list[Pick]] = {}
    for pick in picks:
        by_experiment.setdefault(pick.experiment, []).append(pick)
    return _selection(
        source, [(read_catalog(source, name), own) for name, own in by_experiment.items()]
    )


def focused_experiment(source: CachedStore, view: View) -> str:
    """Return the experiment of a view, by default the most recently active one.

    Raises:
        NothingRecordedError: The store has no experiment.
        RunNotFoundError: The store does not have the view's experiment.
    """
    if not view.experiment:
        return latest_experiment(source)
    if all(known.name != view.experiment for known in read_experiments(source)):
        raise RunNotFoundError(
            f"no experiment {view.experiment[:80]} in {source.address}",
            "It may have been deleted or be in another store. Choose one on the Runs page",
        )
    return view.experiment


def latest_experiment(source: CachedStore) -> str:
    """Return the name of the most recently active experiment.

    Raises:
        NothingRecordedError: The store has no experiment.
    """
    experiments = read_experiments(source)
    if not experiments:
        raise NothingRecordedError(source.address)
    return experiments[0].name


def choices_of(labels: Iterable[tuple[str, str]], search: str, shown: str) -> list[dict[str, str]]:
    """Return the choices of a field whose labels have the words of a search, and the shown one.

    ``labels`` are values with their labels. A search finds those beyond `MAX_OFFERED`.
    """
    words = search.lower().split()
    matching = (
        {"value": value, "label": label}
        for value, label in labels
        if value == shown or all(word in label.lower() for word in words)
    )
    choices = list(islice(matching, MAX_OFFERED))
    if shown and all(choice["value"] != shown for choice in choices):
        choices += islice((choice for choice in matching if choice["value"] == shown), 1)
    return choices


def selection_notes(selection: SelectedRuns) -> list[str]:
    """Return notes on selected runs that a page cannot show."""
    notes = []
    if selection.left_out:
        left_out = plural(selection.left_out, "run")
        notes.append(f"{left_out} left out: a chart shows at most {MAX_RUNS}")
    if selection.missing:
        notes.append(f"{plural(len(selection.missing), 'pick')} not in this store")
    return notes


def _selection(
    source: CachedStore, picked: Sequence[tuple[Catalog, Iterable[Pick]]]
) -> SelectedRuns:
    """Return the selection. Runs of several experiments get a prefix."""
    units: list[Unit] = []
    missing: list[Pick] = []
    count = left_out = 0
    for catalog, picks in picked:
        prefix = catalog.experiment if len(picked) > 1 else ""
        for workload, runs, whole in _picked_of(catalog, picks, missing):
            shown = runs[: max(0, MAX_RUNS - count)]
            left_out += len(runs) - len(shown)
            count += len(shown)
            if shown:
                named = tuple(replace(run, prefix=prefix) for run in shown)
                workload = replace(workload, runs=named)
                units.append(Unit(workload, whole, catalog.is_about_collocation))
    return SelectedRuns(_labelled(source, units), left_out=left_out, missing=tuple(missing))


def _labelled(source: CachedStore, units: Sequence[Unit]) -> tuple[Unit, ...]:
    """Label the runs of sweeps."""
    runs = [run for unit in units if not unit.collocated for run in unit.runs]
    labels = sweep_labels(runs, params_of(source, tuple(run.run_id for run in runs)))
    return tuple(
        replace(
            unit,
            workload=replace(
                unit.workload,
                runs=tuple(replace(run, label=labels.get(run.run_id, "")) for run in unit.runs),
            ),
        )
        for unit in units
    )


def sweep_labels(
    runs: Iterable[RunEntry], params: Mapping[str, Mapping[str, str]]
) -> Mapping[str, str]:
    """Return for runs of sweeps, by id, the parameters that differ between them: ``lr 0.1``.

    Paths of output do not count. Runs that their workload's name tells apart, services and child
    runs have no label.
    """
    runs = [run for run in runs if not (run.is_service or run.parent)]
    names = brief_names([run.record for run in runs], without(params, output_params()))
    count = Counter(names.values())
    labels: dict[str, str] = {}
    if len(count) < 2:
        return labels
    for run in runs:
        workload, name = run.record.workload, names[run.run_id]
        is_numbered = not workload or workload.isdecimal()
        if count[name] > 1:
            # Repeats: a script's own name has a number, a row has its workload and letter.
            labels[run.run_id] = f"{name} ({run.short})" if workload else run.record.name
        elif is_numbered:
            labels[run.run_id] = name
        elif not run.alone:
            labels[run.run_id] = f"{workload} {name}"
    return labels


def _picked_of(
    catalog: Catalog, picks: Iterable[Pick], missing: list[Pick]
) -> Iterable[tuple[WorkloadEntry, tuple[RunEntry, ...], bool]]:
    """Yield each workload with picked runs, those runs, and whether it is picked as a whole."""
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
            yield workload, workload.listed, True
        elif runs := tuple(run for run in workload.runs if run.run_id in single):
            yield workload, runs, False


def _means(pick: Pick, run: RunEntry) -> bool:
    if pick.experiment != run.record.experiment:
        return False
    identity = run.run_id if pick.kind is PickKind.RUN else run.record.workload_id
    return identity.startswith(pick.id)


# -- checkboxes: their state for the picks, and the picks after a click --------------------------


class Tick(IntEnum):
    """State of a checkbox."""

    OFF = 0
    ON = 1
    MIXED = 2


@dataclass(frozen=True)
class Ticks:
    """Picks within one experiment, by full ids: the whole experiment, workloads, and runs."""

    catalog: Catalog
    everything: bool
    workloads: frozenset[str]
    runs: frozenset[str]

    @classmethod
    def of(cls, catalog: Catalog, picks: Iterable[Pick]) -> Ticks:
        """Return the ticks of an experiment for all picks."""
        everything = False
        workloads: set[str] = set()
        runs: set[str] = set()
        for pick in picks:
            if pick.experiment != catalog.experiment:
                continue
            if pick.kind is PickKind.EXPERIMENT:
                everything = True
            elif pick.kind is PickKind.WORKLOAD:
                workloads.update(catalog.workloads_like(pick.id))
            else:
                runs.update(catalog.runs_like(pick.id))
        return cls(catalog, everything, frozenset(workloads), frozenset(runs))

    def run(self, run: RunEntry) -> Tick:
        """Return the state of a run's checkbox."""
        whole = self.everything or run.record.workload_id in self.workloads
        is_picked = (whole and not run.is_archived) or run.run_id in self.runs
        return Tick.ON if is_picked else Tick.OFF

    def workload(self, workload: WorkloadEntry) -> Tick:
        """Return the state of a workload's checkbox, including runs that the search hides."""
        workload_id = workload.record.workload_id
        if self.everything or workload_id in self.workloads:
            return Tick.ON
        return joint(self.run(run) for run in self.catalog.workloads[workload.ordinal].runs)

    @property
    def is_empty(self) -> bool:
        """True if no part of the experiment is picked."""
        return not (self.everything or self.workloads or self.runs)

    @property
    def experiment(self) -> Tick:
        """State of the experiment's checkbox."""
        if self.everything:
            return Tick.ON
        if self.is_empty:
            return Tick.OFF
        return joint(self.workload(workload) for workload in self.catalog.workloads)


def joint(ticks: Iterable[Tick]) -> Tick:
    """Return the state of a parent checkbox; off if there are no children."""
    states = set(ticks)
    if not states:
        return Tick.OFF
    return next(iter(states)) if len(states) == 1 else Tick.MIXED


def ticked(
    picks: Sequence[Pick],
    targets: Sequence[Pick],
    catalog_of: Callable[[str], Catalog],
    *,
    on: bool,
) -> tuple[Pick, ...]:
    """Return the picks after checkboxes were ticked or, with ``on`` false, unticked.

    Raises:
        UsageError: There would be more than `MAX_PICKS`.
        StoreError: The store cannot be read.
    """
    after = tuple(picks)
    for name in dict.fromkeys(target.experiment for target in targets):
        catalog = catalog_of(name)
        of_this = [target for target in targets if target.experiment == name]
        after = (_on if on else _off)(after, of_this, catalog)
    if len(after) > MAX_PICKS:
        raise UsageError(
            f"expected at most {MAX_PICKS} picks, got {len(after):,}",
            "Pick whole workloads or the experiment instead of single runs",
        )
    return after


def _on(picks: tuple[Pick, ...], targets: Sequence[Pick], catalog: Catalog) -> tuple[Pick, ...]:
    ticks = Ticks.of(catalog, picks)
    if ticks.everything:
        return picks
    if any(target.kind is PickKind.EXPERIMENT for target in targets):
        return (*_others(picks, catalog), Pick(catalog.experiment))
    new = [
        target for target in targets if _state(ticks, target) is not Tick.ON or _is_whole(target)
    ]
    whole = Ticks.of(catalog, (target for target in new if _is_whole(target))).workloads
    # A workload picked as a whole replaces picks of its runs.
    runs = catalog.runs
    kept = [
        pick
        for pick in picks
        if pick.experiment != catalog.experiment
        or pick.kind is not PickKind.RUN
        or not any(runs[i].record.workload_id in whole for i in catalog.runs_like(pick.id))
    ]
    return tuple(dict.fromkeys([*kept, *new]))


def _off(picks: tuple[Pick, ...], targets: Sequence[Pick], catalog: Catalog) -> tuple[Pick, ...]:
    if any(target.kind is PickKind.EXPERIMENT for target in targets):
        return tuple(_others(picks, catalog))
    gone = Ticks.of(catalog, targets)
    after: list[Pick] = []
    for pick in picks:
        if pick.experiment != catalog.experiment:
            after.append(pick)
        else:
            after += _without(pick, gone, catalog)
    return tuple(dict.fromkeys(after))


def _without(pick: Pick, gone: Ticks, catalog: Catalog) -> Iterable[Pick]:
    """Yield the rest of a pick: the pick itself if none of it is unticked, else its other parts."""
    if pick.kind is PickKind.RUN:
        ids = catalog.runs_like(pick.id)
        if not any(gone.run(catalog.runs[run_id]) for run_id in ids):
            yield pick
        return
    meant = set(catalog.workloads_like(pick.id))
    if not meant:
        yield pick  # not in this store: only its own button removes it
        return
    workloads = [entry for entry in catalog.workloads if entry.record.workload_id in meant]
    states = [gone.workload(workload) for workload in workloads]
    if not any(states):
        yield pick
        return
    for workload, state in zip(workloads, states, strict=True):
        if state is Tick.OFF:
            yield Pick.workload(catalog.experiment, workload.record.workload_id)
        elif state is Tick.MIXED:
            for run in workload.runs:
                if not gone.run(run):
                    yield Pick.run(catalog.experiment, run.run_id)


def _state(ticks: Ticks, target: Pick) -> Tick:
    catalog = ticks.catalog
    if target.kind is PickKind.RUN:
        return joint(ticks.run(catalog.runs[run_id]) for run_id in catalog.runs_like(target.id))
    wanted = set(catalog.workloads_like(target.id))
    return joint(ticks.workload(w) for w in catalog.workloads if w.record.workload_id in wanted)


def _is_whole(pick: Pick) -> bool:
    return pick.kind is not PickKind.RUN


def _others(picks: Iterable[Pick], catalog: Catalog) -> list[Pick]:
    return [pick for pick in picks if pick.experiment != catalog.experiment]
