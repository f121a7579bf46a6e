"""CPU and memory of the machine and of each run's process tree."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from radt.listeners.api import Availability, Listener, Metric, Reading, Target
from radt.model import Scope
from radt.procfs import TICKS_PER_S, ProcessStat, process_stat

_METRICS = (
    Metric("system.cpu.utilization", "1", Scope.HOST, description="share of all cores in use"),
    Metric("system.memory.used", "By", Scope.HOST, description="memory that is not available"),
    Metric("system.memory.available", "By", Scope.HOST, description="without swapping"),
    Metric("system.swap.used", "By", Scope.HOST),
    Metric("system.load", "1", Scope.HOST, description="runnable tasks, mean of one minute"),
    Metric("process.cpu.utilization", "cores", Scope.PROCESS, description="CPU time per time"),
    Metric(
        "process.memory.rss",
        "By",
        Scope.PROCESS,
        description="sum over the run's processes; pages they share count for each",
    ),
    Metric("process.threads", "1", Scope.PROCESS),
    Metric("process.count", "1", Scope.PROCESS),
)

_NS_PER_TICK = 10**9 // TICKS_PER_S


@dataclass(slots=True)
class _Tree:
    """What a run's process tree had used at the previous instant."""

    read_ns: int = 0
    processes: dict[int, ProcessStat] = field(default_factory=dict)


class TopListener(Listener):
    """Host and process tree."""

    name: ClassVar[str] = "top"
    by_default: ClassVar[bool] = True

    def __init__(self) -> None:
        self._previous_cpu: tuple[float, float] | None = None
        self._trees: dict[str, _Tree] = {}

    @classmethod
    def probe(cls) -> Availability:
        """Wherever there is a /proc."""
        if process_stat(os.getpid()) is None:
            return Availability(False, "/proc is not readable", "Mount /proc")
        return Availability(True)

    @classmethod
    def metrics(cls) -> Sequence[Metric]:
        return _METRICS

    def sample(self, targets: Sequence[Target]) -> Iterator[Reading]:
        yield from self._host()
        trees: dict[str, _Tree] = {}
        for target in targets:
            if not target.pids:
                continue
            now = _Tree(time.monotonic_ns())
            for pid in target.pids:
                if (stat := process_stat(pid)) is not None:
                    now.processes[pid] = stat
            if now.processes:
                trees[target.run_id] = now
                yield from _tree(target.run_id, self._trees.get(target.run_id), now)
        self._trees = trees

    def _host(self) -> Iterator[Reading]:
        import psutil  # not on import: names of listeners are needed where nothing is sampled

        times = psutil.cpu_times()
        # As psutil counts it: guest time is part of user time, and waiting for a disk is idle.
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        busy = total - times.idle - getattr(times, "iowait", 0.0)
        if self._previous_cpu is not None and total > self._previous_cpu[1]:
            previous_busy, previous_total = self._previous_cpu
            share = (busy - previous_busy) / (total - previous_total)
            # The kernel's idle and iowait counters may step back by a tick.
            yield Reading("system.cpu.utilization", min(1.0, max(0.0, share)))
        self._previous_cpu = busy, total
        memory = psutil.virtual_memory()
        yield Reading("system.memory.used", float(memory.total - memory.available))
        yield Reading("system.memory.available", float(memory.available))
        yield Reading("system.swap.used", float(psutil.swap_memory().used))
        yield Reading("system.load", os.getloadavg()[0])


def _tree(run_id: str, before: _Tree | None, now: _Tree) -> Iterator[Reading]:
    # A process on its way out has given back its memory and is not yet gone: its zero is no use of
    # memory but the lack of one to measure.
    processes = [process for process in now.processes.values() if process.rss_bytes]
    if before is not None:
        used_ticks = _used_ticks(before, now)
        cores = used_ticks * _NS_PER_TICK / (now.read_ns - before.read_ns)
        yield Reading("process.cpu.utilization", cores, run_id=run_id)
    if not processes:
        return
    rss = sum(process.rss_bytes for process in processes)
    yield Reading("process.memory.rss", float(rss), run_id=run_id)
    threads = sum(process.threads for process in processes)
    yield Reading("process.threads", float(threads), run_id=run_id)
    yield Reading("process.count", float(len(processes)), run_id=run_id)


def _used_ticks(before: _Tree, now: _Tree) -> int:
    """CPU time of the tree between two instants, including processes that came and went.

    When a process ends, its parent inherits its time, which counted before it ended already: that
    part is taken off again. A process seen for the first time counts in full if it was started
    since the previous instant; one that joined later (an older process) from now on.
    """
    since_ticks = before.read_ns // _NS_PER_TICK
    used = 0
    for pid, process in now.processes.items():
        earlier = before.processes.get(pid)
        if earlier is not None and earlier.started_ticks == process.started_ticks:
            used += process.cpu_ticks - earlier.cpu_ticks
        elif process.started_ticks >= _boot_ticks(since_ticks):
            used += process.cpu_ticks
    for pid, earlier in before.processes.items():
        if pid not in now.processes and earlier.parent in now.processes:
            used -= earlier.cpu_ticks
    return max(0, used)


def _boot_ticks(monotonic_ticks: int) -> int:
    """Start times count from boot including suspension, which monotonic time leaves out."""
    suspended_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    return monotonic_ticks + suspended_ns // _NS_PER_TICK
