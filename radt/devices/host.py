"""The CPUs and memory of this machine, from ``/proc``, ``/sys`` and its control groups."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from radt.devices.cgroups import CgroupLimits
from radt.devices.cpus import CpuTopology
from radt.procfs import meminfo, read_text

_CPUS = Path("/sys/devices/system/cpu")
_NODES = Path("/sys/devices/system/node")


@dataclass(frozen=True, slots=True)
class NumaNode:
    """A NUMA node."""

    number: int
    cpus: tuple[int, ...]
    memory_bytes: int | None = None
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Host:
    """The machine apart from its GPUs.

    ``cpus`` are the logical CPUs that are online, ``usable_cpus`` those this process may use.
    ``cpu_limit`` is the control groups' limit in CPUs, ``memory_limit_bytes`` their memory limit;
    None for no limit. ``sockets`` and ``cores`` are None if the kernel does not report them.
    """

    name: str
    cpu_model: str
    cpus: tuple[int, ...]
    usable_cpus: tuple[int, ...]
    sockets: int | None
    cores: int | None
    numa_nodes: tuple[NumaNode, ...]
    memory_bytes: int | None
    available_bytes: int | None
    cpu_limit: float | None = None
    memory_limit_bytes: int | None = None

    @classmethod
    def detect(cls) -> Host:
        """Query the kernel. Never raises: unreported properties are None."""
        cpus = cpu_numbers(read_text(_CPUS / "online")) or tuple(range(os.cpu_count() or 1))
        places = CpuTopology.read(cpus).cores
        whole = len(places) == len(cpus)
        memory, limits = meminfo(), CgroupLimits.of()
        return cls(
            name=platform.node(),
            cpu_model=_cpu_model(),
            cpus=cpus,
            usable_cpus=tuple(sorted(os.sched_getaffinity(0))),
            sockets=len({place.package for place in places.values()}) if whole else None,
            cores=len(set(places.values())) if whole else None,
            numa_nodes=tuple(_nodes()),
            memory_bytes=memory.get("MemTotal"),
            available_bytes=memory.get("MemAvailable"),
            cpu_limit=limits.cpus,
            memory_limit_bytes=limits.memory_bytes,
        )


def cpu_numbers(text: str) -> tuple[int, ...]:
    """Parse the kernel's notation of numbers.

    >>> cpu_numbers("0-2,5")
    (0, 1, 2, 5)
    """
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return tuple(numbers)


def _nodes() -> Iterator[NumaNode]:
    for number in cpu_numbers(read_text(_NODES / "online")):
        folder = _NODES / f"node{number}"
        memory = meminfo(folder / "meminfo")
        yield NumaNode(
            number,
            cpu_numbers(read_text(folder / "cpulist")),
            memory.get("MemTotal"),
            memory.get("MemFree"),
        )


def _cpu_model() -> str:
    """Return the model that the kernel reports; on ARM it reports none."""
    for line in read_text("/proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model", "cpu model"):
            return value.strip()
    return platform.processor() or platform.machine()
