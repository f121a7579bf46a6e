"""Find and fetch the chunks of a series that hold a range of time, or the next points.

Binary COPY, because a psycopg2 cursor receives blobs as hexadecimal digits: twice the bytes on the
wire, four times the time. Format: https://www.postgresql.org/docs/17/sql-copy.html, "Binary
Format".

Reading and decoding are separate, so that no transaction is open while decoding.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from io import BytesIO

import numpy as np
from sqlalchemy import Connection, TextClause, text

from radt.errors import StoreError
from radt.store import chunks
from radt.store.backend import Dialect
from radt.store.chunks import decoded
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
    statement: TextClause,
    parameters: Mapping[str, Value],
    kinds: Sequence[type[int | bytes]],
) -> list[tuple[Value, ...]]:
    """Return the rows of a SELECT whose columns are integers or blobs.

    Raises:
        StoreError: The database's response cannot be parsed.
    """
    if Dialect.of(connection) is not Dialect.POSTGRES:
        return [tuple(row) for row in connection.execute(statement, parameters)]
    select = str(statement.compile(dialect=connection.dialect))
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


_COUNTS = text(
    f"SELECT series_no, SUM({chunks.STORED_COUNT}) "  # noqa: S608 - our own names
    "FROM chunk WHERE run_id = :run_id GROUP BY series_no"
)
#: Chunks in the order of writing, from the one that holds point number ``skip`` on.
_AFTER = text(
    f"SELECT {chunks.DATA_COLUMNS}, before FROM ("  # noqa: S608 - our own names
    f"SELECT chunk_no AS no, SUM({chunks.STORED_COUNT}) OVER (ORDER BY chunk_no) "
    f"- {chunks.STORED_COUNT} AS before, {chunks.STORED_COUNT} AS stored "
    "FROM chunk WHERE run_id = :run_id AND series_no = :series_no) AS counted "
    "JOIN chunk ON run_id = :run_id AND series_no = :series_no AND chunk_no = counted.no "
    "WHERE before + stored > :skip AND before < :stop ORDER BY chunk_no"
)

_EARLIEST_NS, _LATEST_NS = -(2**63), 2**63 - 1
_OF_ONE = "run_id = :run_id AND series_no = :series_no"
_OF_SERIES = "FROM chunk WHERE run_id = :run_id AND series_no = :series_no "
_SUM_WITHIN = text(
    "SELECT SUM(finite_count), "
    "SUM(CASE WHEN ABS(value_sum) >= 1e300 THEN :infinity ELSE value_sum END) "
    f"{_OF_SERIES} AND first_ns >= :start AND last_ns <= :end"
).bindparams(infinity=math.inf)
_ACROSS = text(
    f"SELECT {chunks.DATA_COLUMNS}, finite_count {_OF_SERIES} "
    "AND last_ns >= :start AND first_ns <= :end AND NOT (first_ns >= :start AND last_ns <= :end) "
    "ORDER BY chunk_no"
)


@dataclass(frozen=True, slots=True)
class Part:
    """A series from ``start_ns`` to ``end_ns``, both inclusive; None sets no limit."""

    run_id: str
    series_no: int
    start_ns: int | None = None
    end_ns: int | None = None

    @property
    def condition(self) -> str:
        """Return the SQL condition for chunks with points in the range."""
        conditions = [_OF_ONE]
        if self.start_ns is not None:
            conditions.append("last_ns >= :start")
        if self.end_ns is not None:
            conditions.append("first_ns <= :end")
        return " AND ".join(conditions)

    @property
    def parameters(self) -> dict[str, Value]:
        """Return the condition's parameters."""
        given = {"start": self.start_ns, "end": self.end_ns}
        return {
            "run_id": self.run_id,
            "series_no": self.series_no,
            **{name: value for name, value in given.items() if value is not None},
        }


@dataclass(frozen=True, slots=True)
class StoredChunks:
    """Chunks of one series in the order of writing; ``before`` points precede them."""

    chunks: tuple[chunks.ChunkData, ...]
    before: int = 0

    def decode(self) -> Samples:
        """Return the points, in the order they were written.

        Raises:
            CodecError: A chunk is damaged.
        """
        return decoded(self.chunks)


def point_counts(connection: Connection, run_id: str) -> dict[int, int]:
    """Return the number of points by series number, from chunk headers only."""
    rows = connection.execute(_COUNTS, {"run_id": run_id})
    return {int(number): int(count) for number, count in rows}


def chunks_between(
    connection: Connection, run_id: str, series_no: int, start_ns: int | None, end_ns: int | None
) -> StoredChunks:
    """Return the chunks with points from ``start_ns`` to ``end_ns``; None sets no limit."""
    part = Part(run_id, series_no, start_ns, end_ns)
    return _chunks_where(connection, part.condition, part.parameters)


def chunks_numbered(
    connection: Connection, run_id: str, series_no: int, numbers: Sequence[int]
) -> StoredChunks:
    """Return the chunks with these numbers."""
    # Inlined, because databases limit the number of parameters; the numbers are integers.
    wanted = ", ".join(str(int(number)) for number in numbers)
    return _chunks_where(
        connection,
        f"{_OF_ONE} AND chunk_no IN ({wanted})",
        {"run_id": run_id, "series_no": series_no},
    )


def _chunks_where(
    connection: Connection, condition: str, parameters: Mapping[str, Value]
) -> StoredChunks:
    statement = text(
        f"SELECT {chunks.DATA_COLUMNS} FROM chunk "  # noqa: S608 - our own names
        f"WHERE {condition} ORDER BY chunk_no"
    )
    rows = fetch(connection, statement, parameters, chunks.DATA_KINDS)
    return StoredChunks(tuple(map(chunks.ChunkData._make, rows)))


def chunks_after(
    connection: Connection, run_id: str, series_no: int, skip: int, limit: int
) -> StoredChunks:
    """Return the chunks with ``limit`` points after the first ``skip`` in the order of writing."""
    parameters: dict[str, Value] = {
        "run_id": run_id,
        "series_no": series_no,
        "skip": skip,
        "stop": skip + limit,
    }
    rows = fetch(connection, _AFTER, parameters, (*chunks.DATA_KINDS, int))
    data = tuple(chunks.ChunkData._make(row[:-1]) for row in rows)
    return StoredChunks(data, int(rows[0][-1] or 0) if rows else 0)


def mean_between(
    connection: Connection, run_id: str, series_no: int, start_ns: int | None, end_ns: int | None
) -> float | None:
    """Return the mean of finite values from ``start_ns`` to ``end_ns`` inclusive, if any.

    Chunks within the range count by their headers. For a thinned series, the mean is exact at its
    cuts (`radt.store.thinning`); elsewhere a chunk's remaining points stand for all of it.

    Raises:
        CodecError: A chunk is damaged.
    """
    first = _EARLIEST_NS if start_ns is None else start_ns
    last = _LATEST_NS if end_ns is None else end_ns
    parameters = {"run_id": run_id, "series_no": series_no, "start": first, "end": last}
    whole = connection.execute(_SUM_WITHIN, parameters).one()
    count, total = float(whole[0] or 0), float(whole[1] or 0.0)
    for row in connection.execute(_ACROSS, parameters):
        samples = chunks.ChunkData._make(row[:-1]).samples()
        finite = np.isfinite(samples.values)
        inside = finite & (samples.times_ns >= first) & (samples.times_ns <= last)
        if not inside.any():
            continue
        weight = int(row[-1]) * float(inside.sum()) / float(finite.sum())
        count += weight
        total += float(samples.values[inside].mean()) * weight
    mean = total / count if count else math.nan
    return mean if math.isfinite(mean) else None
