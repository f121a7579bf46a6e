"""Fetch the chunks of a series for a range of time, or its next points.

Uses binary COPY, because a psycopg2 cursor receives blobs as hexadecimal digits, which takes twice
the bytes on the wire and four times the time. Format:
https://www.postgresql.org/docs/17/sql-copy.html, "Binary Format".

Reading and decoding are separate, so that no transaction is open while decoding.

The points of a series are numbered in the order of writing, which only pruning and restoring
change. So a reader of a growing series remembers how many it has, and how the run was pruned
(`grown`).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from io import BytesIO
from typing import Any, NamedTuple

from sqlalchemy import Connection, text

from radt.errors import StoreError
from radt.store import chunks
from radt.store.backend import Dialect
from radt.store.codec import EncodedSamples, decode
from radt.store.records import Samples
from radt.store.tables import Value

#: Signature, flags, and length of the header extension.
_HEADER_BYTES = 19
_NULL = -1
_END = -1

_field_count = struct.Struct("!h").unpack_from
_length = struct.Struct("!i").unpack_from


def fetch(
    connection: Connection,
    statement: str,
    parameters: Mapping[str, Any],
    kinds: Sequence[type[int | bytes]],
) -> list[tuple[Value, ...]]:
    """Return the rows of a SELECT whose columns are integers or blobs.

    Raises:
        StoreError: The database's response cannot be parsed.
    """
    if Dialect.of(connection) is not Dialect.POSTGRES:
        # SQLite's driver accepts named parameters; compiling long statements would take longer.
        return [tuple(row) for row in connection.exec_driver_sql(statement, dict(parameters))]
    select = str(text(statement).compile(dialect=connection.dialect))
    answer = BytesIO()
    with closing(connection.connection.cursor()) as cursor:
        bound = cursor.mogrify(select, dict(parameters)).decode()
        cursor.copy_expert(f"COPY ({bound}) TO STDOUT (FORMAT binary)", answer)
    return rows_of(answer.getvalue(), kinds)


def rows_of(data: bytes, kinds: Sequence[type[int | bytes]]) -> list[tuple[Value, ...]]:
    """Return the rows of a response in the binary format.

    Raises:
        StoreError: The response is truncated or has other columns.
    """
    try:
        return _rows(data, kinds)
    except (struct.error, IndexError) as error:
        raise StoreError(f"the database sent rows that cannot be read ({error})") from error


def _rows(data: bytes, kinds: Sequence[type[int | bytes]]) -> list[tuple[Value, ...]]:
    (extension_bytes,) = _length(data, _HEADER_BYTES - 4)
    at = _HEADER_BYTES + extension_bytes
    rows: list[tuple[Value, ...]] = []
    while True:
        (count,) = _field_count(data, at)
        at += 2
        if count == _END:
            return rows
        if count != len(kinds):
            raise IndexError(f"{count} columns instead of {len(kinds)}")
        row: list[Value] = []
        for kind in kinds:
            (length,) = _length(data, at)
            at += 4
            if length == _NULL:
                row.append(None)
                continue
            field = data[at : at + length]
            if len(field) != length:
                raise IndexError("the last row is cut short")
            at += length
            row.append(field if kind is bytes else int.from_bytes(field, "big", signed=True))
        rows.append(tuple(row))


#: Chunks in the order of writing, from the one that holds point number ``skip`` on.
_AFTER = (
    f"SELECT {chunks.DATA_COLUMNS}, before FROM ("  # noqa: S608 - our own names
    f"SELECT chunk_no AS no, SUM({chunks.STORED_COUNT}) OVER (ORDER BY chunk_no) "
    f"- {chunks.STORED_COUNT} AS before, {chunks.STORED_COUNT} AS stored "
    "FROM chunk WHERE run_id = :run_id AND series_no = :series_no) AS counted "
    "JOIN chunk ON run_id = :run_id AND series_no = :series_no AND chunk_no = counted.no "
    "WHERE before + stored > :skip AND before < :stop ORDER BY chunk_no"
)


@dataclass(frozen=True, slots=True)
class StoredChunks:
    """Points of one series in the order of writing: those of chunks except the first ``skip``."""

    chunks: tuple[EncodedSamples, ...]
    skip: int = 0

    def decode(self) -> Samples:
        """Return the points, in the order they were written.

        Raises:
            CodecError: A chunk is damaged.
        """
        return decode(self.chunks)[self.skip :]


def chunks_between(
    connection: Connection, run_id: str, series_no: int, start_ns: int | None, end_ns: int | None
) -> StoredChunks:
    """Return the chunks with points from ``start_ns`` to ``end_ns``; None sets no limit."""
    conditions = ["run_id = :run_id", "series_no = :series_no"]
    parameters: dict[str, Value] = {"run_id": run_id, "series_no": series_no}
    if start_ns is not None:
        conditions.append("last_ns >= :start")
        parameters["start"] = start_ns
    if end_ns is not None:
        conditions.append("first_ns <= :end")
        parameters["end"] = end_ns
    statement = (
        f"SELECT {chunks.DATA_COLUMNS} FROM chunk "  # noqa: S608 - our own names
        f"WHERE {' AND '.join(conditions)} ORDER BY chunk_no"
    )
    rows = fetch(connection, statement, parameters, chunks.DATA_KINDS)
    return StoredChunks(tuple(map(EncodedSamples._make, rows)))


def chunks_after(
    connection: Connection, run_id: str, series_no: int, skip: int, limit: int
) -> StoredChunks:
    """Return the points after the first ``skip``: at least ``limit``, to the end of a chunk."""
    parameters: dict[str, Value] = {
        "run_id": run_id,
        "series_no": series_no,
        "skip": skip,
        "stop": skip + limit,
    }
    rows = fetch(connection, _AFTER, parameters, (*chunks.DATA_KINDS, int))
    data = tuple(EncodedSamples._make(row[:-1]) for row in rows)
    return StoredChunks(data, skip - int(rows[0][-1] or 0) if rows else 0)


# -- the growing end of a series ------------------------------------------------------------------

#: Points read at a time.
PAGE_POINTS = 500_000

_HEADERS = text(
    f"SELECT sealed, {chunks.STORED_COUNT}, point_count, finite_count, first_ns, last_ns, "  # noqa: S608 - our own names
    "value_min, value_max, value_sum FROM chunk "
    "WHERE run_id = :run_id AND series_no = :series_no ORDER BY chunk_no"
)
_PRUNED = text("SELECT kept, pruned_ns FROM pruned WHERE run_id = :run_id")


class Header(NamedTuple):
    """Header of a chunk; ``stored`` is the number of its stored points."""

    sealed: int
    stored: int
    point_count: int
    finite_count: int
    first_ns: int
    last_ns: int
    value_min: float | None
    value_max: float | None
    value_sum: float | None


@dataclass(frozen=True, slots=True)
class Mark:
    """Position up to which a series was read.

    ``seen`` is a number of points, ``pruned`` how and when the run was pruned before that; None if
    it was complete.
    """

    seen: int = 0
    pruned: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Growth(StoredChunks):
    """New points.

    ``anew``: all points from the first on, because earlier ones were pruned or restored. ``more``:
    further points remain to be read.
    """

    mark: Mark = Mark()
    anew: bool = False
    more: bool = False


def headers(connection: Connection, run_id: str, series_no: int) -> list[Header]:
    """Return the headers of a series' chunks in the order of writing."""
    row = {"run_id": run_id, "series_no": series_no}
    return [Header._make(listed) for listed in connection.execute(_HEADERS, row)]


def grown(
    connection: Connection,
    run_id: str,
    series_no: int,
    mark: Mark,
    page_points: int = PAGE_POINTS,
) -> Growth:
    """Return the points after a mark: at least ``page_points`` if there are more."""
    row = connection.execute(_PRUNED, {"run_id": run_id}).one_or_none()
    pruned = None if row is None else (str(row.kept), int(row.pruned_ns))
    anew = mark.seen > 0 and pruned != mark.pruned
    seen = 0 if anew else mark.seen
    stored = chunks_after(connection, run_id, series_no, seen, page_points)
    count = sum(chunk.point_count for chunk in stored.chunks) - stored.skip
    return Growth(
        stored.chunks, stored.skip, Mark(seen + count, pruned), anew, more=count >= page_points
    )
