"""What memory is used for: on the machine, in each run's process tree, in control groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from radt.listeners.api import Availability, Listener, Metric, Reading, Target
from radt.listeners.host_files import (
    PAGE_BYTES,
    Hierarchy,
    Limited,
    meminfo,
    memory_hierarchy,
    vmstat,
)
from radt.model import MissingReason, Scope, SeriesKind
from radt.procfs import process_memory

#: Metric, line of /proc/meminfo, description.
_HOST = (
    ("system.memory.total", "MemTotal", "all there is"),
    ("system.memory.free", "MemFree", "used for nothing at all, see available"),
    ("system.memory.available", "MemAvailable", "for new work, without swapping"),
    ("system.memory.buffers", "Buffers", "cache of raw disk blocks"),
    ("system.memory.cached", "Cached", "page cache of files, with shared memory and tmpfs"),
    ("system.memory.shared", "Shmem", "shared memory and tmpfs"),
    ("system.memory.anon", "AnonPages", "pages of processes that are of no file"),
    ("system.memory.mapped", "Mapped", "files that processes have mapped"),
    ("system.memory.slab", "Slab", "the kernel's own objects"),
    ("system.memory.slab.reclaimable", "SReclaimable", "part of slab that can be given up"),
    ("system.memory.page_tables", "PageTables", "the kernel's tables of processes' pages"),
    ("system.memory.dirty", "Dirty", "waits to be written to disk"),
    ("system.memory.writeback", "Writeback", "is being written to disk"),
    ("system.memory.hugepages.anon", "AnonHugePages", "transparent huge pages, part of anon"),
    ("system.memory.hugepages.reserved", "Hugetlb", "set aside as huge pages, used or not"),
    ("system.swap.total", "SwapTotal", ""),
    ("system.swap.free", "SwapFree", ""),
)
#: Metric, unit, line of /proc/vmstat, factor, description.
_EVENTS = (
    ("system.swap.in", "By", "pswpin", PAGE_BYTES, "brought back from swap"),
    ("system.swap.out", "By", "pswpout", PAGE_BYTES, "swapped out"),
    ("system.memory.faults.major", "1", "pgmajfault", 1, "a page had to be read from a disk"),
    ("system.memory.oom_kills", "1", "oom_kill", 1, "processes ended as memory ran out"),
)
_RSS = "/proc/PID/status; sum over the run's processes; pages that they share count for each"

_METRICS = (
    *(
        Metric(name, "By", Scope.HOST, description=description, method=f"{line} of /proc/meminfo")
        for name, line, description in _HOST
    ),
    *(
        Metric(name, unit, Scope.HOST, SeriesKind.COUNTER, description, f"{line} of /proc/vmstat")
        for name, unit, line, _, description in _EVENTS
    ),
    Metric("process.memory.anon", "By", Scope.PROCESS, description="of no file", method=_RSS),
    Metric("process.memory.file", "By", Scope.PROCESS, description="mapped files", method=_RSS),
    Metric(
        "process.memory.shmem",
        "By",
        Scope.PROCESS,
        description="shared memory, as data loaders use it",
        method=_RSS,
    ),
    Metric("process.memory.swap", "By", Scope.PROCESS, description="swapped out", method=_RSS),
    Metric(
        "system.cgroup.memory.used",
        "By",
        Scope.HOST,
        description="against the limit of a control group, with its page cache",
        method="of the group with the lowest limit that applies to a run; others may use it too",
    ),
    Metric(
        "system.cgroup.memory.limit",
        "By",
        Scope.HOST,
        description="memory limit of a control group",
        method="the lowest that applies to a run",
    ),
)
_TREE_NAMES = (
    "process.memory.anon",
    "process.memory.file",
    "process.memory.shmem",
    "process.memory.swap",
)


class FreeListener(Listener):
    """Memory in detail."""

    name: ClassVar[str] = "free"

    def __init__(self) -> None:
        self._hierarchy: Hierarchy | None = None

    @classmethod
    def probe(cls) -> Availability:
        """Wherever there is a /proc/meminfo."""
        if not meminfo():
            return Availability(False, "/proc/meminfo is not readable", "Mount /proc")
        return Availability(True)

    @classmethod
    def metrics(cls) -> Sequence[Metric]:
        return _METRICS

    def open(self) -> None:
        self._hierarchy = memory_hierarchy()

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
        """Each group that limits a run's first process, once.

        The scope is the machine, as a group may hold more than a run; the entity says which it is.
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
    """Older kernels do not have all lines."""
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
    for name, amount in zip(_TREE_NAMES, sums, strict=True):
        yield Reading(name, float(amount), run_id=target.run_id)
