"""Which block devices and network interfaces count, so that no traffic is counted twice."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

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
