"""The store as the dashboard sees it: opened when it appears, re-read only after changes.

All content of pages depends on the store's *revision*. While it is unchanged, answers come from
memory and an open page costs one ``PRAGMA`` (with Postgres: one short query) per second. After slow
reads the next revision is delayed. For a store of thousands of runs that is written every second,
the dashboard then uses a tenth of a core instead of re-reading it every second.

While a database is unreachable, pages keep their content and show a note (`CachedStore.outage`).
Data that are not in memory cannot be shown until it is reachable again, which is detected here.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from radt.errors import CodecError, RadtError, SchemaTooNewError, SchemaTooOldError, StoreError
from radt.frontend.data.connections import Connection
from radt.frontend.data.remote_files import RemoteFiles
from radt.frontend.data.run.previews import Previews
from radt.frontend.data.series_cache import Ask, Tracks
from radt.store.backend import StoreAddress
from radt.store.cells import Cells
from radt.store.reader import StoreReader

if TYPE_CHECKING:
    from radt.frontend.imports import MlflowImports


ResultT = TypeVar("ResultT")

#: Reading may take at most one part in this many of the time between two revisions.
_READ_SHARE = 10
#: Maximum number of answers in memory.
_MAX_ANSWERS = 2_000
#: The revision before the store has answered.
_UNKNOWN = "!"
#: Samples of ended runs are also read again after this time, as late ones may have arrived.
_ENDED_RECHECK_S = 60.0


class CachedStore:
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
        # Held by the only thread that polls the store.
        self._asking = threading.Lock()
        self._ask_at = 0.0
        # Revisions restart with every process, so an open page must notice a new process.
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
        """Why the store cannot be read now. Pages show earlier data meanwhile."""
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
        """Return the result of ``read`` for this revision. Concurrent calls read only once.

        Raises:
            StoreError: As `reader`, or as ``read`` raises.
        """
        if not self._connection.outlives_outages:
            _ = self.reader  # detects a deleted or replaced file at once
        with self._lock:
            memory, key_lock = self._memory, self._key_locks.setdefault(key, threading.Lock())
        with key_lock:
            with suppress(KeyError):
                return cast(ResultT, memory[key])
            reader = self.reader
            began = time.monotonic()
            with self._suspecting():
                memory[key] = result = read(reader)
            self._hold(began)
            self._forget_oldest(memory)
            return result

    def _forget_oldest(self, memory: dict[Hashable, object]) -> None:
        """Bound the memory while the store does not change: visitors choose what is asked."""
        with self._lock:
            for key in list(memory)[:-_MAX_ANSWERS]:
                memory.pop(key)
                self._key_locks.pop(key, None)

    def cells(self, ask: Ask, *, ended: bool, revision: int) -> Cells:
        """Return a series for a chart, over seconds: its points, or a digest of them.

        For a running run, only new points are read. ``ended`` says that none are expected,
        ``revision`` is the run's.

        Raises:
            StoreError: As `reader`, or a chunk is damaged.
        """
        if not self._connection.outlives_outages:
            _ = self.reader
        again = int(time.monotonic() / _ENDED_RECHECK_S) if ended else self._count
        version = (ended, revision, again)
        began = time.monotonic()
        with self._suspecting():
            cells = self._tracks.cells(lambda: self.reader, ask, version)
        if not ended:
            self._hold(began)
        return cells

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
                    # A new revision also retries failed reads, even if nothing else is new.
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
            raise  # a damaged chunk stays damaged
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
        self._tracks.clear()
        self._forget()

    def _forget(self) -> None:
        with self._lock:
            self._count += 1
            # New dictionaries: reads in progress fill the old ones, which are no longer used.
            self._memory, self._key_locks = {}, {}
