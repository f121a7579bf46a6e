"""Rows into Postgres by binary COPY: blobs as they are, where parameters would be twice as long.

Format: https://www.postgresql.org/docs/17/sql-copy.html, "Binary Format".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from io import BytesIO
from typing import Any

from sqlalchemy import Connection

from radt.store.tables import Value

_SIGNATURE = b"PGCOPY\n\xff\r\n\0" + struct.pack("!II", 0, 0)
_TRAILER = struct.pack("!h", -1)
_NULL = struct.pack("!i", -1)

_int16 = struct.Struct("!ih").pack
_int32 = struct.Struct("!ii").pack
_int64 = struct.Struct("!iq").pack
_float64 = struct.Struct("!id").pack


def _bytes(value: bytes) -> bytes:
    return struct.pack("!i", len(value)) + value


SMALLINT: Callable[[Any], bytes] = lambda value: _int16(2, value)  # noqa: E731
INTEGER: Callable[[Any], bytes] = lambda value: _int32(4, value)  # noqa: E731
BIGINT: Callable[[Any], bytes] = lambda value: _int64(8, value)  # noqa: E731
DOUBLE: Callable[[Any], bytes] = lambda value: _float64(8, value)  # noqa: E731
BYTEA: Callable[[Any], bytes] = _bytes
TEXT: Callable[[Any], bytes] = lambda value: _bytes(value.encode())  # noqa: E731


def copy_rows(
    connection: Connection,
    table: str,
    columns: Mapping[str, Callable[[Any], bytes]],
    rows: Iterable[Mapping[str, Value]],
) -> None:
    """Insert rows; they must not be there.

    Args:
        connection: Of Postgres, in a transaction.
        table: Its name.
        columns: How each column is encoded: this module's constants, which must be the table's
            types.
        rows: Values by column; None is NULL.
    """
    buffer = BytesIO()
    buffer.write(_SIGNATURE)
    width = struct.pack("!h", len(columns))
    encoders: Sequence[tuple[str, Callable[[Any], bytes]]] = tuple(columns.items())
    for row in rows:
        buffer.write(width)
        for name, encode in encoders:
            value = row[name]
            buffer.write(_NULL if value is None else encode(value))
    buffer.write(_TRAILER)
    buffer.seek(0)
    with closing(connection.connection.cursor()) as cursor:
        cursor.copy_expert(
            f"COPY {table} ({', '.join(columns)}) FROM STDIN (FORMAT binary)", buffer
        )
