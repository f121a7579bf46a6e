"""Find the processes of a run, and count the tracker's CPU time.

A process belongs to a run if its parent does, if it is in the process group that the runner made
for the run, or if it carries the run's id in its environment (a daemon that left the group). Once a
member, it stays one even if its parent changes. Only new processes are read in each scan, so that a
scan costs little more than listing ``/proc``.
"""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from radt.processes import run_mark
from radt.procfs import TICKS_PER_S, ProcessStat, all_pids, environment, process_stat

_KTHREADD = 2
#: A scan this recent is reused by all listeners that read at the same instant.
_FRESH_NS = 50_000_000


@dataclass(slots=True)
class _Tree:
    run_id: str
    root: int | None
    owns_group: bool
    members: dict[int, int] = field(default_factory=dict)  # pid -> started_ticks


class ProcessTable:
    """The process trees of all runs. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._trees: dict[str, _Tree] = {}
        self._seen: set[int] = set()
        self._read_ns = 0

    def watch(self, run_id: str, root: int | None, *, owns_group: bool) -> None:
        """Follow a run from its first process on.

        Args:
            run_id: The run.
            root: Its first process.
            owns_group: The root leads a process group that belongs only to the run, and all of the
                run's processes carry its id, as with the runner. A root whose id is empty is only
                the client of the run's container.
        """
        if root is not None and owns_group and run_mark("") in environment(root):
            root = None
        with self._lock:
            self._trees[run_id] = _Tree(run_id, root, owns_group)
            self._seen.clear()  # existing processes may belong to the run
            self._read_ns = 0

    def add(self, run_id: str, pids: Iterable[int]) -> None:
        """Add processes that have a journal of the run.

        A journal outlives its process, whose pid may be reused, so each process must also carry the
        run's id.
        """
        with self._lock:
            tree = self._trees.get(run_id)
            for pid in pids:
                if tree is None or pid in tree.members or run_mark(run_id) not in environment(pid):
                    continue
                if (stat := process_stat(pid)) is not None:
                    tree.members[pid] = stat.started_ticks

    def forget(self, run_id: str) -> None:
        with self._lock:
            self._trees.pop(run_id, None)

    def pids(self, run_id: str) -> tuple[int, ...]:
        """Return the current processes of a run."""
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
                if pid in present and stat is None:
                    continue  # it has just ended, or this process is out of descriptors
                if stat is None or stat.started_ticks != started_ticks:
                    del tree.members[pid]
        fresh = {pid: process_stat(pid) for pid in present - self._seen} if self._trees else {}
        known = [stat for stat in fresh.values() if stat is not None]
        for stat in sorted(known, key=lambda stat: stat.started_ticks):  # parents first
            if _KTHREADD not in (stat.pid, stat.parent):
                self._classify(stat)
        self._seen = present - {pid for pid, stat in fresh.items() if stat is None}

    def _classify(self, stat: ProcessStat) -> None:
        for tree in self._trees.values():
            if (
                stat.pid == tree.root
                or stat.parent in tree.members
                or (tree.owns_group and stat.group == tree.root)
            ):
                tree.members[stat.pid] = stat.started_ticks
                return
        marked = {run_mark(tree.run_id): tree for tree in self._trees.values()}
        for entry in environment(stat.pid):
            if entry in marked:
                marked[entry].members[stat.pid] = stat.started_ticks
                return


def own_cpu_s(deliverer_pids: Iterable[int], guardian_pid: int | None = None) -> float:
    """Return the CPU time of all processes of the tracker, including ended ones.

    Args:
        deliverer_pids: Running children of this process; children that it has reaped are included.
        guardian_pid: This process's parent; None leaves it out, as it mostly sleeps.
    """
    # Live processes first: one that ends meanwhile is then counted twice for now, rather than not
    # at all.
    ticks = 0
    for pid in deliverer_pids:
        if (stat := process_stat(pid)) is not None:
            ticks += stat.cpu_ticks
    # The guardian's children are this process and its dead predecessors.
    if guardian_pid is not None and (stat := process_stat(guardian_pid)) is not None:
        ticks += stat.own_cpu_ticks
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) + ticks / TICKS_PER_S
