"""SQLAlchemy engines for the store, and database errors turned into ours."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Engine, create_engine, event
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import NullPool, QueuePool, StaticPool

from radt.errors import StoreError

#: Marks the file as a store; set by the first migration. "radT" in ASCII.
APPLICATION_ID = 0x72616454

#: How long a connection waits for its turn before the store counts as stuck.
BUSY_TIMEOUT_S = 60.0
#: The WAL file is cut back to this size after a checkpoint.
_WAL_LIMIT_BYTES = 64 * 2**20
_CACHE_KIB = 16 * 1024


def writer_engine(path: Path) -> Engine:
    """One connection, shared by all threads (the writer holds a lock round its transactions).

    Transactions begin IMMEDIATE: one that began as a reader could not become a writer after
    somebody else's commit, and no waiting would mend that.
    """
    engine = create_engine(
        URL.create("sqlite", database=str(path.absolute())),
        poolclass=StaticPool,
        connect_args={"timeout": BUSY_TIMEOUT_S, "check_same_thread": False},
    )
    event.listen(engine, "connect", _set_up_writer)
    event.listen(engine, "begin", _begin_immediate)
    return engine


def reader_engine(path: Path) -> Engine:
    """Connections for readers: they see committed rows, never wait for writers, cannot write.

    A transaction is a snapshot. Opened ``mode=rw``, which creates nothing: a reader that comes
    first after a crash must be able to recover the write-ahead log.
    """
    if is_foreign(path):
        engine = create_engine("sqlite://", poolclass=NullPool, creator=lambda: _foreign(path))
    else:
        engine = create_engine(
            URL.create(
                "sqlite", database=path.absolute().as_uri(), query={"mode": "rw", "uri": "true"}
            ),
            poolclass=QueuePool,
            pool_size=4,
            max_overflow=28,
            connect_args={"timeout": BUSY_TIMEOUT_S, "check_same_thread": False},
        )
    event.listen(engine, "connect", _set_up_reader)
    event.listen(engine, "begin", _begin)
    return engine


def _set_up_writer(connection: sqlite3.Connection, _record: object) -> None:
    # Leaves BEGIN to the event below instead of to the driver's guesses.
    connection.isolation_level = None
    empty = connection.execute("PRAGMA page_count").fetchone() == (0,)
    if not empty and connection.execute("PRAGMA application_id").fetchone() != (APPLICATION_ID,):
        # Being made by another process, in WAL already; or no store, to be refused unchanged.
        return
    # Some network file systems cannot do WAL. SQLite then keeps its rollback journal: slower, and
    # readers wait for writers, but nothing is lost.
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT_BYTES}")
    connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")


def is_foreign(path: Path) -> bool:
    """Whether the store's folder may not be written: it is somebody else's."""
    return not os.access(path.absolute().parent, os.W_OK)


def _foreign(path: Path) -> sqlite3.Connection:
    """A connection to somebody else's store, for one transaction only.

    SQLite can read the write-ahead log there as long as a writer keeps it open, but cannot make one
    where there is none. Then the file is at rest and is read as if nobody ever changed it; so that
    this is true, no such connection is kept.
    """
    at_rest = not path.with_name(f"{path.name}-wal").exists()
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?{'immutable=1' if at_rest else 'mode=ro'}",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        check_same_thread=False,
    )


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")


def _set_up_reader(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA query_only = ON")
    connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")


@contextmanager
def translated_errors(path: Path) -> Iterator[None]:
    """Turn database errors into `StoreError` with cause and remedy."""
    try:
        yield
    except DBAPIError as error:
        raise store_error(path, error.orig) from error
    except sqlite3.Error as error:
        raise store_error(path, error) from error
    except PoolTimeoutError as error:
        raise StoreError(f"too many readers of {path} at once", "Try again in a moment") from error


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
        "the store {path} may not be written",
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


def store_error(path: Path, error: BaseException | Any) -> StoreError:
    """The `StoreError` for what the driver raised.

    Extended codes (``SQLITE_BUSY_SNAPSHOT``, ``SQLITE_IOERR_WRITE``) begin with the plain one's
    name.
    """
    name = str(getattr(error, "sqlite_errorname", "") or "")
    plain = "_".join(name.split("_")[:2])
    if plain in _REMEDIES:
        cause, remedy = _REMEDIES[plain]
        return StoreError(f"{cause.format(path=path, timeout=BUSY_TIMEOUT_S)} ({error})", remedy)
    return StoreError(f"the store {path} refused a statement: {error}")


def is_busy(error: BaseException | Any) -> bool:
    """Whether the driver gave up because somebody else holds a lock."""
    return str(getattr(error, "sqlite_errorname", "")).startswith("SQLITE_BUSY")
