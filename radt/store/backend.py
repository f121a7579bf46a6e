"""Store addresses (an SQLite file or a Postgres schema), and how the two databases differ."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from radt.errors import StoreError, UsageError
from radt.masking import is_postgres, masked, with_driver


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Address of a store: ``path`` of a file, or ``uri`` of a Postgres database (psycopg2).

    Passwords need not be in the URI: libpq also reads them from ``PGPASSWORD``, from ``~/.pgpass``
    or ``PGPASSFILE``, and from the file given as ``?passfile=``.
    """

    path: Path | None = None
    uri: str = field(default="", repr=False)

    @classmethod
    def of(cls, given: StoreAddress | Path | str) -> StoreAddress:
        """Parse a path, or a text that may be a URI.

        Raises:
            UsageError: The URI is not one of a Postgres database.
        """
        if isinstance(given, StoreAddress):
            return given
        if isinstance(given, Path):
            return cls(given.absolute())
        if is_postgres(given):
            return cls(uri=with_driver(given))
        if "://" in given:
            raise UsageError(
                f"{masked(given)} is not the address of a store",
                "Give a file, or a Postgres database such as postgresql://me@db.example.org/radt",
            )
        return cls(Path(given).absolute())

    @property
    def is_postgres(self) -> bool:
        return self.path is None

    def __str__(self) -> str:
        """Return the address without passwords."""
        return masked(self.uri.replace("+psycopg2", "", 1)) if self.path is None else str(self.path)


class Dialect(StrEnum):
    """Kind of database; each has its folder in ``schemas/migrations``."""

    SQLITE = "sqlite"
    POSTGRES = "postgres"

    @classmethod
    def of(cls, connection: Connection) -> Dialect:
        """Return the kind of database that a connection goes to."""
        return cls.POSTGRES if connection.dialect.name == "postgresql" else cls.SQLITE


_REVISIONS = text(
    "SELECT (SELECT COUNT(*) FROM run), (SELECT COALESCE(SUM(revision), 0) FROM run), "
    "(SELECT COUNT(*) FROM workload), (SELECT COALESCE(SUM(revision), 0) FROM workload)"
)


class ChangeDetector:
    """Detects writes of other processes to the store's runs and workloads.

    Args:
        reader: A reader's engine.
    """

    def __init__(self, reader: Engine) -> None:
        self._reader = reader

    def token(self) -> int:
        """Return a number below 2**53 that changes with every write to the store."""
        with self._reader.begin() as connection:
            row = connection.execute(_REVISIONS).one()
        return hash(tuple(int(number) for number in row)) % 2**53

    def close(self) -> None:
        """Release held connections. Idempotent."""


class Backend(ABC):
    """Database of one store: how to open it, and what its errors mean."""

    dialect: Dialect
    #: Base class of errors that the driver's own cursors raise, which COPY uses.
    driver_error: type[Exception]

    def __init__(self, address: StoreAddress) -> None:
        self.address = address

    def check_there(self) -> None:  # noqa: B027 - connecting to a server fails by itself
        """Check before reading that the store exists.

        Raises:
            StoreError: The store does not exist or is not readable.
        """

    def make_room(self) -> None:  # noqa: B027 - a migration creates the schema of a server
        """Create the folder that the database needs, before a writer opens it.

        Raises:
            StoreError: It cannot be created.
        """

    @abstractmethod
    def writer_engine(self) -> Engine:
        """Return an engine whose transactions isolate writers from each other."""

    @abstractmethod
    def reader_engine(self) -> Engine:
        """Return an engine of read-only snapshots that never wait for writers."""

    def changes(self, reader: Engine) -> ChangeDetector:
        """Return a change detector that reads through a reader's engine."""
        return ChangeDetector(reader)

    @abstractmethod
    def table_names(self, connection: Connection) -> frozenset[str]:
        """Return the names of the tables in the store's schema."""

    def begin_migration(self, connection: Connection) -> None:  # noqa: B027 - a file is locked
        """Block other migrations until the end of the transaction."""

    @abstractmethod
    def run_script(self, connection: Connection, sql: str) -> None:
        """Execute the statements of a migration."""

    def lock_run(self, connection: Connection, run_id: str) -> None:  # noqa: B027 - likewise
        """Block other writers from appending to a run until the end of the transaction."""

    @abstractmethod
    def is_busy(self, error: BaseException | None) -> bool:
        """Return whether the driver gave up because another connection holds a lock."""

    @abstractmethod
    def error(self, error: BaseException | None) -> StoreError:
        """Return the driver's error as a `StoreError` with cause and remedy."""

    @contextmanager
    def translated_errors(self) -> Iterator[None]:
        """Turn database errors into `StoreError`."""
        try:
            yield
        except DBAPIError as error:
            raise self.error(error.orig) from error
        except self.driver_error as error:
            raise self.error(error) from error
        except PoolTimeoutError as error:
            raise StoreError(
                f"too many readers of {self.address} at once", "Try again in a moment"
            ) from error


def backend_of(address: StoreAddress) -> Backend:
    """Return the database behind an address without opening it."""
    # Imported late: users of files need not load a Postgres driver.
    if address.is_postgres:
        from radt.store.postgres import PostgresBackend

        return PostgresBackend(address)
    from radt.store.sqlite import SqliteBackend

    return SqliteBackend(address)
