"""Chunks of a series as rows of the ``chunk`` table.

Every flush adds one small raw chunk per series. These loose chunks are merged, 60 at a time, into a
compressed chunk that stays loose until it is full; the order of the points never changes. Sealed
chunks do not change.

Postgres receives them by binary COPY, because blobs as parameters would be twice as long. Format:
https://www.postgresql.org/docs/17/sql-copy.html, "Binary Format".
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from typing import Any

import numpy as np
from sqlalchemy import Connection, text

from radt.errors import StoreError
from radt.model import NO_STEP
from radt.store.backend import Dialect
from radt.store.codec import EncodedSamples, decode, encode, encode_raw
from radt.store.records import Float64Array, Int64Array, Samples
from radt.store.tables import Value, execute_rows

_SIGNATURE = b"PGCOPY\n\xff\r\n\0" + struct.pack("!II", 0, 0)
_TRAILER = struct.pack("!h", -1)
_NULL = struct.pack("!i", -1)


def _number(code: str) -> Callable[[Any], bytes]:
    pack, size = struct.Struct(f"!i{code}").pack, struct.calcsize(code)
    return lambda value: pack(size, value)


def _bytea(value: bytes) -> bytes:
    return struct.pack("!i", len(value)) + value


def _text(value: str) -> bytes:
    return _bytea(value.encode())


_SMALLINT, _INTEGER, _BIGINT, _DOUBLE = map(_number, "hiqd")


#: Points in a sealed chunk: an hour at one per second. Larger chunks hardly save space per point
#: but make zooms decode more than they show.
POINTS_PER_CHUNK = 3600
#: Number of loose chunks of one series that are merged into one.
MAX_LOOSE_CHUNKS = 60

#: Up to this many points, plain Python is faster than numpy: flushes add one point a second.
_FEW_POINTS = 32

#: Columns of a chunk's header: aggregates of all its points (`header_of`).
HEADER = (
    *("point_count", "finite_count", "first_ns", "last_ns", "first_value", "last_value"),
    *("value_min", "value_max", "value_sum"),
)
_TYPES: Mapping[str, Callable[[Any], bytes]] = {
    "run_id": _text,
    "series_no": _INTEGER,
    "chunk_no": _INTEGER,
    "sealed": _SMALLINT,
    "codec": _SMALLINT,
    "point_count": _INTEGER,
    "finite_count": _INTEGER,
    "first_ns": _BIGINT,
    "last_ns": _BIGINT,
    "first_value": _DOUBLE,
    "last_value": _DOUBLE,
    "value_min": _DOUBLE,
    "value_max": _DOUBLE,
    "value_sum": _DOUBLE,
    "checksum": _BIGINT,
    "time_series_no": _INTEGER,
    "time_chunk_no": _INTEGER,
    "time_data": _bytea,
    "value_data": _bytea,
    "step_data": _bytea,
    "kept_count": _INTEGER,
}
_WIDTH = struct.pack("!h", len(_TYPES))
_PARAMETERS = ", ".join(f":{name}" for name in _TYPES)
_INSERT = text(f"INSERT INTO chunk ({', '.join(_TYPES)}) VALUES ({_PARAMETERS})")  # noqa: S608
#: Uses the next number of the series, whichever process wrote the previous chunk.
APPEND = text(
    _INSERT.text.replace(
        ":chunk_no",
        "COALESCE((SELECT MAX(chunk_no) + 1 FROM chunk "
        "WHERE run_id = :run_id AND series_no = :series_no), 0)",
    )
)
#: Number of stored points of a chunk: fewer than its header counts if it was thinned.
STORED_COUNT = "COALESCE(kept_count, point_count)"
#: Columns of a chunk for `EncodedSamples`, for SELECT.
DATA_COLUMNS = (
    f"codec, {STORED_COUNT} AS point_count, checksum, "  # noqa: S608 - our own names
    "COALESCE(time_data, (SELECT other.time_data FROM chunk other "
    "WHERE other.run_id = chunk.run_id AND other.series_no = chunk.time_series_no "
    "AND other.chunk_no = chunk.time_chunk_no)) AS time_data, value_data, step_data"
)
#: Types of these columns, for `radt.store.points.fetch`.
DATA_KINDS = (int, int, int, bytes, bytes, bytes)

_EMPTY_TIMES = np.empty(0, dtype=np.int64)
_EMPTY_VALUES = np.empty(0, dtype=np.float64)


def insert(connection: Connection, rows: Sequence[dict[str, Value]]) -> None:
    """Insert rows of `compacted_rows`."""
    if not rows:
        return
    if Dialect.of(connection) is not Dialect.POSTGRES:
        execute_rows(connection, _INSERT, rows)
        return
    buffer = BytesIO()
    buffer.write(_SIGNATURE)
    for row in rows:
        buffer.write(_WIDTH)
        for name, to_bytes in _TYPES.items():
            value = row[name]
            buffer.write(_NULL if value is None else to_bytes(value))
    buffer.write(_TRAILER)
    buffer.seek(0)
    with closing(connection.connection.cursor()) as cursor:
        cursor.copy_expert(f"COPY chunk ({', '.join(_TYPES)}) FROM STDIN (FORMAT binary)", buffer)


class SharedTimes:
    """Time columns that sealed chunks of one run share.

    Times have nanosecond precision and jitter, so they take more bytes than most values. All series
    of a listener have the same times, which are stored once for the chunks sealed together.
    """

    def __init__(self) -> None:
        self._places: dict[tuple[int, bytes], tuple[int, int]] = {}

    def shared(self, row: dict[str, Any], encoded: EncodedSamples) -> dict[str, Any]:
        """Return the row of a sealed chunk, without its times if an earlier chunk has the same."""
        place = row["series_no"], row["chunk_no"]
        first = self._places.setdefault((encoded.codec, encoded.times), place)
        if first == place:
            return row
        return row | {"time_data": None, "time_series_no": first[0], "time_chunk_no": first[1]}


def checked(samples: Samples) -> Samples:
    """Return the samples with the types the codec relies on.

    Raises:
        StoreError: Columns differ in length, or in type from `Samples`.
    """
    columns = [(samples.times_ns, np.int64), (samples.values, np.float64)]
    if samples.steps is not None:
        columns.append((samples.steps, np.int64))
    if any(column.dtype != kind or column.shape != (len(samples),) for column, kind in columns):
        raise StoreError(
            "samples must be columns of the same length: times and steps of 64-bit integers, "
            "values of 64-bit floats"
        )
    return samples


def loose_row(run_id: str, series_no: int, samples: Samples) -> dict[str, Value]:
    """Return parameters of `APPEND` for a few new points."""
    return _row(run_id, series_no, samples, encode_raw(samples), sealed=False)


def compacted_rows(
    run_id: str,
    series_no: int,
    chunk_no: int,
    samples: Samples,
    times: SharedTimes,
    *,
    seal_rest: bool,
) -> Iterator[dict[str, Any]]:
    """Yield rows for `insert`: full chunks and the rest, numbered from ``chunk_no``."""
    for start in range(0, len(samples), POINTS_PER_CHUNK):
        part = samples[start : start + POINTS_PER_CHUNK]
        sealed = seal_rest or len(part) == POINTS_PER_CHUNK
        encoded = encode(part)
        row = _row(run_id, series_no, part, encoded, sealed=sealed)
        row["chunk_no"] = chunk_no + start // POINTS_PER_CHUNK
        # A loose chunk will be replaced, so no other chunk may depend on it.
        yield times.shared(row, encoded) if sealed else row


def thinned_row(
    run_id: str, series_no: int, chunk_no: int, kept: Samples, header: Mapping[str, Value]
) -> dict[str, Any]:
    """Return a row for `insert` with fewer points than its header describes.

    ``kept`` are the remaining points in time order; ``header`` is `header_of` all original points.
    """
    row = _row(run_id, series_no, kept, encode(kept), sealed=True)
    return {**row, "chunk_no": chunk_no, **header, "kept_count": len(kept)}


def header_of(samples: Samples) -> dict[str, Any]:
    """Return the header columns of one or more points: counts, times and values."""
    times, values = samples.times_ns, samples.values
    if len(times) == 1:
        earliest = latest = 0
    else:
        earliest = int(np.argmin(times))
        # Among points with the latest time, the last one is the newest.
        latest = len(times) - 1 - int(np.argmax(times[::-1]))
    finite_count, smallest, largest, total = _statistics(values)
    return {
        "point_count": len(samples),
        "finite_count": finite_count,
        "first_ns": int(times[earliest]),
        "last_ns": int(times[latest]),
        "first_value": _no_nan(float(values[earliest])),
        "last_value": _no_nan(float(values[latest])),
        "value_min": smallest,
        "value_max": largest,
        "value_sum": total,
    }


def joined(parts: Sequence[Samples]) -> Samples:
    """Return all parts joined; parts without steps get `NO_STEP` if any part has steps."""
    if not parts:
        return Samples(_EMPTY_TIMES, _EMPTY_VALUES)
    if len(parts) == 1:
        return parts[0]
    steps: Int64Array | None = None
    if any(part.steps is not None for part in parts):
        steps = np.concatenate(
            [
                np.full(len(part), NO_STEP, dtype=np.int64) if part.steps is None else part.steps
                for part in parts
            ]
        )
    return Samples(
        np.concatenate([part.times_ns for part in parts]),
        np.concatenate([part.values for part in parts]),
        steps,
    )


def time_sorted(samples: Samples) -> Samples:
    """Return points in time order; points of the same time keep their order of writing."""
    times = samples.times_ns
    if len(times) < 2 or bool(np.all(times[1:] >= times[:-1])):
        return samples
    return samples[np.argsort(times, kind="stable")]


def between(samples: Samples, start_ns: int | None, end_ns: int | None) -> Samples:
    """Return the points from ``start_ns`` to ``end_ns`` inclusive; the input is in time order."""
    times = samples.times_ns
    start = 0 if start_ns is None else int(np.searchsorted(times, start_ns, side="left"))
    stop = len(times) if end_ns is None else int(np.searchsorted(times, end_ns, side="right"))
    return samples if (start, stop) == (0, len(times)) else samples[start:stop]


def _row(
    run_id: str, series_no: int, samples: Samples, encoded: EncodedSamples, *, sealed: bool
) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "series_no": series_no,
        "sealed": int(sealed),
        "codec": int(encoded.codec),
        **header_of(samples),
        "checksum": encoded.checksum,
        "time_series_no": None,
        "time_chunk_no": None,
        "time_data": encoded.times,
        "value_data": encoded.values,
        "step_data": encoded.steps,
        "kept_count": None,
    }


def _no_nan(value: float) -> float | None:
    """Return None for NaN, which SQLite cannot hold."""
    return None if math.isnan(value) else value


def _or_infinity(value: float) -> float:
    return value if math.isfinite(value) else math.inf


def _statistics(
    values: Float64Array,
) -> tuple[int, float | None, float | None, float | None]:
    """Return the number, minimum, maximum and sum of the finite values.

    A sum that overflows is stored as infinity, never as NULL, so that it yields no mean.
    """
    if len(values) <= _FEW_POINTS:
        few = [value for value in values.tolist() if math.isfinite(value)]
        if not few:
            return 0, None, None, None
        return len(few), min(few), max(few), _or_infinity(sum(few))
    finite = values[np.isfinite(values)]
    if not len(finite):
        return 0, None, None, None
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(finite.sum())
    return len(finite), float(finite.min()), float(finite.max()), _or_infinity(total)


# -- loose chunks ---------------------------------------------------------------------------------

_COUNT_LOOSE = text(
    "SELECT series_no, COUNT(*), SUM(point_count) FROM chunk "
    "WHERE run_id = :run_id AND sealed = 0 GROUP BY series_no"
)
_READ_LOOSE = text(
    f"SELECT {DATA_COLUMNS} FROM chunk "  # noqa: S608 - our own names
    "WHERE run_id = :run_id AND series_no = :series_no AND sealed = 0 ORDER BY chunk_no"
)
_DELETE_LOOSE = text(
    "DELETE FROM chunk WHERE run_id = :run_id AND series_no = :series_no AND sealed = 0"
)
_NEXT_NUMBER = text(
    "SELECT COALESCE(MAX(chunk_no) + 1, 0) FROM chunk "
    "WHERE run_id = :run_id AND series_no = :series_no"
)


@dataclass(slots=True)
class Loose:
    """Loose chunks of one series."""

    chunks: int = 0
    points: int = 0

    @property
    def many(self) -> bool:
        """Return whether the loose chunks should be merged."""
        return self.chunks >= MAX_LOOSE_CHUNKS or self.points >= POINTS_PER_CHUNK


def loose_series(connection: Connection, run_id: str) -> dict[int, Loose]:
    """Return the loose chunks of a run by series number."""
    rows = connection.execute(_COUNT_LOOSE, {"run_id": run_id})
    return {number: Loose(count, points) for number, count, points in rows}


def merge_loose(
    connection: Connection,
    run_id: str,
    series_no: int,
    times: SharedTimes,
    more: Samples | None = None,
    *,
    seal_rest: bool = False,
) -> None:
    """Replace the loose chunks of a series, and append ``more`` points.

    Full chunks are sealed; the rest stays loose unless ``seal_rest``. Calls for several series of a
    run share ``times`` within one transaction.

    Raises:
        CodecError: A loose chunk is damaged.
    """
    key = {"run_id": run_id, "series_no": series_no}
    loose = [EncodedSamples(*row) for row in connection.execute(_READ_LOOSE, key)]
    parts = [decode(loose)] if loose else []
    if more is not None:
        parts.append(more)
    if loose:
        connection.execute(_DELETE_LOOSE, key)
    # Loose chunks are the last of their series, so their numbers can be reused.
    first_number = int(connection.execute(_NEXT_NUMBER, key).scalar_one())
    rows = compacted_rows(
        run_id, series_no, first_number, joined(parts), times, seal_rest=seal_rest
    )
    # In groups, so that a batch of many million points is not in memory twice.
    while group := list(islice(rows, 64)):
        insert(connection, group)
