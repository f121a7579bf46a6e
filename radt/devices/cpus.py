"""The CPUs of runs: Cpus cells, and which CPUs of the machine each run of a workload gets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from radt.devices.machine import MAX_DIGITS
from radt.errors import UsageError
from radt.units import plural, ranges_text

#: Far above Linux's limit (NR_CPUS is at most 8192 on x86).
MAX_CPU = 65535
_AROUND = re.compile(r"\s*([-+,])\s*")


@dataclass(frozen=True, slots=True)
class CpuRequest:
    """CPUs that the processes of a run may use; without ``count`` and ``cpus``, all of them.

    ``count`` requests that many logical CPUs for this run alone; ``cpus`` are logical CPU numbers
    as in ``/proc/cpuinfo``, which rows may share.
    """

    count: int | None = None
    cpus: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str, available: frozenset[int], *, here: bool = True) -> CpuRequest:
        """Parse a Cpus cell: ``8``, ``#5`` (CPU 5), ``0-3+6``, or nothing.

        Args:
            text: The cell.
            available: CPUs that runs may use.
            here: True for this machine, False for a cluster node that is not assigned yet.

        Raises:
            UsageError: It is none of these, or names a CPU that does not exist.
        """
        cleaned = _AROUND.sub(r"\1", text.strip()).replace(",", "+")  # as in lists for taskset
        if cleaned in ("", "-"):
            return cls()
        if _is_number(cleaned):
            count = int(cleaned)
            if not 1 <= count <= len(available):
                raise UsageError(
                    f"expected 1 to {len(available)} CPUs, got {count}",
                    f"Write 1 to {len(available)}, a list such as 0-3+6, or nothing for all",
                )
            return cls(count=count)
        if not here:
            raise UsageError(
                f"{text.strip()!r} names CPUs, which differ from node to node",
                "Write a number of CPUs for a cluster",
            )
        cpus = _listed(cleaned, text.strip())
        absent = sorted(set(cpus) - available)
        if absent:
            raise UsageError(
                f"CPU {ranges_text(absent)} does not exist or is not available",
                f"Choose from {ranges_text(sorted(available))}",
            )
        return cls(cpus=tuple(sorted(set(cpus))))

    def __str__(self) -> str:
        if self.count is not None:
            return str(self.count)
        return f"#{self.cpus[0]}" if len(self.cpus) == 1 else ranges_text(self.cpus)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS


def _listed(cleaned: str, given: str) -> list[int]:
    cpus: list[int] = []
    for part in cleaned.split("+"):
        first, dash, last = part.removeprefix("#").partition("-")
        ends = (first, last) if dash else (first, first)
        if not all(map(_is_number, ends)) or int(ends[0]) > int(ends[1]):
            raise UsageError(
                f"expected a number or a list of CPUs, got {given!r}",
                "Write 8 for eight CPUs, 0-3+6 for those five, #5 for CPU 5",
            )
        if int(ends[1]) > MAX_CPU:
            raise UsageError(f"there is no CPU {ends[1]}", "Write a smaller number")
        cpus += range(int(ends[0]), int(ends[1]) + 1)
    return cpus


_CPU_FOLDER = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True)
class PhysicalCore:
    """The physical core of a logical CPU; SMT siblings share both numbers."""

    package: int
    core: int


@dataclass(frozen=True, slots=True)
class CpuTopology:
    """The physical core of each logical CPU; an unlisted CPU is its own core."""

    cores: Mapping[int, PhysicalCore] = field(default_factory=dict)

    @classmethod
    def read(cls, cpus: Iterable[int], folder: Path = _CPU_FOLDER) -> CpuTopology:
        """Read the topology from Linux; a CPU without one (some containers) is its own core.

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
        """Return the core of a CPU."""
        return self.cores.get(cpu) or PhysicalCore(-1, -1 - cpu)


@dataclass(slots=True)
class _Core:
    """The free CPUs of a physical core; ``untouched`` while no run uses any of them."""

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
    """Return the CPUs of each run of a workload; None for a run that may use all.

    Listed CPUs are assigned as they are. A count gets CPUs that no other count has and no list
    names: whole physical cores, if possible of one package, as clouds allocate vCPUs. The last CPU
    of an odd count comes from a core that no other run uses, as long as there is one. The same
    requests get the same CPUs at every start.

    Raises:
        UsageError: There are fewer CPUs than the counts request.
    """
    listed = frozenset(cpu for request in requests for cpu in request.cpus)
    wanted = {
        index: request.count for index, request in enumerate(requests) if request.count is not None
    }
    free = available - listed
    if sum(wanted.values()) > len(free):
        raise _shortage(sum(wanted.values()), free, available)
    cores = _cores(free, listed, topology)
    # The largest first, so that smaller ones do not split the cores that it needs.
    order = sorted(wanted, key=lambda index: (-wanted[index], index))
    taken: dict[int, list[int]] = {index: _whole_cores(wanted[index], cores) for index in order}
    for index in order:
        taken[index] += _pieces(wanted[index] - len(taken[index]), cores)
    return [
        frozenset(taken[index]) if index in taken else frozenset(request.cpus) or None
        for index, request in enumerate(requests)
    ]


def _cores(free: frozenset[int], listed: frozenset[int], topology: CpuTopology) -> list[_Core]:
    """Group the free CPUs by core; a core with a CPU in a list is touched."""
    groups: dict[PhysicalCore, list[int]] = {}
    for cpu in sorted(free):
        groups.setdefault(topology.core(cpu), []).append(cpu)
    touched = {topology.core(cpu) for cpu in listed}
    return [_Core(core.package, cpus, core not in touched) for core, cpus in groups.items()]


def _whole_cores(count: int, cores: list[_Core]) -> list[int]:
    """Take as many whole cores as fit into the count, from as few packages as possible."""
    room: dict[int, int] = {}
    for core in cores:
        if core.untouched:
            room[core.package] = room.get(core.package, 0) + len(core.cpus)
    # The smallest package that is large enough; if there is none, the largest first.
    packages = sorted(
        room,
        key=lambda package: (
            room[package] < count,
            room[package] * (1 if room[package] >= count else -1),
        ),
    )
    taken: list[int] = []
    for package in packages:
        for core in cores:
            fits = 0 < len(core.cpus) <= count - len(taken)
            if core.package == package and core.untouched and fits:
                taken += core.take(len(core.cpus))
    return taken


def _pieces(count: int, cores: list[_Core]) -> list[int]:
    """Take CPUs of partly used cores, first from cores without another run."""
    taken: list[int] = []
    for core in sorted(cores, key=lambda core: not core.untouched):
        if len(taken) < count and core.cpus:
            taken += core.take(count - len(taken))
    return taken


def _shortage(wanted: int, free: frozenset[int], available: frozenset[int]) -> UsageError:
    return UsageError(
        f"the counts of this workload add up to {plural(wanted, 'CPU')}; {len(free)} of "
        f"{len(available)} are free",
        f"Ask for fewer, or let rows share CPUs by lists of {ranges_text(sorted(available))}",
    )
