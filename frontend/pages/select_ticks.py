"""Boxes of three states: their state for the picks, and the picks after a click.

An experiment or a workload may be picked as a whole or by its parts. When a part of a whole is
unticked, the other parts stay picked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from radt.errors import UsageError
from radt.frontend.data.catalog import Catalog, RunEntry, WorkloadEntry
from radt.frontend.data.spec import MAX_PICKS, Pick, PickKind


class Tick(IntEnum):
    """State of a box."""

    OFF = 0
    ON = 1
    MIXED = 2


@dataclass(frozen=True)
class Ticks:
    """What is picked of one experiment: all of it, workloads and runs, by their full ids."""

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
        """Return the state of a run's box."""
        whole = self.everything or run.record.workload_id in self.workloads
        return Tick.ON if whole or run.run_id in self.runs else Tick.OFF

    def workload(self, workload: WorkloadEntry) -> Tick:
        """Return the state of a workload's box; runs that the search hides count, too."""
        workload_id = workload.record.workload_id
        if self.everything or workload_id in self.workloads:
            return Tick.ON
        return joint(self.run(run) for run in self.catalog.workloads[workload.ordinal].runs)

    @property
    def is_empty(self) -> bool:
        """Whether nothing of the experiment is picked."""
        return not (self.everything or self.workloads or self.runs)

    @property
    def experiment(self) -> Tick:
        """The state of the experiment's box."""
        if self.everything:
            return Tick.ON
        if self.is_empty:
            return Tick.OFF
        return joint(self.workload(workload) for workload in self.catalog.workloads)


def joint(ticks: Iterable[Tick]) -> Tick:
    """Return the state of the box above other boxes; off if there are none."""
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
    """Return the picks after boxes were ticked or, with ``on`` false, unticked.

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
    # A workload picked whole takes the place of runs of it.
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
    """Yield what is left of a pick: itself if no part of it is unticked, else the other parts."""
    if pick.kind is PickKind.RUN:
        ids = catalog.runs_like(pick.id)
        if not any(gone.run(catalog.runs[run_id]) for run_id in ids):
            yield pick
        return
    meant = set(catalog.workloads_like(pick.id))
    if not meant:
        yield pick  # not in this store: only its own button removes it
        return
    workloads = [one for one in catalog.workloads if one.record.workload_id in meant]
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
