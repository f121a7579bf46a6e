"""One series in memory, kept up to date: its points while they are few, and a digest of many.

The digest is a row of cells of one width, a power of two, from the barrier on. When there are too
many, two become one. So it has a few thousand cells however long a series is, costs what is new and
never what is old, and cells of several runs of a workload fall together. What it is too coarse for
is read from the store again (`radt.frontend.charts.tracks`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from radt.frontend.charts.cells import (
    Before,
    Cells,
    grouped,
    joined,
    of_points,
    power_of_two,
)
from radt.model import NO_STEP, SeriesKind
from radt.store.chunks import joined as joined_samples
from radt.store.chunks import sliced
from radt.store.counters import rates
from radt.store.growth import Growth, Header, Mark
from radt.store.records import Float64Array, Int64Array, Samples, SeriesRecord

#: A pause longer than this many intervals is a gap, not jitter.
GAP_INTERVALS = 3.5
#: As many points are kept as they are.
RAW_POINTS = 32_768
DIGEST_CELLS = 4096


class Track:
    """What is known of a series so far. Not thread-safe.

    Args:
        record: The series.
        base_ns: Zero of its times, which are seconds.
    """

    def __init__(self, record: SeriesRecord, base_ns: int) -> None:
        self.record = record
        self.base_ns = base_ns
        self.longest_s = math.inf
        if record.interval_s is not None:
            self.longest_s = GAP_INTERVALS * record.interval_s
        self.mark = Mark()
        self._forget()

    def _forget(self) -> None:
        self.points = 0  # of what is drawn
        self._raw: Samples | None = Samples(np.empty(0, dtype=np.int64), np.empty(0))
        self._digest: Cells | None = None
        self._width_s = 0.0
        self._before = Before()
        self._reading: Samples | None = None  # the last one of a counter
        self._seen: Cells | None = None
        self._last_ns = -(2**63)
        self.is_unordered = False
        self.is_of_headers = False

    @property
    def is_complete(self) -> bool:
        """Whether `cells` are all points, not a digest."""
        return self._raw is not None

    @property
    def last_s(self) -> float:
        """When the last point was; NaN without any."""
        return self._before.at

    @property
    def weight(self) -> int:
        """Memory, in numbers of eight bytes."""
        raw = 0 if self._raw is None else 3 * len(self._raw)
        return raw + sum(15 * len(one) for one in (self._seen, self._digest) if one is not None)

    @property
    def cells(self) -> Cells:
        """All points, or the digest."""
        if self._digest is not None:
            return self._digest
        if self._seen is None:
            assert self._raw is not None
            self._seen = self.cells_of(self._raw)
        return self._seen

    def add(self, growth: Growth) -> bool:
        """What `radt.store.growth.grown` found behind `mark`.

        Returns:
            Whether it was in the order of time. If not, all points are needed (`replace`).

        Raises:
            CodecError: A chunk is damaged.
        """
        samples = growth.decode()
        if growth.anew:
            self._forget()
        times = samples.times_ns
        if len(times) and (
            self.is_unordered or times[0] < self._last_ns or np.any(times[1:] < times[:-1])
        ):
            return False
        self.mark = growth.mark
        if not len(samples):
            return True
        self._last_ns = int(times[-1])
        self._append(self._drawn(samples))
        return True

    def replace(self, samples: Samples, mark: Mark | None = None) -> None:
        """All points up to ``mark``, in the order of time: of a series not written in it."""
        mark = mark or self.mark
        self._forget()
        self.mark = mark
        self.is_unordered = True
        self._append(self._drawn(samples))

    def add_headers(self, headers: Sequence[Header], mark: Mark) -> None:
        """Sealed chunks of a series with so many that each is less than can be seen."""
        self.mark = mark
        self._raw = None
        self.is_of_headers = True
        self._last_ns = headers[-1].last_ns
        first = self._seconds(np.array([one.first_ns for one in headers], dtype=np.int64))
        last = self._seconds(np.array([one.last_ns for one in headers], dtype=np.int64))
        low, high, total, count, points = (
            np.array([getattr(one, name) for one in headers], dtype=np.float64)
            for name in ("value_min", "value_max", "value_sum", "finite_count", "point_count")
        )
        there = count > 0
        missing = np.concatenate(([False], (count < points)[:-1]))[there]
        first, last, low, high = first[there], last[there], low[there], high[there]
        total, count = total[there], count[there]
        pause = first - np.concatenate((first[:1], last[:-1]))
        gap = missing | (pause > self.longest_s)
        gap[0] = False
        cover = np.where(gap, last - first, np.diff(last, prepend=first[:1]))
        # Where in its chunk an extreme is only the chunk knows; a third of a pixel at most.
        third = (last - first) / 3
        cells = Cells(
            *(first, last, low, high, first + third, last - third, total, count),
            total / count * cover,
            cover,
            gap,
        )
        self.points = int(count.sum())
        self._before = Before(float(last[-1]), float(total[-1] / count[-1]))
        self._keep(cells)

    def cells_of(self, samples: Samples, before: Before | None = None) -> Cells:
        """Points of this series, as drawn, on its axis of time."""
        steps = None
        if samples.steps is not None:
            steps = samples.steps.astype(np.float64)
            steps[samples.steps == NO_STEP] = np.nan
        times_s = self._seconds(samples.times_ns)
        return of_points(times_s, samples.values, steps, self.longest_s, before)

    def _drawn(self, samples: Samples) -> Samples:
        if self.record.kind is not SeriesKind.COUNTER:
            return samples
        if self._reading is not None:
            samples = joined_samples([self._reading, samples])
        finite = np.flatnonzero(np.isfinite(samples.values))
        if len(finite):
            self._reading = sliced(samples, int(finite[-1]), int(finite[-1]) + 1)
        return rates(samples, self.record)

    def _append(self, samples: Samples) -> None:
        if not len(samples):
            return
        self.points += len(samples)
        self._seen = None
        if self._raw is not None:
            self._raw = joined_samples([self._raw, samples]) if len(self._raw) else samples
            fits = len(self._raw) <= RAW_POINTS
            cells = None if fits else self.cells_of(self._raw)
        else:
            cells = self.cells_of(samples, self._before)
        self._note_end(samples)
        if cells is not None:
            self._raw = None
            self._keep(cells)

    def _note_end(self, samples: Samples) -> None:
        finite = np.flatnonzero(np.isfinite(samples.values))
        if len(finite):
            last = int(finite[-1])
            at_s = float(self._seconds(samples.times_ns[last : last + 1])[0])
            self._before = Before(at_s, float(samples.values[last]), last < len(samples) - 1)
        else:
            self._before = Before(self._before.at, self._before.value, missing=True)

    def _keep(self, cells: Cells) -> None:
        """Put new cells into the digest."""
        if not len(cells):
            return
        known = self._digest
        begins = cells.first[0] if known is None else known.first[0]
        span_s = float(cells.last[-1] - begins)
        width_s = max(self._width_s, power_of_two(span_s / DIGEST_CELLS))
        cells = grouped(cells, width_s)
        if known is None:
            self._digest = cells
        elif width_s == self._width_s:
            # Only the last cell can have got more.
            tail = grouped(joined(known.part(len(known) - 1, len(known)), cells), width_s)
            self._digest = joined(known.part(0, len(known) - 1), tail)
        else:
            self._digest = grouped(joined(known, cells), width_s)
        self._width_s = width_s

    def drawn_alone(self, samples: Samples) -> Samples:
        """Some points from the middle of the series as they are drawn."""
        is_counter = self.record.kind is SeriesKind.COUNTER
        return rates(samples, self.record) if is_counter else samples

    def _seconds(self, times_ns: Int64Array) -> Float64Array:
        return (times_ns - self.base_ns) / 1e9
