"""Memory in detail: of the machine, of each run's process tree, of control groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from radt.devices.cgroups import Controller, Hierarchy, Limited
from radt.listeners.api import Availability, Listener, Metric, Reading, Target
from radt.listeners.host_files import PAGE_BYTES, vmstat
from radt.model import MissingReason, Scope, SeriesKind
from radt.procfs import meminfo, process_memory

#: Metric, line of /proc/meminfo, description.
_HOST = (
    ("system.memory.total", "MemTotal", "all memory"),
    ("system.memory.free", "MemFree", "completely unused, see available"),
    ("system.memory.available", "MemAvailable", "for new work, without swapping"),
    ("system.memory.buffers", "Buffers", "cache of raw disk blocks"),
    ("system.memory.cached", "Cached", "page cache of files, with shared memory and tmpfs"),
    ("system.memory.shared", "Shmem", "shared memory and tmpfs"),
    ("system.memory.anon", "AnonPages", "pages of processes that do not belong to a file"),
    ("system.memory.mapped", "Mapped", "files that processes have mapped"),
    ("system.memory.slab", "Slab", "the kernel's own objects"),
    ("system.memory.slab.reclaimable", "SReclaimable", "part of slab that can be reclaimed"),
    ("system.memory.page_tables", "PageTables", "page tables of processes"),
    ("system.memory.dirty", "Dirty", "waiting to be written to disk"),
    ("system.memory.writeback", "Writeback", "being written to disk"),
    ("system.memory.hugepages.anon", "AnonHugePages", "transparent huge pages, part of anon"),
    ("system.memory.hugepages.reserved", "Hugetlb", "set aside as huge pages, used or not"),
    ("system.swap.total", "SwapTotal", ""),
    ("system.swap.free", "SwapFree", ""),
)
#: Metric, unit, line of /proc/vmstat, factor, description.
_EVENTS = (
    ("system.swap.in", "By", "pswpin", PAGE_BYTES, "swapped in"),
    ("system.swap.out", "By", "pswpout", PAGE_BYTES, "swapped out"),
    ("system.memory.faults.major", "1", "pgmajfault", 1, "a page had to be read from a disk"),
    ("system.memory.oom_kills", "1", "oom_kill", 1, "processes killed because memory ran out"),
)
_RSS = "/proc/PID/status; sum over the run's processes; shared pages count for each"

#: Metric, description; in the order of `_tree`.
_TREE = (
    ("process.memory.anon", "not of a file"),
    ("process.memory.file", "mapped files"),
    ("process.memory.shmem", "shared memory, as data loaders use it"),
    ("process.memory.swap", "swapped out"),
)

_METRICS = (
    *(
        Metric(name, "By", Scope.HOST, description=description, method=f"{line} of /proc/meminfo")
        for name, line, description in _HOST
    ),
    *(
        Metric(name, unit, Scope.HOST, SeriesKind.COUNTER, description, f"{line} of /proc/vmstat")
        for name, unit, line, _, description in _EVENTS
    ),
    *(
        Metric(name, "By", Scope.PROCESS, description=description, method=_RSS)
        for name, description in _TREE
    ),
    Metric(
        *("system.cgroup.memory.used", "By", Scope.HOST),
        description="charged against the limit of a control group, with its page cache",
        method="of the group with the lowest limit that applies to a run; others may use it too",
    ),
    Metric(
        *("system.cgroup.memory.limit", "By", Scope.HOST),
        description="memory limit of a control group",
        method="the lowest that applies to a run",
    ),
)


class FreeListener(Listener):
    """Memory in detail."""

    name: ClassVar[str] = "free"
    reads: ClassVar[Sequence[Metric]] = _METRICS

    def __init__(self) -> None:
        self._hierarchy: Hierarchy | None = None

    @classmethod
    def probe(cls) -> Availability:
        if not meminfo():
            return Availability(False, "/proc/meminfo is not readable", "Mount /proc")
        return Availability(True)

    def open(self) -> None:
        self._hierarchy = Hierarchy.find(Controller.MEMORY)

    def sample(self, targets: Sequence[Target]) -> Iterator[Reading]:
        memory, events = meminfo(), vmstat()
        for name, line, _ in _HOST:
            yield _reading(name, memory.get(line), 1)
        for name, _, line, factor, _ in _EVENTS:
            yield _reading(name, events.get(line), factor)
        yield from self._groups(targets)
        for target in targets:
            yield from _tree(target)

    def _groups(self, targets: Sequence[Target]) -> Iterator[Reading]:
        """Yield each group that limits a run's first process, once.

        The scope is the host, because a group may contain more than the run; the entity names it.
        """
        if self._hierarchy is None:
            return
        groups = {self._hierarchy.group_of(target.pids[0]) for target in targets if target.pids}
        limits: dict[str, Limited] = {}
        for group in groups:
            limited = None if group is None else self._hierarchy.limiting(group)
            if limited is not None:
                limits[limited.group] = limited
        for limited in limits.values():
            used = limited.used_bytes()
            if used is not None:
                yield Reading("system.cgroup.memory.used", float(used), limited.group)
                yield Reading(
                    "system.cgroup.memory.limit", float(limited.limit_bytes), limited.group
                )


def _reading(name: str, number: int | None, factor: int) -> Reading:
    """Return a reading; older kernels lack some lines."""
    return Reading(name, MissingReason.UNSUPPORTED if number is None else float(number * factor))


def _tree(target: Target) -> Iterator[Reading]:
    parts = [part for pid in target.pids if (part := process_memory(pid)) is not None]
    if not parts:
        return
    sums = (
        sum(part.anon_bytes for part in parts),
        sum(part.file_bytes for part in parts),
        sum(part.shmem_bytes for part in parts),
        sum(part.swap_bytes for part in parts),
    )
    for (name, _), amount in zip(_TREE, sums, strict=True):
        yield Reading(name, float(amount), run_id=target.run_id)
