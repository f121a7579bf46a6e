"""A bundle: a single file with the data of a run after a position.

It is an SQLite database whose tables have the names and columns of a store, with points as pieces
in the order of writing. The bundles of a run, RUN.1, RUN.2, …, together are the run: each continues
where the previous one ends.

A bundle is built on the local disk and moved into place atomically. A bundle to read may come from
an untrusted source: it is copied to the local disk, opened read-only without trusting its schema,
and its size, schema, checksum and point counts are checked before any of it is used. So no table is
queried before `check_schema`, and no rows are read into memory before `check_size`.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sqlite3
import struct
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from radt import __version__
from radt.errors import ArchiveError, CodecError
from radt.files import whole_file
from radt.store.codec import EncodedSamples, decode, encode
from radt.store.copy import (
    BATCH_POINTS,
    ROWS_AT_A_TIME,
    Batch,
    CopiedItem,
    Piece,
    Position,
    RunRows,
    batched,
)
from radt.store.tables import (
    CURSORS,
    GAPS,
    LEDGERS,
    MARKERS,
    RUNS,
    SERIES,
    WORKLOADS,
    WRONG,
    RecordT,
    RecordTable,
    Value,
    record_of,
    texts_of,
)

#: Raised when older versions of radt can no longer read the format. New columns that an older
#: version may ignore do not need a new number.
FORMAT = 1
SUFFIX = ".radt"
#: Most bundles are small, and each table takes at least a page.
_PAGE_BYTES = 1024
_MOST_BYTES = 64 << 30

_NAME = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]{0,199})\.([1-9]\d{0,8})" + re.escape(SUFFIX))
_PIECE_AT = (
    "SELECT series_no, first, codec, count, checksum, COALESCE(time_data, (SELECT other.time_data "
    "FROM piece other WHERE other.rowid = piece.time_piece)), value_data, step_data "
    "FROM piece WHERE rowid = ?"
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

#: The only accepted form of the statement that creates a table.
_PLAIN = re.compile(r"CREATE TABLE (\w+) \((\w+(?:, \w+)*)\)", re.ASCII)
_RECORDS: Sequence[RecordTable[Any]] = (RUNS, WORKLOADS, SERIES, LEDGERS, GAPS, CURSORS, MARKERS)
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


def name_of(run_id: str, number: int) -> str:
    """Return the file name of a run's bundle; numbers count from 1."""
    return f"{run_id}.{number}{SUFFIX}"


def number_of(name: str) -> tuple[str, int] | None:
    """Return the run's id and the number in the name of a bundle; None for any other name."""
    match = _NAME.fullmatch(name)
    return None if match is None else (match[1], int(match[2]))


# -- writing --------------------------------------------------------------------------------------


def write(batches: Iterable[Batch], path: Path, since: Position) -> Position | None:
    """Write a run's batches after a position into a new file; return the position after them.

    Return None without batches; no file is written then.

    Args:
        batches: From `radt.store.copy.changes`.
        path: The file, in an existing folder; written atomically.
        since: The position that was passed to `changes`.

    Raises:
        CodecError: A series of the run is damaged.
        StoreError: The source cannot be read.
        OSError: The file or a temporary one cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix="radt-bundle-") as folder:
        building = Path(folder) / "bundle"
        try:
            until = _build(batches, building, since)
        except sqlite3.Error as error:
            raise OSError(None, str(error), str(building)) from error
        if until is not None:
            with (
                whole_file(
                    path, durable=True, temporary=path.with_name(f".{path.name}.new")
                ) as temporary,
                building.open("rb") as source,
                temporary.open("wb") as target,
            ):
                shutil.copyfileobj(source, target)
        return until


def _build(batches: Iterable[Batch], path: Path, since: Position) -> Position | None:
    batch: Batch | None = None
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for pragma in (f"page_size = {_PAGE_BYTES}", "journal_mode = OFF", "synchronous = OFF"):
            database.execute(f"PRAGMA {pragma}")
        database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        database.execute("BEGIN")
        for name, columns in TABLES.items():
            database.execute(f"CREATE TABLE {name} ({', '.join(columns)})")
        for batch in batches:
            if batch.damaged:
                number, reason = next(iter(batch.damaged.items()))
                raise CodecError(f"series {number} of run {batch.run_id}: {reason}")
            if batch.is_first:
                _put_rows(database, batch.rows)
            _put_records(database, MARKERS, batch.markers)
            _put_records(database, GAPS, batch.gaps)
            _put_pieces(database, batch.pieces)
        if batch is None:
            return None
        _put_head(database, batch, since)
        database.execute("COMMIT")
    return batch.until


def _put(
    database: sqlite3.Connection, name: str, rows: Iterable[Sequence[Value]], columns: int
) -> None:
    marks = ", ".join("?" * columns)
    database.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)  # noqa: S608 - our own names


def _put_records(
    database: sqlite3.Connection, table: RecordTable[RecordT], records: Iterable[RecordT]
) -> None:
    rows = (tuple(table.row(record).values()) for record in records)
    _put(database, table.name, rows, len(table.fields))


def _put_rows(database: sqlite3.Connection, rows: RunRows) -> None:
    _put_records(database, RUNS, [rows.run])
    _put_records(database, WORKLOADS, [] if rows.workload is None else [rows.workload])
    _put_records(database, SERIES, rows.series)
    _put_records(database, LEDGERS, rows.ledgers)
    _put_records(database, CURSORS, rows.journals)
    _put(database, "param", rows.params.items(), 2)
    _put(database, "tag", rows.tags.items(), 2)


def _put_pieces(database: sqlite3.Connection, pieces: Sequence[Piece]) -> None:
    """Write pieces. Pieces that were sampled at the same times share the column of times."""
    places: dict[tuple[int, bytes], int] = {}
    for piece in pieces:
        encoded = encode(piece.samples)
        shared = places.get((encoded.codec, encoded.times))
        row = (
            *(piece.series_no, piece.first, len(piece.samples), int(encoded.codec)),
            *(encoded.checksum, shared, encoded.times if shared is None else None),
            *(encoded.values, encoded.steps),
        )
        cursor = database.execute(
            f"INSERT INTO piece VALUES ({', '.join('?' * len(PIECE))})",  # noqa: S608
            row,
        )
        if shared is None:
            assert cursor.lastrowid is not None
            places[encoded.codec, encoded.times] = cursor.lastrowid


def _put_head(database: sqlite3.Connection, last: Batch, since: Position) -> None:
    rows = last.rows
    head: list[Value] = [
        *(FORMAT, f"radt {__version__}", time.time_ns(), last.run_id),
        *(json.dumps(since.to_json()), json.dumps(last.until.to_json()), int(last.is_complete)),
        *(rows.run.created_ns, json.dumps(dict(rows.points)), rows.revision),
    ]
    _put(database, "bundle", [[*head, digest(database, head)]], len(HEAD))


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


# -- reading --------------------------------------------------------------------------------------


class BundleSizeError(ValueError):
    """Reading a bundle would take more memory than radt allows."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """An open bundle whose content was checked.

    Attributes:
        where: Its origin, for messages.
        rows: The run as of the end of the bundle.
        since: The position before it.
        until: The position after it.
    """

    where: str
    rows: RunRows
    since: Position
    until: Position
    _database: sqlite3.Connection

    def batches(self) -> Iterator[Batch]:
        """Yield the batches for `radt.store.applying.apply`, in order.

        Raises:
            ArchiveError: The file does not match its own description.
        """
        with _guarded(self.where):
            for batch in batched(self.rows, self.since, self._blocks(), {}):
                if batch.is_last and batch.until != self.until:
                    raise ValueError("it has other markers than it says")
                yield batch

    def _blocks(self) -> Iterator[Sequence[CopiedItem]]:
        run_id = self.rows.run.run_id
        yield from _record_blocks(self._database, MARKERS, run_id)
        yield from _record_blocks(self._database, GAPS, run_id)
        for place in range(1, row_count(self._database, "piece") + 1):
            number, first, *data = self._database.execute(_PIECE_AT, (place,)).fetchone()
            encoded = EncodedSamples(*data)
            if not 0 < encoded.point_count <= BATCH_POINTS:
                raise ValueError(f"a piece cannot have {encoded.point_count} points")
            yield [Piece(number, first, decode([encoded]))]


@contextmanager
def open(  # noqa: A001 - like gzip.open
    path: Path, where: str = "", *, is_copy: bool = False
) -> Iterator[Bundle]:
    """Open a bundle after checking its whole content.

    Args:
        path: The file.
        where: Its origin, for messages, if that is not the path.
        is_copy: The file is already on the local disk, and nobody changes it.

    Raises:
        ArchiveError: It is not a bundle, is damaged, is too large, or has a newer format.
        OSError: It cannot be read, or the local disk is full.
    """
    where = where or str(path)
    if (size_bytes := path.stat().st_size) > _MOST_BYTES:
        raise _too_large(
            where, f"it has {size_bytes:,} bytes, and radt reads up to {_MOST_BYTES:,}"
        )
    with tempfile.TemporaryDirectory(prefix="radt-bundle-") as folder:
        # SQLite locks and maps files, which network file systems may not support.
        local = path if is_copy else Path(shutil.copyfile(path, Path(folder) / "bundle"))
        address = f"{local.absolute().as_uri()}?mode=ro&immutable=1"
        with closing(sqlite3.connect(address, uri=True)) as database:
            with _guarded(where):
                database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_VALUE_BYTES)
                for pragma in ("trusted_schema = OFF", "query_only = ON", "cell_size_check = ON"):
                    database.execute(f"PRAGMA {pragma}")
                bundle = _checked(database, where)
            yield bundle


def _checked(database: sqlite3.Connection, where: str) -> Bundle:
    """Return the bundle if its schema and content are consistent."""
    if database.execute("PRAGMA application_id").fetchone() != (APPLICATION_ID,):
        raise ValueError("it is not a bundle of radt")
    check_schema(database)
    if row_count(database, "bundle") != 1 or row_count(database, RUNS.name) != 1:
        raise ValueError("it does not hold one run")
    row = database.execute("SELECT * FROM bundle").fetchone()
    head = dict(zip(columns_of(database, "bundle"), row, strict=True))
    if int(head["format"]) > FORMAT:
        raise ArchiveError(
            f"{where} has format {head['format']}, written by {head['written_by']}; this radt "
            f"{__version__} reads bundles up to format {FORMAT}",
            "Upgrade radt",
        )
    check_size(database)
    if (
        digest(database, [value for name, value in head.items() if name != "sha256"])
        != (head["sha256"])
    ):
        raise ValueError("its checksum does not match")
    found = Bundle(
        where=where,
        rows=_read_rows(database, head),
        since=Position.from_json(json.loads(head["since"])),
        until=Position.from_json(json.loads(head["until"])),
        _database=database,
    )
    _check_counts(database, found)
    return found


def _check_counts(database: sqlite3.Connection, bundle: Bundle) -> None:
    """Check that the pieces are the points that the bundle declares.

    A target relies on this when it deletes a thinned run's points before restoring the run.
    """
    known = {record.series_no for record in bundle.rows.series}
    reached = dict(bundle.since.points)
    pieces = database.execute("SELECT series_no, first, count FROM piece ORDER BY rowid")
    for number, first, count in pieces:
        if number not in known or first != reached.get(number, 0) or count < 1:
            raise ValueError(f"points of series {number} do not follow those before")
        reached[number] = first + count
    if reached != bundle.until.points:
        raise ValueError("it has other points than it says")
    for number, count in bundle.rows.points.items():
        if count > reached.get(number, 0):
            raise ValueError(f"series {number} has {count:,} points that did not come")


def _read_rows(database: sqlite3.Connection, head: Mapping[str, Any]) -> RunRows:
    run_id = str(head["run_id"])

    def records(table: RecordTable[RecordT]) -> list[RecordT]:
        return list(chain.from_iterable(_record_blocks(database, table, run_id)))

    run, workloads = records(RUNS)[0], records(WORKLOADS)
    if workloads and [workload.workload_id for workload in workloads] != [run.workload_id]:
        raise ValueError("its workload is not the one of its run")
    points = {int(number): int(count) for number, count in json.loads(head["points"]).items()}
    series = records(SERIES)
    if not points.keys() <= {record.series_no for record in series}:
        raise ValueError("it has points of unknown series")
    return RunRows(
        run=run,
        workload=workloads[0] if workloads else None,
        params=texts_of(dict(database.execute("SELECT key, value FROM param"))),
        tags=texts_of(dict(database.execute("SELECT key, value FROM tag"))),
        series=series,
        ledgers=records(LEDGERS),
        journals=records(CURSORS),
        points=points,
        revision=int(head["revision"]),
    )


def _record_blocks(
    database: sqlite3.Connection, table: RecordTable[RecordT], run_id: str
) -> Iterator[list[RecordT]]:
    columns = columns_of(database, table.name)
    cursor = database.execute(f"SELECT * FROM {table.name} ORDER BY rowid")  # noqa: S608
    while rows := cursor.fetchmany(ROWS_AT_A_TIME):
        block = [dict(zip(columns, row, strict=True)) for row in rows]
        if any(data.get("run_id", run_id) != run_id for data in block):
            raise ValueError(f"it has a {table.name} of another run")
        yield [record_of(table, data) for data in block]


@contextmanager
def _guarded(where: str) -> Iterator[None]:
    """Turn errors from reading an invalid file into `ArchiveError`."""
    try:
        yield
    except BundleSizeError as error:
        raise _too_large(where, str(error)) from error
    except (sqlite3.Error, CodecError, *WRONG) as error:
        raise _damaged(where, (str(error) or type(error).__name__).splitlines()[0]) from error


def _too_large(where: str, detail: str) -> ArchiveError:
    return ArchiveError(f"{where} is too large: {detail}", "Check that it comes from radt")


def _damaged(where: str, detail: str) -> ArchiveError:
    return ArchiveError(f"{where} is damaged: {detail}", "Get the file again from where it is kept")


# -- checks of untrusted files --------------------------------------------------------------------


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
