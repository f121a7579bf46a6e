"""Find the processes of a run, end those left running, and count the tracker's CPU time.

A process belongs to a run if its parent does, if it is in the process group that the runner made
for the run, or if it carries the run's id in its environment (a daemon that left the group). Once a
member, it stays one even if its parent changes. Only new processes are read in each scan, so that a
scan costs little more than listing ``/proc``.
"""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from radt.home import RUN_ID_VARIABLE
from radt.procfs import TICKS_PER_S, ProcessStat, all_pids, environment, process_stat

_KTHREADD = 2
#: A scan this fresh serves all listeners of one instant.
_FRESH_NS = 50_000_000


def carries_run_id(pid: int, run_id: str) -> bool:
    """Return whether a process was started with this run's id in its environment."""
    return _mark_of(run_id) in environment(pid)


def _mark_of(run_id: str) -> bytes:
    """Return the environment entry that marks the processes of a run."""
    return f"{RUN_ID_VARIABLE}={run_id}".encode()


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
            owns_group: The root leads a process group that belongs only to the run, and all of the
                run's processes carry its id, as with the runner.
        """
        with self._lock:
            self._trees[run_id] = _Tree(run_id, root, owns_group)
            self._seen.clear()  # existing processes may be the run's
            self._read_ns = 0

    def add(self, run_id: str, pids: Iterable[int]) -> None:
        """Add processes that have a journal of the run.

        A journal outlives its process, whose id may be reused, so the id alone does not count.
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
        """Return the processes of the run at this instant."""
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
            fresh = (process_stat(pid) for pid in present - self._seen)
            for stat in sorted(
                (stat for stat in fresh if stat is not None), key=lambda stat: stat.started_ticks
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


def own_cpu_s(deliverer_pids: Iterable[int], guardian_pid: int | None = None) -> float:
    """Return the CPU time of all processes of the tracker, including ended ones.

    Args:
        deliverer_pids: Running children of this process; their own reaped children count.
        guardian_pid: This process' parent; None leaves it out, as it mostly sleeps.
    """
    # Living processes first: one that ends meanwhile is then counted twice for now, rather than not
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


class RunsOn:
    """How long at least one run was on, and what the tracker took of the CPU meanwhile.

    Args:
        cpu_s: Returns its CPU time so far, in seconds.
    """

    def __init__(self, cpu_s: Callable[[], float]) -> None:
        self._cpu_s = cpu_s
        self._lock = threading.Lock()
        self._runs: set[str] = set()
        self._past = self._since = OnTime(0.0, 0.0)

    def begin(self, run_id: str) -> None:
        """Note that a run is on."""
        with self._lock:
            if not self._runs:
                self._since = self._now()
            self._runs.add(run_id)

    def end(self, run_id: str) -> None:
        """Note that it is on no longer."""
        with self._lock:
            if self._runs == {run_id}:
                self._past = self._so_far()
            self._runs.discard(run_id)

    @property
    def time(self) -> OnTime:
        """Both numbers so far."""
        with self._lock:
            return self._so_far() if self._runs else self._past

    def _so_far(self) -> OnTime:
        now = self._now()
        return OnTime(
            self._past.on_s + now.on_s - self._since.on_s,
            self._past.cpu_s + now.cpu_s - self._since.cpu_s,
        )

    def _now(self) -> OnTime:
        return OnTime(time.monotonic(), self._cpu_s())


@dataclass(frozen=True, slots=True)
class OnTime:
    """Seconds that runs were on, and seconds of CPU that the tracker took meanwhile."""

    on_s: float
    cpu_s: float


GRACE_S = 5.0
_POLL_S = 0.05


def processes_of(run_id: str) -> list[int]:
    """Return the direct and indirect processes of a run, never the caller."""
    own = os.getpid()
    return [pid for pid in all_pids() if pid != own and carries_run_id(pid, run_id)]


def stop_run(run_id: str, grace_s: float = GRACE_S) -> int:
    """End a run's processes and their groups: SIGTERM, then SIGKILL. Return their number.

    Only signals processes that carry the run's id, and groups led by one of them: never a process
    that has reused an id.
    """
    pids = left = processes_of(run_id)
    for pid in pids:
        _signal(pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while left and time.monotonic() < deadline:
        time.sleep(_POLL_S)  # they are not our children, so there is nothing to wait on
        left = processes_of(run_id)
    while left:
        for pid in left:
            _signal(pid, signal.SIGKILL)
        time.sleep(_POLL_S)
        # An unkillable process (waiting for a disk) must not keep the run from being ended.
        left = processes_of(run_id) if time.monotonic() < deadline + grace_s else []
    return len(pids)


def _signal(pid: int, number: int) -> None:
    try:
        if os.getpgid(pid) == pid:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)
    except ProcessLookupError:
        pass  # it has exited
