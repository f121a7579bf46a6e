"""Timing of actions, and the machine's load meanwhile."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path


def median_s(action: Callable[[], object], repeat: int = 9) -> float:
    """Return the median time of an action in seconds, after one warm-up."""
    action()
    durations = []
    for _ in range(repeat):
        start = time.perf_counter()
        action()
        durations.append(time.perf_counter() - start)
    return statistics.median(durations)


class Load:
    """The machine's load average, and the share of time that this process waited for a core.

    If it waited, times are upper bounds and rates lower ones.
    """

    def __init__(self) -> None:
        self._averages = [os.getloadavg()[0]]
        self._began = time.perf_counter()

    def look(self) -> None:
        """Record the current load; called between measurements."""
        self._averages.append(os.getloadavg()[0])

    def __str__(self) -> str:
        minutes = (time.perf_counter() - self._began) / 60
        return (
            f"{os.cpu_count()} cores, load {min(self._averages):.1f} to "
            f"{max(self._averages):.1f} in {minutes:.0f} min; ready to run, the "
            f"benchmark waited {_waited():.0%} of the time for a core"
        )


def _waited() -> float:
    """Return the share of its time that this process was ready to run but did not run.

    https://docs.kernel.org/scheduler/sched-stats.html, "/proc/<pid>/schedstat".
    """
    running_ns, waiting_ns, _ = map(int, Path("/proc/self/schedstat").read_text().split())
    return waiting_ns / (running_ns + waiting_ns)
