"""A run's totals as series: the kernel's accounting of its processes (`radt.usage`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from radt.collector.routing import Numbering, SeriesKey
from radt.listeners.api import Metric
from radt.model import Scope, SeriesKind
from radt.store.records import Samples, SeriesBatch
from radt.usage import KERNEL, TOTALS, read_usage


def total_batches(
    run_dir: Path, numbering: Numbering, started_ns: int, ended_ns: int
) -> Iterator[SeriesBatch]:
    """Yield the totals in a run's folder as points, unless the store has them.

    A total is a counter that is 0 as the run starts; a peak is a point at the run's end.
    """
    usage, method = ({}, "") if numbering.has(KERNEL) else read_usage(run_dir)
    for total in TOTALS:
        if total.key not in usage:
            continue
        kind = SeriesKind.GAUGE if total.is_peak else SeriesKind.COUNTER
        metric = Metric(total.metric, total.unit, Scope.PROCESS, kind, method=method)
        points = {ended_ns: usage[total.key]}
        if not total.is_peak:
            points = {min(started_ns, ended_ns - 1): 0.0} | points
        yield SeriesBatch(
            numbering.series(SeriesKey(KERNEL, total.metric), metric, None),
            Samples(np.array([*points], np.int64), np.array([*points.values()], np.float64)),
        )
