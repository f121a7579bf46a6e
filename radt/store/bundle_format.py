"""The format of a bundle's file: its tables, its checksum, and the checks of untrusted files.

A bundle may come from an untrusted source. So no table is queried before `check_schema`, and no
rows are read into memory before `check_size`.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from radt.store.copy import ROWS_AT_A_TIME
from radt.store.tables import (
    CURSORS,
    GAPS,
    LEDGERS,
    MARKERS,
    RUNS,
    SERIES,
    WORKLOADS,
    Table,
    Value,
)

#: "radB" in ASCII.
APPLICATION_ID = 0x72616442
#: Maximum size of one value.
MOST_VALUE_BYTES = 64 << 20
#: Tables that are read in blocks, because a run may have any number of their rows.
_STREAMED = ("piece", MARKERS.name, GAPS.name)
#: Maximum size of all rows of the other tables together, which are in memory at once, and of a
#: block of the streamed tables.
_MOST_TEXT_BYTES = 128 << 20
#: Maximum number of rows of a table that is not streamed.
_MOST_ROWS = 500_000

_PLAIN = re.compile(r"CREATE TABLE (\w+) \((\w+(?:, \w+)*)\)", re.ASCII)
_RECORDS: Sequence[Table[Any]] = (RUNS, WORKLOADS, SERIES, LEDGERS, GAPS, CURSORS, MARKERS)
HEAD = (
    *("format", "written_by", "written_ns", "run_id", "since", "until", "complete"),
    *("experiment_ns", "points", "revision", "sha256"),
)
PIECE = (
    *("series_no", "first", "count", "codec", "checksum", "time_piece"),
    *("time_data", "value_data", "step_data"),
)
TABLES: Mapping[str, tuple[str, ...]] = {
    "bundle": HEAD,
    "param": ("key", "value"),
    "tag": ("key", "value"),
    **{table.name: table.fields for table in _RECORDS},
    "piece": PIECE,
}
#: Tables whose columns are the same in all versions. Tables of records may have more or fewer.
_WHOLE = ("bundle", "param", "tag", "piece")


class BundleSizeError(ValueError):
    """Reading a bundle would take more memory than radt allows."""


def create_statement(name: str, columns: Sequence[str]) -> str:
    """Return the only accepted form of the statement that creates a table of a bundle."""
    return f"CREATE TABLE {name} ({', '.join(columns)})"


def digest(database: sqlite3.Connection, head: Sequence[Value]) -> str:
    """Return the SHA-256 hash of all rows, table by table."""
    hashed = hashlib.sha256()
    for value in head:
        _feed(hashed, value)
    for name in TABLES:
        if name != "bundle":
            _feed(hashed, name)
            for row in database.execute(f"SELECT * FROM {name} ORDER BY rowid"):  # noqa: S608
                for value in row:
                    _feed(hashed, value)
    return hashed.hexdigest()


def _feed(hashed: Any, value: Value) -> None:
    if isinstance(value, float):
        data = struct.pack("<d", value)
    elif isinstance(value, bytes):
        data = value
    else:
        data = ("" if value is None else str(value)).encode()
    hashed.update(f"{type(value).__name__} {len(data)} ".encode())
    hashed.update(data)


def check_schema(database: sqlite3.Connection) -> None:
    """Check that only our tables exist, with plain columns: no views, triggers or code.

    Raises ValueError, as `check_size` does.

    The text of the schema is checked before any table is queried, because a table could be virtual.
    """
    found = {}
    for kind, name, sql in database.execute("SELECT type, name, sql FROM sqlite_master"):
        match = _PLAIN.fullmatch(str(sql))
        if kind != "table" or name not in TABLES or match is None or match[1] != name:
            raise ValueError(f"its schema has an unknown {kind} {name!r:.100}")
        found[name] = match[2].split(", ")
    for name, columns in TABLES.items():
        wanted = columns if name in _WHOLE else ()
        if name not in found or not set(wanted) <= set(found[name]):
            raise ValueError(f"its table {name} is incomplete")


def check_size(database: sqlite3.Connection) -> None:
    """Check that rows read into memory at once are bounded; raise `BundleSizeError` if not."""
    size_bytes = 0
    for name in TABLES:
        if name in _STREAMED:
            continue
        if (rows := row_count(database, name)) > _MOST_ROWS:
            raise BundleSizeError(
                f"its table {name} has {rows:,} rows, and radt reads up to {_MOST_ROWS:,}"
            )
        size_bytes += max(_block_sizes(database, name, _MOST_ROWS), default=0)
    blocks = (_block_sizes(database, name, ROWS_AT_A_TIME) for name in (MARKERS.name, GAPS.name))
    for found in chain([size_bytes], *blocks):
        if found > _MOST_TEXT_BYTES:
            raise BundleSizeError(
                f"its texts have {found:,} bytes, and radt reads up to {_MOST_TEXT_BYTES:,} at once"
            )


def _block_sizes(database: sqlite3.Connection, name: str, rows: int) -> Iterator[int]:
    """Yield the size in bytes of each block of ``rows`` rows of a table."""
    lengths = " + ".join(
        f"IFNULL(LENGTH(CAST({column} AS BLOB)), 0)" for column in columns_of(database, name)
    )
    cursor = database.execute(f"SELECT {lengths} FROM {name} ORDER BY rowid")  # noqa: S608
    while block := cursor.fetchmany(rows):
        yield sum(length for (length,) in block)


def columns_of(database: sqlite3.Connection, table: str) -> list[str]:
    """Return the columns of a table; another version may have more or fewer."""
    return [str(row[1]) for row in database.execute(f"PRAGMA table_info({table})")]


def row_count(database: sqlite3.Connection, table: str) -> int:
    """Return the number of rows of a table."""
    return int(database.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0])  # noqa: S608


def pragma(database: sqlite3.Connection, name: str) -> int:
    """Return the value of a pragma."""
    return int(database.execute(f"PRAGMA {name}").fetchone()[0])
