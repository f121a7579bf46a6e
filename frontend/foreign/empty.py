"""A store without anything in it, in memory: answers what is asked of one that is not there yet."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from sqlalchemy import Connection, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from radt.errors import NoStoreError
from radt.store.address import StoreAddress
from radt.store.backend import Dialect
from radt.store.migrations import migrations

_numbers = count()


class EmptyStore:
    """The tables of a store, without rows. Thread-safe.

    Args:
        address: Of the store that is not there.
    """

    def __init__(self, address: StoreAddress) -> None:
        self._address = address
        self._name = f"file:radt-empty-{next(_numbers)}?mode=memory&cache=shared"
        # It lives as long as somebody has it open.
        self._open = self._connect()
        for migration in migrations(Dialect.SQLITE):
            self._open.executescript(migration.sql)
        self._engine = create_engine("sqlite://", poolclass=NullPool, creator=self._connect)

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """As `radt.store.reader.StoreReader.snapshot`.

        Raises:
            NoStoreError: Something was asked that only a real one can answer.
        """
        try:
            with self._engine.connect() as connection:
                yield connection
        except DBAPIError as error:
            raise NoStoreError(
                f"there is no store {self._address} yet", "Record a first run: radt train.py"
            ) from error

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._name, uri=True, check_same_thread=False)
