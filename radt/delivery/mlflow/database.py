"""Create MLflow's SQLite file atomically.

MLflow builds a new database in place, table by table, in some fifty steps. If it is killed in
between, it leaves a file that it can neither use nor finish ("table _alembic_tmp_metrics already
exists"), so that no run could be uploaded.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine

from radt.paths import sqlite_uri

_TIMEOUT_S = 60.0


def prepare(database: Path) -> None:
    """Create a database before MLflow opens it; an existing one is left unchanged.

    It is built under another name and renamed. Another program, such as MLflow's UI, may be faster.

    Raises:
        OSError: The file cannot be written.
        MlflowException: MLflow cannot build a database.
    """
    if database.exists():
        return
    with TemporaryDirectory(prefix=f".{database.name}-", dir=database.parent) as folder:
        new = Path(folder) / database.name
        _build(new, database.parent / "mlruns")
        with suppress(FileExistsError):
            os.link(new, database)


def _build(database: Path, artifacts: Path) -> None:
    """Build a database in WAL mode, so that readers (scripts, MLflow's UI) do not wait for writers.

    MLflow itself would put artifacts of the default experiment below the current folder. Syncing is
    off during the build, because MLflow's 300 statements would each wait for the disk.
    """
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore  # takes 0.8 s

    def connected(connection: Any, _: object) -> None:
        if isinstance(connection, sqlite3.Connection):  # other threads connect to other databases
            _, _, path = connection.execute("PRAGMA database_list").fetchone()
            if path and Path(path) == database.resolve():
                connection.execute("PRAGMA synchronous = OFF")

    event.listen(Engine, "connect", connected)
    try:
        store = SqlAlchemyStore(sqlite_uri(database), str(artifacts))  # type: ignore[no-untyped-call]
        store.engine.dispose()
    finally:
        event.remove(Engine, "connect", connected)
    with closing(sqlite3.connect(database, timeout=_TIMEOUT_S)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    with database.open("rb") as file:
        os.fsync(file.fileno())
