"""Control groups for tests: real ones with limits, and files as other machines have them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from radt.devices.cgroups import Controller, Hierarchy


@dataclass(frozen=True)
class RealGroup:
    """A control group below this process's own."""

    folder: Path
    name: str

    def take(self, pid: int) -> None:
        (self.folder / "cgroup.procs").write_text(str(pid), encoding="ascii")


@contextmanager
def real_group(
    controller: Controller, v1: dict[str, int], v2: dict[str, str]
) -> Iterator[RealGroup]:
    """A real group with these limits, by the version that this machine has; else skip the test."""
    hierarchy = Hierarchy.find(controller)
    own = None if hierarchy is None else hierarchy.group_of("self")
    if hierarchy is None or own is None:
        pytest.skip(f"no control groups of {controller} here")
    _, parent = next(hierarchy.around(own))
    folder = parent / f"radt-test-{os.getpid()}"
    try:
        folder.mkdir()
        for file, limit in (v1 if hierarchy.version == 1 else v2).items():
            (folder / file).write_text(str(limit), encoding="ascii")
    except OSError as error:
        if folder.exists():
            folder.rmdir()
        pytest.skip(f"control groups cannot be made here: {error}")
    try:
        yield RealGroup(folder, str(own / folder.name))
    finally:
        folder.rmdir()


def memory_group(limit_bytes: int) -> contextmanager[RealGroup]:
    """A real group with a memory limit."""
    return real_group(
        Controller.MEMORY, {"memory.limit_in_bytes": limit_bytes}, {"memory.max": str(limit_bytes)}
    )


class RecordedGroups:
    """Control groups as a container or another distribution has them, and the ``/proc`` there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.proc = folder / "proc"
        self._mounts = ["1 1 8:1 / / rw - ext4 /dev/a rw"]
        self._write(self.proc / "self" / "mountinfo", self._mounts[0])

    def mount(self, folder: str, kind: str, root: str = "/", options: str = "rw") -> None:
        path = self._folder / folder
        self._mounts.append(f"30 20 0:26 {root} {path} rw shared:4 - {kind} {kind} {options}")
        self._write(self.proc / "self" / "mountinfo", "\n".join(self._mounts))

    def group(self, folder: str, **files: int | str) -> None:
        for name, text in files.items():
            self._write(self._folder / folder / name.replace("__", "."), str(text))

    def process(self, pid: int | str, *lines: str) -> None:
        self._write(self.proc / str(pid) / "cgroup", "\n".join(lines))

    def hierarchy(self, controller: Controller = Controller.MEMORY) -> Hierarchy | None:
        return Hierarchy.find(controller, self.proc)

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n", encoding="ascii")
