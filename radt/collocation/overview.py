"""The current state of the machine: host, GPUs, MIG devices, MPS daemons, processes.

The host is read from ``/proc``, ``/sys`` and cgroup v2
(https://docs.kernel.org/admin-guide/cgroup-v2.html).
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from radt import procfs
from radt.collocation.busy import ComputeMode, compute_mode
from radt.collocation.inventory import read_inventory
from radt.collocation.ledger import Ledger, MpsDaemon
from radt.collocation.mps import PIPE_VARIABLE
from radt.collocation.processes import (
    Listing,
    Occupant,
    ProcessLists,
    identify,
    mps_daemons,
    variable,
)
from radt.collocation.topology import GpuInventory
from radt.errors import DeviceError

_CPUS = Path("/sys/devices/system/cpu")
_NODES = Path("/sys/devices/system/node")
_CGROUPS = Path("/sys/fs/cgroup")


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
    ``cpu_limit`` is the cgroup's limit in CPUs, ``memory_limit_bytes`` its memory limit; None for
    no limit. ``sockets`` and ``cores`` are None if the kernel does not report them.
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
        cpus = cpu_numbers(_text(_CPUS / "online")) or tuple(range(os.cpu_count() or 1))
        places = [_place(cpu) for cpu in cpus]
        known = [place for place in places if place is not None]
        whole = len(known) == len(cpus)
        memory = _memory(_text(Path("/proc/meminfo")))
        return cls(
            name=platform.node(),
            cpu_model=_cpu_model(),
            cpus=cpus,
            usable_cpus=tuple(sorted(os.sched_getaffinity(0))),
            sockets=len({socket for socket, _ in known}) if whole else None,
            cores=len(set(known)) if whole else None,
            numa_nodes=tuple(_nodes()),
            memory_bytes=memory.get("MemTotal"),
            available_bytes=memory.get("MemAvailable"),
            cpu_limit=_cpu_limit(),
            memory_limit_bytes=_memory_limit(),
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


def _place(cpu: int) -> tuple[int, int] | None:
    """Return the socket and core of a CPU."""
    folder = _CPUS / f"cpu{cpu}" / "topology"
    try:
        return int(_text(folder / "physical_package_id")), int(_text(folder / "core_id"))
    except ValueError:
        return None


def _cpu_model() -> str:
    for line in _text(Path("/proc/cpuinfo")).splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "cpu model"):
            return value.strip()
    return platform.machine()  # ARM has no such line


def _nodes() -> Iterator[NumaNode]:
    for number in cpu_numbers(_text(_NODES / "online")):
        folder = _NODES / f"node{number}"
        # Lines of a node begin with "Node 0 ".
        lines = [line.split(None, 2)[-1] for line in _text(folder / "meminfo").splitlines()]
        memory = _memory("\n".join(lines))
        yield NumaNode(
            number,
            cpu_numbers(_text(folder / "cpulist")),
            memory.get("MemTotal"),
            memory.get("MemFree"),
        )


def _memory(text: str) -> dict[str, int]:
    """Parse the format of ``/proc/meminfo`` into bytes by name."""
    amounts = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB":
            amounts[name] = int(words[0]) * 1024
    return amounts


def _cgroups() -> Iterator[Path]:
    """Yield the cgroup of this process and all its parents: the tightest limit counts."""
    for line in _text(Path("/proc/self/cgroup")).splitlines():
        if line.startswith("0::"):
            own = _CGROUPS / line.removeprefix("0::").lstrip("/")
            yield from (path for path in (own, *own.parents) if path.is_relative_to(_CGROUPS))


def _cpu_limit() -> float | None:
    limits = []
    for folder in _cgroups():
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period.strip().isdigit():
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


def _memory_limit() -> int | None:
    texts = [_text(folder / "memory.max").strip() for folder in _cgroups()]
    return min((int(text) for text in texts if text.isdigit()), default=None)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # a kernel or container without it
        return ""


@dataclass(frozen=True, slots=True)
class Daemon:
    """An MPS control daemon of any user.

    ``devices`` are the UUIDs or indices it serves, ``folder`` its pipe directory; empty if not
    visible. ``ours``: radt has started it. ``orphaned``: its runner is dead.
    """

    pid: int
    user: str | None
    devices: tuple[str, ...] = ()
    folder: str = ""
    ours: bool = False
    orphaned: bool = False


@dataclass(frozen=True, slots=True)
class GpuView:
    """A GPU and its processes; ``unknown`` is why they are not listed."""

    gpu: GpuInventory
    compute_mode: ComputeMode | None
    utilization: float | None
    occupants: tuple[Occupant, ...] = ()
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class Overview:
    """The machine; ``no_gpu_reason`` is why ``gpus`` is empty, ``gpu_failure`` any failure."""

    host: Host
    driver: str | None = None
    gpus: tuple[GpuView, ...] = ()
    daemons: tuple[Daemon, ...] = ()
    no_gpu_reason: str = ""
    gpu_failure: str = ""

    @classmethod
    def read(cls) -> Overview:
        """Read everything once. ``gpu_failure`` describes a driver that does not work."""
        host = Host.detect()
        try:
            inventory = read_inventory()
        except DeviceError as error:
            return cls(host, gpu_failure=str(error), daemons=_daemons())
        if not inventory.gpus:
            return cls(host, inventory.driver, (), _daemons(), inventory.reason)
        try:
            with ProcessLists() as lists:
                gpus = tuple(_view(gpu, lists) for gpu in inventory.gpus)
        except DeviceError as error:
            return cls(host, inventory.driver, daemons=_daemons(), gpu_failure=str(error))
        return cls(host, inventory.driver, gpus, _daemons())


def _view(gpu: GpuInventory, lists: ProcessLists) -> GpuView:
    listing: Listing = lists.of(gpu.uuid)
    processes = sorted(listing.processes, key=lambda process: (process.device, process.pid))
    occupants = tuple(Occupant.of(process) for process in processes)
    divided = gpu.mig is not None and gpu.mig.enabled
    return GpuView(
        gpu,
        compute_mode(lists, gpu.uuid),
        None if divided else lists.utilization(gpu.uuid),
        occupants,
        listing.unknown,
    )


def _daemons() -> tuple[Daemon, ...]:
    known = {
        entry.thing.pid: (entry, entry.thing)
        for entry in Ledger().entries()
        if isinstance(entry.thing, MpsDaemon)
    }
    daemons = []
    for pid in mps_daemons():
        user = identify(pid).user
        entry, thing = known.get(pid, (None, None))
        if entry and thing and thing.start_ticks == procfs.start_ticks(pid):
            daemon = Daemon(pid, user, thing.devices, thing.folder, True, entry.orphaned)
        else:
            devices = variable(pid, "CUDA_VISIBLE_DEVICES").split(",")
            daemon = Daemon(pid, user, tuple(filter(None, devices)), variable(pid, PIPE_VARIABLE))
        daemons.append(daemon)
    return tuple(daemons)
