"""The interference matrix: how much models on the same devices slow each other down.

A row is the measured model, a column the model of its neighbours. Runs with neighbours of several
models are listed separately, because the slowdown cannot be attributed to one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from radt.analysis.attempts import NO_COLLOCATION
from radt.analysis.estimates import Estimate
from radt.analysis.quantities import Quantity
from radt.analysis.summaries import GroupSummary, RunSummary, WorkloadSummary
from radt.model import RunStatus


@dataclass(frozen=True, slots=True)
class Encounter:
    """The slowdown of a model by its neighbours in one workload.

    Attributes:
        model: The name of the measured runs.
        neighbours: How many runs of each model shared a device with each of them, by name.
        collocation: ``MPS`` or a MIG profile; empty without either.
        slowdown: Time per epoch over that of the same run alone.
        workload: The workload's label.
        host: Its machine.
    """

    model: str
    neighbours: tuple[tuple[str, int], ...]
    collocation: str
    slowdown: Estimate
    workload: str
    host: str = ""

    @property
    def degree(self) -> int:
        """The number of runs on the device, itself included."""
        return 1 + sum(count for _, count in self.neighbours)

    @property
    def is_mixed(self) -> bool:
        """Whether its neighbours were of several models."""
        return len(self.neighbours) > 1

    @property
    def neighbours_text(self) -> str:
        """``2 × resnet26 + resnet50``."""
        return " + ".join(
            f"{count} × {name}" if count > 1 else name for name, count in self.neighbours
        )


@dataclass(frozen=True, slots=True)
class Interference:
    """The matrix; empty where no workload has both neighbours and baselines.

    ``models`` names the rows and ``neighbours`` the columns, in the report's order.
    """

    models: tuple[str, ...] = ()
    neighbours: tuple[str, ...] = ()
    encounters: tuple[Encounter, ...] = ()
    mixed: tuple[Encounter, ...] = ()

    def at(self, model: str, neighbour: str) -> tuple[Encounter, ...]:
        """Return a cell: one entry for each workload, the fewest neighbours first."""
        return tuple(
            one
            for one in self.encounters
            if one.model == model and one.neighbours[0][0] == neighbour
        )

    def __bool__(self) -> bool:
        return bool(self.encounters or self.mixed)


def interference(workloads: Iterable[WorkloadSummary]) -> Interference:
    """Return the matrix of the workloads of a report.

    A workload counts if all its runs finished and no profiler slowed it down: a neighbour that
    ended early did not share the device all the time.
    """
    found = [one for workload in workloads for one in _encounters(workload)]
    plain = [one for one in found if not one.is_mixed]
    return Interference(
        tuple(dict.fromkeys(one.model for one in plain)),
        tuple(dict.fromkeys(one.neighbours[0][0] for one in plain)),
        tuple(sorted(plain, key=lambda one: one.degree)),
        tuple(one for one in found if one.is_mixed),
    )


def _encounters(workload: WorkloadSummary) -> Iterator[Encounter]:
    runs = [(group, run) for group in workload.groups for run in group.runs]
    if any(group.status is not RunStatus.FINISHED or run.profiled for group, run in runs):
        return
    for group in workload.groups:
        slowdown = group.values.get(Quantity.SLOWDOWN)
        neighbours = _neighbours(group, runs)
        if slowdown is None or not neighbours:
            continue
        ways = dict.fromkeys(run.run.collocation for run in group.runs)
        yield Encounter(
            group.name,
            neighbours,
            ", ".join(way for way in ways if way not in NO_COLLOCATION),
            slowdown,
            workload.label,
            workload.host,
        )


def _neighbours(
    group: GroupSummary, runs: Sequence[tuple[GroupSummary, RunSummary]]
) -> tuple[tuple[str, int], ...]:
    """Return the neighbours of each run of a group, whose runs share their devices."""
    own = group.runs[0].run
    devices = set(own.devices.split("+"))
    counts: dict[str, int] = {}
    for other, run in runs:
        if run.run.host == own.host and devices & set(run.run.devices.split("+")):
            counts[other.name] = counts.get(other.name, 0) + 1
    counts[group.name] -= 1  # itself
    return tuple((name, count) for name, count in counts.items() if count)
