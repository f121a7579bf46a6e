"""Store a run's kernel totals (`radt.usage`) as series.

For a standalone script that is killed, only earlier readings are available.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from radt.collector.routing import Numbering, SeriesKey
from radt.listeners.api import Metric
from radt.model import Scope, SeriesKind
from radt.procfs import TICKS_PER_S, peak_rss, process_io, process_stat
from radt.store.records import Samples, SeriesBatch
from radt.usage import (
    CPU_TIME,
    IO_READ,
    IO_WRITTEN,
    KERNEL,
    LAST_READING,
    RSS_PEAK,
    TOTALS,
    read_usage,
)

#: How often to read the usage of a standalone script.
_READ_S = 1.0


def usage_of(pid: int) -> dict[str, float]:
    """Return a process's usage so far, including children that it has waited for.

    Empty if it is gone or its numbers may not be read.
    """
    try:
        stat, io = process_stat(pid), process_io(pid)
        peak_bytes = peak_rss(pid)
    except PermissionError:
        return {}
    if stat is None or io is None or peak_bytes is None:
        return {}
    return {
        CPU_TIME: stat.cpu_ticks / TICKS_PER_S,
        RSS_PEAK: peak_bytes,
        IO_READ: io.read_bytes,
        IO_WRITTEN: io.written_bytes,
    }


class LastReading:
    """The usage of a process at its last reading, in case it cannot report its own."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._first: dict[str, float] = {}
        self._last: dict[str, float] = {}
        self._read_s = -math.inf

    def read(self) -> None:
        """Read the usage unless the last reading is less than a second old."""
        now_s = time.monotonic()
        if now_s - self._read_s >= _READ_S:
            self._read_s = now_s
            self._last = usage_of(self._pid) or self._last
            self._first = self._first or self._last

    @property
    def growth(self) -> dict[str, float]:
        """Return the usage since the first reading; a peak is returned unchanged."""
        return {
            total.key: self._last[total.key] - (0.0 if total.is_peak else self._first[total.key])
            for total in TOTALS
            if total.key in self._last
        }


def total_batches(
    run_dir: Path,
    numbering: Numbering,
    started_ns: int,
    ended_ns: int,
    last: LastReading | None = None,
) -> Iterator[SeriesBatch]:
    """Yield the totals in a run's folder as points, unless the store has them.

    A total is a counter that is 0 at the run's start; a peak is a point at the run's end. Without
    totals in its folder, a run gets the usage of ``last``, marked as estimated.
    """
    usage, method = ({}, "") if numbering.has(KERNEL) else read_usage(run_dir)
    bound = not usage and last is not None and not numbering.has(KERNEL)
    if bound and last is not None:
        usage, method = last.growth, LAST_READING
    for total in TOTALS:
        if total.key not in usage:
            continue
        kind = SeriesKind.GAUGE if total.is_peak else SeriesKind.COUNTER
        metric = Metric(
            total.metric, total.unit, Scope.PROCESS, kind, method=method, estimated=bound
        )
        points = {ended_ns: usage[total.key]}
        if not total.is_peak:
            points = {min(started_ns, ended_ns - 1): 0.0} | points
        yield SeriesBatch(
            numbering.series(SeriesKey(KERNEL, total.metric), metric, None),
            Samples(np.array([*points], np.int64), np.array([*points.values()], np.float64)),
        )
