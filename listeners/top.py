"""CPU and memory of the machine and of each run's process tree."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from radt.listeners.api import Availability, Listener, Metric, Reading, Target
from radt.listeners.host_files import CpuTimes, cpu_times
from radt.listeners.host_trees import Deferred, Growing, Lineage, TimedValue
from radt.model import MissingReason, Scope, SeriesKind
from radt.procfs import (
    TICKS_PER_S,
    ProcessStat,
    meminfo,
    process_pss,
    process_stat,
    thread_ids,
    thread_switches,
)

#: Reading PSS takes 20 µs per MB, during which the process cannot map memory.
_PSS_MIN_S = 10.0
_PSS_SHARE = 0.002
#: Needs one file per thread, 15 µs each, and training processes have dozens of threads.
_SWITCHES_MIN_S = 5.0
_SWITCHES_SHARE = 0.002


def _host(name: str, unit: str, description: str = "", method: str = "") -> Metric:
    return Metric(name, unit, Scope.HOST, description=description, method=method)


def _process(name: str, unit: str, description: str = "", **options: Any) -> Metric:
    return Metric(name, unit, Scope.PROCESS, description=description, **options)


_METRICS = (
    _host(
        *("system.cpu.utilization", "1", "share of all cores in use"),
        method="user, nice, system and interrupt time of /proc/stat; not iowait, not steal",
    ),
    _host(
        *("system.cpu.iowait", "1", "share of all cores that are idle while a task waits for I/O"),
        method="/proc/stat; a lower bound, as a core with other work to do does not count",
    ),
    _host("system.cpu.steal", "1", "share of all cores that the hypervisor gave to others"),
    _host("system.cpu.core.utilization", "1", "option cores; as above"),
    _host("system.memory.used", "By", "memory that is not available"),
    _host("system.memory.available", "By", "without swapping"),
    _host("system.swap.used", "By"),
    _host("system.load", "{tasks}", "runnable tasks, mean of one minute"),
    _process("process.cpu.utilization", "cores", "CPU time per time"),
    _process(
        *("process.memory.rss", "By", "sum over the run's processes; shared pages count for each"),
        method="/proc/PID/stat, where the kernel lags behind by some pages for each core",
    ),
    _process(
        "process.memory.pss",
        "By",
        "sum over the run's processes; a page that n processes share counts 1/n",
        regular=False,
        method=(
            f"/proc/PID/smaps_rollup, every {_PSS_MIN_S:.0f} s, or less often so that it takes at "
            f"most {_PSS_SHARE:.1%} of a core; pages may be shared with processes of others"
        ),
    ),
    _process("process.threads", "{threads}"),
    _process("process.count", "{processes}"),
    *(
        _process(
            f"process.context_switches.{way}",
            "1",
            description,
            kind=SeriesKind.COUNTER,
            regular=False,
            method=(
                f"all threads, every {_SWITCHES_MIN_S:.0f} s, or less often so that it takes at "
                f"most {_SWITCHES_SHARE:.1%} of a core; without those after a thread's last reading"
            ),
        )
        for way, description in (
            ("voluntary", "a thread waited for something"),
            ("involuntary", "a thread was preempted"),
        )
    ),
)


@dataclass(slots=True)
class _Tree:
    """The state of a run's process tree between two samples."""

    lineage: Lineage = field(default_factory=Lineage)
    cpu_ticks: Growing[int] = field(default_factory=lambda: Growing(1))
    used_ticks: int | None = None
    read_ns: int = 0


class TopListener(Listener):
    """CPU and memory of the host and of process trees."""

    name: ClassVar[str] = "top"
    reads: ClassVar[Sequence[Metric]] = _METRICS
    accepts: ClassVar[Mapping[str, str]] = {"cores": "also the utilisation of each core"}
    by_default: ClassVar[bool] = True

    def __init__(self) -> None:
        self._cpus: dict[str, CpuTimes] = {}
        self._trees: dict[str, _Tree] = {}
        self._switches = _Switches()
        self._pss = Deferred(_pss, min_s=_PSS_MIN_S, share=_PSS_SHARE)
        self._switching = Deferred(
            self._switches.read, min_s=_SWITCHES_MIN_S, share=_SWITCHES_SHARE
        )

    @classmethod
    def probe(cls) -> Availability:
        if process_stat(os.getpid()) is None:
            return Availability(False, "/proc is not readable", "Mount /proc")
        return Availability(True)

    def sample(self, targets: Sequence[Target]) -> Iterator[Reading]:
        yield from self._host()
        trees: dict[str, _Tree] = {}
        alive: dict[str, list[int]] = {}
        for target in targets:
            tree = trees[target.run_id] = self._trees.get(target.run_id) or _Tree()
            stats = {pid: stat for pid in target.pids if (stat := process_stat(pid)) is not None}
            yield from _cpu(target.run_id, tree, stats)
            # An exiting process is still listed after freeing its memory: its zero is not a value.
            living = [stat for stat in stats.values() if stat.rss_bytes]
            if living:
                alive[target.run_id] = [stat.pid for stat in living]
                yield from _memory(target.run_id, living)
        self._trees = trees
        self._switches.keep(alive)
        yield from self._deferred(alive)

    def wait(self) -> None:
        """Wait until deferred values have been read."""
        self._pss.wait()
        self._switching.wait()

    def _host(self) -> Iterator[Reading]:
        before, self._cpus = self._cpus, cpu_times(cores="cores" in self.options)
        for cpu, times in self._cpus.items():
            if (earlier := before.get(cpu)) is None:
                continue  # the first sample, or a core that has just come online
            shares = times.shares_since(earlier)
            if shares is None:
                continue
            if cpu:
                yield Reading("system.cpu.core.utilization", shares.busy, f"core {cpu}")
            else:
                yield Reading("system.cpu.utilization", shares.busy)
                yield Reading("system.cpu.iowait", shares.iowait)
                yield Reading("system.cpu.steal", shares.steal)
        memory = meminfo()
        total, available = memory.get("MemTotal"), memory.get("MemAvailable")
        if total is None or available is None:  # before Linux 3.14
            yield Reading("system.memory.used", MissingReason.UNSUPPORTED)
            yield Reading("system.memory.available", MissingReason.UNSUPPORTED)
        else:
            yield Reading("system.memory.used", float(total - available))
            yield Reading("system.memory.available", float(available))
        swap = memory.get("SwapTotal", 0) - memory.get("SwapFree", 0)
        yield Reading("system.swap.used", float(swap))
        yield Reading("system.load", os.getloadavg()[0])

    def _deferred(self, alive: Mapping[str, Sequence[int]]) -> Iterator[Reading]:
        taken: TimedValue[float | MissingReason]
        for run_id, taken in self._pss.take(alive).items():
            yield Reading("process.memory.pss", taken.value, run_id=run_id, at_ns=taken.at_ns)
        for run_id, switches in self._switching.take(alive).items():
            for way, count in zip(("voluntary", "involuntary"), switches.value, strict=True):
                name = f"process.context_switches.{way}"
                yield Reading(name, float(count), run_id=run_id, at_ns=switches.at_ns)


def _cpu(run_id: str, tree: _Tree, stats: Mapping[int, ProcessStat]) -> Iterator[Reading]:
    """Yield the CPU time of the tree between two samples, including short-lived processes.

    When a process ends, its parent inherits its time, which was counted already.
    """
    if not stats and tree.used_ticks is None:
        return
    now_ns = time.monotonic_ns()
    tree.lineage.look(stats)
    ticks = {pid: (stat.cpu_ticks,) for pid, stat in stats.items()}
    (used,) = tree.cpu_ticks.update(ticks, tree.lineage.fresh, tree.lineage.passed_on)
    if stats and tree.used_ticks is not None:
        cores = (used - tree.used_ticks) * 1e9 / TICKS_PER_S / (now_ns - tree.read_ns)
        yield Reading("process.cpu.utilization", cores, run_id=run_id)
    tree.used_ticks, tree.read_ns = used, now_ns


def _memory(run_id: str, processes: Sequence[ProcessStat]) -> Iterator[Reading]:
    rss = sum(process.rss_bytes for process in processes)
    yield Reading("process.memory.rss", float(rss), run_id=run_id)
    threads = sum(process.threads for process in processes)
    yield Reading("process.threads", float(threads), run_id=run_id)
    yield Reading("process.count", float(len(processes)), run_id=run_id)


def _pss(run_id: str, pids: Sequence[int]) -> float | MissingReason:  # noqa: ARG001
    if not Path("/proc/self/smaps_rollup").exists():
        return MissingReason.UNSUPPORTED
    try:
        parts = [part for pid in pids if (part := process_pss(pid)) is not None]
    except PermissionError:
        return MissingReason.PERMISSION
    return float(sum(parts)) if parts else MissingReason.LOST  # all have ended meanwhile


class _Switches:
    """Counts context switches of all threads of process trees."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[Lineage, Growing[tuple[int, int]]]] = {}

    def keep(self, runs: Mapping[str, object]) -> None:
        """Forget all runs but these."""
        for run_id in [run_id for run_id in list(self._counts) if run_id not in runs]:
            self._counts.pop(run_id, None)

    def read(self, run_id: str, pids: Sequence[int]) -> tuple[int, ...]:
        """Return voluntary and involuntary switches since the first reading."""
        lineage, growing = self._counts.setdefault(run_id, (Lineage(), Growing(2)))
        processes = {}
        counts = {}
        for pid in pids:
            stat = lineage.known(pid) or process_stat(pid)
            if stat is None:
                continue
            processes[pid] = stat
            for tid in thread_ids(pid):
                if (switches := thread_switches(pid, tid)) is not None:
                    counts[pid, tid] = switches
        known = {pid for pid in processes if lineage.known(pid) is not None}
        lineage.look(processes)
        fresh = {key for key in counts if key[0] in known or key[0] in lineage.fresh}
        return growing.update(counts, fresh)
