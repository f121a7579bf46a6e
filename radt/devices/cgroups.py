"""Control groups of Linux: limits on memory and CPU time, and out-of-memory kills.

Version 1 has one hierarchy for each controller, version 2 one for all
(https://docs.kernel.org/admin-guide/cgroup-v1/index.html, …/cgroup-v2.html). In systemd's hybrid
layout both are mounted, and version 2 has no controllers. Imports the standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath

from radt.procfs import read_text

_PROC = Path("/proc")
#: Version 1 represents "no limit" as the highest multiple of the page size.
_NO_LIMIT_BYTES = 1 << 60


class Controller(StrEnum):
    """A resource that control groups count and limit."""

    MEMORY = "memory"
    CPU = "cpu"


@dataclass(frozen=True, slots=True)
class Limited:
    """A group with a memory limit."""

    group: str
    limit_bytes: int
    usage_file: Path

    def used_bytes(self) -> int | None:
        """Return the memory charged to the group, with page cache; None if the group is gone."""
        text = read_text(self.usage_file)
        return int(text) if text.isdigit() else None


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """The hierarchy of control groups for one controller.

    Attributes:
        folder: Its mount point.
        root: The group at the mount point: a container often sees only its own and those below.
        version: 1 or 2.
        proc: ``/proc``, for tests.
    """

    controller: Controller
    folder: Path
    root: PurePosixPath
    version: int
    proc: Path = _PROC

    @classmethod
    def find(cls, controller: Controller, proc: Path = _PROC) -> Hierarchy | None:
        """Return the hierarchy of a controller; None if it is not mounted."""
        by_version: dict[int, Hierarchy] = {}
        for line in read_text(proc / "self/mountinfo").splitlines():
            # 36 35 98:0 /root /mount/point options [tags] - type source super-options (proc(5))
            fields, _, rest = line.partition(" - ")
            kind, _, options = rest.split(" ", 2)
            root, folder = fields.split(" ")[3:5]
            if kind == "cgroup2" or (kind == "cgroup" and controller in options.split(",")):
                version = 2 if kind == "cgroup2" else 1
                here = cls(controller, Path(folder), PurePosixPath(root), version, proc)
                by_version.setdefault(version, here)  # the first one; it may be mounted again
        return by_version.get(1) or by_version.get(2)

    def group_of(self, pid: int | str) -> PurePosixPath | None:
        """Return the group of a process; None if it is gone, or its group is not visible here."""
        for line in read_text(self.proc / str(pid) / "cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            if self.controller in controllers.split(",") if self.version == 1 else not controllers:
                group = PurePosixPath(path)
                # Within a cgroup namespace, groups outside it begin with "/..".
                visible = group.is_relative_to(self.root) and ".." not in group.parts
                return group if visible else None
        return None

    def around(self, group: PurePosixPath) -> Iterator[tuple[PurePosixPath, Path]]:
        """Yield this group and its visible parents, each with its folder."""
        for each in (group, *group.parents):
            if each.is_relative_to(self.root):
                yield each, self.folder / each.relative_to(self.root)

    def limiting(self, group: PurePosixPath) -> Limited | None:
        """Return the group with the lowest memory limit among this one and its parents, if any.

        Its limit is the first to be hit if no other group shares it, so the kernel's out-of-memory
        killer most likely acts in it.
        """
        names = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes")}
        limit_file, usage_file = names.get(self.version, ("memory.max", "memory.current"))
        limits = [
            Limited(str(each), int(text), folder / usage_file)
            for each, folder in self.around(group)
            if (text := read_text(folder / limit_file)).isdigit() and int(text) < _NO_LIMIT_BYTES
        ]
        return min(limits, key=lambda limited: limited.limit_bytes, default=None)

    def cpus(self, group: PurePosixPath) -> float | None:
        """Return the lowest limit on CPU time of this group and its parents, in CPUs, if any."""
        limits = []
        for _, folder in self.around(group):
            if self.version == 2:
                quota, _, period = read_text(folder / "cpu.max").partition(" ")
            else:
                quota = read_text(folder / "cpu.cfs_quota_us")
                period = read_text(folder / "cpu.cfs_period_us")
            if quota.isdigit() and period.isdigit():
                limits.append(int(quota) / int(period))
        return min(limits, default=None)

    def kill_counters(self, group: PurePosixPath) -> list[Path]:
        """Return the files that count out-of-memory kills, this group's first.

        A group may lack it. Each has a line ``oom_kill NUMBER``: "the number of processes belonging
        to this cgroup killed by any kind of OOM killer".
        """
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        return [folder / name for _, folder in self.around(group)]


@dataclass(frozen=True, slots=True)
class CgroupLimits:
    """The limits that control groups put on a process; None for no limit."""

    memory_bytes: int | None = None
    cpus: float | None = None

    @classmethod
    def of(cls, pid: int | str = "self", proc: Path = _PROC) -> CgroupLimits:
        """Read the limits on a process, by default this one. Never raises."""
        memory = Hierarchy.find(Controller.MEMORY, proc)
        cpu = Hierarchy.find(Controller.CPU, proc)
        limited = cpus = None
        if memory is not None and (group := memory.group_of(pid)) is not None:
            limited = memory.limiting(group)
        if cpu is not None and (group := cpu.group_of(pid)) is not None:
            cpus = cpu.cpus(group)
        return cls(None if limited is None else limited.limit_bytes, cpus)
