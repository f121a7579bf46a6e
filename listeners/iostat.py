"""Disk traffic of the machine and of each run's process tree."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from radt.listeners.api import Availability, Listener, Metric, Reading, Target
from radt.listeners.host_files import DiskCounts, DiskKind, Disks, diskstats
from radt.listeners.host_trees import Growing, Lineage
from radt.model import MissingReason, Scope, SeriesKind
from radt.procfs import ProcessIo, ProcessStat, process_io, process_stat

_PER_DISK = "each disk, device mapper and RAID device by name; without a name, all disks together"
#: The kernel's counter of milliseconds has 32 bits.
_BUSY_WRAPS_AT_S = 2**32 / 1000
_TREE = (
    "{source}; sum over the run's processes since the first reading, with those that have ended;"
    " without what a process did after its last reading if no process of the run waited for it"
)


def _host(name: str, unit: str, description: str) -> Metric:
    return Metric(name, unit, Scope.HOST, SeriesKind.COUNTER, description, _PER_DISK)


def _process(name: str, description: str, source: str) -> Metric:
    method = _TREE.format(source=source)
    return Metric(name, "By", Scope.PROCESS, SeriesKind.COUNTER, description, method)


_METRICS = (
    _host("system.disk.read", "By", "from disks"),
    _host("system.disk.written", "By", "to disks"),
    _host("system.disk.operations.read", "1", "finished reads, after merging of adjacent ones"),
    _host("system.disk.operations.write", "1", "finished writes, after merging of adjacent ones"),
    Metric(
        *("system.disk.busy_time", "s", Scope.HOST, SeriesKind.COUNTER),
        description="time with at least one request in flight",
        method="each device; one that serves requests in parallel can do more when always busy",
        wraps_at=_BUSY_WRAPS_AT_S,
    ),
    Metric(
        *("system.disk.queue", "{requests}", Scope.HOST),
        description="requests in flight",
        method=_PER_DISK,
    ),
    _process("process.disk.read", "fetched from storage", "read_bytes of /proc/PID/io"),
    _process(
        "process.disk.written",
        "to be sent to storage",
        "write_bytes of /proc/PID/io: counted when pages are changed, before they are written, and "
        "also if the file is deleted first",
    ),
    _process(
        "process.io.read",
        "read by system calls, also from the page cache",
        "rchar of /proc/PID/io: files, pipes and terminals; not mapped files, not recv()",
    ),
    _process(
        "process.io.written",
        "written by system calls",
        "wchar of /proc/PID/io: files, pipes and terminals; not mapped files, not send()",
    ),
)
_TREE_NAMES = ("process.disk.read", "process.disk.written", "process.io.read", "process.io.written")


@dataclass(slots=True)
class _Tree:
    lineage: Lineage = field(default_factory=Lineage)
    totals: Growing[int] = field(default_factory=lambda: Growing(len(_TREE_NAMES)))


class IostatListener(Listener):
    """Disk traffic of the host and of process trees."""

    name: ClassVar[str] = "iostat"
    reads: ClassVar[Sequence[Metric]] = _METRICS
    by_default: ClassVar[bool] = True

    def __init__(self) -> None:
        self._disks = Disks()
        self._all_disks: Growing[str] = Growing(4, start_raw=True)
        self._trees: dict[str, _Tree] = {}
        self._counts_processes = True

    @classmethod
    def probe(cls) -> Availability:
        if process_io(os.getpid()) is None and not diskstats():
            return Availability(
                False, "neither /proc/diskstats nor /proc/PID/io exists", "Mount /proc"
            )
        return Availability(True)

    def open(self) -> None:
        self._counts_processes = process_io(os.getpid()) is not None

    def sample(self, targets: Sequence[Target]) -> Iterator[Reading]:
        yield from self._host()
        trees: dict[str, _Tree] = {}
        for target in targets:
            tree = trees[target.run_id] = self._trees.get(target.run_id) or _Tree()
            if self._counts_processes:
                yield from _tree(target, tree)
            else:
                for name in _TREE_NAMES:
                    yield Reading(name, MissingReason.UNSUPPORTED, run_id=target.run_id)
        self._trees = trees

    def _host(self) -> Iterator[Reading]:
        devices = diskstats()
        kinds = self._disks.look(devices)
        whole: dict[str, DiskCounts] = {}
        for name, counts in devices.items():
            kind = kinds[name]
            # Skip unused devices, such as drivers create without anything attached.
            if kind is DiskKind.NONE or not (counts.reads or counts.writes):
                continue
            if kind is DiskKind.WHOLE:
                whole[name] = counts
            yield from _disk(name, counts)
        if not devices:
            for metric in _METRICS:
                if metric.scope is Scope.HOST:
                    yield Reading(metric.name, MissingReason.UNSUPPORTED)
            return
        sums = {
            name: (disk.read_bytes, disk.written_bytes, disk.reads, disk.writes)
            for name, disk in whole.items()
        }
        read, written, reads, writes = self._all_disks.update(sums, self._disks.fresh)
        yield Reading("system.disk.read", float(read))
        yield Reading("system.disk.written", float(written))
        yield Reading("system.disk.operations.read", float(reads))
        yield Reading("system.disk.operations.write", float(writes))
        yield Reading("system.disk.queue", float(sum(disk.in_flight for disk in whole.values())))


def _disk(name: str, counts: DiskCounts) -> Iterator[Reading]:
    yield Reading("system.disk.read", float(counts.read_bytes), name)
    yield Reading("system.disk.written", float(counts.written_bytes), name)
    yield Reading("system.disk.operations.read", float(counts.reads), name)
    yield Reading("system.disk.operations.write", float(counts.writes), name)
    yield Reading("system.disk.busy_time", counts.busy_ms / 1000, name)
    yield Reading("system.disk.queue", float(counts.in_flight), name)


def _tree(target: Target, tree: _Tree) -> Iterator[Reading]:
    stats: dict[int, ProcessStat] = {}
    counts: dict[int, tuple[int, ...]] = {}
    refused = False
    for pid in target.pids:
        # Only the parent of an ended process is needed, so one reading of each is enough.
        stat = tree.lineage.known(pid) or process_stat(pid)
        if stat is None:
            continue
        try:
            io = process_io(pid)
        except PermissionError:
            refused = True
            continue
        if io is not None:
            stats[pid], counts[pid] = stat, _columns(io)
    if not stats and not refused:
        return
    tree.lineage.look(stats)
    totals = tree.totals.update(counts, tree.lineage.fresh, tree.lineage.passed_on)
    for name, total in zip(_TREE_NAMES, totals, strict=True):
        value = MissingReason.PERMISSION if refused else float(total)
        yield Reading(name, value, run_id=target.run_id)


def _columns(io: ProcessIo) -> tuple[int, ...]:
    """Return the counters in the order of `_TREE_NAMES`."""
    return io.disk_read_bytes, io.disk_written_bytes, io.read_bytes, io.written_bytes
