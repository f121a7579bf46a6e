"""Samples like those of listeners, and stores that hold them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from radt.model import Scope, SeriesKind
from radt.store.records import Int64Array, Samples, SeriesBatch, SeriesRecord

RUN_ID = "0" * 32
START_NS = 1_790_000_000_000_000_000
SECOND_NS = 1_000_000_000


def instants(count: int, interval_ns: int = SECOND_NS) -> Int64Array:
    """Return one instant per interval, up to 0.2 ms late; all metrics of a listener share them."""
    late = np.random.default_rng(0).integers(0, 200_000, count)
    return START_NS + np.arange(count, dtype=np.int64) * interval_ns + late


def realistic(series_no: int, count: int, times_ns: Int64Array | None = None) -> Samples:
    """Return noisy values with the precision of drivers."""
    random = np.random.default_rng(series_no)
    level = 50 + np.cumsum(random.normal(0, 0.2, count))
    kind = series_no % 3
    if kind == 0:  # a ratio in whole percent
        values = np.round(level + random.normal(0, 3, count)) / 100
    elif kind == 1:  # power in milliwatts
        values = np.round((level + random.normal(0, 3, count)) * 1000) / 1000
    else:  # memory in pages; most readings equal the previous one
        steps = np.where(random.random(count) < 0.1, random.integers(-50, 50, count), 0)
        values = (200_000 + np.cumsum(steps)) * 4096.0
    return Samples(instants(count) if times_ns is None else times_ns, values)


def series(number: int, run_id: str = RUN_ID, interval_s: float = 1.0) -> SeriesRecord:
    """Return a series of the host."""
    return SeriesRecord(
        run_id,
        number,
        "top",
        f"metric {number}",
        "1",
        Scope.HOST,
        SeriesKind.GAUGE,
        interval_s=interval_s,
    )


def batches(data: list[Samples], points: int) -> Iterator[list[SeriesBatch]]:
    """Yield ``points`` points of every series at a time."""
    for start in range(0, len(data[0]), points):
        part = slice(start, start + points)
        yield [
            SeriesBatch(number, Samples(samples.times_ns[part], samples.values[part]))
            for number, samples in enumerate(data)
        ]


def middle(samples: Samples, share: int = 100) -> tuple[int, int]:
    """Return first and last time of one part in ``share``, from the middle on."""
    times = samples.times_ns
    begin, width = len(times) // 2, len(times) // share
    return int(times[begin]), int(times[begin + width])
