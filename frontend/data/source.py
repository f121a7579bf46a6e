"""The store as the dashboard sees it: opened when it appears, re-read only when it changed.

Everything that pages show follows from the store's *revision*. While it stays the same, answers
come from memory and an open page costs one ``PRAGMA`` (with Postgres: one short query) a second.
After expensive reads the next revision is delayed, so that the dashboard uses a tenth of a core for
a store of thousands of runs that is written every second, instead of re-reading it every second.

While a database is unreachable, pages keep their content and show a note (`Source.outage`); data
that are not in memory cannot be shown until it is reachable again, which is noticed here.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from radt.errors import CodecError, RadtError, SchemaTooNewError, SchemaTooOldError, StoreError
from radt.frontend.data.cells import Cells
from radt.frontend.data.connections import Connection
from radt.frontend.data.remote_files import RemoteFiles
from radt.frontend.data.run.previews import Previews
from radt.frontend.data.series_cache import Ask, Tracks
from radt.model import SeriesKind
from radt.store.backend import StoreAddress
from radt.store.counters import rates
from radt.store.overview import envelope
from radt.store.reader import StoreReader
from radt.store.records import Samples, SeriesRecord

if TYPE_CHECKING:
    from radt.frontend.imports import MlflowImports


ResultT = TypeVar("ResultT")

#: Reading may take at most one part in this many of the time between two revisions.
_READ_SHARE = 10
#: Samples kept in memory, about 24 bytes a point.
_CACHED_POINTS = 2_000_000
#: The revision before the first answer of the store.
_UNKNOWN = "!"
#: Samples of ended runs are also read again after this time: late ones may have arrived.
_ENDED_RECHECK_S = 60.0


@dataclass(frozen=True, slots=True)
class Stretch:
    """Part of a series: ``start_ns`` and ``end_ns`` None for all of it, at most ``max_points``.

    ``max_points`` None reads every point. A counter is read as its rates
    (`radt.store.counters.rates`), so the first point of the stretch is the second reading in it.
    """

    series: SeriesRecord
    start_ns: int | None = None
    end_ns: int | None = None
    max_points: int | None = None


class Source:
    """Reads one store for all pages and browsers. Thread-safe.

    Args:
        store: The store.
        imports: The importer that copies runs from MLflow into the store meanwhile, if any.
    """

    def __init__(
        self, store: StoreAddress | Path | str, imports: MlflowImports | None = None
    ) -> None:
        self.address = StoreAddress.of(store)
        self.imports = imports
        self.remote = RemoteFiles()
        self.previews = Previews()
        self._connection = Connection.of(self.address)
        self._lock = threading.Lock()
        # Held by the one thread that polls the store.
        self._asking = threading.Lock()
        self._ask_at = 0.0
        # Change tokens start again with every process; a page that outlives this process must
        # notice.
        self._origin = secrets.token_hex(3)
        self._known = _UNKNOWN
        self._state: tuple[int, ...] | None = None
        self._was_good = False
        self._count = 0
        self._hold_until = 0.0
        self._outage: RadtError | None = None
        self._suspect = False
        self._opened = 0
        self._memory: dict[Hashable, object] = {}
        self._key_locks: dict[Hashable, threading.Lock] = {}
        self._samples: OrderedDict[Hashable, Samples] = OrderedDict()
        self._sample_points = 0
        self._tracks = Tracks()

    @property
    def reader(self) -> StoreReader:
        """The open store.

        Raises:
            NothingRecordedError: The store does not exist.
            StoreError: The store is unreachable, damaged, or of another version.
        """
        try:
            reader = self._connection.reader()
        except StoreError:
            if not self._connection.outlives_outages:
                self._forget_other_stores()
            raise
        self._forget_other_stores()
        return reader

    @property
    def outage(self) -> RadtError | None:
        """Why the store cannot be read now; pages show earlier data meanwhile."""
        if self._outage is None and self.imports is not None:
            return self.imports.problem
        return self._outage

    def revision(self) -> str:
        """A text that changes with the store's content; starts with ``!`` if nothing can be shown.

        While a database is unreachable it stays the same, and `outage` is set.
        """
        if not self._asking.acquire(blocking=not self._connection.outlives_outages):
            return self._known  # another thread is waiting for the database
        try:
            if time.monotonic() >= self._ask_at:
                self._known = self._ask()
                self._ask_at = time.monotonic() + self._connection.ask_interval_s
            return self._known
        finally:
            self._asking.release()

    def remember(self, key: Hashable, read: Callable[[StoreReader], ResultT]) -> ResultT:
        """Return the result of ``read`` for this revision; simultaneous calls of threads read once.

        Raises:
            StoreError: As `reader`, or as ``read`` raises.
        """
        if not self._connection.outlives_outages:
            _ = self.reader  # a file that was deleted or replaced shows at once
        with self._lock:
            memory, key_lock = self._memory, self._key_locks.setdefault(key, threading.Lock())
        with key_lock:
            if key not in memory:
                reader = self.reader
                began = time.monotonic()
                with self._suspecting():
                    memory[key] = read(reader)
                self._hold(began)
            return cast(ResultT, memory[key])

    def cells(self, ask: Ask, *, ended: bool) -> Cells:
        """Return a series for a chart, over seconds: its points, or a digest of them.

        For a run that is still running, only new points are read. ``ended`` as for `samples`.

        Raises:
            StoreError: As `reader`, or a chunk is damaged.
        """
        if not self._connection.outlives_outages:
            _ = self.reader
        version = (ended, int(time.monotonic() / _ENDED_RECHECK_S) if ended else self._count)
        began = time.monotonic()
        with self._suspecting():
            cells = self._tracks.cells(lambda: self.reader, ask, version)
        if not ended:
            self._hold(began)
        return cells

    def samples(self, stretch: Stretch, *, ended: bool) -> Samples:
        """Read points of a series, from memory if they cannot have changed.

        ``ended`` says that the run has ended, so that no new points are expected.

        Raises:
            StoreError: As `reader`, or a chunk is damaged.
        """
        if not self._connection.outlives_outages:
            _ = self.reader
        version = int(time.monotonic() / _ENDED_RECHECK_S) if ended else self._count
        key = (stretch, ended, version)
        with self._lock:
            if key in self._samples:
                self._samples.move_to_end(key)
                return self._samples[key]
        reader = self.reader
        began = time.monotonic()
        with self._suspecting():
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
        """Close the store, and end the import."""
        if self.imports is not None:
            self.imports.close()
        self._connection.close()
        self.remote.close()
        self.previews.close()
        self._forget_other_stores()

    def _ask(self) -> str:
        """Ask the store for its current revision."""
        try:
            reader = self.reader
            now = time.monotonic()
            if self._state is None or self._outage or self._suspect or now >= self._hold_until:
                try:
                    state = (self._opened, reader.change_token())
                except StoreError:
                    self._connection.lost(reader)
                    raise
                if state != self._state or self._outage is not None or self._suspect:
                    # A new revision also retries reads that failed, even if nothing else is new.
                    self._state, self._suspect = state, False
                    self._forget()
        except RadtError as error:
            return self._without_store(error)
        self._outage, self._was_good = None, True
        return f"{self._origin}.{self._count}"

    def _without_store(self, error: RadtError) -> str:
        stays = self._connection.outlives_outages and self._was_good
        if stays and not isinstance(error, (SchemaTooNewError, SchemaTooOldError)):
            self._outage = error
            return f"{self._origin}.{self._count}"
        self._outage, self._was_good, self._state = None, False, None
        digest = hashlib.blake2b(f"{type(error)} {error}".encode(), digest_size=6).hexdigest()
        return f"!{digest}"

    @contextmanager
    def _suspecting(self) -> Iterator[None]:
        """Trigger the check for an outage if the body fails to read."""
        try:
            yield
        except CodecError:
            raise  # a damaged chunk, which stays damaged
        except StoreError:
            self._suspect = self._connection.outlives_outages
            raise

    def _hold(self, began: float) -> None:
        """Delay the next revision after a slow read."""
        ended = time.monotonic()
        with self._lock:
            self._hold_until = max(self._hold_until, ended) + (ended - began) * _READ_SHARE

    def _forget_other_stores(self) -> None:
        """Drop data read from a store that is closed now."""
        with self._lock:
            if self._connection.opened == self._opened:
                return
            self._opened = self._connection.opened
            self._state = None
            self._samples.clear()
            self._sample_points = 0
        self._tracks.clear()
        self._forget()

    def _forget(self) -> None:
        with self._lock:
            self._count += 1
            # New dictionaries: a read in progress fills the old ones, which nobody uses any more.
            self._memory, self._key_locks = {}, {}


def _read(reader: StoreReader, stretch: Stretch) -> Samples:
    series = stretch.series
    if series.kind is not SeriesKind.COUNTER and stretch.max_points is not None:
        return reader.envelope(
            series.run_id,
            series.series_no,
            start_ns=stretch.start_ns,
            end_ns=stretch.end_ns,
            max_points=stretch.max_points,
        )
    samples = reader.samples(
        series.run_id, series.series_no, start_ns=stretch.start_ns, end_ns=stretch.end_ns
    )
    if series.kind is SeriesKind.COUNTER:
        # Before thinning: thinning the counter itself would leave means over different lengths and
        # no peaks.
        samples = rates(samples, series)
    return samples if stretch.max_points is None else envelope(samples, stretch.max_points)
