"""The series that charts show, in memory: each read once, and then only what is new of it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import numpy as np

from radt.frontend.charts.cells import Cells, grouped, power_of_two
from radt.frontend.charts.track import DIGEST_CELLS, Track
from radt.model import SeriesKind
from radt.store import growth
from radt.store.reader import StoreReader
from radt.store.records import SeriesRecord

#: Numbers of eight bytes that are kept of all series: 120 MB.
MAX_WEIGHT = 15_000_000
#: Of a series with more points, headers of chunks are the digest.
HEADER_POINTS = 1_000_000
#: A window that has fewer cells of the digest is read from the store.
ENOUGH_CELLS = 400
#: Cells that are kept of windows: 30 MB.
_MAX_PART_CELLS = 250_000


@dataclass(frozen=True, slots=True)
class Ask:
    """What a chart wants of a series.

    ``base_ns`` is zero of time. ``start`` and ``end`` are the part that is shown, in seconds since
    then, or in steps if ``by_step``; None for all. ``variant`` changes when all that was known of
    the series has to be read again.
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
    weight: int = 0  # as it was counted


class Tracks:
    """Tracks of all series that were asked for, the least used forgotten. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: OrderedDict[Hashable, _Slot] = OrderedDict()
        self._weight = 0
        self._parts: OrderedDict[Hashable, Cells] = OrderedDict()

    def clear(self) -> None:
        """Forget everything: it was another store."""
        with self._lock:
            self._slots.clear()
            self._weight = 0
            self._parts.clear()

    def cells(self, open_reader: Callable[[], StoreReader], ask: Ask, version: Hashable) -> Cells:
        """What is drawn of a series, over seconds: each point if there are few, else its digest.

        The store is asked for what is new of it if ``version`` is another than last time, and for
        single points of a window that the digest is too coarse for.

        Raises:
            StoreError: The store cannot be read; or a chunk is damaged.
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
            self._count(ask.key, slot)  # now that there are cells, which weigh the most
            if track.is_complete or ask.start is None or ask.end is None or not len(cells):
                return cells
            shown = _of_steps(cells, ask) if ask.by_step else cells.between(ask.start, ask.end)
            if len(shown) >= ENOUGH_CELLS or not len(shown):
                return cells
            return self._points(open_reader, track, ask, shown)

    def _points(
        self, open_reader: Callable[[], StoreReader], track: Track, ask: Ask, shown: Cells
    ) -> Cells:
        """The points of these cells of the digest."""
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
        """Note what a series weighs now, and forget others if all are too heavy."""
        with self._lock:
            if self._slots.get(key) is not slot:
                return  # it has been forgotten meanwhile
            weight = slot.track.weight
            self._weight += weight - slot.weight
            slot.weight = weight
            while self._weight > MAX_WEIGHT and len(self._slots) > 1:
                _, oldest = self._slots.popitem(last=False)
                self._weight -= oldest.weight


def _update(reader: StoreReader, track: Track, *, by_step: bool) -> None:
    """Read what is new."""
    run_id, series_no = track.record.run_id, track.record.series_no
    is_foreign = getattr(reader, "is_foreign", None)
    if is_foreign is not None and is_foreign(run_id):
        track.replace(reader.samples(run_id, series_no))
        return
    if track.mark == growth.Mark() and not by_step:
        _start_with_headers(reader, track)
    more = True
    while more:
        with reader.snapshot() as connection:
            found = growth.grown(connection, run_id, series_no, track.mark)
        more = found.more
        if not track.add(found):
            _read_all(reader, track, found)
            return


def _read_all(reader: StoreReader, track: Track, found: growth.Growth) -> None:
    """Of a series that was not written in the order of time."""
    run_id, series_no = track.record.run_id, track.record.series_no
    while found.more:
        with reader.snapshot() as connection:
            found = growth.grown(connection, run_id, series_no, found.mark)
    track.replace(reader.samples(run_id, series_no), found.mark)


def _start_with_headers(reader: StoreReader, track: Track) -> None:
    """Of a very long series, unless its headers do not tell the whole."""
    record = track.record
    if record.kind is SeriesKind.COUNTER:
        return
    with reader.snapshot() as connection:
        found = growth.headers(connection, record.run_id, record.series_no)
    if sum(one.stored for one in found) <= HEADER_POINTS:
        return
    sealed = [one for one in found if one.sealed]
    first_ns = np.array([one.first_ns for one in sealed])
    last_ns = np.array([one.last_ns for one in sealed])
    tells_all = len(sealed) > ENOUGH_CELLS and all(one.stored == one.point_count for one in sealed)
    if tells_all and not np.any(first_ns[1:] < last_ns[:-1]):
        points = sum(one.stored for one in sealed)
        last = sealed[-1]
        track.add_headers(sealed, growth.Mark(points, points, last.chunk_no, last.last_ns))


def _of_steps(cells: Cells, ask: Ask) -> Cells:
    """From the first to the last cell with a step that is shown."""
    assert ask.start is not None
    assert ask.end is not None
    if cells.steps is None:
        return cells.part(0, 0)
    with np.errstate(invalid="ignore"):
        places = np.flatnonzero((cells.steps[1] >= ask.start) & (cells.steps[0] <= ask.end))
    if not len(places):
        return cells.part(0, 0)
    return cells.part(max(0, int(places[0]) - 1), int(places[-1]) + 2)
