"""Devices and CPUs of runs: the Devices and Cpus cells, and the machine's GPUs and cores.

GPU indices are NVML's (the order of ``nvidia-smi``), also when ``CUDA_VISIBLE_DEVICES`` is set:
it hides GPUs and renumbers nothing here. Processes get their GPUs by UUID, because CUDA's own
default order (fastest first) may differ from NVML's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from radt.errors import UsageError
from radt.nvml import Gpu, list_gpus
from radt.units import plural

VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"
CPU = "cpu"
_MAX_DIGITS = 9
#: GPUs and CPUs that one node of a cluster may have, as far as a plan knows.
_MOST_GPUS = 64
_MOST_CPUS = 4096


@dataclass(frozen=True, slots=True)
class Machine:
    """The CPUs and GPUs that runs can use.

    ``cpus`` are the logical CPUs this process may use, ``cpu_cores`` is their number; those from 0
    on where only the number is given. ``gpus`` are those that may be used, ``hidden``
    those that ``CUDA_VISIBLE_DEVICES`` takes away. ``no_gpu_reason`` says why ``gpus`` is empty.
    With ``by_place``, as in a job of a cluster, a Devices cell counts ``gpus`` from 0 instead of
    naming NVML's indices. ``is_here`` is False for a node that a job is yet to get.
    """

    cpu_cores: int
    gpus: tuple[Gpu, ...] = ()
    hidden: tuple[Gpu, ...] = ()
    no_gpu_reason: str = ""
    cpus: frozenset[int] = frozenset()
    by_place: bool = False
    is_here: bool = True

    def __post_init__(self) -> None:
        if not self.cpus:
            object.__setattr__(self, "cpus", frozenset(range(self.cpu_cores)))

    @classmethod
    def detect(cls) -> Machine:
        """Ask the operating system and the NVIDIA driver, if there is one."""
        cpus = frozenset(os.sched_getaffinity(0))
        cores = len(cpus)
        listed = list_gpus()
        visible = os.environ.get(VISIBLE_VARIABLE)
        if visible is None or not listed.gpus:
            return cls(cores, listed.gpus, no_gpu_reason=listed.reason, cpus=cpus)
        chosen = _visible_gpus(listed.gpus, visible)
        hidden = tuple(gpu for gpu in listed.gpus if gpu not in chosen)
        reason = "" if chosen else f"{VISIBLE_VARIABLE}={visible!r} hides all GPUs"
        return cls(cores, chosen, hidden, reason, cpus)

    @classmethod
    def of_cluster(cls) -> Machine:
        """Return the node that a plan for a cluster is made for: it has whatever a row names."""
        gpus = tuple(Gpu(place, "GPU", f"GPU-{place}") for place in range(_MOST_GPUS))
        return cls(_MOST_CPUS, gpus, by_place=True, is_here=False)

    def gpu(self, index: int) -> Gpu | None:
        """Return the usable GPU with this NVML index."""
        return next((gpu for gpu in self.gpus if gpu.index == index), None)

    def named(self, number: int) -> Gpu | None:
        """Return the usable GPU that a Devices cell means with this number."""
        if not self.by_place:
            return self.gpu(number)
        return self.gpus[number] if number < len(self.gpus) else None

    def __str__(self) -> str:
        cores = f"{self.cpu_cores} CPU core{'s' if self.cpu_cores != 1 else ''}"
        if not self.gpus:
            return f"{cores}, no GPU"
        names = {gpu.name for gpu in self.gpus}
        kind = names.pop() if len(names) == 1 else "GPUs"
        return f"{cores}, {len(self.gpus)}× {kind}" if len(self.gpus) > 1 else f"{cores}, {kind}"


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices of a run: NVML indices of its GPUs, none for the CPU."""

    gpus: tuple[int, ...] = ()

    @property
    def is_cpu(self) -> bool:
        return not self.gpus

    @classmethod
    def parse(cls, text: str, machine: Machine) -> Devices:
        """Parse a Devices cell: ``0``, ``1+2``, ``cpu``, or empty for the first GPU or cpu.

        Raises:
            UsageError: It is none of these, or a GPU is not there.
        """
        cleaned = text.strip().lower()
        if not cleaned:
            return cls((machine.gpus[0].index,)) if machine.gpus else cls()
        parts = [part.strip() for part in cleaned.split("+")]
        if parts == [CPU]:
            return cls()
        if CPU in parts:
            raise UsageError(f"{text.strip()!r} mixes cpu with GPUs", "Write cpu, or GPUs alone")
        numbers: list[int] = []
        for part in parts:
            if not (part.isascii() and part.isdigit() and len(part) <= _MAX_DIGITS):
                raise UsageError(
                    f"{part!r} is not a device" if part else f"{text.strip()!r} lacks a device",
                    "Write a GPU's number (0), several (0+1) or cpu",
                )
            number = int(part)
            if number in numbers:
                raise UsageError(f"GPU {number} is named twice", "Name each GPU once")
            numbers.append(number)
        found = [machine.named(number) for number in numbers]
        missing = [number for number, gpu in zip(numbers, found, strict=True) if gpu is None]
        if missing:
            raise _missing_devices(missing, machine)
        return cls(tuple(gpu.index for gpu in found if gpu is not None))

    def cuda_visible_devices(self, machine: Machine) -> str:
        """Return the value of ``CUDA_VISIBLE_DEVICES`` for the run: UUIDs; empty for the CPU."""
        known = {gpu.index: gpu.uuid for gpu in machine.gpus}
        return ",".join(known.get(index, str(index)) for index in self.gpus)

    def __str__(self) -> str:
        return "+".join(map(str, self.gpus)) if self.gpus else CPU


def _missing_devices(indices: list[int], machine: Machine) -> UsageError:
    named = "GPU " + ", ".join(map(str, indices))
    if machine.by_place and machine.gpus:
        where = "the job has" if machine.is_here else "a node has at most"
        return UsageError(
            f"{named}: {where} {plural(len(machine.gpus), 'GPU')}, counted from 0",
            "Devices are places among the job's GPUs; ask for more with Gpus",
        )
    hidden = [gpu.index for gpu in machine.hidden if gpu.index in indices]
    if hidden:
        return UsageError(
            f"{named} {'is' if len(indices) == 1 else 'are'} hidden by {VISIBLE_VARIABLE}",
            f"Unset {VISIBLE_VARIABLE}, or choose {_choices(machine)}",
        )
    if not machine.gpus:
        why = f" ({machine.no_gpu_reason})" if machine.no_gpu_reason else ""
        return UsageError(
            f"{named}: this machine has no GPU{why}",
            "Write cpu, leave it empty, or try with --devices cpu",
        )
    return UsageError(f"this machine has no {named}", f"Choose {_choices(machine)}")


def _choices(machine: Machine) -> str:
    names = ", ".join(f"{gpu.index} ({gpu.name})" for gpu in machine.gpus)
    return f"GPU {names}" if names else CPU


def _visible_gpus(gpus: tuple[Gpu, ...], visible: str) -> tuple[Gpu, ...]:
    """Return the GPUs that a value of ``CUDA_VISIBLE_DEVICES`` leaves, in its order.

    As CUDA does: entries are indices or (beginnings of) UUIDs, and the first one that matches
    nothing ends the list.
    """
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in visible.split(",")):
        match = next(
            (
                gpu
                for gpu in gpus
                if (entry.isdigit() and gpu.index == int(entry))
                or (entry.upper().startswith("GPU-") and gpu.uuid.lower().startswith(entry.lower()))
            ),
            None,
        )
        if match is None:
            break
        if match not in chosen:
            chosen.append(match)
    return tuple(chosen)


#: Far above what Linux can have (NR_CPUS is at most 8192 on x86).
MAX_CPU = 65535
_AROUND = re.compile(r"\s*([-+,])\s*")


@dataclass(frozen=True, slots=True)
class CpuRequest:
    """CPUs that the processes of a run may use; neither ``count`` nor ``cpus`` means all.

    ``count`` asks for that many logical CPUs of the run's own; ``cpus`` are logical CPU numbers as
    ``/proc/cpuinfo`` has them, which rows may share.
    """

    count: int | None = None
    cpus: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str, available: frozenset[int], *, here: bool = True) -> CpuRequest:
        """Parse a Cpus cell: ``8``, ``#5`` (CPU 5), ``0-3+6``, or nothing.

        Args:
            text: The cell.
            available: CPUs that runs may use.
            here: Whether that is this machine, not a node that a job is yet to get.

        Raises:
            UsageError: It is none of these, or a CPU is not there.
        """
        cleaned = _AROUND.sub(r"\1", text.strip()).replace(",", "+")  # taskset's lists have commas
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
                f"CPU {cpu_list(absent)} does not exist or is not available",
                f"Choose from {cpu_list(sorted(available))}",
            )
        return cls(cpus=tuple(sorted(set(cpus))))

    def __str__(self) -> str:
        if self.count is not None:
            return str(self.count)
        return f"#{self.cpus[0]}" if len(self.cpus) == 1 else cpu_list(self.cpus)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS


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


def cpu_list(cpus: Iterable[int], separator: str = "+") -> str:
    """Write sorted CPU numbers in the notation of the cell, or with another separator.

    >>> cpu_list([0, 1, 2, 3, 6]), cpu_list([0, 1, 6], separator=",")
    ('0-3+6', '0-1,6')
    """
    ranges: list[list[int]] = []
    for cpu in cpus:
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return separator.join(
        str(first) if first == last else f"{first}-{last}" for first, last in ranges
    )


_CPU_FOLDER = Path("/sys/devices/system/cpu")


@dataclass(frozen=True, slots=True)
class PhysicalCore:
    """The physical core of a logical CPU; SMT siblings share both numbers."""

    package: int
    core: int


@dataclass(frozen=True, slots=True)
class CpuTopology:
    """The physical core of each logical CPU; an unlisted CPU is a core by itself."""

    cores: Mapping[int, PhysicalCore] = field(default_factory=dict)

    @classmethod
    def read(cls, cpus: Iterable[int], folder: Path = _CPU_FOLDER) -> CpuTopology:
        """Read the topology from Linux; a CPU without one (some containers) is a core by itself.

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
    """The free CPUs of a physical core; ``untouched`` while no run has any of it."""

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

    A list is taken as it is. A count gets CPUs that no other count has and no list names: whole
    physical cores, of one package if possible, as clouds give out vCPUs; what remains of an odd
    count comes from cores that nobody else is on as long as there are some. The same requests get
    the same CPUs on every start.

    Raises:
        UsageError: There are fewer CPUs than the counts ask for.
    """
    listed = frozenset(cpu for request in requests for cpu in request.cpus)
    wanted = {
        index: request.count for index, request in enumerate(requests) if request.count is not None
    }
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
    # The package that is just large enough; where none is, the largest first.
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
    """Take CPUs of partly used cores, from cores without another run first."""
    taken: list[int] = []
    for core in sorted(cores, key=lambda core: not core.untouched):
        if len(taken) < count and core.cpus:
            taken += core.take(count - len(taken))
    return taken


def _shortage(wanted: int, free: frozenset[int], available: frozenset[int]) -> UsageError:
    return UsageError(
        f"the counts of this workload add up to {plural(wanted, 'CPU')}; {len(free)} of "
        f"{len(available)} are free",
        f"Ask for fewer, or let rows share CPUs by lists of {cpu_list(sorted(available))}",
    )
