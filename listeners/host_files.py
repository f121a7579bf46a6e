"""What ``/proc`` says of the whole machine (proc(5)), in SI units."""

from __future__ import annotations

import os
from dataclasses import dataclass

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
