"""A role of Postgres that can read a store and nothing else, for the dashboard.

It may read schema ``radt``, also what is added to it later, and those of MLflow's tables that hold
what was tracked (not its tables of accounts or keys).

A password is sent as a SCRAM verifier: the server may log statements, and this one tells nobody
anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from psycopg2.extensions import encrypt_password
from sqlalchemy import Connection, make_url, text

from radt.errors import StoreError, UsageError
from radt.store.address import StoreAddress
from radt.store.backend import Backend
from radt.store.database import backend_of
from radt.store.migrations import check_not_newer, check_not_older, current_version
from radt.store.upgrading import READABLE, mlflow_schema

SCHEMA = "radt"
#: How a role is known as one that was made here.
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
#: Who makes the tables of later versions: whoever owns the schema, and whoever is at it now.
_MAKERS = text(
    "SELECT current_user::text UNION SELECT r.rolname::text FROM pg_namespace n "
    "JOIN pg_roles r ON r.oid = n.nspowner WHERE n.nspname = :schema "
    "AND pg_has_role(n.nspowner, 'USAGE')"
)


@dataclass(frozen=True, slots=True)
class Granted:
    """``created`` says that the role is new, ``password_set`` that it got a password;
    ``mlflow_schema`` is where MLflow's tables are that it may read, None for none; ``uri`` is what
    the reader connects to, without password.
    """

    created: bool
    password_set: bool
    mlflow_schema: str | None
    uri: str


def grant_reader(address: StoreAddress, name: str, password: str | None) -> Granted:
    """Let a role read the store; it is made if it is not there. Again is harmless.

    Args:
        password: Its new password; None to leave the one it has.

    Raises:
        UsageError: The name cannot be a reader's.
        StoreError: The role could write nonetheless, or you have not the right to this.
    """
    _check_name(name)
    with _store(address) as connection:
        found = connection.execute(_ROLE, {"name": name, "comment": _COMMENT}).one_or_none()
        if found is None:
            if password is None:
                raise UsageError(f"there is no role {name} yet", "It needs a password")
            _run(connection, f"CREATE ROLE {_quoted(name)} LOGIN")
            _run(connection, f"COMMENT ON ROLE {_quoted(name)} IS '{_COMMENT}'")
        elif found[0] or found[2]:
            raise UsageError(
                f"{name} can do more than read in {address}", "Give the name of a new role"
            )
        if password is not None:
            _set_password(connection, name, password)
        _run(connection, f"ALTER ROLE {_quoted(name)} SET default_transaction_read_only = on")
        schema = mlflow_schema(connection)
        _grant(connection, name, schema)
        _check_reads_only(connection, address, name, schema)
    url = make_url(address.uri).set(drivername="postgresql", username=name, password=None)
    # What libpq takes of it is ours, not the reader's.
    shown = url.difference_update_query(("password", "passfile", "user", "sslpassword"))
    return Granted(found is None, password is not None, schema, shown.render_as_string())


def has_role(address: StoreAddress, name: str) -> bool:
    """Whether there is such a role.

    Raises:
        UsageError: The store is a file.
        StoreError: It cannot be reached.
    """
    with _store(address) as connection:
        row = {"name": name, "comment": _COMMENT}
        return connection.execute(_ROLE, row).one_or_none() is not None


def revoke_reader(address: StoreAddress, name: str) -> bool:
    """Take all that back; a role that was made here is removed, which is what it returns.

    Raises:
        UsageError: There is no such role.
        StoreError: You have not the right to this, or the role is needed elsewhere.
    """
    _check_name(name)
    with _store(address) as connection:
        found = connection.execute(_ROLE, {"name": name, "comment": _COMMENT}).one_or_none()
        if found is None:
            raise UsageError(f"there is no role {name} in {address}", "Check its name")
        role = _quoted(name)
        for later in _later_tables(connection):
            _run(connection, f"{later} REVOKE SELECT ON TABLES FROM {role}")  # noqa: S608
        _run(connection, f"REVOKE ALL ON ALL TABLES IN SCHEMA {SCHEMA} FROM {role}")
        _run(connection, f"REVOKE ALL ON SCHEMA {SCHEMA} FROM {role}")
        if schema := mlflow_schema(connection):
            for table in _mlflow_tables(connection, schema):
                _run(connection, f"REVOKE SELECT ON {table} FROM {role}")  # noqa: S608
            _run(connection, f"REVOKE USAGE ON SCHEMA {_quoted(schema)} FROM {role}")
        _run(connection, f"REVOKE CONNECT ON DATABASE {_database(connection)} FROM {role}")
        if found[1]:
            _run(connection, f"DROP ROLE {role}")
        return bool(found[1])


@contextmanager
def _store(address: StoreAddress) -> Iterator[Connection]:
    """A transaction in an up-to-date store of Postgres."""
    if not address.is_postgres:
        raise UsageError(
            f"{address} is a file, and has no roles",
            "Give the Postgres database with --store-uri; who may read the file may read the store",
        )
    backend: Backend = backend_of(address)
    engine = backend.writer_engine()
    try:
        with backend.translated_errors(), engine.begin() as connection:
            version = current_version(backend, connection)
            check_not_newer(backend, version)
            check_not_older(backend, version)
            yield connection
    finally:
        engine.dispose()


def _set_password(connection: Connection, name: str, password: str) -> None:
    driver = connection.connection.driver_connection
    verifier = encrypt_password(password, name, driver, "scram-sha-256")
    _run(connection, f"ALTER ROLE {_quoted(name)} PASSWORD '{verifier}'")


def _grant(connection: Connection, name: str, schema: str | None) -> None:
    role = _quoted(name)
    _run(connection, f"GRANT CONNECT ON DATABASE {_database(connection)} TO {role}")
    _run(connection, f"GRANT USAGE ON SCHEMA {SCHEMA} TO {role}")
    _run(connection, f"GRANT SELECT ON ALL TABLES IN SCHEMA {SCHEMA} TO {role}")
    for later in _later_tables(connection):
        _run(connection, f"{later} GRANT SELECT ON TABLES TO {role}")
    if schema is not None:
        _run(connection, f"GRANT USAGE ON SCHEMA {_quoted(schema)} TO {role}")
        for table in _mlflow_tables(connection, schema):
            _run(connection, f"GRANT SELECT ON {table} TO {role}")


def _later_tables(connection: Connection) -> list[str]:
    """Beginnings of statements about what will be made."""
    makers = connection.execute(_MAKERS, {"schema": SCHEMA}).scalars().all()
    return [
        f"ALTER DEFAULT PRIVILEGES FOR ROLE {_quoted(maker)} IN SCHEMA {SCHEMA}" for maker in makers
    ]


def _mlflow_tables(connection: Connection, schema: str) -> list[str]:
    there = connection.execute(_THERE, {"schema": schema}).scalars().all()
    return [f"{_quoted(schema)}.{table}" for table in READABLE if table in there]


def _check_reads_only(
    connection: Connection, address: StoreAddress, name: str, schema: str | None
) -> None:
    """It may have rights of its own, or of a role that it is a member of."""
    row = {"name": name, "radt": SCHEMA, "mlflow": schema or SCHEMA}
    table = connection.execute(_WRITABLE, row).scalar()
    creates = connection.execute(_MAY_CREATE, {"name": name, "schema": SCHEMA}).scalar()
    if table is not None or creates:
        raise StoreError(
            f"{name} may write {table or f'schema {SCHEMA}'} in {address}, nothing was changed",
            "Give the name of a new role, or take its other rights away first",
        )


def _database(connection: Connection) -> str:
    return _quoted(str(connection.execute(text("SELECT current_database()")).scalar_one()))


def _check_name(name: str) -> None:
    size = len(name.encode("utf-8", "replace"))
    if not 0 < size <= _MAX_NAME_BYTES or "\0" in name or name.lower().startswith("pg_"):
        raise UsageError(f"{name!r} is no name for a role", "Take such as radt_reader")
    if name.lower() in ("public", "none"):
        raise UsageError(f"{name!r} stands for everybody", "Take such as radt_reader")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _run(connection: Connection, sql: str) -> None:
    connection.exec_driver_sql(sql.replace("%", "%%"))
