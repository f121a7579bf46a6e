"""Which of the machine's block devices are disks, and which are made of others."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum, auto
from pathlib import Path

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
