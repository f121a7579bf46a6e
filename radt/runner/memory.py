"""What the kernel says of memory that ran out: its counters, and its log where it may be read.

Sources: ``oom_kill`` of ``memory.events`` (cgroup v2, Documentation/admin-guide/cgroup-v2.rst: "the
number of processes belonging to this cgroup killed by any kind of OOM killer"), of
``memory.oom_control`` (cgroup v1) and of ``/proc/vmstat`` (the whole machine), and ``/dev/kmsg``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

_COUNTER = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
_KILLED = re.compile(rb"(?:Killed process |oom-kill:\S*,pid=)(\d+)")
#: Number of the first pid namespace's inode (include/linux/proc_ns.h, PROC_PID_INIT_INO).
_FIRST_PID_NAMESPACE = "pid:[4026531836]"


def _no_claim() -> None:
    """Evidence that nobody counts."""


@dataclass(frozen=True, slots=True)
class MemoryEvidence:
    """What the kernel has done for want of memory since a `MemoryWatch` began.

    ``own`` counts processes killed in the runner's cgroup, where the runs are too; ``elsewhere``
    in those above it or on the whole machine, the most of these. Both leave out what was claimed.
    ``pids`` are the processes that the kernel's log names; None where it cannot be read.
    """

    own: int = 0
    elsewhere: int = 0
    pids: frozenset[int] | None = None
    on_claim: Callable[[], None] = field(default=_no_claim, compare=False)

    def names(self, pids: Collection[int]) -> bool:
        """Whether the kernel says that it killed one of these."""
        return self.pids is not None and not self.pids.isdisjoint(pids)

    @property
    def kills_unnamed(self) -> bool:
        """Whether it killed somebody and does not say whom."""
        return not self.pids and max(self.own, self.elsewhere) > 0

    def claim(self) -> None:
        """One of the kills is explained: it is no evidence for the next run."""
        self.on_claim()


class MemoryWatch:
    """Counts what the kernel kills for want of memory from now on.

    Args:
        proc: ``/proc``, for tests.
        kmsg: ``/dev/kmsg``, for tests.
    """

    def __init__(self, proc: Path = Path("/proc"), kmsg: Path = Path("/dev/kmsg")) -> None:
        own, above = _counter_files(proc)
        self._own_path = own
        self._other_paths = [*above, proc / "vmstat"]
        self._log = _KernelLog.open(kmsg, proc)
        self._pids: set[int] = set()
        self._claimed = 0
        self._own_before = _count(own)
        self._others_before = [_count(path) for path in self._other_paths]

    def evidence(self) -> MemoryEvidence:
        """What has happened since."""
        own = _count(self._own_path) - self._own_before
        others = [
            _count(path) - before
            for path, before in zip(self._other_paths, self._others_before, strict=True)
        ]
        if self._log is not None:
            self._pids |= self._log.killed()
        return MemoryEvidence(
            own=max(0, own - self._claimed),
            elsewhere=max(0, max(others) - self._claimed),
            pids=frozenset(self._pids) if self._log is not None else None,
            on_claim=self._claim,
        )

    def _claim(self) -> None:
        self._claimed += 1


class _KernelLog:
    """The kernel's log from now on."""

    def __init__(self, fd: int) -> None:
        self._file = os.fdopen(fd, "rb", buffering=0)  # closed with this object
        os.lseek(fd, 0, os.SEEK_END)

    @classmethod
    def open(cls, path: Path, proc: Path) -> _KernelLog | None:
        """None where it may not be read, or has other numbers for our processes (container)."""
        try:
            if str((proc / "self/ns/pid").readlink()) != _FIRST_PID_NAMESPACE:
                return None
            return cls(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        except OSError:
            return None

    def killed(self) -> set[int]:
        """Ids of processes that were killed since the last call."""
        found: set[int] = set()
        while True:
            try:
                data = self._file.read(8192)  # one entry of the log
            except BrokenPipeError:  # entries were overwritten: go on with the next
                continue
            except OSError:
                return found
            if not data:
                return found
            found.update(int(number) for number in _KILLED.findall(data))


def _count(path: Path | None) -> int:
    """The counter in a file; 0 where there is none."""
    if path is None:
        return 0
    try:
        match = _COUNTER.search(path.read_text(encoding="ascii"))
    except OSError:
        return 0
    return int(match[1]) if match is not None else 0


def _counter_files(proc: Path) -> tuple[Path | None, list[Path]]:
    """The counter of this process's memory cgroup, and those of the cgroups above it."""
    try:
        groups = (proc / "self" / "cgroup").read_text(encoding="utf-8", errors="surrogateescape")
        mounts = (proc / "self" / "mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None, []
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory" or "memory" in controllers.split(","):
            kind, name = "cgroup", "memory.oom_control"
        elif controllers == "":
            kind, name = "cgroup2", "memory.events"
        else:
            continue
        for root, mount_point in _mounts(mounts, kind):
            folder = mount_point / os.path.relpath(path, root)
            above = [mount_point, *mount_point.parents]
            folders = [folder, *(one for one in folder.parents if one not in above[1:])]
            files = [one / name for one in folders if (one / name).exists()]
            if files and files[0].parent == folder:
                return files[0], files[1:]
    return None, []


def _mounts(mountinfo: str, kind: str) -> list[tuple[str, Path]]:
    """Root and mount point of mounted cgroup hierarchies with memory in them (proc(5))."""
    found = []
    for line in mountinfo.splitlines():
        fields, _, rest = line.partition(" - ")
        filesystem, _, options = rest.split(" ", 2)
        if filesystem == kind and (kind == "cgroup2" or "memory" in options.split(",")):
            root, mount_point = fields.split(" ")[3:5]
            found.append((root, Path(mount_point)))
    return found
