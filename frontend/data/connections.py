"""Connections to a store: a file that may be replaced, or a database that may be unreachable."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from pathlib import Path

from radt.errors import StoreError
from radt.store.backend import StoreAddress
from radt.store.reader import StoreReader

#: Delay before retrying a database that did not answer.
RETRY_S = 2.0
#: Minimum interval between polls of a database, regardless of the number of browsers.
_ASK_INTERVAL_S = 0.8


class NothingRecordedError(StoreError):
    """The dashboard's store does not exist yet, or it has no runs."""

    def __init__(self, address: StoreAddress) -> None:
        super().__init__(f"no runs in {address}", "Run `radt train.py` to record one")


class Connection(ABC):
    """Opens one store, and reopens it after a failure. Thread-safe.

    ``opened`` counts the openings; data read from an earlier one are stale. ``ask_interval_s`` is
    the time for which a polled revision stays valid. ``outlives_outages`` says that earlier data
    may be shown while the store cannot be read.
    """

    ask_interval_s = 0.0
    outlives_outages = False

    def __init__(self, address: StoreAddress) -> None:
        self.address = address
        self.opened = 0
        self._reader: StoreReader | None = None
        self._lock = threading.Lock()

    @staticmethod
    def of(address: StoreAddress) -> Connection:
        """Return the connection for the kind of store."""
        if address.path is None:
            return DatabaseConnection(address)
        return FileConnection(address.path)

    @abstractmethod
    def reader(self) -> StoreReader:
        """Return the open store.

        Raises:
            StoreError: The store cannot be opened.
        """

    def lost(self, reader: StoreReader) -> None:
        """Drop a reader that failed. The next one is new and checks the schema again."""
        with self._lock:
            if reader is self._reader:
                self._close()

    def close(self) -> None:
        """Close the store."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = None
        self.opened += 1


class FileConnection(Connection):
    """A file that may not exist yet and may be replaced by another."""

    def __init__(self, path: Path) -> None:
        super().__init__(StoreAddress.of(path))
        self._path = path
        self._inode: int | None = None

    def reader(self) -> StoreReader:
        """Return the open file, reopened if it was replaced.

        Raises:
            NothingRecordedError: The file does not exist.
            StoreError: The file is damaged, or a newer radt wrote it.
        """
        with self._lock:
            try:
                inode = self._path.stat().st_ino
            except OSError as error:
                self._close()
                raise NothingRecordedError(self.address) from error
            if self._reader is None or inode != self._inode:
                self._close()
                self._reader = StoreReader(self._path)
                self._inode = inode
            return self._reader


class DatabaseConnection(Connection):
    """A Postgres database. Only one thread at a time waits for an unresponsive database."""

    ask_interval_s = _ASK_INTERVAL_S
    outlives_outages = True

    def __init__(self, address: StoreAddress) -> None:
        super().__init__(address)
        self._error: StoreError | None = None
        self._retry_at = 0.0

    def reader(self) -> StoreReader:
        """Return the open database.

        Raises:
            SchemaTooOldError: The schema has to be upgraded.
            SchemaTooNewError: A newer radt wrote it.
            StoreError: The database is unreachable or denies access; retried after `RETRY_S`.
        """
        with self._lock:
            if self._reader is None:
                if self._error is not None and time.monotonic() < self._retry_at:
                    # Raise a new exception: each thread adds its own traceback to it.
                    raise type(self._error)(self._error.message, self._error.remedy)
                try:
                    self._reader = StoreReader(self.address)
                except StoreError as error:
                    self._error, self._retry_at = error, time.monotonic() + RETRY_S
                    raise
                self._error = None
            return self._reader
