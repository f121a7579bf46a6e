"""MLflow's database, opened for reading only: nothing in it or beside it is changed."""

from __future__ import annotations

import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import NullPool

from radt.errors import StoreError, UsageError
from radt.frontend.foreign.points import BLOCK_ROWS
from radt.masking import masked
from radt.store.address import StoreAddress
from radt.uris import is_postgres

#: What does not answer is tried again after this long; until then it is not waited for.
RETRY_S = 2.0
#: Whether there are tables of MLflow in a database is asked this often at most.
_TABLES_S = 30.0
_BUSY_TIMEOUT_S = 20.0
_SQLITE = "sqlite:///"
#: What is read; all versions of MLflow 2 and 3 have these tables.
_TABLES = ("experiments", "latest_metrics", "metrics", "params", "runs", "tags")
#: Where a SQLite file says that it has a write-ahead log, and how often it was written.
#: https://www.sqlite.org/fileformat2.html#the_database_header
_VERSIONS = slice(18, 20)
_CHANGES = slice(24, 28)
_WAL = b"\x02\x02"
_HEADER_BYTES = 100
#: The part of the log's index that changes with every transaction.
#: https://www.sqlite.org/walformat.html#the_wal_index_header
_INDEX_BYTES = 136


class MlflowConnection(ABC):
    """One database of MLflow, of SQLite or Postgres. Thread-safe; opened when it is first asked.

    ``where`` is for people: without password.
    """

    is_remote = False

    def __init__(self, where: str) -> None:
        self.where = where

    @staticmethod
    def of(uri: str) -> MlflowConnection:
        """The database of a tracking URI.

        Raises:
            UsageError: It is of another kind.
        """
        if is_postgres(uri):
            return PostgresConnection(StoreAddress.of(uri))
        try:
            path = make_url(uri).database if uri.lower().startswith(_SQLITE) else None
        except (ArgumentError, ValueError):
            path = None
        if path is None:
            raise UsageError(
                f"{masked(uri)} is no MLflow database that can be shown",
                "Give sqlite:///FILE, postgresql://…, or the http://… of an MLflow server (of a "
                "folder mlruns: `mlflow server --backend-store-uri FOLDER`)",
            )
        return SqliteConnection(Path(path).absolute())

    @property
    @abstractmethod
    def is_there(self) -> bool:
        """Whether there is a database with MLflow's tables.

        Raises:
            StoreError: That cannot be found out.
        """

    @abstractmethod
    def change_token(self) -> int:
        """A number below 2**53 that changes whenever somebody has written.

        Raises:
            StoreError: It cannot be read.
        """

    @abstractmethod
    def snapshot(self) -> Any:
        """A context manager: a connection that sees the database as it is now.

        Raises:
            StoreError: It cannot be read.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of it."""

    def without_index(self, column: str) -> str:
        """A column such that no index of it is used, where the planner would choose wrongly."""
        return column


class SqliteConnection(MlflowConnection):
    """A file, which may not be there yet. Each transaction opens it anew.

    It is opened ``mode=ro``: SQLite then writes nothing but, beside a file in WAL mode that
    somebody has open, what readers note in its index. A file in WAL mode that nobody has open is
    read as one that does not change, for then nothing at all is made beside it.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._path = path
        self._engine = create_engine("sqlite://", poolclass=NullPool, creator=self._connect)
        event.listen(self._engine, "begin", _begin)

    @property
    def is_there(self) -> bool:
        try:
            there = self._path.stat().st_size > 0
        except OSError:
            return False
        return there and self._has_tables()

    def change_token(self) -> int:
        state: list[object] = []
        for suffix in ("", "-journal", "-wal"):
            with suppress(OSError):
                status = self._path.with_name(f"{self._path.name}{suffix}").stat()
                state.append((suffix, status.st_ino, status.st_size, status.st_mtime_ns))
        state.append(self._bytes("", _HEADER_BYTES)[_CHANGES])
        state.append(self._bytes("-shm", _INDEX_BYTES))
        return hash(tuple(state)) % 2**53

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        try:
            with self._engine.connect() as connection, connection.begin():
                yield connection
        except (DBAPIError, sqlite3.Error) as error:
            raise self._error(getattr(error, "orig", error)) from error

    def close(self) -> None:
        self._engine.dispose()

    def without_index(self, column: str) -> str:
        return f"+{column}"

    def _has_tables(self) -> bool:
        with self.snapshot() as connection:
            rows = connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'table'"))
            return {str(name) for (name,) in rows}.issuperset(_TABLES)

    def _connect(self) -> sqlite3.Connection:
        in_wal = self._bytes("", _HEADER_BYTES)[_VERSIONS] == _WAL
        at_rest = in_wal and not self._path.with_name(f"{self._path.name}-wal").exists()
        connection = sqlite3.connect(
            f"{self._path.as_uri()}?mode=ro{'&immutable=1' if at_rest else ''}",
            uri=True,
            timeout=_BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
        )
        connection.execute("PRAGMA query_only = ON")
        return connection

    def _bytes(self, suffix: str, count: int) -> bytes:
        try:
            with self._path.with_name(f"{self._path.name}{suffix}").open("rb") as file:
                return file.read(count)
        except OSError:
            return b""

    def _error(self, error: BaseException | None) -> StoreError:
        name = str(getattr(error, "sqlite_errorname", "") or "")
        remedy = "Is it a database of MLflow 2 or 3? `mlflow db upgrade` brings older ones up to it"
        if name.startswith("SQLITE_BUSY"):
            remedy = "Another program holds it; it is tried again"
        elif name.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM")):
            remedy = "Check that it exists, and that you may read it and its folder"
        elif name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_IOERR")):
            remedy = "Check the disk; `sqlite3 FILE .recover` saves what can be read"
        return StoreError(f"MLflow's database {self.where} cannot be read ({error})", remedy)


class PostgresConnection(MlflowConnection):
    """MLflow's tables where the role finds them, as a rule in the schema ``public``."""

    is_remote = True

    def __init__(self, address: StoreAddress) -> None:
        super().__init__(str(address))
        # Not above: who uses files only need not load a driver for Postgres.
        from radt.store.postgres import PostgresBackend

        self._backend = PostgresBackend(address)
        self._lock = threading.Lock()
        self._opened: Engine | None = None
        self._failure: StoreError | None = None
        self._retry_at = 0.0
        self._there = False
        self._ask_at = 0.0

    @property
    def is_there(self) -> bool:
        if not self._there and time.monotonic() >= self._ask_at:
            with self.snapshot() as connection:
                self._there = bool(connection.execute(_PG_HAS_TABLES).scalar_one())
            self._ask_at = time.monotonic() + _TABLES_S
        return self._there

    def change_token(self) -> int:
        with self.snapshot() as connection:
            rows = [connection.execute(statement).all() for statement in _PG_CHANGES]
        return hash(tuple(tuple(row) for found in rows for row in found)) % 2**53

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        with self._lock:
            if self._failure is not None and time.monotonic() < self._retry_at:
                raise StoreError(self._failure.message, self._failure.remedy)
            if self._opened is None:
                self._opened = self._backend.reader_engine()
                event.listen(self._opened, "connect", _usual_search_path)
            engine = self._opened
        with ExitStack() as stack:
            try:
                with self._backend.translated_errors():
                    connection = stack.enter_context(engine.connect())
            except StoreError as error:
                self._failure, self._retry_at = error, time.monotonic() + RETRY_S
                raise
            self._failure = None
            with self._backend.translated_errors(), connection.begin():
                yield connection

    def close(self) -> None:
        with self._lock:
            engine, self._opened = self._opened, None
        if engine is not None:
            engine.dispose()


#: In the first schema of the search path that has them.
_PG_HAS_TABLES = text(
    "SELECT " + " AND ".join(f"to_regclass('{table}') IS NOT NULL" for table in _TABLES)
)
_PG_CHANGES = (
    # What Postgres counts of each table, written within a second or so after each transaction.
    text(
        "SELECT relname, n_tup_ins, n_tup_upd, n_tup_del "
        "FROM pg_stat_user_tables "
        "WHERE relid IN ("
        + ", ".join(f"to_regclass('{table}')" for table in _TABLES)
        + ") ORDER BY relname"
    ),
    # Exactly what happens to runs, and to those that run.
    text(
        "SELECT COUNT(*), COUNT(end_time), MAX(start_time), MAX(end_time), "
        "SUM(CASE WHEN lifecycle_stage = 'active' THEN 1 ELSE 0 END) FROM runs"
    ),
    text(
        "SELECT COUNT(*), SUM(l.timestamp), SUM(l.step) FROM runs r "
        "JOIN latest_metrics l ON l.run_uuid = r.run_uuid "
        "WHERE r.status = 'RUNNING' AND r.lifecycle_stage = 'active'"
    ),
)


def rows_in_blocks(result: Any) -> Iterator[list[Any]]:
    """The rows of a result, some at a time."""
    while rows := result.fetchmany(BLOCK_ROWS):
        yield rows


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")


def _usual_search_path(connection: Any, _record: object) -> None:
    """The role's own, not that of the store's schema."""
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute("SET search_path TO DEFAULT")
    connection.autocommit = False
