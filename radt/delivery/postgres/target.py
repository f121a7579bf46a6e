"""The store in Postgres: the state of a run in it, and transactions that add to it."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import Any

import psycopg2
from psycopg2.extras import execute_values
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from radt.delivery.postgres.contents import RunDigest, contents
from radt.delivery.postgres.shipment import (
    EXPERIMENT,
    RUN,
    RUN_IDS,
    SMALL_POINTS,
    Copied,
    ReplicaTable,
    Row,
    SeriesEnd,
    Shipment,
    Tail,
)
from radt.errors import StoreError
from radt.store import chunks, summaries
from radt.store.backend import StoreAddress, backend_of
from radt.store.copy import positions_in
from radt.store.migrations import check_not_newer, prepare_to_write
from radt.store.pruning import Keep
from radt.store.summaries import SUMMARIES
from radt.store.tables import RAISED, Value

log = logging.getLogger(__name__)

#: A link that is silent for this long is dropped, whatever the kernel still waits for.
_PATIENCE_S = 60.0
#: Bandwidth of the slowest supported link.
_SLOWEST_BYTES_PER_S = 20_000
_ROWS_A_STATEMENT = 1000

_VERSION = text("SELECT MAX(version) FROM schema_version")
_IDENTITY = text("SELECT store_id FROM store_identity")
_REVISIONS = text(
    "SELECT run_id, revision FROM run WHERE run_id = ANY(:ids) ORDER BY run_id FOR UPDATE"
)
_SERIES = text(
    "SELECT run_id, series_no, SUM(point_count), MAX(chunk_no) + 1, "
    "COUNT(*) FILTER (WHERE chunk_no > big), "
    "COALESCE(SUM(point_count) FILTER (WHERE chunk_no > big), 0) FROM ("
    "SELECT run_id, series_no, chunk_no, point_count, COALESCE(MAX(CASE WHEN point_count >= :small "
    "THEN chunk_no END) OVER (PARTITION BY run_id, series_no), -1) AS big "
    "FROM chunk WHERE run_id = ANY(:ids)) AS counted GROUP BY run_id, series_no"
)
_REMOVED = text("SELECT run_id FROM pruned WHERE run_id = ANY(:ids) AND kept = :kept")
_CLAIM = (
    f"UPDATE run SET {RAISED} "  # noqa: S608 - our own names
    "FROM unnest(%s::text[], %s::bigint[]) AS known (run_id, revision) "
    "WHERE run.run_id = known.run_id AND run.revision = known.revision RETURNING run.run_id"
)
_CREATE = (
    f"INSERT INTO run ({', '.join(RUN.columns)}) VALUES %s "  # noqa: S608 - our own names
    "ON CONFLICT (run_id) DO NOTHING RETURNING run_id"
)
_NOT_DURABLE = "SET LOCAL synchronous_commit TO off; "
_SUMMARIES = text(
    f"SELECT run_id, series_no, {', '.join(SUMMARIES.fields)} FROM series_summary "  # noqa: S608
    "WHERE run_id = ANY(:ids)"
)
#: Ends of series from given chunks on.
_CUTS = "unnest(CAST(:numbers AS int[]), CAST(:firsts AS int[])) AS {name} (no, first)"
_CUT = f"JOIN {_CUTS.format(name='cut')} ON no = series_no AND chunk_no >= first"
#: Remaining chunks whose times are in a deleted one.
_TORN = text(
    "SELECT chunk.series_no, MIN(chunk.chunk_no) FROM chunk "  # noqa: S608 - our own names
    f"LEFT JOIN {_CUTS.format(name='own')} ON own.no = series_no "
    f"JOIN {_CUTS.format(name='other')} ON other.no = time_series_no "
    "AND time_chunk_no >= other.first WHERE run_id = :run_id "
    "AND (own.first IS NULL OR chunk_no < own.first) GROUP BY chunk.series_no"
)
_ENDS = text(
    f"SELECT series_no, first, SUM(point_count) FROM chunk {_CUT} "  # noqa: S608 - our own names
    "WHERE run_id = :run_id GROUP BY series_no, first"
)
_DELETE_ENDS = text(
    f"DELETE FROM chunk USING {_CUTS.format(name='cut')} "  # noqa: S608 - our own names
    "WHERE run_id = :run_id AND no = series_no AND chunk_no >= first"
)

#: SQLSTATE classes of data that cannot be stored unchanged; other errors do not concern the rows.
_OF_THE_ROWS = ("22", "23")
_UNIQUE_VIOLATION = "23505"


class NotStoredError(StoreError):
    """The database works, but has not stored a shipment."""


class StaleError(NotStoredError):
    """Another process has written to the run."""

    def __init__(self) -> None:
        super().__init__("another process writes it")


class RefusedError(NotStoredError):
    """The rows cannot be stored unchanged."""


class PostgresTarget:
    """A connection to a store in Postgres, which is set up if empty.

    Every method raises `StoreError` if the database fails or is silent for too long; the connection
    is then unusable.

    Raises:
        StoreError: The database cannot be reached.
        SchemaTooNewError: It was written by a later radt.
        SchemaTooOldError: The store must be upgraded.
    """

    def __init__(self, address: StoreAddress) -> None:
        self._backend = backend_of(address)
        self._engine: Engine = self._backend.writer_engine()
        self._opened: Connection | None = None
        try:
            with self._limited(), self._backend.translated_errors():
                prepare_to_write(self._backend, self._engine)
                self._opened = self._engine.connect()
                with self._opened.begin():
                    #: Identity of this store.
                    self.identity = str(self._opened.execute(_IDENTITY).scalar_one())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        with suppress(DBAPIError, psycopg2.Error):
            if self._opened is not None:
                self._opened.close()
        self._opened = None
        self._engine.dispose()

    # -- reading ----------------------------------------------------------------------------------

    def copied(self, run_ids: Sequence[str]) -> dict[str, Copied]:
        """Return the copied parts of runs, all from one snapshot."""
        copied = {run_id: Copied() for run_id in run_ids}
        points: dict[str, dict[int, int]] = {run_id: {} for run_id in run_ids}
        ids = {"ids": list(run_ids)}
        with self._transaction() as connection:
            # The lock keeps everything that is read next consistent with this revision.
            for run_id, revision in connection.execute(_REVISIONS, ids):
                copied[run_id].revision = int(revision)
            for run_id, number, count, *tail in connection.execute(
                _SERIES, ids | {"small": SMALL_POINTS}
            ):
                points[run_id][number] = int(count)
                copied[run_id].tails[number] = Tail(*(int(value) for value in tail))  # type: ignore[arg-type]
            for run_id, number, *values in connection.execute(_SUMMARIES, ids):
                tails = copied[run_id].tails
                summary = SUMMARIES.read(values)
                tails[number] = replace(tails.get(number, Tail()), summary=summary)
            for run_id, position in positions_in(connection, points).items():
                copied[run_id].position = position
        return copied

    def removed(self, run_ids: Sequence[str]) -> set[str]:
        """Return the runs that were deleted in the database on purpose (`radt.store.pruning`)."""
        with self._transaction() as connection:
            row = {"ids": list(run_ids), "kept": str(Keep.NOTHING)}
            return set(connection.execute(_REMOVED, row).scalars())

    def contents(self, run_ids: Sequence[str]) -> dict[str, RunDigest]:
        """Return summaries of runs for comparison."""
        with self._transaction() as connection:
            return contents(connection, run_ids)

    def ends(self, run_id: str, cuts: Mapping[int, int]) -> dict[int, SeriesEnd]:
        """Return the ends of series from these chunks on, by number.

        An end begins earlier, or further series are added, if other chunks need the times in a
        chunk of it.
        """
        cuts = dict(cuts)
        with self._transaction() as connection:
            while torn := connection.execute(_TORN, _row(run_id, cuts)).all():
                cuts.update({int(number): int(first) for number, first in torn})
            rows = connection.execute(_ENDS, _row(run_id, cuts)).all()
        return {int(number): SeriesEnd(int(first), int(points)) for number, first, points in rows}

    # -- writing ----------------------------------------------------------------------------------

    def ship(self, shipment: Shipment) -> None:
        """Write a shipment, all or nothing.

        Raises:
            StaleError: Another process has written to one of its runs.
            RefusedError: The rows cannot be stored unchanged.
            SchemaTooNewError: A later radt has upgraded the store since this connection was opened.
        """
        seconds = _PATIENCE_S + shipment.size_bytes / _SLOWEST_BYTES_PER_S
        try:
            with self._transaction(seconds) as connection:
                self._claim(connection, shipment)
                _write(connection, shipment)
                # Last, because a write that waited for a migration must notice it.
                check_not_newer(self._backend, int(connection.execute(_VERSION).scalar_one()))
        except StoreError as error:
            code = getattr(_origin(error), "pgcode", None) or ""
            if code == _UNIQUE_VIOLATION:
                raise StaleError from error
            if code[:2] in _OF_THE_ROWS:
                raise RefusedError(error.message) from error
            raise
        shipment.shipped()

    def _claim(self, connection: Connection, shipment: Shipment) -> None:
        """Lock the runs if they are at the expected revisions."""
        known = {key: rev for key, rev in shipment.revisions.items() if rev is not None}
        new = [key for key, revision in shipment.revisions.items() if revision is None]
        prefix = "" if shipment.durable else _NOT_DURABLE
        with _cursor(connection) as cursor:
            if known:
                ids = sorted(known)
                cursor.execute(prefix + _CLAIM, (ids, [known[run_id] for run_id in ids]))
                if len(cursor.fetchall()) < len(ids):
                    raise StaleError
            elif prefix:
                cursor.execute(prefix)
            if new:
                rows = [shipment.rows[RUN][(run_id,)] for run_id in sorted(new)]
                made = execute_values(cursor, _CREATE, rows, page_size=len(rows), fetch=True)
                if len(made) < len(new):
                    raise StaleError

    # -- helpers ----------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self, seconds: float = _PATIENCE_S) -> Iterator[Connection]:
        assert self._opened is not None
        with self._limited(seconds), self._backend.translated_errors(), self._opened.begin():
            yield self._opened

    @contextmanager
    def _limited(self, seconds: float = _PATIENCE_S) -> Iterator[None]:
        """Break the connection if the block takes longer.

        A link may accept bytes and never respond, and libpq then waits forever: its timeouts only
        cover connecting and unacknowledged bytes.
        """
        timer = threading.Timer(seconds, self._break)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _break(self) -> None:
        if self._opened is None:
            # A connection being opened cannot be interrupted, so the process exits and the
            # collector restarts it.
            log.error(
                "the database %s accepts connections but does not answer", self._backend.address
            )
            logging.shutdown()
            os._exit(1)
        log.warning(
            "the database %s does not answer; closing the connection", self._backend.address
        )
        with suppress(OSError, psycopg2.Error, AttributeError):
            driver = self._opened.connection.dbapi_connection
            with socket.socket(fileno=os.dup(driver.fileno())) as link:  # type: ignore[union-attr]
                link.shutdown(socket.SHUT_RDWR)


def _write(connection: Connection, shipment: Shipment) -> None:
    for run_id, cuts in shipment.cuts.items():
        connection.execute(_DELETE_ENDS, _row(run_id, cuts))
    with _cursor(connection) as cursor:
        for table, rows in shipment.rows.items():
            statement, values = table.statement, _sorted(table, rows)
            if table.derived:
                statement, values = _numbered(cursor, statement, values)
            execute_values(cursor, statement, values, page_size=_ROWS_A_STATEMENT)
    chunks.insert(connection, shipment.chunks)
    for run_id, series in shipment.unordered.items():
        summaries.again(connection, run_id, series)


@contextmanager
def _cursor(connection: Connection) -> Iterator[Any]:
    with closing(connection.connection.cursor()) as cursor:
        yield cursor


def _origin(error: BaseException) -> BaseException | None:
    """Return the driver's exception that SQLAlchemy wrapped."""
    cause = error.__cause__
    return cause.orig if isinstance(cause, DBAPIError) else cause


def _sorted(table: ReplicaTable, rows: dict[Row, Row]) -> list[Row]:
    """Sort the rows of a shared table in the same order for all writers, to avoid deadlocks."""
    return [rows[key] for key in sorted(rows)] if table is EXPERIMENT else list(rows.values())


def _numbered(cursor: Any, statement: str, rows: list[Row]) -> tuple[str, list[Row]]:
    """Return a statement that names each run once, and its rows with numbers instead of ids."""
    numbers: dict[Value, int] = {}
    for row in rows:
        numbers.setdefault(row[0], len(numbers) + 1)
    run_ids = cursor.mogrify("%s", (list(numbers),)).decode().replace("%", "%%")
    return statement.replace(RUN_IDS, run_ids), [(numbers[row[0]], *row[1:]) for row in rows]


def _row(run_id: str, places: Mapping[int, int]) -> dict[str, Any]:
    return {"run_id": run_id, "numbers": list(places), "firsts": list(places.values())}
