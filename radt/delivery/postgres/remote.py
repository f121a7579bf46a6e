"""The store in Postgres: what it has of a run, and transactions that add to it."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import psycopg2
from psycopg2.extras import execute_values
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from radt.delivery.postgres.shipment import (
    EXPERIMENT,
    RUN,
    Content,
    Cut,
    Kind,
    Row,
    Shipment,
    contents,
)
from radt.errors import StoreError
from radt.store import chunks
from radt.store.backend import StoreAddress
from radt.store.database import backend_of
from radt.store.migrations import check_not_newer, prepare_to_write
from radt.store.pruning import Keep

log = logging.getLogger(__name__)

#: A chunk with fewer points is small: its header is more than a third of it.
SMALL_POINTS = 500
#: A link that is silent for so long is dropped, whatever the kernel still waits for.
_PATIENCE_S = 60.0
#: The slowest supported link.
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
_MARKERS = text(
    "SELECT run_id, MAX(marker_no) + 1 FROM marker WHERE run_id = ANY(:ids) GROUP BY run_id"
)
_OPEN_MARKERS = text(
    "SELECT run_id, marker_no FROM marker "
    "WHERE run_id = ANY(:ids) AND end_ns IS NULL AND kind <> 'event'"
)
_CLAIM = (
    "UPDATE run SET revision = run.revision + 1 "
    "FROM unnest(%s::text[], %s::bigint[]) AS known (run_id, revision) "
    "WHERE run.run_id = known.run_id AND run.revision = known.revision RETURNING run.run_id"
)
_CREATE = (
    f"INSERT INTO run ({', '.join(RUN.columns)}) VALUES %s "  # noqa: S608 - our own names
    "ON CONFLICT (run_id) DO NOTHING RETURNING run_id"
)
_NOT_DURABLE = "SET LOCAL synchronous_commit TO off; "
_DELETE = (
    "DELETE FROM chunk USING unnest(%s::text[], %s::int[], %s::int[]) AS cut (run_id, no, first) "
    "WHERE chunk.run_id = cut.run_id AND series_no = no AND chunk_no >= first"
)
_CUTS = "unnest(%s::int[], %s::int[]) AS {name} (no, first)"
#: Chunks that stay, whose times are in a deleted one.
_TORN = (
    "SELECT chunk.series_no, MIN(chunk.chunk_no) FROM chunk "  # noqa: S608 - our own names
    f"JOIN {_CUTS.format(name='own')} ON own.no = series_no AND chunk_no < own.first "
    f"JOIN {_CUTS.format(name='other')} ON other.no = time_series_no "
    "AND time_chunk_no >= other.first WHERE run_id = %s GROUP BY chunk.series_no"
)
_BEFORE = (
    "SELECT no, (SELECT COALESCE(SUM(point_count), 0) FROM chunk "  # noqa: S608 - our own names
    "WHERE run_id = %s AND series_no = no AND chunk_no < first) "
    f"FROM {_CUTS.format(name='cut')}"
)

#: SQLSTATE classes of data that cannot be stored unchanged; other errors do not concern the rows.
_OF_THE_ROWS = ("22", "23")
_UNIQUE_VIOLATION = "23505"


@dataclass(slots=True)
class SeriesProgress:
    """Copied part of one series; the last ``tail_chunks`` chunks are small."""

    points: int = 0
    next_chunk_no: int = 0
    tail_chunks: int = 0
    tail_points: int = 0

    def append(self, point_count: int) -> None:
        """Add a chunk."""
        self.points += point_count
        self.next_chunk_no += 1
        if point_count < SMALL_POINTS:
            self.tail_chunks += 1
            self.tail_points += point_count
        else:
            self.tail_chunks = self.tail_points = 0


@dataclass(slots=True)
class RunProgress:
    """Copied part of a run; ``revision`` is None without a copy."""

    revision: int | None = None
    series: dict[int, SeriesProgress] = field(default_factory=dict)
    next_marker_no: int = 0
    open_markers: set[int] = field(default_factory=set)


class Outcome(Enum):
    """Result of a shipment that reached the database."""

    DONE = auto()
    STALE = auto()  # another process has written to the run; nothing was stored
    REFUSED = auto()  # the rows cannot be stored unchanged


class Remote:
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
        #: Why the last shipment was refused.
        self.refusal = ""
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

    def progress(self, run_ids: Sequence[str]) -> dict[str, RunProgress]:
        """Return the copied parts of runs, all from one snapshot."""
        progress = {run_id: RunProgress() for run_id in run_ids}
        ids = {"ids": list(run_ids)}
        with self._transaction() as connection:
            # The lock keeps all that follows consistent with this revision.
            for run_id, revision in connection.execute(_REVISIONS, ids):
                progress[run_id].revision = int(revision)
            for run_id, series_no, *numbers in connection.execute(
                _SERIES, ids | {"small": SMALL_POINTS}
            ):
                progress[run_id].series[int(series_no)] = SeriesProgress(*map(int, numbers))
            for run_id, number in connection.execute(_MARKERS, ids):
                progress[run_id].next_marker_no = int(number)
            for run_id, number in connection.execute(_OPEN_MARKERS, ids):
                progress[run_id].open_markers.add(int(number))
        return progress

    def removed(self, run_ids: Sequence[str]) -> set[str]:
        """Return the runs that were deleted there on purpose (`radt.store.pruning`)."""
        with self._transaction() as connection:
            row = {"ids": list(run_ids), "kept": str(Keep.NOTHING)}
            return set(connection.execute(_REMOVED, row).scalars())

    def contents(self, run_ids: Sequence[str]) -> dict[str, Content]:
        """Return summaries of runs for comparison."""
        with self._transaction() as connection:
            return contents(connection, run_ids)

    def settled(self, run_id: str, cuts: dict[int, int]) -> tuple[dict[int, int], dict[int, int]]:
        """Return where series can be cut at or before these chunks, and the points left then.

        Chunks that have their times in a deleted one are deleted, too.
        """
        cuts = dict(cuts)
        with self._transaction() as connection, _cursor(connection) as cursor:
            while True:
                numbers, firsts = list(cuts), list(cuts.values())
                cursor.execute(_TORN, (numbers, firsts, numbers, firsts, run_id))
                torn = cursor.fetchall()
                if not torn:
                    break
                cuts.update({int(series_no): int(first) for series_no, first in torn})
            cursor.execute(_BEFORE, (run_id, numbers, firsts))
            left = {int(number): int(count) for number, count in cursor.fetchall()}
        return cuts, left

    # -- writing ----------------------------------------------------------------------------------

    def ship(self, shipment: Shipment) -> Outcome:
        """Write a shipment, all or nothing.

        Raises:
            SchemaTooNewError: A later radt has upgraded the store since this connection was opened.
        """
        seconds = _PATIENCE_S + shipment.size_bytes / _SLOWEST_BYTES_PER_S
        try:
            with self._transaction(seconds) as connection:
                self._claim(connection, shipment)
                self._write(connection, shipment)
                # Last: a write that waited for a migration must notice it.
                check_not_newer(self._backend, int(connection.execute(_VERSION).scalar_one()))
        except _StaleError:
            return Outcome.STALE
        except StoreError as error:
            code = getattr(_origin(error), "pgcode", None) or ""
            if code == _UNIQUE_VIOLATION:
                return Outcome.STALE
            if code[:2] not in _OF_THE_ROWS:
                raise
            self.refusal = error.message
            return Outcome.REFUSED
        return Outcome.DONE

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
                    raise _StaleError
            elif prefix:
                cursor.execute(prefix)
            if new:
                rows = [shipment.rows[RUN][(run_id,)] for run_id in sorted(new)]
                made = execute_values(cursor, _CREATE, rows, page_size=len(rows), fetch=True)
                if len(made) < len(new):
                    raise _StaleError

    def _write(self, connection: Connection, shipment: Shipment) -> None:
        with _cursor(connection) as cursor:
            for kind, rows in shipment.rows.items():
                execute_values(
                    cursor, kind.statement, _sorted(kind, rows), page_size=_ROWS_A_STATEMENT
                )
            if shipment.cuts:
                cursor.execute(_DELETE, _columns(shipment.cuts))
        chunks.insert(connection, shipment.chunks)

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


class _StaleError(Exception):
    """Rolls back the transaction."""


@contextmanager
def _cursor(connection: Connection) -> Iterator[Any]:
    with closing(connection.connection.cursor()) as cursor:
        yield cursor


def _origin(error: BaseException) -> BaseException | None:
    """Return the driver's exception below SQLAlchemy's."""
    cause = error.__cause__
    return cause.orig if isinstance(cause, DBAPIError) else cause


def _sorted(kind: Kind, rows: dict[Row, Row]) -> list[Row]:
    """Sort the rows of a shared table in one order for all writers, to avoid deadlocks."""
    return [rows[key] for key in sorted(rows)] if kind is EXPERIMENT else list(rows.values())


def _columns(cuts: Sequence[Cut]) -> tuple[list[str], list[int], list[int]]:
    return (
        [cut.run_id for cut in cuts],
        [cut.series_no for cut in cuts],
        [cut.first_chunk_no for cut in cuts],
    )
