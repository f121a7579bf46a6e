"""Keeps a store open: a file that may be replaced, a database that may be away for a while."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

from radt.errors import RadtError, StoreError
from radt.store.address import StoreAddress
from radt.store.reader import StoreReader

if TYPE_CHECKING:
    from radt.frontend.foreign.beside import Beside

#: A database that did not answer is tried again after this long.
RETRY_S = 2.0
#: How often a database is asked for news at most, however many browsers look.
_ASK_INTERVAL_S = 0.8


class NothingRecordedError(StoreError):
    """There is no store yet where the dashboard looks, or no run in it."""

    def __init__(self, address: StoreAddress) -> None:
        super().__init__(f"nothing is recorded in {address}", "Record a first run: radt train.py")


class ListingError(StoreError):
    """An MLflow server is being asked for the first time what runs it has; the store has none."""

    def __init__(self, where: str) -> None:
        super().__init__(f"listing the runs of {where}", "This takes a moment")


class Keeper(ABC):
    """Opens one store, and opens it again when need be. Thread-safe.

    ``opened`` counts the openings: what was read from an earlier one counts no more.
    ``ask_interval_s`` is how long an answer to "is there news" holds. ``outlives_outages`` says
    that what was read may be shown while the store cannot be read.
    """

    ask_interval_s = 0.0
    outlives_outages = False

    def __init__(self, address: StoreAddress) -> None:
        self.address = address
        self.opened = 0
        self._reader: StoreReader | None = None
        self._lock = threading.Lock()

    @staticmethod
    def of(address: StoreAddress, beside: Beside | None = None) -> Keeper:
        """The keeper for the kind of store, and for the runs of MLflow beside it."""
        store = DatabaseKeeper(address) if address.path is None else FileKeeper(address.path)
        if beside is None:
            return store
        from radt.frontend.foreign.keeper import JointKeeper

        return JointKeeper(store, beside)

    @property
    def problem(self) -> RadtError | None:
        """Why a part of what is shown is not up to date; None with a store alone."""
        return None

    @abstractmethod
    def reader(self) -> StoreReader:
        """The open store.

        Raises:
            StoreError: It cannot be opened.
        """

    def lost(self, reader: StoreReader) -> None:
        """A reader failed: the next one is a new one, which looks at the schema again."""
        with self._lock:
            if reader is self._reader:
                self._close()

    def close(self) -> None:
        """Let go of the store."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = None
        self.opened += 1


class FileKeeper(Keeper):
    """A file, which appears one day, and may be replaced by another."""

    def __init__(self, path: Path) -> None:
        super().__init__(StoreAddress.of(path))
        self._path = path
        self._inode: int | None = None

    def reader(self) -> StoreReader:
        """
        Raises:
            NothingRecordedError: There is none.
            StoreError: It is damaged, or a newer radt wrote it.
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


class DatabaseKeeper(Keeper):
    """A Postgres database. Only one thread at a time waits for one that does not answer."""

    ask_interval_s = _ASK_INTERVAL_S
    outlives_outages = True

    def __init__(self, address: StoreAddress) -> None:
        super().__init__(address)
        self._error: StoreError | None = None
        self._retry_at = 0.0

    def reader(self) -> StoreReader:
        """
        Raises:
            SchemaTooOldError: It has to be brought up to date.
            SchemaTooNewError: A newer radt wrote it.
            StoreError: It cannot be reached, or lets us not in; for `RETRY_S` nobody tries again.
        """
        with self._lock:
            if self._reader is None:
                if self._error is not None and time.monotonic() < self._retry_at:
                    # Not the same object: each thread writes its own traceback to it.
                    raise type(self._error)(self._error.message, self._error.remedy)
                try:
                    self._reader = StoreReader(self.address)
                except StoreError as error:
                    self._error, self._retry_at = error, time.monotonic() + RETRY_S
                    raise
                self._error = None
            return self._reader
