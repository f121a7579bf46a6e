"""Memory limits of control groups: version 2 and the memory controller of version 1."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from radt.procfs import read

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
