"""The store as the schema ``radt`` of a Postgres database, through psycopg2.

libpq's environment applies: ``PGPASSWORD``, ``~/.pgpass``, ``PGSSLMODE`` and so on. Options in the
URI's query override those set here.
"""

from __future__ import annotations

import re
from contextlib import closing
from typing import Any

import psycopg2
import psycopg2.extensions
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import QueuePool

from radt.errors import StoreError, UsageError
from radt.masking import masked
from radt.store.backend import Backend, Dialect, StoreAddress

SCHEMA = "radt"

#: Limits of libpq for the network, where a stalled link counts as down.
PATIENCE = {
    "connect_timeout": 10,
    "tcp_user_timeout": 30_000,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
#: A slower statement counts as stuck. Readers may run large ones.
_STATEMENT_TIMEOUT_MS = 120_000
_LOCK_TIMEOUT_MS = 30_000

#: Lock number that no other program uses ("radT" in ASCII).
_MIGRATION_LOCK = 0x72616454

#: Returns blobs as bytes instead of psycopg2's memoryviews.
_BYTES = psycopg2.extensions.new_type(
    (17,),
    "radt_bytes",
    lambda value, cursor: None if value is None else bytes(psycopg2.BINARY(value, cursor)),
)


class PostgresBackend(Backend):
    """Store in a schema of a Postgres database.

    Raises:
        UsageError: The address cannot be parsed.
    """

    dialect = Dialect.POSTGRES
    driver_error = psycopg2.Error

    def __init__(self, address: StoreAddress) -> None:
        super().__init__(address)
        try:
            self._url = make_url(address.uri)
        except (ArgumentError, ValueError) as error:
            raise UsageError(
                f"{address} cannot be read as the address of a database",
                "Expected an address such as postgresql://me@db.example.org:5432/radt; write "
                "characters such as @ and / in a password as %40 and %2F",
            ) from error

    def writer_engine(self) -> Engine:
        """Return an engine with one connection; writes take their locks (`lock_run`)."""
        return self._engine(pool_size=1, max_overflow=4)

    def reader_engine(self) -> Engine:
        """Return an engine whose transactions are read-only snapshots."""
        engine = self._engine(pool_size=4, max_overflow=12, isolation_level="REPEATABLE READ")
        event.listen(engine, "connect", _read_only)
        return engine.execution_options(postgresql_readonly=True)

    def _engine(self, **options: Any) -> Engine:
        engine = create_engine(
            self._url,
            poolclass=QueuePool,
            pool_pre_ping=True,
            connect_args=_connect_args(self._url),
            # Several statements per round trip.
            executemany_mode="values_plus_batch",
            executemany_batch_page_size=200,
            **options,
        )
        event.listen(engine, "connect", _set_up)
        return engine

    def table_names(self, connection: Connection) -> frozenset[str]:
        rows = connection.execute(
            text("SELECT tablename FROM pg_tables WHERE schemaname = :schema"), {"schema": SCHEMA}
        )
        return frozenset(str(name) for (name,) in rows)

    def begin_migration(self, connection: Connection) -> None:
        connection.execute(
            text("SELECT pg_advisory_xact_lock(:number)"), {"number": _MIGRATION_LOCK}
        )
        exists = connection.execute(
            text("SELECT 1 FROM pg_namespace WHERE nspname = :schema"), {"schema": SCHEMA}
        ).first()
        if exists is None:
            connection.execute(text(f"CREATE SCHEMA {SCHEMA}"))

    def run_script(self, connection: Connection, sql: str) -> None:
        # The driver's own cursor: without parameters, it does not interpret `%` and `:name`.
        with closing(connection.connection.cursor()) as cursor:
            cursor.execute(sql)

    def lock_run(self, connection: Connection, run_id: str) -> None:
        connection.execute(
            text("SELECT pg_advisory_xact_lock(hashtextextended(:run_id, 0))"), {"run_id": run_id}
        )

    def is_busy(self, error: BaseException | None) -> bool:
        return getattr(error, "pgcode", None) in ("55P03", "40001", "40P01")

    def error(self, error: BaseException | None) -> StoreError:
        """Translate by SQLSTATE; failed connections have none, only libpq's text."""
        reason = masked(str(error).strip().splitlines()[0]) if str(error).strip() else "no reason"
        code = getattr(error, "pgcode", None)
        for codes, cause, remedy in _REMEDIES:
            if code and re.match(codes, code):
                return StoreError(f"{cause.format(address=self.address)} ({reason})", remedy)
        if code is None:
            remedy = next(
                (remedy for words, remedy in _REFUSALS.items() if words in str(error)),
                "Check that it runs and that this machine reaches it; nothing is lost meanwhile",
            )
            return StoreError(f"the database {self.address} cannot be reached ({reason})", remedy)
        return StoreError(f"the database {self.address} refused a statement: {reason}")


#: Patterns of SQLSTATE, https://www.postgresql.org/docs/17/errcodes-appendix.html
_REMEDIES: tuple[tuple[str, str, str], ...] = (
    (
        "53100",
        "there is no room left for the database {address}",
        "Free some disk space there; what was written before is kept",
    ),
    (
        "53300",
        "the database {address} has no connection left",
        "Close some clients, or raise its max_connections",
    ),
    (
        "42501",
        "you lack a privilege in the database {address}",
        "Ask its owner; for readers there is `radt db grant-reader`",
    ),
    (
        "42P01",  # without the right to the schema its tables are invisible
        "you may not read the store in {address}",
        "Ask its owner to run `radt db grant-reader`",
    ),
    (
        "25006",
        "the database {address} does not allow writing",
        "Use a role that may write, and the primary server instead of a standby",
    ),
    (
        "57014|55P03",
        "the database {address} took too long",
        "Another client may hold a lock; radt retries",
    ),
    (
        "57P0.|08...",
        "the database {address} was shut down or cannot be reached",
        "Check that it runs and that this machine reaches it; nothing is lost meanwhile",
    ),
)
_REFUSALS = {
    "password authentication failed": "Check user and password: the URI, PGPASSWORD or ~/.pgpass",
    "no password supplied": "Give one in PGPASSWORD, ~/.pgpass, or a file named by ?passfile=",
    "no pg_hba.conf entry": "Its pg_hba.conf does not admit this machine, user or database",
    "does not exist": "Create the role or the database first: createuser, createdb",
    "could not translate host name": "Check the name of the server",
}


def _connect_args(url: URL) -> dict[str, Any]:
    """Return libpq arguments that the URI does not set itself."""
    usual: dict[str, Any] = {
        "application_name": "radt",
        "client_encoding": "utf8",  # else that of the database: SQL_ASCII after initdb in LANG=C
        **PATIENCE,
    }
    return {name: value for name, value in usual.items() if name not in url.query}


def _read_only(connection: Any, _record: object) -> None:
    """Make the connection read-only, even outside of our transactions."""
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only TO on")
    connection.autocommit = False


def _set_up(connection: Any, _record: object) -> None:
    psycopg2.extensions.register_type(_BYTES, connection)
    # Settings made inside a transaction would be rolled back with it.
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(
            f"SET search_path TO {SCHEMA}; "
            f"SET statement_timeout TO {_STATEMENT_TIMEOUT_MS}; "
            f"SET lock_timeout TO {_LOCK_TIMEOUT_MS}; "
            f"SET idle_in_transaction_session_timeout TO {_STATEMENT_TIMEOUT_MS}"
        )
    connection.autocommit = False
