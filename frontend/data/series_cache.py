"""Series in memory, kept up to date: their points while they are few, and a digest of many.

A digest is a row of cells of one width, a power of two, starting at the barrier. When there are
too many cells, each two are merged. So it has a few thousand cells however long a series is, the
cost of an update is that of the new points, and the cells of a workload's runs coincide. Where it
is too coarse, the store is read again.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from radt.frontend.data.cells import Before, Cells, grouped, joined, of_points, power_of_two
from radt.model import NO_STEP, SeriesKind
from radt.store import growth
from radt.store.chunks import joined as joined_samples
from radt.store.chunks import sliced
from radt.store.counters import rates
from radt.store.growth import Growth, Header, Mark
from radt.store.reader import StoreReader
from radt.store.records import Float64Array, Int64Array, Samples, SeriesRecord

#: A pause longer than this many intervals is a gap, not jitter.
GAP_INTERVALS = 3.5
#: Up to this number of points, every point is kept.
RAW_POINTS = 32_768
DIGEST_CELLS = 4096


class Track:
    """Cells of a series, up to the last read. Not thread-safe.

    Args:
        record: The series.
        base_ns: Zero of its times, which are in seconds.
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
        self.points = 0  # of the drawn values
        self._raw: Samples | None = Samples(np.empty(0, dtype=np.int64), np.empty(0))
        self._digest: Cells | None = None
        self._width_s = 0.0
        self._before = Before()
        self._reading: Samples | None = None  # the last reading of a counter
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
        """The time of the last point; NaN without points."""
        return self._before.at

    @property
    def weight(self) -> int:
        """Memory use, in multiples of eight bytes."""
        raw = 0 if self._raw is None else 3 * len(self._raw)
        return raw + sum(
            15 * len(cells) for cells in (self._seen, self._digest) if cells is not None
        )

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
        """Add the points that `radt.store.growth.grown` found after `mark`.

        Returns:
            Whether they were in time order. If not, all points are needed (`replace`).

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
        """Replace all points up to ``mark`` by sorted ones (after points out of time order)."""
        mark = mark or self.mark
        self._forget()
        self.mark = mark
        self.is_unordered = True
        self._append(self._drawn(samples))

    def add_headers(self, headers: Sequence[Header], mark: Mark) -> None:
        """Add headers of sealed chunks, when each chunk is narrower than a pixel."""
        self.mark = mark
        self._raw = None
        self.is_of_headers = True
        self._last_ns = headers[-1].last_ns
        first = self._seconds(np.array([header.first_ns for header in headers], dtype=np.int64))
        last = self._seconds(np.array([header.last_ns for header in headers], dtype=np.int64))
        low, high, total, count, points = (
            np.array([getattr(header, name) for header in headers], dtype=np.float64)
            for name in ("value_min", "value_max", "value_sum", "finite_count", "point_count")
        )
        has_points = count > 0
        missing = np.concatenate(([False], (count < points)[:-1]))[has_points]
        first, last, low, high = (
            first[has_points],
            last[has_points],
            low[has_points],
            high[has_points],
        )
        total, count = total[has_points], count[has_points]
        pause = first - np.concatenate((first[:1], last[:-1]))
        gap = missing | (pause > self.longest_s)
        gap[0] = False
        cover = np.where(gap, last - first, np.diff(last, prepend=first[:1]))
        # Only the chunk knows the position of an extreme in it; the error is at most a third of a
        # pixel.
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
        """Return points of this series as cells over time."""
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
            # Only the last cell can have grown.
            tail = grouped(joined(known.part(len(known) - 1, len(known)), cells), width_s)
            self._digest = joined(known.part(0, len(known) - 1), tail)
        else:
            self._digest = grouped(joined(known, cells), width_s)
        self._width_s = width_s

    def drawn_alone(self, samples: Samples) -> Samples:
        """Return a part of the series as drawn on its own."""
        is_counter = self.record.kind is SeriesKind.COUNTER
        return rates(samples, self.record) if is_counter else samples

    def _seconds(self, times_ns: Int64Array) -> Float64Array:
        return (times_ns - self.base_ns) / 1e9


#: The limit on cached values of all series, eight bytes each: 120 MB.
MAX_WEIGHT = 15_000_000
#: For a series with more points, chunk headers make the digest.
HEADER_POINTS = 1_000_000
#: A window with fewer cells of the digest is read from the store.
ENOUGH_CELLS = 400
#: The limit on cached cells of windows: 30 MB.
_MAX_PART_CELLS = 250_000


@dataclass(frozen=True, slots=True)
class Ask:
    """A chart's request for a series.

    ``base_ns`` is zero of time. ``start`` and ``end`` are the shown part, in seconds since then, or
    in steps if ``by_step``; None for all. A new ``variant`` makes the whole series be read again.
    """

    record: SeriesRecord
    base_ns: int
    start: float | None = None
    end: float | None = None
    by_step: bool = False
    variant: str = ""

    @property
    def key(self) -> Hashable:
        return self.record, self.base_ns, self.variant


@dataclass(slots=True)
class _Slot:
    track: Track
    lock: threading.Lock = field(default_factory=threading.Lock)
    version: Hashable = None
    weight: int = 0  # the weight at the last count


class Tracks:
    """Tracks of requested series; the least recently used are dropped. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: OrderedDict[Hashable, _Slot] = OrderedDict()
        self._weight = 0
        self._parts: OrderedDict[Hashable, Cells] = OrderedDict()

    def clear(self) -> None:
        """Drop everything, because the store was replaced."""
        with self._lock:
            self._slots.clear()
            self._weight = 0
            self._parts.clear()

    def cells(self, open_reader: Callable[[], StoreReader], ask: Ask, version: Hashable) -> Cells:
        """Return a series over seconds: every point if there are few, else a digest.

        The store is read for new points if ``version`` differs from the last call, and for single
        points of a window that the digest is too coarse for.

        Raises:
            StoreError: The store cannot be read, or a chunk is damaged.
        """
        with self._lock:
            slot = self._slots.get(ask.key)
            if slot is None:
                slot = self._slots[ask.key] = _Slot(Track(ask.record, ask.base_ns))
            self._slots.move_to_end(ask.key)
        with slot.lock:
            if ask.by_step and slot.track.is_of_headers:
                slot.track, slot.version = Track(ask.record, ask.base_ns), None
            if slot.version != version:
                reader = open_reader()
                _update(reader, slot.track, by_step=ask.by_step)
                slot.version = version
            track, cells = slot.track, slot.track.cells
            self._count(ask.key, slot)  # after the cells were read, because they weigh most
            if track.is_complete or ask.start is None or ask.end is None or not len(cells):
                return cells
            shown = _of_steps(cells, ask) if ask.by_step else cells.between(ask.start, ask.end)
            if len(shown) >= ENOUGH_CELLS or not len(shown):
                return cells
            return self._points(open_reader, track, ask, shown)

    def _points(
        self, open_reader: Callable[[], StoreReader], track: Track, ask: Ask, shown: Cells
    ) -> Cells:
        """Return the points of these cells of the digest."""
        start_ns, end_ns = (
            ask.base_ns + round(at_s * 1e9) for at_s in (shown.first[0], shown.last[-1])
        )
        key = (ask.key, start_ns, end_ns, track.mark if shown.last[-1] >= track.last_s else None)
        with self._lock:
            if key in self._parts:
                self._parts.move_to_end(key)
                return self._parts[key]
        samples = open_reader().samples(
            ask.record.run_id, ask.record.series_no, start_ns=start_ns - 1000, end_ns=end_ns + 1000
        )
        cells = track.cells_of(track.drawn_alone(samples))
        if len(cells) > DIGEST_CELLS * 4:
            span = float(cells.last[-1] - cells.first[0])
            cells = grouped(cells, power_of_two(span / DIGEST_CELLS))
        with self._lock:
            self._parts[key] = cells
            kept = sum(map(len, self._parts.values()))
            while kept > _MAX_PART_CELLS and len(self._parts) > 1:
                kept -= len(self._parts.popitem(last=False)[1])
        return cells

    def _count(self, key: Hashable, slot: _Slot) -> None:
        """Record the size of a series, and drop others if the total exceeds the limit."""
        with self._lock:
            if self._slots.get(key) is not slot:
                return  # dropped meanwhile
            weight = slot.track.weight
            self._weight += weight - slot.weight
            slot.weight = weight
            while self._weight > MAX_WEIGHT and len(self._slots) > 1:
                _, oldest = self._slots.popitem(last=False)
                self._weight -= oldest.weight


def _update(reader: StoreReader, track: Track, *, by_step: bool) -> None:
    """Read new points."""
    run_id, series_no = track.record.run_id, track.record.series_no
    if track.mark == growth.Mark() and not by_step:
        _start_with_headers(reader, track)
    more = True
    while more:
        with reader.snapshot() as connection:
            new_points = growth.grown(connection, run_id, series_no, track.mark)
        more = new_points.more
        if not track.add(new_points):
            _read_all(reader, track, new_points)
            return


def _read_all(reader: StoreReader, track: Track, growth_: growth.Growth) -> None:
    """Read a series that was not written in time order."""
    run_id, series_no = track.record.run_id, track.record.series_no
    while growth_.more:
        with reader.snapshot() as connection:
            growth_ = growth.grown(connection, run_id, series_no, growth_.mark)
    track.replace(reader.samples(run_id, series_no), growth_.mark)


def _start_with_headers(reader: StoreReader, track: Track) -> None:
    """Start a very long series from its chunk headers, if they suffice."""
    record = track.record
    if record.kind is SeriesKind.COUNTER:
        return
    with reader.snapshot() as connection:
        headers = growth.headers(connection, record.run_id, record.series_no)
    if sum(header.stored for header in headers) <= HEADER_POINTS:
        return
    sealed = [header for header in headers if header.sealed]
    first_ns = np.array([header.first_ns for header in sealed])
    last_ns = np.array([header.last_ns for header in sealed])
    tells_all = len(sealed) > ENOUGH_CELLS and all(
        header.stored == header.point_count for header in sealed
    )
    if tells_all and not np.any(first_ns[1:] < last_ns[:-1]):
        points = sum(header.stored for header in sealed)
        last = sealed[-1]
        track.add_headers(sealed, growth.Mark(points, points, last.chunk_no, last.last_ns))


def _of_steps(cells: Cells, ask: Ask) -> Cells:
    """Return the range from the first to the last cell with a visible step."""
    assert ask.start is not None
    assert ask.end is not None
    if cells.steps is None:
        return cells.part(0, 0)
    with np.errstate(invalid="ignore"):
        places = np.flatnonzero((cells.steps[1] >= ask.start) & (cells.steps[0] <= ask.end))
    if not len(places):
        return cells.part(0, 0)
    return cells.part(max(0, int(places[0]) - 1), int(places[-1]) + 2)
