"""The store as the dashboard sees it: opened when it appears, re-read only when it changed.

Everything the pages show follows from the store's *revision*. As long as it stays, answers come
from memory and a page that is left open costs one ``PRAGMA`` a second. It is held back after
expensive reads, so that a store written every second with thousands of runs in it keeps the
dashboard at a tenth of a core instead of re-reading all of it every second.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

from radt.errors import RadtError, StoreError
from radt.model import SeriesKind
from radt.store.counters import rates
from radt.store.downsample import envelope
from radt.store.reader import StoreReader
from radt.store.records import Samples, SeriesRecord

ResultT = TypeVar("ResultT")

#: Reading may take one part in this many of the time between two revisions.
_READ_SHARE = 10
#: Samples kept in memory, about 24 bytes a point.
_CACHED_POINTS = 2_000_000
#: Also the samples of ended runs are looked at again after this long: late ones may have come.
_ENDED_RECHECK_S = 60.0


@dataclass(frozen=True, slots=True)
class Stretch:
    """Part of a series: ``start_ns`` and ``end_ns`` None for all of it, at most ``max_points``.

    ``max_points`` None asks for every point. Of a counter it is its rates
    (`radt.store.counters.rates`), so the first point of the stretch is the second reading in it.
    """

    series: SeriesRecord
    start_ns: int | None = None
    end_ns: int | None = None
    max_points: int | None = None


class NothingRecordedError(StoreError):
    """There is no store yet where the dashboard looks, or no run in it."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"nothing is recorded in {path}", "Record a first run: radt train.py")


class Source:
    """Reads one store for all pages and browsers. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._reader: StoreReader | None = None
        self._inode: int | None = None
        # Change tokens start again with every process; a page that outlives us must notice.
        self._origin = secrets.token_hex(3)
        self._token: int | None = None
        self._count = 0
        self._hold_until = 0.0
        self._memory: dict[Hashable, object] = {}
        self._key_locks: dict[Hashable, threading.Lock] = {}
        self._samples: OrderedDict[Hashable, Samples] = OrderedDict()
        self._sample_points = 0

    @property
    def reader(self) -> StoreReader:
        """The open store.

        Raises:
            NothingRecordedError: There is none.
            StoreError: It is damaged, or a newer radt wrote it.
        """
        with self._lock:
            return self._open()

    def revision(self) -> str:
        """Changes when there is something new to show; starts with ``!`` if nothing can be read."""
        try:
            with self._lock:
                reader = self._open()
                now = time.monotonic()
                if now >= self._hold_until or self._token is None:
                    token = reader.change_token()
                    if token != self._token:
                        self._token = token
                        self._forget()
                return f"{self._origin}.{self._count}"
        except RadtError as error:
            return f"!{type(error).__name__}"

    def remember(self, key: Hashable, read: Callable[[StoreReader], ResultT]) -> ResultT:
        """The result of ``read`` for this revision; several threads asking at once read once.

        Raises:
            StoreError: As `reader`, and whatever ``read`` raises.
        """
        with self._lock:
            reader = self._open()
            memory, key_lock = self._memory, self._key_locks.setdefault(key, threading.Lock())
        with key_lock:
            if key not in memory:
                began = time.monotonic()
                memory[key] = read(reader)
                self._hold(began)
            return cast(ResultT, memory[key])

    def samples(self, stretch: Stretch, *, ended: bool) -> Samples:
        """Points of a series, from memory if they cannot have changed.

        ``ended`` says that the run is over, so that new points are not expected.
        """
        version = int(time.monotonic() / _ENDED_RECHECK_S) if ended else self._count
        key = (stretch, ended, version)
        with self._lock:
            reader = self._open()
            if key in self._samples:
                self._samples.move_to_end(key)
                return self._samples[key]
        began = time.monotonic()
        samples = _read(reader, stretch)
        if not ended:
            self._hold(began)
        with self._lock:
            if key not in self._samples:
                self._samples[key] = samples
                self._sample_points += len(samples)
            while self._sample_points > _CACHED_POINTS and len(self._samples) > 1:
                _, oldest = self._samples.popitem(last=False)
                self._sample_points -= len(oldest)
        return samples

    def close(self) -> None:
        """Let go of the store."""
        with self._lock:
            self._close()

    def _hold(self, began: float) -> None:
        """Put the next revision off after a read that began then."""
        ended = time.monotonic()
        with self._lock:
            self._hold_until = max(self._hold_until, ended) + (ended - began) * _READ_SHARE

    def _open(self) -> StoreReader:
        try:
            inode = self.path.stat().st_ino
        except OSError as error:
            self._close()
            raise NothingRecordedError(self.path) from error
        if self._reader is None or inode != self._inode:
            self._close()
            self._reader = StoreReader(self.path)
            self._inode = inode
        return self._reader

    def _close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader, self._inode, self._token = None, None, None
        self._samples.clear()
        self._sample_points = 0
        self._forget()

    def _forget(self) -> None:
        self._count += 1
        # New dictionaries: a reader on its way fills the old ones, which nobody asks any more.
        self._memory, self._key_locks = {}, {}


def _read(reader: StoreReader, stretch: Stretch) -> Samples:
    series = stretch.series
    samples = reader.samples(
        series.run_id, series.series_no, start_ns=stretch.start_ns, end_ns=stretch.end_ns
    )
    if series.kind is SeriesKind.COUNTER:
        # Before points are thinned out: of the counter itself they would leave means of various
        # lengths, and no peak.
        samples = rates(samples, series)
    return samples if stretch.max_points is None else envelope(samples, stretch.max_points)
