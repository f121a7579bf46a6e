"""Who slows down whom: models beside models that share their devices.

A row of the matrix is a model that was measured, a column the model of all its neighbours. Where
neighbours are of several models nothing can be put down to one of them: these stand by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from radt.model import RunStatus
from radt.report.attempts import NO_COLLOCATION
from radt.report.estimates import Estimate
from radt.report.quantities import Quantity
from radt.report.results import GroupSummary, RunSummary, WorkloadSummary


@dataclass(frozen=True, slots=True)
class Encounter:
    """What a model suffered from its neighbours in one workload.

    Attributes:
        model: The name of the runs that were slowed down.
        neighbours: How many runs of each model shared a device with each of them, by name.
        collocation: How they shared it: ``MPS``, a MIG profile; empty for as it is.
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
        """How many runs shared the device, itself included."""
        return 1 + sum(count for _, count in self.neighbours)

    @property
    def is_mixed(self) -> bool:
        """Whether its neighbours were of several models."""
        return len(self.neighbours) > 1

    @property
    def beside(self) -> str:
        """Its neighbours in words: ``2 × resnet26 + resnet50``."""
        return " + ".join(
            f"{count} × {name}" if count > 1 else name for name, count in self.neighbours
        )


@dataclass(frozen=True, slots=True)
class Interference:
    """The matrix; empty where no workload has both neighbours and baselines.

    ``models`` are the rows' names, ``neighbours`` the columns', each in the report's order.
    """

    models: tuple[str, ...] = ()
    neighbours: tuple[str, ...] = ()
    encounters: tuple[Encounter, ...] = ()
    mixed: tuple[Encounter, ...] = ()

    def at(self, model: str, neighbour: str) -> tuple[Encounter, ...]:
        """A cell: one entry for each workload, the fewest neighbours first."""
        return tuple(
            one
            for one in self.encounters
            if one.model == model and one.neighbours[0][0] == neighbour
        )

    def __bool__(self) -> bool:
        return bool(self.encounters or self.mixed)


def interference(workloads: Iterable[WorkloadSummary]) -> Interference:
    """The matrix of the workloads of a report.

    Workloads count of which all runs finished, as a neighbour that ended early was none for long,
    and that no profiler slowed down.
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
    """Those of each run of a group; all of a group are on the same devices."""
    own = group.runs[0].run
    devices = set(own.devices.split("+"))
    counts: dict[str, int] = {}
    for other, run in runs:
        if run.run.host == own.host and devices & set(run.run.devices.split("+")):
            counts[other.name] = counts.get(other.name, 0) + 1
    counts[group.name] -= 1  # itself
    return tuple((name, count) for name, count in counts.items() if count)
