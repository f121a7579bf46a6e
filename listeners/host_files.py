"""What ``/proc`` and control groups say of the machine (proc(5)), in SI units."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
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


# Disks --------------------------------------------------------------------------------------------


#: Devices whose bytes are in memory, or in files of other devices.
_NO_DISK = re.compile(r"(loop|ram|zram)\d+")
_CLASS_BLOCK = Path("/sys/class/block")


class DiskKind(Enum):
    """What a block device is."""

    WHOLE = auto()
    #: Device mapper, software RAID and the like: what it does, its disks do, too.
    STACKED = auto()
    #: A partition, a hidden path of a disk, or no disk.
    NONE = auto()


class Disks:
    """Knows the kind of each device from its first sight until it disappears."""

    def __init__(self, folder: Path = _CLASS_BLOCK) -> None:
        self._folder = folder
        self._kinds: dict[str, DiskKind] = {}
        #: Devices that were not there at the last look.
        self.fresh: frozenset[str] = frozenset()

    def look(self, names: Iterable[str]) -> dict[str, DiskKind]:
        """The kinds of all devices that are there now."""
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
    """What sysfs says of an interface.

    ``master`` is the bond or bridge that it is part of. A ``stacked`` interface (bond, bridge,
    VLAN) sends through others. The other end of a ``paired`` one is in another network namespace.
    """

    name: str
    hardware: bool
    stacked: bool
    paired: bool
    master: str


def read_link(name: str, folder: Path = _CLASS_NET) -> Link:
    """Look an interface up; one that is gone again is none of it all."""
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
    """The interfaces of the machine. They are looked up again whenever some came or went.

    The sum is over hardware. Bonds and bridges are left out as their traffic is that of their
    parts; so are the parts where the whole is hardware itself (the two sides of an accelerated
    network card in a virtual machine). Where there is no hardware, as in most containers, the sum
    is over all that send by themselves, but the loopback.

    Of their own, all are shown but the ends of containers' connections on a machine with hardware:
    they come and go with the containers, and what leaves the machine is counted there already.
    """

    def __init__(self, folder: Path = _CLASS_NET) -> None:
        self._folder = folder
        self._names: frozenset[str] = frozenset()
        self.shown: frozenset[str] = frozenset()
        self.summed: frozenset[str] = frozenset()
        #: Interfaces that were not there at the last look.
        self.fresh: frozenset[str] = frozenset()

    def look(self, names: Iterable[str]) -> None:
        """Take notice of who is there now."""
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
