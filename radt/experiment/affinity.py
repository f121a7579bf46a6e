"""Which CPUs each run of a workload gets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from radt.errors import UsageError
from radt.experiment.cpus import CpuRequest, shown
from radt.units import plural

_CPU_FOLDER = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True)
class PhysicalCore:
    """Where a logical CPU is: SMT siblings have both numbers in common."""

    package: int
    core: int


@dataclass(frozen=True, slots=True)
class CpuTopology:
    """The physical core of each logical CPU; one that is not listed is a core by itself."""

    cores: Mapping[int, PhysicalCore] = field(default_factory=dict)

    @classmethod
    def read(cls, cpus: Iterable[int], folder: Path = _CPU_FOLDER) -> CpuTopology:
        """Ask Linux; a CPU that it says nothing about (some containers) is a core by itself.

        See https://docs.kernel.org/admin-guide/cputopology.html.
        """
        cores: dict[int, PhysicalCore] = {}
        for cpu in cpus:
            place = folder / f"cpu{cpu}" / "topology"
            try:
                package = int((place / "physical_package_id").read_text())
                core = int((place / "core_id").read_text())
            except (OSError, ValueError):
                continue
            cores[cpu] = PhysicalCore(package, core)
        return cls(cores)

    def core(self, cpu: int) -> PhysicalCore:
        """The core of a CPU."""
        return self.cores.get(cpu) or PhysicalCore(-1, -1 - cpu)


@dataclass(slots=True)
class _Core:
    """What is left of a physical core; ``untouched`` while no run has any of it."""

    package: int
    cpus: list[int]
    untouched: bool

    def take(self, count: int) -> list[int]:
        taken, self.cpus = self.cpus[:count], self.cpus[count:]
        self.untouched = False
        return taken


def assign_cpus(
    requests: Sequence[CpuRequest], available: frozenset[int], topology: CpuTopology
) -> list[frozenset[int] | None]:
    """The CPUs of each run of a workload; None for a run that may use all.

    A list is taken as it is. A count gets CPUs that no other count has and no list names: whole
    physical cores, of one package if possible, as clouds give out vCPUs; what remains of an odd
    count comes from cores that nobody else is on as long as there are some. The same requests get
    the same CPUs on every start.

    Raises:
        UsageError: There are fewer CPUs than the counts ask for.
    """
    listed = frozenset(cpu for request in requests for cpu in request.cpus)
    wanted = {index: one.count for index, one in enumerate(requests) if one.count is not None}
    free = available - listed
    if sum(wanted.values()) > len(free):
        raise _shortage(sum(wanted.values()), free, available)
    cores = _cores(free, listed, topology)
    # The largest first, so that small ones do not break the cores that it needs.
    order = sorted(wanted, key=lambda index: (-wanted[index], index))
    taken: dict[int, list[int]] = {index: _whole_cores(wanted[index], cores) for index in order}
    for index in order:
        taken[index] += _pieces(wanted[index] - len(taken[index]), cores)
    return [
        frozenset(taken[index]) if index in taken else frozenset(request.cpus) or None
        for index, request in enumerate(requests)
    ]


def _cores(free: frozenset[int], listed: frozenset[int], topology: CpuTopology) -> list[_Core]:
    """The free CPUs by core; a core that a list names a CPU of is touched."""
    groups: dict[PhysicalCore, list[int]] = {}
    for cpu in sorted(free):
        groups.setdefault(topology.core(cpu), []).append(cpu)
    touched = {topology.core(cpu) for cpu in listed}
    return [_Core(core.package, cpus, core not in touched) for core, cpus in groups.items()]


def _whole_cores(count: int, cores: list[_Core]) -> list[int]:
    """As many whole cores as fit into the count, from as few packages as possible."""
    room: dict[int, int] = {}
    for core in cores:
        if core.untouched:
            room[core.package] = room.get(core.package, 0) + len(core.cpus)
    # The package that is just large enough; where none is, the largest first.
    packages = sorted(
        room, key=lambda one: (room[one] < count, room[one] * (1 if room[one] >= count else -1))
    )
    taken: list[int] = []
    for package in packages:
        for core in cores:
            fits = 0 < len(core.cpus) <= count - len(taken)
            if core.package == package and core.untouched and fits:
                taken += core.take(len(core.cpus))
    return taken


def _pieces(count: int, cores: list[_Core]) -> list[int]:
    """CPUs of cores that are not taken as a whole: of those that nobody else is on first."""
    taken: list[int] = []
    for core in sorted(cores, key=lambda core: not core.untouched):
        if len(taken) < count and core.cpus:
            taken += core.take(count - len(taken))
    return taken


def _shortage(wanted: int, free: frozenset[int], available: frozenset[int]) -> UsageError:
    there = f"{len(free)} that no list names" if len(free) < len(available) else f"{len(free)}"
    return UsageError(
        f"the counts of this workload add up to {plural(wanted, 'CPU')}; there are {there}",
        f"Ask for fewer, or let rows share CPUs by lists of {shown(sorted(available))}",
    )
