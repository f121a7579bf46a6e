"""Add batches of a run to a store: bit for bit, in the order of writing, without duplicates.

The last batch also writes the rows of the run and its workload, so that a run is listed only once
it is complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from sqlalchemy import Connection, bindparam, text

from radt.errors import CodecError, StoreError
from radt.store import chunks, pruning
from radt.store.copy import Batch, Piece, counts_in, is_open
from radt.store.points import chunks_after
from radt.store.pruning import Keep
from radt.store.records import (
    SERIES_OF_A_NODE,
    JournalCursor,
    RunRecord,
    Samples,
    SeriesBatch,
    WorkloadRecord,
)
from radt.store.tables import CURSORS, RUNS, WORKLOADS, find
from radt.store.writer import OtherSeriesError, StoreWriter

_CURSORS = text(f"{CURSORS.select} WHERE run_id = :run_id")
_ENDED = text(
    "SELECT marker_no FROM marker "
    "WHERE run_id = :run_id AND end_ns IS NOT NULL AND marker_no IN :numbers"
).bindparams(bindparam("numbers", expanding=True))
_COMPARE = "Import into an empty data folder (--home) to compare both"


class OtherRunError(StoreError):
    """The store has a different run with this id, or lacks the points before the batch."""


@dataclass(frozen=True, slots=True)
class OwnershipTransfer:
    """Makes a copied run belong to this machine, which then uploads it.

    ``spool`` is its folder here, ``tracking_uri`` MLflow's address, "" for none.
    """

    spool: Path
    tracking_uri: str


@dataclass(frozen=True, slots=True)
class Applied:
    """Result of `apply`. ``points``: number added; ``is_new``: the run was not listed before."""

    points: int
    is_new: bool


def apply(
    writer: StoreWriter,
    batch: Batch,
    *,
    transfer: OwnershipTransfer | None = None,
    is_part: bool = False,
    is_original: bool = False,
) -> Applied:
    """Add the parts of a batch that a store lacks, in one transaction.

    A run that was thinned in the store is restored if the batches have all of its points. A run is
    never uploaded to MLflow from this store, unless it is transferred.

    Args:
        writer: The store.
        batch: A run's batches must be applied in order.
        transfer: See `OwnershipTransfer`.
        is_part: These batches only add data to a run; others contain its rows.
        is_original: The batches come from the machine that records the run and its workload, not
            from an older copy: their rows replace the store's, even those of an ended run.

    Raises:
        OtherRunError: The store has other points of the run, or lacks those before the batch.
        CodecError: The source has a damaged series.
        StoreError: The store cannot be written.
    """
    for number, reason in batch.damaged.items():
        raise CodecError(f"series {number} of run {batch.run_id}: {reason}")
    with writer.adding(batch.run_id) as connection:
        return _Applying(writer, connection, batch, transfer, is_part, is_original).apply()


@dataclass(slots=True)
class _Applying:
    writer: StoreWriter
    connection: Connection
    batch: Batch
    transfer: OwnershipTransfer | None
    is_part: bool
    is_original: bool

    @property
    def run_id(self) -> str:
        return self.batch.run_id

    def apply(self) -> Applied:
        batch, run_id = self.batch, self.run_id
        pruned = pruning.pruned_in(self.connection, run_id)
        if pruned is not None and pruned.kept is Keep.SUMMARIES:
            self._make_way(pruned.point_count)
        stored = find(self.connection, RUNS, run_id)
        rows_take_precedence = self._rows_take_precedence(stored)
        points = self._append()
        self._put_markers()
        if rows_take_precedence or self.is_part:
            self.writer.put_gaps(batch.gaps)
        if batch.is_last:
            if batch.rows.run.status.ended and chunks.loose_series(self.connection, run_id):
                self.writer.seal(run_id)
            if rows_take_precedence or self.is_part:
                for ledger in batch.rows.ledgers:
                    self.writer.put_ledger(ledger)
            if rows_take_precedence:
                self._put_rows(stored)
            if not self.is_part:
                self._put_cursors()
            if pruned is not None:
                pruning.forget_pruned(self.writer, run_id)
        return Applied(points, stored is None)

    def _counts(self) -> Mapping[int, int]:
        return counts_in(self.connection, self.run_id)

    def _make_way(self, before: int) -> None:
        """Delete what thinning has left of a run if the batches restore all of its points."""
        total = sum(self.batch.rows.points.values())
        if total < before:
            raise OtherRunError(
                f"run {self.run_id} had {before:,} points before it was thinned, and its copy has "
                f"{total:,}; nothing was changed",
                _COMPARE,
            )
        pruning.make_way(self.writer, self.run_id)

    # -- points -----------------------------------------------------------------------------------

    def _append(self) -> int:
        """Append the points that the store lacks; return their number."""
        if self.batch.is_first:
            try:
                self.writer.add_series(self.batch.rows.series)
            except OtherSeriesError as error:
                raise OtherRunError(error.message, _COMPARE) from error
        pieces: dict[int, list[Piece]] = {}
        for piece in self.batch.pieces:
            pieces.setdefault(piece.series_no, []).append(piece)
        counts = self._counts()
        batches = [
            SeriesBatch(number, missing)
            for number, of_series in pieces.items()
            if len(missing := self._missing(of_series, counts.get(number, 0)))
        ]
        self.writer.append(self.run_id, batches)
        return sum(len(batch.samples) for batch in batches)

    def _missing(self, pieces: Sequence[Piece], count: int) -> Samples:
        first = pieces[0].first
        samples = chunks.joined([piece.samples for piece in pieces])
        known = count - first
        if known < 0:
            raise OtherRunError(
                f"the store has {count:,} points of series {pieces[0].series_no} of run "
                f"{self.run_id}, and those up to number {first:,} are missing",
                "Copy the run from its beginning",
            )
        if 0 < known <= len(samples):
            self._check_same(pieces[0].series_no, count - 1, samples[known - 1 :])
        return samples[known:]

    def _check_same(self, series_no: int, number: int, copied: Samples) -> None:
        """Check that the last point present in both store and batch is the same."""
        stored = chunks_after(self.connection, self.run_id, series_no, number, 1).decode()
        if (
            stored.times_ns[0] != copied.times_ns[0]
            or stored.values[:1].view(np.int64)[0] != copied.values[:1].view(np.int64)[0]
        ):
            raise OtherRunError(
                f"run {self.run_id}: the values in the store differ from those in the copy",
                _COMPARE,
            )

    def _put_markers(self) -> None:
        """Put the batch's markers, without reopening a span that has ended in the store."""
        opened = [marker.marker_no for marker in self.batch.markers if is_open(marker)]
        ended = set(
            self.connection.execute(_ENDED, {"run_id": self.run_id, "numbers": opened}).scalars()
        )
        self.writer.put_markers(
            [marker for marker in self.batch.markers if marker.marker_no not in ended]
        )

    # -- rows -------------------------------------------------------------------------------------

    def _rows_take_precedence(self, stored: RunRecord | None) -> bool:
        """Return whether the batch's rows of the run take precedence over the store's.

        They do not if the store has the run's end, or more of its points.
        """
        if self.is_part or stored is None:
            return stored is None
        if self.is_original or self.batch.rows.run.status.ended:
            return True
        if stored.status.ended:
            return False
        copied = self.batch.rows.points
        return all(
            copied.get(number, 0) >= count
            for number, count in self._counts().items()
            if number < SERIES_OF_A_NODE  # data of other nodes arrives in separate copies
        )

    def _put_rows(self, stored: RunRecord | None) -> None:
        rows = self.batch.rows
        self.writer.put_params(self.run_id, rows.params)
        self.writer.put_tags(self.run_id, rows.tags)
        if rows.workload is not None:
            self._put_workload(rows.workload)
        if self.transfer is not None:
            if stored is None or not stored.status.ended or self.batch.is_complete:
                self.writer.put_run(self._transferred(self.transfer, stored))
        elif stored is None:
            self.writer.put_run(rows.run)
            # The machine that recorded it uploads it to MLflow.
            self.writer.mark_run_delivered(self.run_id)
        elif self.is_original or not stored.status.ended:
            # A copy's address has no password; this machine's may need one.
            self.writer.put_run(replace(rows.run, tracking_uri=stored.tracking_uri))
        if rows.workload is not None and not self.is_original:
            # The workload ends with its last run, which copies of its other runs may not know
            # about.
            self.writer.end_workload(rows.run.workload_id)

    def _put_cursors(self) -> None:
        """Record how far the source had read journals, unless the store has read further.

        If this machine lost its store, the journals may still exist here and would be read again.
        """
        counts, key = self._counts(), {"run_id": self.run_id}
        if any(counts.get(number, 0) < count for number, count in self.batch.rows.points.items()):
            return
        stored = {
            cursor.journal: cursor
            for cursor in map(CURSORS.read, self.connection.execute(_CURSORS, key))
        }
        further = [
            cursor
            for cursor in self.batch.rows.journals
            if _place(cursor) > _place(stored.get(cursor.journal, JournalCursor(cursor.journal)))
        ]
        self.writer.put_cursors(self.run_id, further)

    def _transferred(self, transfer: OwnershipTransfer, stored: RunRecord | None) -> RunRecord:
        """Return the run as owned by this machine, which may have begun to upload it."""
        return replace(
            self.batch.rows.run,
            spool=str(transfer.spool),
            tracking_uri=transfer.tracking_uri if stored is None else stored.tracking_uri,
            mlflow_run_id=None if stored is None else stored.mlflow_run_id,
        )

    def _put_workload(self, copied: WorkloadRecord) -> None:
        stored = find(self.connection, WORKLOADS, copied.workload_id)
        if stored is not None and copied.ended_ns is None and not self.is_original:
            return
        if self.transfer is not None:
            copied = replace(
                copied,
                tracking_uri=self.transfer.tracking_uri,
                mlflow_experiment_id=None if stored is None else stored.mlflow_experiment_id,
                mlflow_run_id=None if stored is None else stored.mlflow_run_id,
            )
        if stored is not None:
            copied = replace(copied, tracking_uri=stored.tracking_uri)
        self.writer.put_workload(copied)
        if stored is None and self.transfer is None:
            self.writer.mark_workload_delivered(copied.workload_id)


def _place(cursor: JournalCursor) -> tuple[int, int, int]:
    return cursor.segment, cursor.slot, cursor.event_offset
