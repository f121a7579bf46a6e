"""What ``/proc`` and control groups say of the machine (proc(5)), in SI units."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from radt.procfs import read

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class CpuShares:
    """What cores did between two looks, as shares of their time."""

    busy: float
    iowait: float
    steal: float


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Ticks of one core or all since boot; guests' time is part of user and nice time."""

    user: int
    nice: int
    system: int
    idle: int
    iowait: int
    irq: int
    softirq: int
    steal: int

    def shares_since(self, before: CpuTimes) -> CpuShares | None:
        """What was done since then; None if no time has passed.

        The kernel's idle and iowait counters may step back by a tick; that is no time.
        """
        idle, iowait, steal = (
            max(0, self.idle - before.idle),
            max(0, self.iowait - before.iowait),
            max(0, self.steal - before.steal),
        )
        busy = sum(
            max(0, now - then)
            for now, then in (
                (self.user, before.user),
                (self.nice, before.nice),
                (self.system, before.system),
                (self.irq, before.irq),
                (self.softirq, before.softirq),
            )
        )
        total = busy + idle + iowait + steal
        return CpuShares(busy / total, iowait / total, steal / total) if total else None


def cpu_times(*, cores: bool = False) -> dict[str, CpuTimes]:
    """``/proc/stat``: times of all cores under an empty name, and of each under its number."""
    found = {}
    for line in read("/proc/stat").splitlines():
        if not line.startswith(b"cpu"):
            break
        name, *ticks = line.split(None, 9)
        found[name[3:].decode()] = CpuTimes(*map(int, ticks[:8]))
        if not cores:
            break
    return found


def meminfo() -> dict[str, int]:
    """``/proc/meminfo`` in bytes; lines without a unit are counts."""
    found = {}
    for line in read("/proc/meminfo").decode("ascii").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            found[name] = int(words[0]) << 10 if len(words) > 1 else int(words[0])
    return found


def vmstat() -> dict[str, int]:
    """``/proc/vmstat``: events since boot."""
    lines = (line.split() for line in read("/proc/vmstat").decode("ascii").splitlines())
    return {name: int(number) for name, number in lines}


@dataclass(frozen=True, slots=True)
class DiskCounts:
    """One line of ``/proc/diskstats`` (Documentation/admin-guide/iostats.rst).

    ``in_flight`` are requests that are under way; ``busy_ms`` is the time with at least one, and
    starts again from 0 after 2**32 ms.
    """

    reads: int
    read_bytes: int
    writes: int
    written_bytes: int
    in_flight: int
    busy_ms: int


#: Sectors of the kernel's statistics, whatever the disk's own are.
_SECTOR_BYTES = 512


def diskstats() -> dict[str, DiskCounts]:
    """``/proc/diskstats``: every block device and partition."""
    found = {}
    for line in read("/proc/diskstats").splitlines():
        fields = line.split(None, 13)
        if len(fields) < 14:  # partitions had four counters only, before Linux 2.6.25
            continue
        found[fields[2].decode("utf-8", "replace")] = DiskCounts(
            reads=int(fields[3]),
            read_bytes=int(fields[5]) * _SECTOR_BYTES,
            writes=int(fields[7]),
            written_bytes=int(fields[9]) * _SECTOR_BYTES,
            in_flight=int(fields[11]),
            busy_ms=int(fields[12]),
        )
    return found


@dataclass(frozen=True, slots=True)
class LinkCounts:
    """One line of ``/proc/net/dev``; ``dropped`` for want of room, ``errors`` on the wire."""

    rx_bytes: int
    rx_packets: int
    rx_errors: int
    rx_dropped: int
    tx_bytes: int
    tx_packets: int
    tx_errors: int
    tx_dropped: int


def netdev() -> dict[str, LinkCounts]:
    """``/proc/net/dev``: interfaces of this process' network namespace."""
    found = {}
    for line in read("/proc/net/dev").splitlines()[2:]:
        name, _, rest = line.rpartition(b":")  # aliases have a colon in their name
        fields = [int(field) for field in rest.split()]
        found[name.strip().decode("utf-8", "replace")] = LinkCounts(*fields[:4], *fields[8:12])
    return found


# Memory limits of control groups ------------------------------------------------------------------


#: Version 1 writes "no limit" as the highest number of pages that fits, in bytes.
_NO_LIMIT_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where the groups that count memory are mounted.

    ``root`` is the group that the mount point shows (a container often sees its own and those
    below); ``version`` is 1 or 2.
    """

    folder: Path
    root: PurePosixPath
    version: int

    def group_of(self, pid: int | str) -> PurePosixPath | None:
        """The group of a process; None if it is gone, or its group is not visible here."""
        for line in read(f"/proc/{pid}/cgroup").decode("utf-8", "replace").splitlines():
            _, controllers, path = line.split(":", 2)
            wanted = "memory" in controllers.split(",") if self.version == 1 else not controllers
            if wanted:
                group = PurePosixPath(path)
                # Seen from within a cgroup namespace, groups around it begin with "/..".
                visible = group.is_relative_to(self.root) and ".." not in group.parts
                return group if visible else None
        return None

    def limiting(self, group: PurePosixPath) -> Limited | None:
        """The group with the lowest memory limit of this one and those around it, if one has any.

        Its limit is the one that is hit first if it is alone; so it is what the kernel's
        out-of-memory killer most likely acts for.
        """
        limits = []
        for at in (group, *group.parents):
            if not at.is_relative_to(self.root):
                break
            folder = self.folder / at.relative_to(self.root)
            limit = read(str(folder / self._limit_file)).strip()
            if limit.isdigit() and int(limit) < _NO_LIMIT_BYTES:
                limits.append(Limited(str(at), int(limit), folder / self._usage_file))
        return min(limits, key=lambda limited: limited.limit_bytes, default=None)

    @property
    def _limit_file(self) -> str:
        return "memory.max" if self.version == 2 else "memory.limit_in_bytes"

    @property
    def _usage_file(self) -> str:
        return "memory.current" if self.version == 2 else "memory.usage_in_bytes"


@dataclass(frozen=True, slots=True)
class Limited:
    """A group with a memory limit."""

    group: str
    limit_bytes: int
    usage_file: Path

    def used_bytes(self) -> int | None:
        """Memory that counts against the limit, page cache included; None if the group is gone."""
        text = read(str(self.usage_file)).strip()
        return int(text) if text.isdigit() else None


def memory_hierarchy(mountinfo: str = "/proc/self/mountinfo") -> Hierarchy | None:
    """Find where memory is counted; None where no groups are mounted.

    Version 1 comes first: where both are mounted, as in systemd's hybrid layout, version 2 has no
    memory controller.
    """
    found: dict[int, Hierarchy] = {}
    for line in read(mountinfo).decode("utf-8", "replace").splitlines():
        # 36 35 98:0 /root /mount/point options [tags] - type source super-options
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.split(" ", 2)
        root, folder = fields.split(" ")[3:5]
        if kind == "cgroup" and "memory" in options.split(","):
            found[1] = Hierarchy(Path(folder), PurePosixPath(root), 1)
        elif kind == "cgroup2":
            found[2] = Hierarchy(Path(folder), PurePosixPath(root), 2)
    return found.get(1) or found.get(2)
