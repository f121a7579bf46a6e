"""MLflow's SQLite file: it appears whole, and one that was left half made is replaced.

MLflow builds a new database in place, table by table, in some fifty steps. Killed in between, it
leaves a file that it can neither use nor finish ("table _alembic_tmp_metrics already exists"), and
no run would ever reach it. Building takes two seconds of CPU time, just as the first runs start:
``schemas/mlflow.sql`` is what comes out, for the version of MLflow that it was written by.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from contextlib import closing, suppress
from importlib import resources
from pathlib import Path

from mlflow.tracking import MlflowClient
from mlflow.version import VERSION

from radt.paths import sqlite_uri

log = logging.getLogger(__name__)

#: Files that SQLite keeps beside a database.
_COMPANIONS = ("-wal", "-shm", "-journal")
_TIMEOUT_S = 60.0
#: MLflow's tables as one version builds them, which the first line names.
SCHEMA = resources.files("radt.schemas") / "mlflow.sql"


def prepare(database: Path) -> None:
    """Make a database whole before MLflow opens it; one with runs in it is left as it is.

    The new one is built under another name, and gets its own in one step. A half-made file is kept
    as ``mlflow.db.incomplete``.

    Raises:
        OSError: The file cannot be written.
        sqlite3.Error: The file is no database, or is locked for long.
        MlflowException: MLflow cannot build a database.
    """
    if database.exists() and database.stat().st_size and not _is_incomplete(database):
        return
    new = _built(database)
    try:
        if database.exists():
            log.warning("%s is incomplete and has no runs; a new one replaces it", database)
            _rename(database, database.with_name(f"{database.name}.incomplete"))
        os.link(new, database)
    except FileExistsError:
        pass  # somebody else was quicker
    finally:
        _remove(new)


def _is_incomplete(database: Path) -> bool:
    """Whether MLflow was interrupted while it built this.

    MLflow makes the first experiment by itself, after its last migration, and runs need one.
    """
    with closing(sqlite3.connect(database, timeout=_TIMEOUT_S)) as connection:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        tables = {name for (name,) in names}
        if not tables:
            return True
        if not tables & {"experiments", "alembic_version"}:
            return False  # not MLflow's
        return not any(
            connection.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone()  # noqa: S608 - our own
            for table in {"experiments", "runs"} & tables
        )


def _built(database: Path) -> Path:
    """Return a whole, new database beside another one."""
    workshop = database.with_name(f".{database.name}.building")
    new = database.with_name(f".{database.name}.new")
    for leftover in (workshop, new):
        _remove(leftover)
    try:
        if not _built_from_schema(workshop):
            MlflowClient(sqlite_uri(workshop)).search_experiments(max_results=1)
        # A copy: MLflow keeps connections to the file that it has built.
        with closing(sqlite3.connect(workshop, timeout=_TIMEOUT_S)) as connection:
            connection.execute("VACUUM INTO ?", (str(new),))
        use_wal(new)
    finally:
        _remove(workshop)
    return new


def _built_from_schema(database: Path) -> bool:
    """Build a database as the installed MLflow would, if `SCHEMA` is of its version."""
    first, _, statements = SCHEMA.read_text(encoding="utf-8").partition("\n")
    if first != schema_title(VERSION):
        return False
    now_ms = time.time_ns() // 1_000_000
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.executescript(statements)
        # The first experiment alone has a place (MLflow takes a folder below the current one, which
        # is / for an uploader) and a time.
        connection.execute(
            "UPDATE experiments SET artifact_location = ?, creation_time = ?, last_update_time = ?",
            (str(database.parent / "mlruns" / "0"), now_ms, now_ms),
        )
    return True


def schema_title(version: str) -> str:
    """Return the first line of `SCHEMA` for a version of MLflow."""
    return f"-- The SQLite database of MLflow {version}; see tests/delivery/mlflow/test_database.py"


def use_wal(database: Path) -> None:
    """Let readers (scripts, MLflow's UI) not wait for writers.

    Raises:
        sqlite3.Error: It cannot be set.
    """
    with closing(sqlite3.connect(database, timeout=_TIMEOUT_S)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")


def _rename(database: Path, name: Path) -> None:
    """Rename a database with all its files."""
    _remove(name)
    for companion in ("", *_COMPANIONS):
        with suppress(FileNotFoundError):
            Path(f"{database}{companion}").rename(f"{name}{companion}")


def _remove(database: Path) -> None:
    for companion in ("", *_COMPANIONS):
        Path(f"{database}{companion}").unlink(missing_ok=True)
