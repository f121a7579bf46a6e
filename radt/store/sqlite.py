"""The store as an SQLite file, and the translation of SQLite's errors."""

from __future__ import annotations

import os
import re
import secrets
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from sqlalchemy import URL, Connection, Engine, create_engine, event, text
from sqlalchemy.pool import NullPool, QueuePool, StaticPool

from radt.errors import ReadOnlyStoreError, StoreError
from radt.store.backend import Backend, ChangeDetector, Dialect, StoreAddress

#: Marks the file as a store; set by the first migration. "radT" in ASCII.
APPLICATION_ID = 0x72616454

#: How long a connection waits for a lock before the store counts as stuck.
BUSY_TIMEOUT_S = 60.0
#: The WAL file is truncated to this size after a checkpoint.
_WAL_LIMIT_BYTES = 64 * 2**20
_CACHE_KIB = 16 * 1024


class SqliteBackend(Backend):
    """Store in an SQLite file."""

    dialect = Dialect.SQLITE
    driver_error = sqlite3.Error

    def __init__(self, address: StoreAddress) -> None:
        super().__init__(address)
        assert address.path is not None
        self.path = address.path

    def check_there(self) -> None:
        try:
            exists = self.path.exists()
        except PermissionError as error:
            raise StoreError(
                f"the store {self.path} is in a folder that you may not open",
                "Ask its owner for the right to read it",
            ) from error
        if not exists:
            raise StoreError(
                f"there is no store {self.path}",
                "Run an experiment first, or set RADT_HOME (or --home) to the folder of one",
            )

    def make_room(self) -> None:
        try:
            # Not its parents: if a project was renamed during a run, its old path would be created
            # again.
            self.path.parent.mkdir(exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"the folder of the store {self.path} cannot be created: {error.strerror}",
                "Set RADT_HOME to a folder you may write to",
            ) from error
        # Readable by its user only. SQLite gives the files beside it the same mode, and reports
        # errors.
        with suppress(OSError):
            self.path.touch(mode=0o600, exist_ok=False)

    def writer_engine(self) -> Engine:
        """Return an engine with one connection for all threads (the writer locks it).

        Transactions begin IMMEDIATE: one that begins as a reader cannot become a writer after
        another commit, however long it waits.
        """
        engine = create_engine(
            URL.create("sqlite", database=str(self.path)),
            poolclass=StaticPool,
            connect_args={"timeout": BUSY_TIMEOUT_S, "check_same_thread": False},
        )
        event.listen(engine, "connect", _set_up_writer)
        event.listen(engine, "begin", lambda opened: opened.exec_driver_sql("BEGIN IMMEDIATE"))
        return engine

    def reader_engine(self) -> Engine:
        """Return a read-only engine that sees committed rows and never waits for writers.

        Opened ``mode=rw``, which creates no file but lets the first reader after a crash recover
        the write-ahead log.
        """
        if is_foreign(self.path):
            engine = create_engine(
                "sqlite://", poolclass=NullPool, creator=lambda: _foreign(self.path)
            )
        else:
            engine = create_engine(
                URL.create(
                    "sqlite", database=self.path.as_uri(), query={"mode": "rw", "uri": "true"}
                ),
                poolclass=QueuePool,
                pool_size=4,
                max_overflow=28,
                connect_args={"timeout": BUSY_TIMEOUT_S, "check_same_thread": False},
            )
        event.listen(engine, "connect", _set_up_reader)
        event.listen(engine, "begin", lambda opened: opened.exec_driver_sql("BEGIN"))
        return engine

    def changes(self, reader: Engine) -> ChangeDetector:
        # SQLite's counter needs an open connection.
        return super().changes(reader) if is_foreign(self.path) else _DataVersion(reader)

    def table_names(self, connection: Connection) -> frozenset[str]:
        rows = connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'table'"))
        return frozenset(str(name) for (name,) in rows)

    def run_script(self, connection: Connection, sql: str) -> None:
        for statement in statements(sql):
            connection.exec_driver_sql(statement)

    def is_busy(self, error: BaseException | None) -> bool:
        return str(getattr(error, "sqlite_errorname", "")).startswith("SQLITE_BUSY")

    def error(self, error: BaseException | None) -> StoreError:
        """Translate an error of SQLite."""
        name = str(getattr(error, "sqlite_errorname", "") or "")
        plain = "_".join(name.split("_")[:2])
        if plain in _REMEDIES:
            cause, remedy = _REMEDIES[plain]
            cause = cause.format(path=self.path, timeout=BUSY_TIMEOUT_S)
            kind = ReadOnlyStoreError if plain == "SQLITE_READONLY" else StoreError
            return kind(f"{cause} ({error})", remedy)
        return StoreError(f"the store {self.path} refused a statement: {error}")


class _DataVersion(ChangeDetector):
    """Detects changes by SQLite's own counter, which takes microseconds."""

    def __init__(self, reader: Engine) -> None:
        super().__init__(reader)
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        # `data_version` counts from the opening of a connection. A random prefix keeps a browser
        # from mistaking a restarted dashboard's token for a known one.
        self._base = secrets.randbelow(2**20) << 32

    def token(self) -> int:
        with self._lock:
            if self._connection is None:
                # One permanent connection, because SQLite's counter is relative to a connection.
                self._connection = self._reader.connect()
            version = self._connection.exec_driver_sql("PRAGMA data_version").scalar_one()
            # Ends the transaction that SQLAlchemy began: the store would never change inside it.
            self._connection.rollback()
            return self._base + int(version)

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None


def statements(sql: str) -> Iterator[str]:
    """Yield the statements of a script; the driver's executescript would end our transaction.

    Raises:
        StoreError: The last statement is incomplete.
    """
    pending = ""
    for line in sql.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending.strip()
            pending = ""
    if re.sub(r"--.*", "", pending).strip():
        raise StoreError("a migration ends in the middle of a statement")


def _set_up_writer(connection: sqlite3.Connection, _record: object) -> None:
    # Leave BEGIN to the event below instead of to the driver's heuristics.
    connection.isolation_level = None
    empty = connection.execute("PRAGMA page_count").fetchone() == (0,)
    if not empty and connection.execute("PRAGMA application_id").fetchone() != (APPLICATION_ID,):
        # Another process is creating the file, already in WAL mode; or it is not a store, which is
        # refused without changing it.
        return
    if empty:
        # `radt prune` can then release space step by step, without a second copy of the file.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    # Some network file systems do not support WAL. SQLite then keeps its rollback journal: slower,
    # and readers wait for writers, but no data is lost.
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    # What takes the place of a password does not leave it in the page's free bytes.
    connection.execute("PRAGMA secure_delete = FAST")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT_BYTES}")
    connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")


def is_foreign(path: Path) -> bool:
    """Return whether the store's folder is not writable, which means that it is another user's."""
    return not os.access(path.absolute().parent, os.W_OK)


def _foreign(path: Path) -> sqlite3.Connection:
    """Open another user's store for a single transaction.

    SQLite can read the write-ahead log there while a writer keeps it open, but cannot create it.
    Without a log, no writer is active and the file is opened as immutable; to keep that assumption
    valid, no such connection stays open.
    """
    at_rest = not path.with_name(f"{path.name}-wal").exists()
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?{'immutable=1' if at_rest else 'mode=ro'}",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        check_same_thread=False,
    )


def _set_up_reader(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA query_only = ON")
    connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")


_REMEDIES: dict[str, tuple[str, str]] = {
    "SQLITE_FULL": (
        "there is no room left for the store {path}",
        "Free some disk space; what was written before is kept",
    ),
    "SQLITE_BUSY": (
        "the store {path} has been busy for {timeout:.0f} seconds",
        "Another program holds it; close it (a database browser, a copy in progress), then go on",
    ),
    "SQLITE_READONLY": (
        "the store {path} does not allow writing",
        "Check the permissions of the file and of its folder",
    ),
    "SQLITE_CANTOPEN": (
        "the store {path} cannot be opened",
        "Check that the folder exists and that you may read and write there",
    ),
    "SQLITE_IOERR": (
        "reading or writing the store {path} failed",
        "Check the disk; the kernel's log (dmesg) may say more",
    ),
    "SQLITE_CORRUPT": (
        "the store {path} is damaged",
        "Check the disk; `sqlite3 FILE .recover` saves what can be read",
    ),
    "SQLITE_NOTADB": (
        "{path} is not a radt store",
        "Give the folder that holds radt.db, or move this file out of the way",
    ),
}
