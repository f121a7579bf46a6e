"""Shipments: batches of one or several runs, prepared for a single transaction.

The chunks of the copy differ from those on this side, which are merged as they grow: each piece is
one chunk. If many small ones accumulate at the end of a series, that end is sent again in whole
chunks (`Copied.rewind`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from radt.delivery.postgres.replica_tables import (
    EXPERIMENT,
    PARAM,
    TAG,
    ReplicaTable,
    Row,
    row_of,
    summary_row,
)
from radt.store import chunks, summaries
from radt.store.copy import Batch, Piece, Position
from radt.store.records import SeriesRecord
from radt.store.summaries import SUMMARIES, Summary, lacks_growth, summary_of
from radt.store.tables import Value, to_column

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
class End:
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

    def rewind(self, ends: Mapping[int, End]) -> None:
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
                tail = tail.after(int(row["point_count"] or 0))
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
    yield EXPERIMENT, (to_column(rows.run.experiment), rows.experiment_ns)
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
