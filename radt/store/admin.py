"""Administer a store: upgrade it, create the views of radT's first front-end, grant read access.

``fe_experiments``, ``fe_runs``, ``fe_metrics`` and ``fe_metrics_available`` have the columns and
types they always had. A migration bases them on the store's own tables. If MLflow's tables are in
the same database, the views read those instead, because they also hold runs from before this
version. The original is at
https://github.com/Resource-Aware-Data-systems-RAD/radt/tree/master/queries.

A role for the dashboard may read schema ``radt``, including later additions, and those of MLflow's
tables that hold tracked data (not its tables of accounts or keys). A password is sent as a SCRAM
verifier, because the server may log statements.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources

from psycopg2.extensions import encrypt_password
from sqlalchemy import Connection, Engine, make_url, text

from radt.errors import StoreError, UsageError
from radt.store.backend import Backend, Dialect, StoreAddress, backend_of
from radt.store.migrations import (
    check_not_newer,
    check_not_older,
    current_version,
    latest_version,
    migrations,
)
from radt.store.writer import StoreWriter

NAMES = ("fe_experiments", "fe_runs", "fe_metrics", "fe_metrics_available")
#: MLflow's tables that the views read.
_NEEDED = ("experiments", "runs", "metrics", "latest_metrics", "params", "tags")
#: MLflow's tables that a reader role may read: all that hold tracked data, but no accounts.
READABLE = (*_NEEDED, "experiment_tags", "inputs", "input_tags", "datasets", "logged_models")

_MLFLOW_SCHEMA = text(
    "SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
    "WHERE c.relkind IN ('r', 'p') AND c.relname = ANY(:names) "
    "AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT') "
    "GROUP BY n.nspname HAVING COUNT(*) = :count ORDER BY n.nspname <> 'public', n.nspname LIMIT 1"
)
_GRANTS = text(
    "SELECT grantee FROM information_schema.role_table_grants "
    "WHERE table_schema = 'public' AND table_name = :name AND privilege_type = 'SELECT'"
)
_VIEW = re.compile(r"CREATE VIEW (fe_\w+) AS\n(.*?);\n", re.DOTALL)


class ViewSource(StrEnum):
    """Tables that the views read."""

    MLFLOW = "MLflow's tables"
    CHUNKS = "headers of chunks"


def mlflow_schema(connection: Connection) -> str | None:
    """Return the schema with MLflow's tables, if they exist and are readable, else None."""
    row = {"names": list(_NEEDED), "count": len(_NEEDED)}
    schema = connection.execute(_MLFLOW_SCHEMA, row).scalar()
    return None if schema is None else str(schema)


def put_views(connection: Connection, *, public: bool) -> ViewSource:
    """Create or replace the views in the caller's transaction.

    With `public`, also create them in schema ``public``, replacing views of the same names.
    """
    schema = mlflow_schema(connection)
    if schema is None:
        # Several migrations may define a view; the latest one wins.
        scripts = "".join(migration.sql for migration in migrations(Dialect.POSTGRES))
    else:
        file = resources.files("radt.schemas") / "views_on_mlflow.sql"
        scripts = file.read_text(encoding="utf-8")
    queries = dict(_VIEW.findall(scripts))
    for name in NAMES:
        query = queries[name].replace("{mlflow}", _quoted(schema or SCHEMA))
        _execute(connection, f"CREATE OR REPLACE VIEW radt.{name} AS {query}")
        if public:
            _put_public(connection, name)
    return ViewSource.CHUNKS if schema is None else ViewSource.MLFLOW


def _put_public(connection: Connection, name: str) -> None:
    """Replace a view in schema ``public``, keeping its readers' grants."""
    readers = connection.execute(_GRANTS, {"name": name}).scalars().all()
    _execute(connection, f"DROP VIEW IF EXISTS public.{name}")
    _execute(connection, f"CREATE VIEW public.{name} AS TABLE radt.{name}")
    for reader in readers:
        role = "PUBLIC" if reader == "PUBLIC" else _quoted(str(reader))
        _execute(connection, f"GRANT SELECT ON public.{name} TO {role}")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _execute(connection: Connection, sql: str) -> None:
    # Escaped for the driver: SQLAlchemy would take casts for parameters.
    connection.exec_driver_sql(sql.replace("%", "%%"))


@dataclass(frozen=True, slots=True)
class Upgraded:
    """Schema versions before (0 for an empty store) and after an upgrade.

    ``source`` says which tables the first front-end's views read; None in SQLite, which has no
    views.
    """

    before: int
    after: int
    source: ViewSource | None = None


def upgrade(address: StoreAddress, *, public_views: bool = False) -> Upgraded:
    """Apply all missing migrations; an empty Postgres database becomes a store.

    In Postgres, also recreate the first front-end's views, with `public_views` in schema ``public``
    too.

    Raises:
        StoreError: The file does not exist or cannot be written.
        SchemaTooNewError: It was written by a later radt.
    """
    backend = backend_of(address)
    backend.check_there()
    with transaction(backend, backend.reader_engine()) as connection:
        before = current_version(backend, connection)
    check_not_newer(backend, before)
    StoreWriter(address, upgrade=True).close()
    source = None
    if backend.dialect is Dialect.POSTGRES:
        with transaction(backend, backend.writer_engine()) as connection:
            backend.begin_migration(connection)
            source = put_views(connection, public=public_views)
    return Upgraded(before, latest_version(), source)


@contextmanager
def transaction(backend: Backend, engine: Engine) -> Iterator[Connection]:
    """Yield a connection in a transaction of an engine, which is disposed of at the end.

    Raises:
        StoreError: The database cannot be reached, or is not a store.
    """
    try:
        with backend.translated_errors(), engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


SCHEMA = "radt"
#: Comment that marks a role as created here.
_COMMENT = "radt: a reader of the store"
_MAX_NAME_BYTES = 63

_ROLE = text(
    "SELECT rolsuper OR rolcreaterole, shobj_description(oid, 'pg_authid') = :comment, "
    "rolname = current_user FROM pg_roles WHERE rolname = :name"
)
_WRITABLE = text(
    "SELECT n.nspname || '.' || c.relname FROM pg_class c "
    "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname IN (:radt, :mlflow) "
    "AND c.relkind IN ('r', 'p', 'v') "
    "AND has_table_privilege(:name, c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE') LIMIT 1"
)
_MAY_CREATE = text("SELECT has_schema_privilege(:name, :schema, 'CREATE')")
_THERE = text("SELECT tablename FROM pg_tables WHERE schemaname = :schema")
#: Roles that may create the tables of later versions: the schema's owner and the current user.
_MAKERS = text(
    "SELECT current_user::text UNION SELECT r.rolname::text FROM pg_namespace n "
    "JOIN pg_roles r ON r.oid = n.nspowner WHERE n.nspname = :schema "
    "AND pg_has_role(n.nspowner, 'USAGE')"
)


@dataclass(frozen=True, slots=True)
class Granted:
    """Outcome of `grant_reader`.

    ``created``: the role is new. ``password_set``: a password was set. ``mlflow_schema`` is the
    schema with MLflow's readable tables, None without any; ``uri`` is the reader's address without
    password.
    """

    created: bool
    password_set: bool
    mlflow_schema: str | None
    uri: str


def grant_reader(address: StoreAddress, name: str, password: str | None) -> Granted:
    """Let a role read the store, creating the role if needed. Idempotent.

    Without `password`, the role keeps its own.

    Raises:
        UsageError: The name is not allowed for a reader.
        StoreError: The role could still write, or you lack the privilege to grant this.
    """
    _check_name(name)
    with _store(address) as connection:
        role = connection.execute(_ROLE, {"name": name, "comment": _COMMENT}).one_or_none()
        if role is None:
            if password is None:
                raise UsageError(f"role {name} does not exist yet", "Give it a password")
            _execute(connection, f"CREATE ROLE {_quoted(name)} LOGIN")
            _execute(connection, f"COMMENT ON ROLE {_quoted(name)} IS '{_COMMENT}'")
        elif role[0] or role[2]:
            raise UsageError(
                f"{name} can do more than read in {address}", "Give the name of a new role"
            )
        if password is not None:
            driver = connection.connection.driver_connection
            verifier = encrypt_password(password, name, driver, "scram-sha-256")
            _execute(connection, f"ALTER ROLE {_quoted(name)} PASSWORD '{verifier}'")
        _execute(connection, f"ALTER ROLE {_quoted(name)} SET default_transaction_read_only = on")
        schema = mlflow_schema(connection)
        _grant(connection, name, schema)
        _check_reads_only(connection, address, name, schema)
    url = make_url(address.uri).set(drivername="postgresql", username=name, password=None)
    # libpq's query parameters are those of this connection, not the reader's.
    shown = url.difference_update_query(("password", "passfile", "user", "sslpassword"))
    return Granted(role is None, password is not None, schema, shown.render_as_string())


def has_role(address: StoreAddress, name: str) -> bool:
    """Return whether the role exists.

    Raises:
        UsageError: The store is a file.
        StoreError: The database cannot be reached.
    """
    with _store(address) as connection:
        row = {"name": name, "comment": _COMMENT}
        return connection.execute(_ROLE, row).one_or_none() is not None


def revoke_reader(address: StoreAddress, name: str) -> bool:
    """Revoke a role's access; return whether the role itself, if created here, was removed.

    Raises:
        UsageError: The role does not exist.
        StoreError: You lack the privilege, or other objects depend on the role.
    """
    _check_name(name)
    with _store(address) as connection:
        known_role = connection.execute(_ROLE, {"name": name, "comment": _COMMENT}).one_or_none()
        if known_role is None:
            raise UsageError(f"there is no role {name} in {address}", "Check its name")
        role = _quoted(name)
        for later in _later_tables(connection):
            _execute(connection, f"{later} REVOKE SELECT ON TABLES FROM {role}")  # noqa: S608
        _execute(connection, f"REVOKE ALL ON ALL TABLES IN SCHEMA {SCHEMA} FROM {role}")
        _execute(connection, f"REVOKE ALL ON SCHEMA {SCHEMA} FROM {role}")
        if schema := mlflow_schema(connection):
            for table in _mlflow_tables(connection, schema):
                _execute(connection, f"REVOKE SELECT ON {table} FROM {role}")  # noqa: S608
            _execute(connection, f"REVOKE USAGE ON SCHEMA {_quoted(schema)} FROM {role}")
        _execute(connection, f"REVOKE CONNECT ON DATABASE {_database(connection)} FROM {role}")
        if known_role[1]:
            _execute(connection, f"DROP ROLE {role}")
        return bool(known_role[1])


@contextmanager
def _store(address: StoreAddress) -> Iterator[Connection]:
    """Yield a transaction in an up-to-date Postgres store."""
    if not address.is_postgres:
        raise UsageError(
            f"{address} is a file, and has no roles",
            "Give the Postgres database with --store-uri; who may read the file may read the store",
        )
    backend = backend_of(address)
    with transaction(backend, backend.writer_engine()) as connection:
        version = current_version(backend, connection)
        check_not_newer(backend, version)
        check_not_older(backend, version)
        yield connection


def _grant(connection: Connection, name: str, schema: str | None) -> None:
    role = _quoted(name)
    _execute(connection, f"GRANT CONNECT ON DATABASE {_database(connection)} TO {role}")
    _execute(connection, f"GRANT USAGE ON SCHEMA {SCHEMA} TO {role}")
    _execute(connection, f"GRANT SELECT ON ALL TABLES IN SCHEMA {SCHEMA} TO {role}")
    for later in _later_tables(connection):
        _execute(connection, f"{later} GRANT SELECT ON TABLES TO {role}")
    if schema is not None:
        _execute(connection, f"GRANT USAGE ON SCHEMA {_quoted(schema)} TO {role}")
        for table in _mlflow_tables(connection, schema):
            _execute(connection, f"GRANT SELECT ON {table} TO {role}")


def _later_tables(connection: Connection) -> list[str]:
    """Return the beginnings of statements that grant or revoke access to tables created later."""
    makers = connection.execute(_MAKERS, {"schema": SCHEMA}).scalars().all()
    return [
        f"ALTER DEFAULT PRIVILEGES FOR ROLE {_quoted(maker)} IN SCHEMA {SCHEMA}" for maker in makers
    ]


def _mlflow_tables(connection: Connection, schema: str) -> list[str]:
    tables = connection.execute(_THERE, {"schema": schema}).scalars().all()
    return [f"{_quoted(schema)}.{table}" for table in READABLE if table in tables]


def _check_reads_only(
    connection: Connection, address: StoreAddress, name: str, schema: str | None
) -> None:
    """Check the role's privileges: its own and those of roles that it is a member of."""
    row = {"name": name, "radt": SCHEMA, "mlflow": schema or SCHEMA}
    table = connection.execute(_WRITABLE, row).scalar()
    creates = connection.execute(_MAY_CREATE, {"name": name, "schema": SCHEMA}).scalar()
    if table is not None or creates:
        raise StoreError(
            f"{name} may write {table or f'schema {SCHEMA}'} in {address}, nothing was changed",
            "Give the name of a new role, or revoke its other rights first",
        )


def _database(connection: Connection) -> str:
    return _quoted(str(connection.execute(text("SELECT current_database()")).scalar_one()))


def _check_name(name: str) -> None:
    size = len(name.encode("utf-8", "replace"))
    if not 0 < size <= _MAX_NAME_BYTES or "\0" in name or name.lower().startswith("pg_"):
        raise UsageError(f"{name!r} is not a valid role name", "Use a name such as radt_reader")
    if name.lower() in ("public", "none"):
        raise UsageError(f"{name!r} means every role", "Use a name such as radt_reader")
