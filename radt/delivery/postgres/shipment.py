"""Shipments: batches of one or several runs, prepared for a single transaction.

The chunks of the copy differ from those on this side, which are merged as they grow: each piece is
one chunk. If many small ones accumulate at the end of a series, that end is sent again in whole
chunks (`Copied.rewind`). A `ReplicaTable` says how rows of a small table are inserted, and which
existing rows are kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

from radt.store import chunks, summaries
from radt.store.copy import Batch, Piece, Position
from radt.store.records import SeriesRecord
from radt.store.summaries import SUMMARIES, Summary, lacks_growth, summary_of
from radt.store.tables import (
    GAPS,
    LEDGERS,
    MARKERS,
    RUNS,
    SERIES,
    WORKLOADS,
    RecordTable,
    Value,
    to_column,
)
from radt.tags import CLUSTER_SUPERSEDED, EDITED, MLFLOW_RUN_NAME

Row = tuple[Value, ...]
#: Placeholder for an array of run ids in statements whose rows have numbers of runs.
RUN_IDS = "{run_ids}"


@dataclass(frozen=True)
class ReplicaTable:
    """A small table: rows are inserted, or replace those with the same key.

    ``unless`` is the condition for keeping an existing row, because a copy of an outdated store (a
    backup, a folder on two machines) must not undo newer values; ``name_unless`` is the condition
    for keeping its name. ``derived`` are columns that are not sent, with the expressions that they
    are computed from; such a row has, instead of its run's id, the number of the run in `RUN_IDS`,
    from 1.
    """

    name: str
    columns: tuple[str, ...]
    keys: tuple[str, ...]
    replace: bool = True
    unless: str = "FALSE"
    name_unless: str = ""
    derived: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(
        cls, table: RecordTable[Any], unless: str = "FALSE", name_unless: str = ""
    ) -> ReplicaTable:
        return cls(table.name, table.fields, table.keys, unless=unless, name_unless=name_unless)

    @cached_property
    def statement(self) -> str:
        """Return the statement, with ``%s`` for all rows. Identical rows are not rewritten."""
        columns = (*self.columns, *(name for name, _ in self.derived))
        source = "VALUES %s"
        if self.derived:
            values = (*self.columns[1:], *(made for _, made in self.derived))
            sent = ", ".join(("run_no", *self.columns[1:]))
            source = (
                f"SELECT runs.run_id, {', '.join(values)} FROM (VALUES %s) AS sent ({sent}) "  # noqa: S608
                f"JOIN unnest({RUN_IDS}) WITH ORDINALITY AS runs (run_id, no) ON no = run_no"
            )
        insert = (
            f"INSERT INTO {self.name} ({', '.join(columns)}) {source} "
            f"ON CONFLICT ({', '.join(self.keys)}) DO "
        )
        if not self.replace:
            return f"{insert}NOTHING"
        rest = [name for name in columns if name not in self.keys]
        news = {name: f"excluded.{name}" for name in rest}
        if self.name_unless:
            news["name"] = (
                f"CASE WHEN {self.name_unless} THEN {self.name}.name ELSE excluded.name END"
            )
        changes = ", ".join(f"{name} = {new}" for name, new in news.items())
        old = ", ".join(f"{self.name}.{name}" for name in rest)
        new = ", ".join(news.values())
        return (
            f"{insert}UPDATE SET {changes} "
            f"WHERE ({old}) IS DISTINCT FROM ({new}) AND NOT ({self.unless})"
        )

    def row(self, values: Mapping[str, Value]) -> Row:
        return tuple(values[name] for name in self.columns)

    def key(self, row: Row) -> Row:
        return tuple(row[self.columns.index(name)] for name in self.keys)


EXPERIMENT = ReplicaTable("experiment", ("name", "created_ns"), ("name",), replace=False)
WORKLOAD = ReplicaTable.of(WORKLOADS, "workload.ended_ns IS NOT NULL AND excluded.ended_ns IS NULL")


def _is_edited(key: str) -> str:
    """Return the SQL condition that a tag was edited in the database and has to be kept."""
    return (
        f"EXISTS (SELECT 1 FROM tag AS edit WHERE edit.key = '{EDITED}' || {key} "  # noqa: S608 - our own names
        "AND edit.run_id = excluded.run_id)"
    )


#: Once a newer attempt of its job has superseded a run, its end is kept, too, even if a node that
#: does not know this sends another one later.
RUN = ReplicaTable.of(
    RUNS,
    "run.ended_ns IS NOT NULL AND (excluded.ended_ns IS NULL OR EXISTS (SELECT 1 FROM tag "  # noqa: S608 - our own names
    f"WHERE tag.run_id = run.run_id AND tag.key = '{CLUSTER_SUPERSEDED}' "
    "AND excluded.status <> run.status))",
    _is_edited(f"'{MLFLOW_RUN_NAME}'"),
)
PARAM = ReplicaTable("param", ("run_id", "key", "value"), ("run_id", "key"))
TAG = ReplicaTable(
    "tag", ("run_id", "key", "value"), ("run_id", "key"), unless=_is_edited("excluded.key")
)
SUMMARY = ReplicaTable(
    "series_summary", ("run_id", "series_no", *SUMMARIES.fields), ("run_id", "series_no")
)
_PLAIN = (
    *(("stored_count", "count"), ("finite_count", "count")),
    *(("first_finite_ns", "first_ns"), ("last_finite_ns", "last_ns")),
    *(("first_finite", "first"), ("last_finite", "last")),
    *(("growth", "NULL"), ("lowest_step", "NULL"), ("highest_step", "NULL")),
)
#: A gauge without steps whose values are all finite, in half of the bytes: there is one such row
#: for each series and piece.
PLAIN_SUMMARY = ReplicaTable(
    SUMMARY.name,
    tuple(name for name in SUMMARY.columns if name not in dict(_PLAIN)),
    SUMMARY.keys,
    derived=_PLAIN,
)
_TABLES: tuple[tuple[ReplicaTable, RecordTable[Any]], ...] = (
    (WORKLOAD, WORKLOADS),
    (RUN, RUNS),
    (ReplicaTable.of(LEDGERS, "ledger.expected > excluded.expected"), LEDGERS),
    *((ReplicaTable.of(table), table) for table in (SERIES, MARKERS, GAPS)),
)
_TABLE_OF = {table.record: (replica, table) for replica, table in _TABLES}


def summary_row(row: Mapping[str, Value]) -> tuple[ReplicaTable, Row]:
    """Return the row of a summary and its table."""
    is_plain = all(row[name] == row.get(made) for name, made in PLAIN_SUMMARY.derived)
    replica = PLAIN_SUMMARY if is_plain else SUMMARY
    return replica, replica.row(row)


def row_of(record: object) -> tuple[ReplicaTable, Row]:
    """Return the row of a record and its table."""
    replica, table = _TABLE_OF[type(record)]
    return replica, replica.row(table.row(record))


# -- shipments ------------------------------------------------------------------------------------

#: A shipment of about this size is sent before more is added.
FULL_BYTES = 2_000_000
#: Approximate size of a row of ``chunk`` without its blobs.
ROW_BYTES = 200
#: A chunk with fewer points is small: its header is more than a third of it.
SMALL_POINTS = 500
#: Number of small pieces of a series that are merged into one, unless they fill a chunk earlier.
_MANY_PIECES = 60


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a copied series; its last ``chunks`` chunks are small.

    Attributes:
        next_chunk_no: Number of the next chunk.
        chunks: Number of small chunks at the end.
        points: Number of points in them.
        summary: Summary of the series.
    """

    next_chunk_no: int = 0
    chunks: int = 0
    points: int = 0
    summary: Summary | None = None

    def after(self, point_count: int) -> Self:
        """Return the end after another chunk."""
        number = self.next_chunk_no + 1
        if point_count >= SMALL_POINTS:
            return replace(self, next_chunk_no=number, chunks=0, points=0)
        return replace(
            self, next_chunk_no=number, chunks=self.chunks + 1, points=self.points + point_count
        )

    def is_scattered(self, *, final: bool) -> bool:
        """Return whether the small chunks should be merged; always for a run that has ended."""
        return self.chunks > 1 and (
            final or self.chunks >= _MANY_PIECES or self.points >= chunks.POINTS_PER_CHUNK
        )


@dataclass(frozen=True, slots=True)
class SeriesEnd:
    """The end of a copied series: the chunks from number ``first`` on, with ``points`` points."""

    first: int
    points: int


@dataclass(slots=True)
class Copied:
    """State of a run in the database.

    Attributes:
        revision: The revision of the copy, None without one. Another process that writes to the run
            raises it, too.
        position: Position up to which the run was copied.
        tails: Ends of series by number.
        rows: Hashes of the rows that this process has sent.
        cuts: First chunks, by series number, that the next points of the series replace.
    """

    revision: int | None = None
    position: Position = field(default_factory=Position)
    tails: dict[int, Tail] = field(default_factory=dict)
    rows: dict[tuple[ReplicaTable, Row], int] = field(default_factory=dict)
    cuts: dict[int, int] = field(default_factory=dict)

    def scattered(self, series: Iterable[SeriesRecord], *, final: bool) -> dict[int, int]:
        """Return the first small chunk of each series whose small chunks should be merged.

        Series of one listener share their times and are merged together.
        """
        cuts: dict[str, dict[int, int]] = {}
        listeners: set[str] = set()
        for record in series:
            tail = self.tails.get(record.series_no, Tail())
            if tail.chunks:
                first = tail.next_chunk_no - tail.chunks
                cuts.setdefault(record.listener, {})[record.series_no] = first
            if tail.is_scattered(final=final):
                listeners.add(record.listener)
        return {number: first for name in listeners for number, first in cuts[name].items()}

    def rewind(self, ends: Mapping[int, SeriesEnd]) -> None:
        """Make the next points replace the ends of series."""
        points = dict(self.position.points)
        for number, end in ends.items():
            points[number] -= end.points
            summary = self.tails[number].summary if end.first else None
            self.tails[number] = Tail(end.first, summary=summary)
            self.cuts[number] = end.first
        self.position = replace(self.position, points=points)

    def settle(self, series: Iterable[int]) -> None:
        """Keep the small chunks of series."""
        for number in series:
            self.tails[number] = replace(self.tails[number], chunks=0, points=0)


@dataclass(slots=True)
class Shipment:
    """Content of one transaction.

    Attributes:
        revisions: Expected revision of each of its runs on the other side, None if the run must not
            exist yet. Otherwise another process has written to the run, and nothing is written.
        rows: Rows of small tables by their keys.
        chunks: Rows of ``chunk``.
        cuts: First chunks, by run and series, that the new ones replace.
        unordered: Counters, by run, whose growth can only be computed from their points.
        durable: False for data that is sent again if the other side loses it in a crash, which its
            next response reveals.
    """

    revisions: dict[str, int | None] = field(default_factory=dict)
    rows: dict[ReplicaTable, dict[Row, Row]] = field(default_factory=dict)
    chunks: list[dict[str, Value]] = field(default_factory=list)
    cuts: dict[str, dict[int, int]] = field(default_factory=dict)
    unordered: dict[str, list[SeriesRecord]] = field(default_factory=dict)
    durable: bool = False
    size_bytes: int = 0
    _after: list[tuple[Copied, Copied]] = field(default_factory=list)

    @property
    def full(self) -> bool:
        return self.size_bytes >= FULL_BYTES

    def add(self, table: ReplicaTable, row: Row) -> None:
        self.rows.setdefault(table, {})[table.key(row)] = row  # a statement accepts a key only once
        self.size_bytes += sum(len(value) if isinstance(value, str) else 8 for value in row)

    def add_batch(self, batch: Batch, copied: Copied) -> None:
        """Add a run's new data; without any, the run is only in a durable shipment."""
        before = self.size_bytes
        after = Copied(
            0 if copied.revision is None else copied.revision + 1,
            replace(batch.until, revision=-1),
            dict(copied.tails),
            dict(copied.rows),
            dict(copied.cuts),
        )
        for table, row in _rows(batch):
            key, digest = (table, table.key(row)), hash(row)
            if after.rows.get(key) != digest:
                after.rows[key] = digest
                self.add(table, row)
        for marker in batch.markers:
            self.add(*row_of(marker))
        self._add_pieces(batch, after)
        if self.size_bytes > before or self.durable:
            self.revisions[batch.run_id] = copied.revision
            if copied.revision is None:
                # The run's row creates it; a concurrently created one must not be replaced.
                self.add(*row_of(batch.rows.run))
            self._after.append((copied, after))

    def _add_pieces(self, batch: Batch, after: Copied) -> None:
        series = {record.series_no: record for record in batch.rows.series}
        times = chunks.SharedTimes()
        if batch.pieces and after.cuts:
            # Remove all of them at once, even if the points need several shipments: chunks share
            # their times, so no chunk may remain without them.
            self.cuts[batch.run_id], after.cuts = after.cuts, {}
        changed: dict[int, SeriesRecord] = {}
        for piece in batch.pieces:
            record = changed[piece.series_no] = series[piece.series_no]
            tail = after.tails.get(record.series_no, Tail())
            tail = replace(tail, summary=_summary(tail.summary, piece, record))
            for row in chunks.compacted_rows(
                *(batch.run_id, record.series_no, tail.next_chunk_no, piece.samples, times),
                seal_rest=True,
            ):
                tail = tail.after(row["point_count"])
                self.chunks.append(row)
                blobs = (row["time_data"], row["value_data"], row["step_data"])
                self.size_bytes += ROW_BYTES + sum(len(b) for b in blobs if isinstance(b, bytes))
            after.tails[record.series_no] = tail
        for number, record in changed.items():
            summary = after.tails[number].summary
            assert summary is not None
            if lacks_growth(summary, record):
                self.unordered.setdefault(batch.run_id, []).append(record)
            row = {"run_id": batch.run_id, "series_no": number, **SUMMARIES.row(summary)}
            self.add(*summary_row(row))

    def shipped(self) -> None:
        """Record that the shipment has arrived."""
        for copied, after in self._after:
            copied.revision, copied.position = after.revision, after.position
            copied.tails, copied.rows, copied.cuts = after.tails, after.rows, after.cuts


def _rows(batch: Batch) -> Iterator[tuple[ReplicaTable, Row]]:
    rows = batch.rows
    yield EXPERIMENT, (to_column(rows.run.experiment), rows.run.created_ns)
    yield row_of(rows.run)
    for table, texts in ((PARAM, rows.params), (TAG, rows.tags)):
        for key, value in texts.items():
            yield table, (batch.run_id, key, value)
    records: Collection[object] = (*rows.series, *batch.gaps, *rows.ledgers)
    yield from map(row_of, records)


def _summary(before: Summary | None, piece: Piece, series: SeriesRecord) -> Summary:
    """Return the summary including a piece, which may be a repeated one."""
    known = 0 if before is None else before.count - piece.first
    samples = piece.samples[max(0, known) :]
    if before is not None and not len(samples):
        return before
    new = summary_of(chunks.header_of(samples), samples, series)
    return new if before is None else summaries.joined(before, new, series)
