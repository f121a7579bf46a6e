"""Chunks out of a database, by binary COPY where it is Postgres.

Through a cursor, psycopg2 gets blobs as hexadecimal digits: twice the bytes on the wire, and four
times the time. Format: https://www.postgresql.org/docs/17/sql-copy.html, "Binary Format".
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from contextlib import closing
from io import BytesIO

from sqlalchemy import Connection, TextClause

from radt.errors import StoreError
from radt.store.backend import Dialect
from radt.store.tables import Value

#: Signature, flags, length of what may follow.
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
    """Rows of a SELECT.

    Args:
        statement: A text whose parameters are single values.
        parameters: These.
        kinds: What the columns are: whole numbers or blobs.

    Raises:
        StoreError: The answer of the database cannot be read.
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
    """The rows of an answer in the binary format.

    Raises:
        StoreError: It is cut short, or has other columns.
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
