"""Which processes belong to which run.

A process belongs to a run if its parent does, if it is in the process group that the runner made
for the run, or if it carries the run's id in its environment (a daemon that left the group). Once
a member, it stays one whoever becomes its parent. Only processes that are new since the last look
are read, so that a look costs little more than listing ``/proc``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from radt.home import RUN_ID_VARIABLE
from radt.procfs import ProcessStat, all_pids, environment, process_stat

_KTHREADD = 2
#: A look this fresh serves all listeners of one instant.
_FRESH_NS = 50_000_000


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process that cannot be confused with a later one of the same number."""

    pid: int
    started_ticks: int

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """The process that has this number now."""
        stat = process_stat(pid)
        return None if stat is None else cls(pid, stat.started_ticks)

    @property
    def alive(self) -> bool:
        stat = process_stat(self.pid)
        return stat is not None and stat.alive and stat.started_ticks == self.started_ticks


def carries_run_id(pid: int, run_id: str) -> bool:
    """Whether a process was started with this run's id in its environment."""
    return _mark_of(run_id) in environment(pid)


def _mark_of(run_id: str) -> bytes:
    """What the processes of a run have in their environment."""
    return f"{RUN_ID_VARIABLE}={run_id}".encode()


@dataclass(slots=True)
class _Tree:
    run_id: str
    root: int | None
    owns_group: bool
    members: dict[int, int] = field(default_factory=dict)  # pid -> started_ticks


class ProcessTable:
    """The process trees of all runs; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._trees: dict[str, _Tree] = {}
        self._seen: set[int] = set()
        self._read_ns = 0

    def watch(self, run_id: str, root: int | None, *, owns_group: bool) -> None:
        """Follow a run from its first process on.

        Args:
            owns_group: The root leads a process group that is the run's alone, and all of the
                run's processes carry its id; so it is for what the runner starts.
        """
        with self._lock:
            self._trees[run_id] = _Tree(run_id, root, owns_group)
            self._seen.clear()  # processes that are there already may be the run's
            self._read_ns = 0

    def add(self, run_id: str, pids: Iterable[int]) -> None:
        """Take in processes that have a journal of the run.

        A journal stays when its process is gone and its number is somebody else's, so the number
        alone does not count.
        """
        with self._lock:
            tree = self._trees.get(run_id)
            for pid in pids:
                if tree is None or pid in tree.members or not carries_run_id(pid, run_id):
                    continue
                if (stat := process_stat(pid)) is not None:
                    tree.members[pid] = stat.started_ticks

    def forget(self, run_id: str) -> None:
        with self._lock:
            self._trees.pop(run_id, None)

    def pids(self, run_id: str) -> tuple[int, ...]:
        """Processes of the run at this instant."""
        with self._lock:
            if time.monotonic_ns() - self._read_ns > _FRESH_NS:
                self._refresh()
                self._read_ns = time.monotonic_ns()
            tree = self._trees.get(run_id)
            return () if tree is None else tuple(tree.members)

    def _refresh(self) -> None:
        present = all_pids()
        for tree in self._trees.values():
            for pid, started_ticks in list(tree.members.items()):
                stat = process_stat(pid) if pid in present else None
                if stat is None or stat.started_ticks != started_ticks:
                    del tree.members[pid]
        if self._trees:
            found = (process_stat(pid) for pid in present - self._seen)
            for stat in sorted(
                (stat for stat in found if stat is not None), key=lambda stat: stat.started_ticks
            ):  # parents before their children
                if _KTHREADD not in (stat.pid, stat.parent):
                    self._classify(stat)
        self._seen = present

    def _classify(self, stat: ProcessStat) -> None:
        for tree in self._trees.values():
            if (
                stat.pid == tree.root
                or stat.parent in tree.members
                or (tree.owns_group and stat.group == tree.root)
            ):
                tree.members[stat.pid] = stat.started_ticks
                return
        marked = {_mark_of(tree.run_id): tree for tree in self._trees.values()}
        for entry in environment(stat.pid):
            if entry in marked:
                marked[entry].members[stat.pid] = stat.started_ticks
                return
