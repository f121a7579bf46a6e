"""CPU time of each run's threads, and the core they ran on."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from radt.listeners.api import Availability, Listener, Metric, Reading, Target
from radt.listeners.host_trees import Growing, Lineage
from radt.model import Scope
from radt.procfs import TICKS_PER_S, ProcessStat, ThreadStat, process_stat, thread_ids, thread_stat

_MAX_SERIES = 64
_MIN_CORES = 0.05
_OTHER = "other"

_METRICS = (
    Metric(
        "process.thread.cpu.utilization",
        "cores",
        Scope.PROCESS,
        description="CPU time per time of a thread",
        method=(
            "a thread is named when it is first busy, process or process/thread, numbered if names "
            "are equal; it replaces one of its name that has ended; all other threads of the run "
            "are summed as 'other'"
        ),
    ),
    Metric(
        "process.thread.core",
        "{core}",
        Scope.PROCESS,
        description="number of the core it ran on last",
    ),
)

#: Process, thread, start time: unique even if ids are reused.
_Key = tuple[int, int, int]


@dataclass(slots=True)
class _Places:
    """Entities for threads: at most ``most`` over the whole run."""

    most: int
    taken: dict[_Key, str] = field(default_factory=dict)
    _free: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    _counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _names: dict[str, str] = field(default_factory=dict)

    def give(self, key: _Key, name: str) -> None:
        """Assign an entity to a thread of this name, if one is left."""
        if self._free[name]:
            self.taken[key] = self._free[name].pop(0)
        elif len(self._names) < self.most:
            self._counts[name] += 1
            number = self._counts[name]
            entity = self.taken[key] = name if number == 1 else f"{name} {number}"
            self._names[entity] = name

    def release(self, alive: Mapping[_Key, object]) -> None:
        """Free the entities of threads that have ended."""
        for key in [key for key in self.taken if key not in alive]:
            entity = self.taken.pop(key)
            self._free[self._names[entity]].append(entity)


@dataclass(slots=True)
class _Tree:
    places: _Places
    lineage: Lineage = field(default_factory=Lineage)
    own_ticks: Growing[int] = field(default_factory=lambda: Growing(1))
    processes: dict[int, ProcessStat] = field(default_factory=dict)
    threads: dict[_Key, ThreadStat] = field(default_factory=dict)
    used_ticks: int = 0
    read_ns: int = 0


class PsListener(Listener):
    """Threads of each run."""

    name: ClassVar[str] = "ps"
    reads: ClassVar[Sequence[Metric]] = _METRICS
    accepts: ClassVar[Mapping[str, str]] = {
        "max=N": f"series for at most N threads of a run; default {_MAX_SERIES}",
        "min=CORES": f"only threads that were this busy at least once; default {_MIN_CORES:g}",
    }

    def __init__(self) -> None:
        self._trees: dict[str, _Tree] = {}

    @classmethod
    def probe(cls) -> Availability:
        if thread_stat(os.getpid(), os.getpid()) is None:
            return Availability(False, "/proc is not readable", "Mount /proc")
        return Availability(True)

    @classmethod
    def check_option(cls, word: str, value: str | None) -> None:
        if word == "max" and not (value or "").isdecimal():
            raise ValueError("expected a number of threads, as in max=64")
        if word == "min":
            try:
                good = 0 <= float(value or "") < float("inf")
            except ValueError:
                good = False
            if not good:
                raise ValueError("expected a number of cores, as in min=0.05")

    def sample(self, targets: Sequence[Target]) -> Iterator[Reading]:
        most = int(self.options.get("max") or _MAX_SERIES)
        min_cores = float(self.options.get("min") or _MIN_CORES)
        trees: dict[str, _Tree] = {}
        for target in targets:
            tree = self._trees.get(target.run_id) or _Tree(_Places(most))
            trees[target.run_id] = tree
            yield from _read(target, tree, min_cores)
        self._trees = trees


def _read(target: Target, tree: _Tree, min_cores: float) -> Iterator[Reading]:
    now_ns = time.monotonic_ns()
    processes = {pid: stat for pid in target.pids if (stat := process_stat(pid)) is not None}
    threads = _threads(tree, processes)
    known = tree.processes.keys() & processes.keys()
    tree.lineage.look(processes)
    own = {pid: (stat.own_cpu_ticks,) for pid, stat in processes.items()}
    (used_ticks,) = tree.own_ticks.update(own, tree.lineage.fresh)
    if tree.read_ns and processes:
        per_tick = 1e9 / TICKS_PER_S / (now_ns - tree.read_ns)  # cores
        cores = {}
        for key, thread in threads.items():
            before = tree.threads.get(key)
            if before is not None:
                cores[key] = (thread.cpu_ticks - before.cpu_ticks) * per_tick
            elif key[0] in known or key[0] in tree.lineage.fresh:
                cores[key] = thread.cpu_ticks * per_tick
        _name(tree.places, cores, threads, min_cores)
        for key, entity in tree.places.taken.items():
            yield Reading(
                "process.thread.cpu.utilization", cores[key], entity, run_id=target.run_id
            )
            yield Reading(
                "process.thread.core", float(threads[key].core), entity, run_id=target.run_id
            )
        named = sum(cores[key] for key in tree.places.taken)
        # Threads are read slightly later than their processes, so they may be a tick ahead.
        other = max(0.0, (used_ticks - tree.used_ticks) * per_tick - named)
        yield Reading("process.thread.cpu.utilization", other, _OTHER, run_id=target.run_id)
    tree.processes, tree.threads = processes, threads
    tree.used_ticks, tree.read_ns = used_ticks, now_ns


def _threads(tree: _Tree, processes: Mapping[int, ProcessStat]) -> dict[_Key, ThreadStat]:
    """Return all threads; those of an idle process are not read again."""
    idle = {
        pid
        for pid, stat in processes.items()
        if (before := tree.processes.get(pid)) is not None
        and before.started_ticks == stat.started_ticks
        and (before.own_cpu_ticks, before.threads) == (stat.own_cpu_ticks, stat.threads)
    }
    threads = {key: thread for key, thread in tree.threads.items() if key[0] in idle}
    for pid in processes.keys() - idle:
        for tid in thread_ids(pid):
            if (thread := thread_stat(pid, tid)) is not None:
                threads[pid, tid, thread.started_ticks] = thread
    return threads


def _name(
    places: _Places,
    cores: Mapping[_Key, float],
    threads: Mapping[_Key, ThreadStat],
    min_cores: float,
) -> None:
    """Assign entities to busy threads, the busiest first."""
    places.release(threads)
    busy = [
        (used, key)
        for key, used in cores.items()
        if key not in places.taken and used >= min_cores and used > 0
    ]
    for _, (pid, tid, started_ticks) in sorted(busy, reverse=True):
        thread = threads[pid, tid, started_ticks]
        name = thread.name
        if pid != tid:
            name = f"{_leader(pid, threads.values())}/{name}"
        places.give((pid, tid, started_ticks), name)


def _leader(pid: int, threads: Iterable[ThreadStat]) -> str:
    """Return the name of a process, which is that of its first thread."""
    return next((thread.name for thread in threads if thread.tid == pid), "?")
