"""Upgrade a store's schema.

Migrations are numbered SQL files in ``schemas/migrations``, with the same numbers for each kind of
database. All missing ones are applied and recorded in one transaction, so that a store is never
between versions, however many processes open it at the same time.

A file belongs to one user, whose first newer radt upgrades it. A Postgres store is shared, and
users with an older radt could no longer use it after an upgrade, so its upgrade is explicit (``radt
db upgrade``). Only an empty database is set up automatically.
"""

from __future__ import annotations

import random
import re
import time
from dataclasses import dataclass
from functools import cache
from importlib import resources

from sqlalchemy import Engine, text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from radt import __version__
from radt.errors import NoStoreError, SchemaTooNewError, SchemaTooOldError, StoreError
from radt.store import tables
from radt.store.backend import Backend, Dialect

_FILE_NAME = re.compile(r"(\d{4})_(\w+)\.sql")

#: How long to wait for other processes that set up the same store.
_PATIENCE_S = 60.0

_CREATE_VERSION_TABLE = """
CREATE TABLE IF NOT EXISTS schema_version (
    version INTEGER NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    applied_ns BIGINT NOT NULL,
    applied_by TEXT NOT NULL
)
"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One migration of the schema."""

    version: int
    name: str
    sql: str


@cache
def migrations(dialect: Dialect = Dialect.SQLITE) -> tuple[Migration, ...]:
    """Return all migrations for a kind of database, in order."""
    folder = resources.files("radt.schemas") / "migrations" / dialect.value
    files = [
        Migration(int(match[1]), match[2], file.read_text(encoding="utf-8"))
        for file in folder.iterdir()
        if (match := _FILE_NAME.fullmatch(file.name))
    ]
    return tuple(sorted(files, key=lambda migration: migration.version))


def latest_version() -> int:
    """Return the schema version this radt works with."""
    return migrations()[-1].version


def current_version(backend: Backend, connection: Connection) -> int:
    """Return the version of a store; 0 for an empty one.

    Raises:
        StoreError: The database belongs to another program.
    """
    tables = backend.table_names(connection)
    if "schema_version" not in tables:
        if tables:
            raise StoreError(
                f"{backend.address} holds other tables and is not a radt store",
                "Give the folder that holds radt.db, or move this file out of the way"
                if backend.dialect is Dialect.SQLITE
                else "Give another database: radt's tables go into its schema radt",
            )
        return 0
    return int(connection.execute(text("SELECT MAX(version) FROM schema_version")).scalar() or 0)


def check_not_newer(backend: Backend, version: int) -> None:
    """Raise an error if a later radt wrote the store.

    Raises:
        SchemaTooNewError: A later radt wrote the store.
    """
    if version > latest_version():
        raise SchemaTooNewError(
            f"the store {backend.address} has schema version {version}, this radt {__version__} "
            f"knows versions up to {latest_version()}",
            "Upgrade radt, or use another store (RADT_HOME, RADT_STORE_URI)",
        )


def check_not_older(backend: Backend, version: int) -> None:
    """Raise an error if the store must be upgraded first.

    Raises:
        SchemaTooOldError: The store must be upgraded.
    """
    if version < latest_version():
        raise SchemaTooOldError(
            f"the store {backend.address} has schema version {version}, this radt {__version__} "
            f"needs {latest_version()}",
            "Run `radt db upgrade`; older versions of radt cannot use the store afterwards",
        )


def prepare_to_write(backend: Backend, engine: Engine, *, upgrade: bool = False) -> None:
    """Bring the store up to date, waiting for other processes that create it at the same time.

    A Postgres store that is not empty is upgraded only with `upgrade`. After an upgrade, missing
    summaries are computed run by run.

    Raises:
        SchemaTooNewError: The store was written by a later radt.
        SchemaTooOldError: The store is an older one in Postgres, and ``upgrade`` is not set.
        StoreError: The database belongs to another program.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            _migrate(backend, engine, upgrade=upgrade or backend.dialect is Dialect.SQLITE)
            _complete_summaries(backend, engine)
        except DBAPIError as error:
            # Switching to WAL needs the file exclusively and does not honour the busy timeout.
            if not backend.is_busy(error.orig) or time.monotonic() > deadline:
                raise
            time.sleep(random.uniform(0.005, 0.05))  # noqa: S311 - not for secrets
        else:
            return


def prepare_to_read(backend: Backend, reader: Engine) -> None:
    """Check the store's version for a reader; an older file is migrated first.

    Raises:
        SchemaTooNewError: The store was written by a later radt.
        SchemaTooOldError: The store is an older one in Postgres, or its upgrade was interrupted.
        StoreError: There is no store, or the database belongs to another program.
    """
    with reader.begin() as connection:
        version = current_version(backend, connection)
        check_not_newer(backend, version)
        if version == latest_version() and connection.execute(tables.INCOMPLETE).first() is None:
            return
    if backend.dialect is Dialect.POSTGRES:
        if version == 0:
            raise NoStoreError(
                f"there is no store in {backend.address}",
                "Run an experiment with it as RADT_STORE_URI, or run `radt db upgrade`",
            )
        check_not_older(backend, version)
        raise SchemaTooOldError(
            f"the upgrade of the store {backend.address} was interrupted",
            "Run `radt db upgrade` to complete it",
        )
    writer = backend.writer_engine()
    try:
        prepare_to_write(backend, writer)
    finally:
        writer.dispose()


def _complete_summaries(backend: Backend, engine: Engine) -> None:
    """Compute the summaries of series that an earlier version has written."""
    with engine.begin() as connection:
        if connection.execute(tables.INCOMPLETE).first() is None:
            return
    from radt.store import summaries

    summaries.complete(backend, engine)


def _migrate(backend: Backend, engine: Engine, *, upgrade: bool) -> None:
    """Apply missing migrations; safe with concurrent processes."""
    with engine.begin() as connection:
        if current_version(backend, connection) == latest_version():
            return
        backend.begin_migration(connection)
        version = current_version(backend, connection)
        check_not_newer(backend, version)
        if version == latest_version():
            return
        if version and not upgrade:
            check_not_older(backend, version)
        connection.execute(text(_CREATE_VERSION_TABLE))
        for migration in migrations(backend.dialect):
            if migration.version <= version:
                continue
            backend.run_script(connection, migration.sql)
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
