"""The database under a `StoreReader`: snapshots, reading records, noticing changes."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection, bindparam, text

from radt.store.engine import is_foreign, reader_engine, translated_errors
from radt.store.migrations import bring_up_to_date
from radt.store.tables import RecordT, Table

#: Databases limit the parameters of one statement (SQLite before 3.32: 999).
_IDS_PER_STATEMENT = 500

ResultT = TypeVar("ResultT")


class ReadDatabase:
    """An existing store, opened for reading; safe from several threads.

    Raises:
        StoreError: The file cannot be read or is not a store.
        SchemaTooNewError: It was written by a later radt.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.engine = reader_engine(path)
        with translated_errors(path):
            bring_up_to_date(self.engine, path)
        self._token_lock = threading.Lock()
        self._token_connection: Connection | None = None
        # `data_version` counts from the opening of a connection. Something random in front keeps a
        # browser from taking a restarted dashboard's token for one it knows.
        self._token_base = secrets.randbelow(2**20) << 32
        self._foreign = is_foreign(path)

    def close(self) -> None:
        """Close the file; harmless if it is closed."""
        with self._token_lock:
            if self._token_connection is not None:
                self._token_connection.close()
                self._token_connection = None
        self.engine.dispose()

    def change_token(self) -> int:
        """A number below 2**53 that changes whenever somebody has written."""
        if self._foreign:
            return self._token_of_files()
        with self._token_lock, translated_errors(self.path):
            if self._token_connection is None:
                # One connection for good: SQLite compares with what this connection saw before.
                self._token_connection = self.engine.connect()
            version = self._token_connection.exec_driver_sql("PRAGMA data_version").scalar_one()
            # Ends the transaction that SQLAlchemy began: inside it the store would never change.
            self._token_connection.rollback()
            return self._token_base + int(version)

    def _token_of_files(self) -> int:
        """For somebody else's store, where no connection may be kept; a tick of 4 ms coarse."""
        token = 0
        for path in (self.path, self.path.with_name(f"{self.path.name}-wal")):
            with suppress(FileNotFoundError):
                status = path.stat()
                token = hash((token, status.st_mtime_ns, status.st_size))
        return token % 2**53

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """A connection that sees the store as it is now, until the end of the block."""
        with translated_errors(self.path), self.engine.begin() as connection:
            yield connection

    def query(
        self, table: Table[RecordT], clauses: str, parameters: Mapping[str, object]
    ) -> list[RecordT]:
        """Records of a table that meet SQL clauses."""
        with self.snapshot() as connection:
            rows = connection.execute(text(f"{table.select} {clauses}"), parameters).all()
        return [table.read(row) for row in rows]

    def select(
        self, table: Table[RecordT], conditions: Mapping[str, str | None], order: str
    ) -> list[RecordT]:
        """Records whose columns equal the given values; None sets no condition."""
        given = {name: value for name, value in conditions.items() if value is not None}
        where = " AND ".join(f"{name} = :{name}" for name in given)
        return self.query(table, f"{f'WHERE {where}' if where else ''} ORDER BY {order}", given)

    def select_of(self, table: Table[RecordT], run_ids: Sequence[str], order: str) -> list[RecordT]:
        """Records of runs, in this order as far as it begins with the run's id."""
        statement = text(f"{table.select} WHERE run_id IN :ids ORDER BY {order}").bindparams(
            bindparam("ids", expanding=True)
        )
        return self.in_groups(
            run_ids,
            lambda connection, ids: [
                table.read(row) for row in connection.execute(statement, {"ids": ids})
            ],
        )

    def texts(self, table: str, run_ids: Sequence[str]) -> dict[str, dict[str, str]]:
        """Keys and values of runs by run, from ``param`` or ``tag``."""
        statement = text(
            f"SELECT run_id, key, value FROM {table} "  # noqa: S608 - our own names
            "WHERE run_id IN :ids ORDER BY run_id, key"
        ).bindparams(bindparam("ids", expanding=True))
        rows = self.in_groups(
            run_ids, lambda connection, ids: list(connection.execute(statement, {"ids": ids}))
        )
        found: dict[str, dict[str, str]] = {}
        for run_id, key, value in rows:
            found.setdefault(run_id, {})[key] = value
        return found

    def in_groups(
        self,
        run_ids: Sequence[str],
        read: Callable[[Connection, Sequence[str]], list[ResultT]],
    ) -> list[ResultT]:
        """Call ``read`` with some ids at a time, in order, all in one snapshot."""
        results: list[ResultT] = []
        unique = sorted(set(run_ids))
        with self.snapshot() as connection:
            for start in range(0, len(unique), _IDS_PER_STATEMENT):
                results += read(connection, unique[start : start + _IDS_PER_STATEMENT])
        return results
