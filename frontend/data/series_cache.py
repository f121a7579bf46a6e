"""Series in memory, kept up to date: all points of short series, and a digest of long ones.

A digest (`radt.analysis.lines`) has cells of equal width on the drawn axis, so there is one digest
per axis. If it is too coarse, the store is read again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from radt.analysis.lines import DIGEST_CELLS, XMap, digest, extended
from radt.model import SeriesKind
from radt.store import points
from radt.store.cells import GAP_INTERVALS, NO_CELLS, Before, Cells, joined, of_samples, steps_of
from radt.store.points import Growth, Header, Mark
from radt.store.reader import StoreReader
from radt.store.records import Float64Array, Int64Array, Samples, SeriesRecord

#: Up to this number of points, every point is kept.
RAW_POINTS = 32_768


@dataclass(frozen=True, slots=True)
class Ask:
    """A chart's request for a series.

    ``base_ns`` is zero of time. x is the seconds since ``base_ns``, those seconds mapped by
    ``onto``, or the step if ``by_step``. ``shown`` is the visible part of x; None for all. With
    ``every_point`` a digest is not sufficient. Changing ``variant`` rereads the whole series.
    """

    record: SeriesRecord
    base_ns: int
    shown: tuple[float, float] | None = None
    by_step: bool = False
    onto: XMap | None = None
    every_point: bool = False
    variant: str = ""

    @property
    def key(self) -> Hashable:
        return self.record, self.base_ns, self.by_step, self.onto is None, self.variant


class Track:
    """Cells of a series, up to the last read. Not thread-safe.

    Args:
        ask: The series, and the meaning of its x.
    """

    def __init__(self, ask: Ask) -> None:
        self.ask, self.record = ask, ask.record
        self.mark = Mark()
        self._forget()

    def _forget(self) -> None:
        self.cells = NO_CELLS
        #: True if `cells` are all points, False for a digest.
        self.is_complete = True
        self.before = Before()
        self._last_ns = -(2**63)
        self.is_unordered = False

    @property
    def weight(self) -> int:
        """Memory use, in multiples of eight bytes."""
        return 10 * len(self.cells)

    def add(self, growth: Growth) -> bool:
        """Add the points that `radt.store.points.grown` found after `mark`.

        Returns:
            True if they were in time order. Otherwise all points are needed (`replace`).

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
        if len(samples):
            self._last_ns = int(times[-1])
            self._append(samples)
        return True

    def replace(self, samples: Samples, mark: Mark) -> None:
        """Replace all points up to ``mark`` by sorted ones (after points out of time order)."""
        self._forget()
        self.mark = mark
        self.is_unordered = True
        self._append(samples)

    def add_headers(self, headers: Sequence[Header], mark: Mark) -> None:
        """Start with the headers of sealed chunks, each of which is narrower than a drawn cell."""
        self.mark = mark
        self.is_complete = False
        self._last_ns = headers[-1].last_ns
        first = self._seconds(np.array([header.first_ns for header in headers], dtype=np.int64))
        last = self._seconds(np.array([header.last_ns for header in headers], dtype=np.int64))
        low, high, total, count, points = (
            np.array([getattr(header, name) for header in headers], dtype=np.float64)
            for name in ("value_min", "value_max", "value_sum", "finite_count", "point_count")
        )
        has_points = count > 0
        missing = np.concatenate(([False], (count < points)[:-1]))
        cells = Cells(first, last, low, high, total, count, count, missing, first, last)
        cells = cells.taken(has_points)
        if (interval_s := self.record.interval_s) is not None:
            cells.gap[1:] |= cells.first[1:] - cells.last[:-1] > GAP_INTERVALS * interval_s
        cells.gap[0] = False
        self.before = Before(float(cells.last[-1]))
        self.cells = digest(cells)

    def cells_of(self, samples: Samples, before: Before | None = None) -> tuple[Cells, Before]:
        """Return points of this series as cells in the order of x, and the state at their end."""
        cells, end = of_samples(samples, self.record, self.ask.base_ns, before)
        if self.ask.by_step:
            steps = steps_of(samples)
            if len(steps) != len(cells):  # not every reading of a counter has a rate
                at_s = self._seconds(samples.times_ns[np.isfinite(samples.values)])
                steps = steps[np.searchsorted(at_s, cells.since_s)]
            return replace(cells.placed(steps), width=1.0), end
        if self.ask.onto is not None:
            cells = cells.placed(self.ask.onto(cells.first))
        return cells, end

    def _append(self, samples: Samples) -> None:
        cells, self.before = self.cells_of(samples, self.before)
        if not self.is_complete:
            self.cells = extended(self.cells, cells)
            return
        self.cells = joined(self.cells, cells).ordered()
        if len(self.cells) > RAW_POINTS:
            self.is_complete = False
            self.cells = digest(self.cells)

    def _seconds(self, times_ns: Int64Array) -> Float64Array:
        return (times_ns - self.ask.base_ns) / 1e9


#: Maximum number of cached values of all series, at eight bytes: 120 MB.
MAX_WEIGHT = 15_000_000
#: Above this number of points, the digest is built from chunk headers.
HEADER_POINTS = 1_000_000
#: A window with fewer cells of the digest is read from the store.
ENOUGH_CELLS = 400
#: Maximum number of cached points of windows: 30 MB.
_MAX_PART_CELLS = 1_000_000


@dataclass(slots=True)
class _Slot:
    track: Track
    lock: threading.Lock = field(default_factory=threading.Lock)
    version: Hashable = None
    weight: int = 0  # when last counted


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
        """Return a series in the order of x: every point if there are few, else a digest.

        New points are read if ``version`` differs from the last call. Individual points are read
        for a window if the digest is too coarse.

        Raises:
            StoreError: The store cannot be read, or a chunk is damaged.
        """
        with self._lock:
            slot = self._slots.get(ask.key)
            if slot is None:
                slot = self._slots[ask.key] = _Slot(Track(ask))
            self._slots.move_to_end(ask.key)
        with slot.lock:
            if slot.track.ask.onto != ask.onto:  # an epoch has ended or progressed
                slot.track, slot.version = Track(ask), None
            if slot.version != version:
                _update(open_reader(), slot.track)
                slot.version = version
            track, cells = slot.track, slot.track.cells
            self._count(ask.key, slot)
            if track.is_complete:
                return cells
            shown = cells if ask.shown is None else cells.between(*ask.shown)
            if len(shown) and (ask.every_point or (ask.shown and len(shown) < ENOUGH_CELLS)):
                return self._points(open_reader, track, ask, shown)
            return cells

    def _points(
        self, open_reader: Callable[[], StoreReader], track: Track, ask: Ask, shown: Cells
    ) -> Cells:
        """Return the points of these cells of the digest."""
        start_ns, end_ns = (
            ask.base_ns + round(at_s * 1e9) for at_s in (shown.since_s.min(), shown.until_s.max())
        )
        is_last = shown.until_s.max() >= track.before.at_s
        key = (ask.key, ask.every_point, start_ns, end_ns, track.mark if is_last else None)
        with self._lock:
            if key in self._parts:
                self._parts.move_to_end(key)
                return self._parts[key]
        samples = open_reader().samples(
            ask.record.run_id, ask.record.series_no, start_ns=start_ns - 1000, end_ns=end_ns + 1000
        )
        cells, _ = track.cells_of(samples)
        cells = cells.between(float(shown.first[0]), float(shown.last[-1]), margin=0)
        if len(cells) > DIGEST_CELLS * 4 and not ask.every_point:
            cells = digest(cells)
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


def _update(reader: StoreReader, track: Track) -> None:
    """Read new points."""
    run_id, series_no = track.record.run_id, track.record.series_no
    if track.mark == points.Mark():
        _start_with_headers(reader, track)
    more = True
    while more:
        with reader.snapshot() as connection:
            new_points = points.grown(connection, run_id, series_no, track.mark)
        more = new_points.more
        if not track.add(new_points):
            _read_all(reader, track, new_points)
            return


def _read_all(reader: StoreReader, track: Track, growth_: points.Growth) -> None:
    """Read a series that was not written in time order."""
    run_id, series_no = track.record.run_id, track.record.series_no
    while growth_.more:
        with reader.snapshot() as connection:
            growth_ = points.grown(connection, run_id, series_no, growth_.mark)
    track.replace(reader.samples(run_id, series_no), growth_.mark)


def _start_with_headers(reader: StoreReader, track: Track) -> None:
    """Start a very long series from its chunk headers, if they suffice."""
    record, ask = track.record, track.ask
    if record.kind is SeriesKind.COUNTER or ask.by_step or ask.onto is not None:
        return  # headers have only times
    with reader.snapshot() as connection:
        headers = points.headers(connection, record.run_id, record.series_no)
    if sum(header.stored for header in headers) <= HEADER_POINTS:
        return
    sealed = [header for header in headers if header.sealed]
    first_ns = np.array([header.first_ns for header in sealed])
    last_ns = np.array([header.last_ns for header in sealed])
    if not any(header.finite_count for header in sealed):
        return
    if any(header.stored != header.point_count for header in sealed):
        return  # thinned
    widest_ns = (last_ns[-1] - first_ns[0]) / ENOUGH_CELLS
    if np.all(last_ns - first_ns <= widest_ns) and not np.any(first_ns[1:] < last_ns[:-1]):
        count = sum(header.stored for header in sealed)
        track.add_headers(sealed, points.Mark(count))
