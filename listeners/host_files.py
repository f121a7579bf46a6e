"""Reads ``/proc`` (proc(5)), disks and network interfaces, in SI units.

`Disks` and `Links` select devices and interfaces so that no traffic is counted twice.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from radt.procfs import read

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class CpuShares:
    """Shares of the cores' time between two readings."""

    busy: float
    iowait: float
    steal: float


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Ticks of one core or all since boot; guests' time is included in user and nice time."""

    user: int
    nice: int
    system: int
    idle: int
    iowait: int
    irq: int
    softirq: int
    steal: int

    def shares_since(self, before: CpuTimes) -> CpuShares | None:
        """Return the shares since then; None if no time has passed.

        The kernel's idle and iowait counters may decrease by a tick, which is treated as no time.
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
    """Return ``/proc/stat``: times of all cores under an empty name, of each under its number."""
    times = {}
    for line in read("/proc/stat").splitlines():
        if not line.startswith(b"cpu"):
            break
        name, *ticks = line.split(None, 9)
        times[name[3:].decode()] = CpuTimes(*map(int, ticks[:8]))
        if not cores:
            break
    return times


def vmstat() -> dict[str, int]:
    """Return ``/proc/vmstat``: events since boot."""
    lines = (line.split() for line in read("/proc/vmstat").decode("ascii").splitlines())
    return {name: int(number) for name, number in lines}


@dataclass(frozen=True, slots=True)
class DiskCounts:
    """One line of ``/proc/diskstats`` (Documentation/admin-guide/iostats.rst).

    ``in_flight`` is the number of requests in flight; ``busy_ms`` is the time with at least one,
    and wraps after 2**32 ms.
    """

    reads: int
    read_bytes: int
    writes: int
    written_bytes: int
    in_flight: int
    busy_ms: int


#: Sector size in the kernel's statistics, whatever the disk's own is.
_SECTOR_BYTES = 512


def diskstats() -> dict[str, DiskCounts]:
    """Return ``/proc/diskstats``: every block device and partition."""
    counts = {}
    for line in read("/proc/diskstats").splitlines():
        fields = line.split(None, 13)
        if len(fields) < 14:  # before Linux 2.6.25, partitions had only four counters
            continue
        counts[fields[2].decode("utf-8", "replace")] = DiskCounts(
            reads=int(fields[3]),
            read_bytes=int(fields[5]) * _SECTOR_BYTES,
            writes=int(fields[7]),
            written_bytes=int(fields[9]) * _SECTOR_BYTES,
            in_flight=int(fields[11]),
            busy_ms=int(fields[12]),
        )
    return counts


@dataclass(frozen=True, slots=True)
class LinkCounts:
    """One line of ``/proc/net/dev``; ``dropped`` for lack of buffers, ``errors`` on the wire."""

    rx_bytes: int
    rx_packets: int
    rx_errors: int
    rx_dropped: int
    tx_bytes: int
    tx_packets: int
    tx_errors: int
    tx_dropped: int


def netdev() -> dict[str, LinkCounts]:
    """Return ``/proc/net/dev``: interfaces of this process' network namespace."""
    counts = {}
    for line in read("/proc/net/dev").splitlines()[2:]:
        name, _, rest = line.rpartition(b":")  # aliases have a colon in their name
        fields = [int(field) for field in rest.split()]
        counts[name.strip().decode("utf-8", "replace")] = LinkCounts(*fields[:4], *fields[8:12])
    return counts


# Disks --------------------------------------------------------------------------------------------


#: Devices backed by memory, or by files on other devices.
_NO_DISK = re.compile(r"(loop|ram|zram)\d+")
_CLASS_BLOCK = Path("/sys/class/block")


class DiskKind(Enum):
    """The kind of a block device."""

    WHOLE = auto()
    #: Device mapper, software RAID and the like: its traffic is also counted by its disks.
    STACKED = auto()
    #: A partition, a hidden path of a disk, or not a disk.
    NONE = auto()


class Disks:
    """The kinds of block devices, read when a device appears."""

    def __init__(self, folder: Path = _CLASS_BLOCK) -> None:
        self._folder = folder
        self._kinds: dict[str, DiskKind] = {}
        #: Devices that were not present at the previous call of `look`.
        self.fresh: frozenset[str] = frozenset()

    def look(self, names: Iterable[str]) -> dict[str, DiskKind]:
        """Return the kinds of all devices that are present now."""
        kinds = {name: self._kinds.get(name) or self._kind(name) for name in names}
        self.fresh = frozenset(kinds.keys() - self._kinds.keys())
        self._kinds = kinds
        return kinds

    def _kind(self, name: str) -> DiskKind:
        if _NO_DISK.fullmatch(name):
            return DiskKind.NONE
        device = self._folder / name.replace("/", "!")  # cciss/c0d0
        if (device / "partition").exists() or _says(device / "hidden", "1"):
            return DiskKind.NONE
        try:
            stacked = any((device / "slaves").iterdir())
        except OSError:  # no sysfs, as in some containers
            stacked = re.fullmatch(r"(dm-|md|bcache)\d+", name) is not None
        return DiskKind.STACKED if stacked else DiskKind.WHOLE


def _says(path: Path, text: str) -> bool:
    try:
        return path.read_text(encoding="ascii").strip() == text
    except OSError:
        return False


# Network interfaces -------------------------------------------------------------------------------


_CLASS_NET = Path("/sys/class/net")
LOOPBACK = "lo"


@dataclass(frozen=True, slots=True)
class Link:
    """A network interface in sysfs.

    ``master`` is the bond or bridge that it belongs to. A ``stacked`` interface (bond, bridge,
    VLAN) sends through others. The other end of a ``paired`` one is in another network namespace.
    """

    name: str
    hardware: bool
    stacked: bool
    paired: bool
    master: str


def read_link(name: str, folder: Path = _CLASS_NET) -> Link:
    """Read an interface; for one that has disappeared, all properties are False."""
    device = folder / name
    try:
        stacked = any(entry.name.startswith("lower_") for entry in device.iterdir())
        paired = not stacked and (
            (device / "iflink").read_text("ascii") != (device / "ifindex").read_text("ascii")
        )
    except OSError:
        stacked = paired = False
    master = device / "master"
    return Link(
        name,
        hardware=(device / "device").exists(),
        stacked=stacked,
        paired=paired,
        master=master.resolve().name if master.exists() else "",
    )


class Links:
    """The interfaces of the machine, read again whenever some appear or disappear.

    The sum includes hardware interfaces. Bonds and bridges are excluded, because their traffic is
    that of their parts; so are the parts if the whole is hardware itself (the two sides of an
    accelerated network card in a virtual machine). Without hardware, as in most containers, the sum
    includes all interfaces that send by themselves, except the loopback.

    All are listed except the ends of containers' connections on a machine with hardware: they come
    and go with the containers, and traffic that leaves the machine is counted at the hardware.
    """

    def __init__(self, folder: Path = _CLASS_NET) -> None:
        self._folder = folder
        self._names: frozenset[str] = frozenset()
        self.shown: frozenset[str] = frozenset()
        self.summed: frozenset[str] = frozenset()
        #: Interfaces that were not present at the previous call of `look`.
        self.fresh: frozenset[str] = frozenset()

    def look(self, names: Iterable[str]) -> None:
        """Update with the interfaces that are present now."""
        now = frozenset(names)
        self.fresh = now - self._names
        if now == self._names:
            return
        self._names = now
        links = {name: read_link(name, self._folder) for name in now if name != LOOPBACK}
        hardware = {name for name, link in links.items() if link.hardware}
        if hardware:
            self.summed = frozenset(name for name in hardware if links[name].master not in hardware)
        else:
            self.summed = frozenset(
                name
                for name, link in links.items()
                if not link.stacked and not (link.paired and link.master)
            )
        self.shown = frozenset(
            name for name in now if name == LOOPBACK or not (hardware and links[name].paired)
        )
