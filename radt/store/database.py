"""Database under a `StoreReader`: snapshots, records, detection of changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy import Connection, bindparam, text

from radt.store.backend import Backend, StoreAddress
from radt.store.migrations import prepare_to_read
from radt.store.sqlite import SqliteBackend
from radt.store.tables import RecordT, Table


def backend_of(address: StoreAddress) -> Backend:
    """Return the database behind an address without opening it."""
    if address.is_postgres:
        # Imported late: users of files need not load a Postgres driver.
        from radt.store.postgres import PostgresBackend

        return PostgresBackend(address)
    return SqliteBackend(address)


#: Databases limit the parameters of one statement (SQLite before 3.32: 999).
_IDS_PER_STATEMENT = 500

ResultT = TypeVar("ResultT")


class ReadDatabase:
    """An existing store, opened for reading. Thread-safe.

    Raises:
        StoreError: It cannot be read or is not a store.
        SchemaTooNewError: It was written by a later radt.
        SchemaTooOldError: It is in Postgres and must be upgraded.
    """

    def __init__(self, address: StoreAddress) -> None:
        self.address = address
        self._backend = backend_of(address)
        self._backend.check_there()
        self.engine = self._backend.reader_engine()
        with self._backend.translated_errors():
            prepare_to_read(self._backend, self.engine)
        self._changes = self._backend.changes(self.engine)

    def close(self) -> None:
        """Close the database. Idempotent."""
        self._changes.close()
        self.engine.dispose()

    def change_token(self) -> int:
        """Return a number below 2**53 that changes with every write to the store."""
        with self._backend.translated_errors():
            return self._changes.token()

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Yield a connection that sees the store as of now until the end of the block."""
        with self._backend.translated_errors(), self.engine.begin() as connection:
            yield connection

    def query(
        self, table: Table[RecordT], clauses: str, parameters: Mapping[str, object]
    ) -> list[RecordT]:
        """Return the records of a table that meet SQL clauses."""
        with self.snapshot() as connection:
            rows = connection.execute(text(f"{table.select} {clauses}"), parameters).all()
        return [table.read(row) for row in rows]

    def select(
        self, table: Table[RecordT], conditions: Mapping[str, str | None], order: str
    ) -> list[RecordT]:
        """Return the records whose columns equal the given values; None sets no condition."""
        given = {name: value for name, value in conditions.items() if value is not None}
        where = " AND ".join(f"{name} = :{name}" for name in given)
        return self.query(table, f"{f'WHERE {where}' if where else ''} ORDER BY {order}", given)

    def select_of(self, table: Table[RecordT], run_ids: Sequence[str], order: str) -> list[RecordT]:
        """Return the records of runs in the given order, which must begin with the run's id."""
        statement = text(f"{table.select} WHERE run_id IN :ids ORDER BY {order}").bindparams(
            bindparam("ids", expanding=True)
        )
        return self.in_groups(
            run_ids,
            lambda connection, ids: [
                table.read(row) for row in connection.execute(statement, {"ids": ids}).all()
            ],
        )

    def texts(self, table: str, run_ids: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the keys and values of runs by run id, from ``param`` or ``tag``."""
        statement = text(
            f"SELECT run_id, key, value FROM {table} "  # noqa: S608 - our own names
            "WHERE run_id IN :ids ORDER BY run_id, key"
        ).bindparams(bindparam("ids", expanding=True))
        rows = self.in_groups(
            run_ids,
            lambda connection, ids: list(connection.execute(statement, {"ids": ids}).all()),
        )
        texts: dict[str, dict[str, str]] = {}
        shared: dict[str, str] = {}  # many runs have the same keys and values
        for run_id, key, value in rows:
            of_run = texts.setdefault(run_id, {})
            of_run[shared.setdefault(key, key)] = shared.setdefault(value, value)
        return texts

    def in_groups(
        self,
        run_ids: Sequence[str],
        read: Callable[[Connection, Sequence[str]], list[ResultT]],
    ) -> list[ResultT]:
        """Call ``read`` with groups of ids, in order, all in one snapshot."""
        results: list[ResultT] = []
        unique = sorted(set(run_ids))
        with self.snapshot() as connection:
            for start in range(0, len(unique), _IDS_PER_STATEMENT):
                results += read(connection, unique[start : start + _IDS_PER_STATEMENT])
        return results
