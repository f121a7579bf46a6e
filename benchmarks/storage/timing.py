"""How long something takes, and how busy the machine was meanwhile."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable


def median_s(action: Callable[[], object], repeat: int = 9) -> float:
    """Median time of an action in seconds, after one to warm up."""
    action()
    durations = []
    for _ in range(repeat):
        start = time.perf_counter()
        action()
        durations.append(time.perf_counter() - start)
    return statistics.median(durations)


class Load:
    """The machine's load average and the share of its cores that others took.

    Others are all that is not us, our children or idle: on a shared machine times are upper bounds.
    """

    def __init__(self) -> None:
        self._averages = [os.getloadavg()[0]]
        self._began = time.perf_counter()

    def look(self) -> None:
        """Note the load now; called between measures."""
        self._averages.append(os.getloadavg()[0])

    def __str__(self) -> str:
        minutes = (time.perf_counter() - self._began) / 60
        return (
            f"{os.cpu_count()} cores, load {min(self._averages):.1f} to "
            f"{max(self._averages):.1f} in {minutes:.0f} min"
        )
