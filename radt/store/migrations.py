"""Bring a store's schema up to date.

Migrations are numbered SQL files in ``schemas/migrations``. All that are missing are applied in one
transaction together with their record, so that a store is at one version or the next, never
between, however many processes open it first at the same time.
"""

from __future__ import annotations

import random
import re
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from sqlalchemy import Engine, text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from radt import __version__
from radt.errors import SchemaTooNewError, StoreError
from radt.store.engine import BUSY_TIMEOUT_S, is_busy, writer_engine

_FILE_NAME = re.compile(r"(\d{4})_(\w+)\.sql")

_CREATE_VERSION_TABLE = """
CREATE TABLE IF NOT EXISTS schema_version (
    version INTEGER NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    applied_ns INTEGER NOT NULL,
    applied_by TEXT NOT NULL
)
"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema."""

    version: int
    name: str
    sql: str

    def statements(self) -> Iterator[str]:
        """The statements of the file, one by one."""
        pending = ""
        for line in self.sql.splitlines(keepends=True):
            pending += line
            if sqlite3.complete_statement(pending):
                yield pending.strip()
                pending = ""
        if re.sub(r"--.*", "", pending).strip():
            raise StoreError(f"migration {self.version} ends in the middle of a statement")


@cache
def migrations(dialect: str = "sqlite") -> tuple[Migration, ...]:
    """All migrations for a database, in order."""
    folder = resources.files("radt.schemas") / "migrations" / dialect
    found = [
        Migration(int(match[1]), match[2], file.read_text(encoding="utf-8"))
        for file in folder.iterdir()
        if (match := _FILE_NAME.fullmatch(file.name))
    ]
    return tuple(sorted(found, key=lambda migration: migration.version))


def latest_version() -> int:
    """The schema version this radt works with."""
    return migrations()[-1].version


def current_version(connection: Connection) -> int:
    """The version of a store; 0 for an empty one.

    Raises:
        StoreError: The file is some other program's database.
    """
    tables = {
        str(name)
        for (name,) in connection.execute(text("SELECT name FROM sqlite_master WHERE type='table'"))
    }
    if "schema_version" not in tables:
        if tables:
            raise StoreError(
                "the database holds other tables and is not a radt store",
                "Give the folder that holds radt.db, or move this file out of the way",
            )
        return 0
    return int(connection.execute(text("SELECT MAX(version) FROM schema_version")).scalar() or 0)


def check_not_newer(version: int) -> None:
    """Refuse a store of a later radt.

    Raises:
        SchemaTooNewError: It is one.
    """
    if version > latest_version():
        raise SchemaTooNewError(
            f"the store has schema version {version}, this radt {__version__} knows versions up to "
            f"{latest_version()}",
            "Upgrade radt, or set RADT_HOME to another folder",
        )


def open_and_migrate(engine: Engine) -> None:
    """`migrate`, waiting for others that open the same new store.

    Turning WAL on wants the file for itself and does not honour the busy timeout.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            migrate(engine)
        except DBAPIError as error:
            if not is_busy(error.orig) or time.monotonic() > deadline:
                raise
            time.sleep(random.uniform(0.005, 0.05))  # noqa: S311 - not for secrets
        else:
            return


def bring_up_to_date(reader: Engine, path: Path) -> None:
    """Check the version a reader finds, and migrate an older store so that it can be read.

    Raises:
        SchemaTooNewError: The store was written by a later radt.
        StoreError: The file is some other program's database.
    """
    with reader.begin() as connection:
        version = current_version(connection)
    check_not_newer(version)
    if version < latest_version():
        writer = writer_engine(path)
        try:
            open_and_migrate(writer)
        finally:
            writer.dispose()


def migrate(engine: Engine) -> None:
    """Apply what is missing; safe from several processes at once.

    Args:
        engine: An engine whose transactions hold the write lock from their beginning.

    Raises:
        SchemaTooNewError: The store was written by a later radt.
        StoreError: The file is some other program's database.
    """
    with engine.begin() as connection:
        version = current_version(connection)
        check_not_newer(version)
        if version == latest_version():
            return
        connection.execute(text(_CREATE_VERSION_TABLE))
        for migration in migrations():
            if migration.version <= version:
                continue
            for statement in migration.statements():
                connection.exec_driver_sql(statement)
            connection.execute(
                text(
                    "INSERT INTO schema_version (version, name, applied_ns, applied_by) "
                    "VALUES (:version, :name, :applied_ns, :applied_by)"
                ),
                {
                    "version": migration.version,
                    "name": migration.name,
                    "applied_ns": time.time_ns(),
                    "applied_by": f"radt {__version__}",
                },
            )
