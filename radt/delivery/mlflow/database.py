"""Create MLflow's SQLite file atomically, and replace a half-built one.

MLflow builds a new database in place, table by table, in some fifty steps. Killed in between, it
leaves a file that it can neither use nor finish ("table _alembic_tmp_metrics already exists"), so
that no run could be uploaded. Building takes two seconds of CPU time just as the first runs start:
``schemas/mlflow.sql`` holds the result for one version of MLflow.
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

#: Suffixes of files that SQLite keeps beside a database.
_COMPANIONS = ("-wal", "-shm", "-journal")
_TIMEOUT_S = 60.0
#: MLflow's tables as built by the version in the first line.
SCHEMA = resources.files("radt.schemas") / "mlflow.sql"


def prepare(database: Path) -> None:
    """Complete a database before MLflow opens it; one with runs in it is left unchanged.

    The new database is built under another name and renamed atomically. A half-built file is kept
    as ``mlflow.db.incomplete``.

    Raises:
        OSError: The file cannot be written.
        sqlite3.Error: The file is not a database, or stays locked.
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
        pass  # another process was faster
    finally:
        _remove(new)


def _is_incomplete(database: Path) -> bool:
    """Return whether MLflow was interrupted while building this database.

    MLflow creates the first experiment after its last migration.
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
    """Return a complete new database beside another one."""
    workshop = database.with_name(f".{database.name}.building")
    new = database.with_name(f".{database.name}.new")
    for leftover in (workshop, new):
        _remove(leftover)
    try:
        if not _built_from_schema(workshop):
            MlflowClient(sqlite_uri(workshop)).search_experiments(max_results=1)
        # A copy, because MLflow keeps connections to the file that it has built.
        with closing(sqlite3.connect(workshop, timeout=_TIMEOUT_S)) as connection:
            connection.execute("VACUUM INTO ?", (str(new),))
        use_wal(new)
    finally:
        _remove(workshop)
    return new


def _built_from_schema(database: Path) -> bool:
    """Build a database as the installed MLflow would if `SCHEMA` has its version."""
    first, _, statements = SCHEMA.read_text(encoding="utf-8").partition("\n")
    if first != schema_title(VERSION):
        return False
    now_ms = time.time_ns() // 1_000_000
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.executescript(statements)
        # Only the first experiment has a location (MLflow takes a folder below the current one,
        # which is / for an uploader) and a time.
        connection.execute(
            "UPDATE experiments SET artifact_location = ?, creation_time = ?, last_update_time = ?",
            (str(database.parent / "mlruns" / "0"), now_ms, now_ms),
        )
    return True


def schema_title(version: str) -> str:
    """Return the first line of `SCHEMA` for a version of MLflow."""
    return f"-- The SQLite database of MLflow {version}; see tests/delivery/mlflow/test_database.py"


def use_wal(database: Path) -> None:
    """Use WAL, so that readers (scripts, MLflow's UI) do not wait for writers.

    Raises:
        sqlite3.Error: The mode cannot be set.
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
