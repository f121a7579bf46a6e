"""Import archives into a store: bit for bit, in the order of writing, and only missing data.

Points are numbered in the order of writing, which never changes, so the store's counts show what is
missing: an interrupted import resumes, a repeated one does nothing, and a later archive of a
continued run adds the rest. The rows of run and workload come last, so that a run is listed only
once it is complete.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from radt.delivery.archive.manifest import Manifest, Part, PartKind
from radt.delivery.archive.read import Archive, Piece
from radt.errors import ArchiveError
from radt.model import RunStatus
from radt.store.chunks import joined, sliced
from radt.store.pruning import Keep, PrunedRun, forget_pruned, make_way, pruned_run
from radt.store.reader import StoreReader
from radt.store.records import SERIES_OF_A_NODE, RunRecord, Samples, SeriesBatch, WorkloadRecord
from radt.store.writer import StoreWriter
from radt.tags import PARENT

#: Approximate number of points per transaction.
_POINTS_A_TURN = 400_000


@dataclass(frozen=True, slots=True)
class Adoption:
    """How an imported run becomes one of this machine's, which delivers it as its own.

    ``spool`` is its folder here, ``tracking_uri`` MLflow's address, "" for none.
    """

    spool: Path
    tracking_uri: str


@dataclass(frozen=True, slots=True)
class Imported:
    """Result of an import: ``points`` were missing; ``new``: the run was not in the store."""

    run: RunRecord
    points: int
    total_points: int
    new: bool
    complete: bool


def import_archive(
    where: Archive | str | Path,
    writer: StoreWriter,
    tracking_uri: str = "",
    *,
    parts: Collection[str] | None = None,
    adoption: Adoption | None = None,
    is_part: bool = False,
) -> Imported:
    """Add the data of an archive, or of the one at a place (`location_of`), that the store lacks.

    All files are checked before anything is written. An imported run is never uploaded to MLflow
    from this store, unless it is adopted.

    Args:
        where: The archive, or its place.
        writer: The store.
        tracking_uri: To find an archive among the artifacts of MLflow's runs.
        parts: Paths of the parts that are there, if all others were imported before.
        adoption: See `Adoption`.
        is_part: Another archive describes the run, once it is there; this one has further data of
            it.

    Raises:
        ArchiveError: There is no archive, it is damaged, or the store has another run with this id.
        StoreError: The store cannot be written.
    """
    archive = where if isinstance(where, Archive) else Archive.open(where, tracking_uri)
    with StoreReader(writer.address) as reader:
        return _Import(archive, writer, reader, parts, adoption, is_part).all()


@dataclass(slots=True)
class _Import:
    archive: Archive
    writer: StoreWriter
    reader: StoreReader
    parts: Collection[str] | None = None
    adoption: Adoption | None = None
    is_part: bool = False
    points: int = 0
    waiting: dict[int, list[Piece]] = field(default_factory=dict)
    waiting_points: int = 0

    @property
    def manifest(self) -> Manifest:
        return self.archive.manifest

    @property
    def run_id(self) -> str:
        return self.manifest.run.run_id

    def all(self) -> Imported:
        stored = self._there()
        pruned = pruned_run(self.reader, self.run_id)
        thinned = pruned is not None and pruned.kept is Keep.SUMMARIES
        if pruned is not None and thinned:
            self._check_covers(pruned)
        counts = {} if thinned else self.reader.point_counts(self.run_id)
        rows = self._rows_count(stored, counts)
        samples = [part for part in self.archive.parts(PartKind.SAMPLES) if _lacks(counts, part)]
        # Parts of an adopted run come one by one, also after somebody has noted its end.
        markers = self.archive.parts(PartKind.MARKERS) if rows or self.adoption is not None else []
        if self.parts is not None:
            markers = [part for part in markers if part.path in self.parts]
        with self.archive.files([*samples, *markers]) as files:
            if thinned:
                make_way(self.writer, self.run_id)
            self.writer.add_series(self.manifest.series)
            for part, file in zip(samples, files, strict=False):
                for pieces in self.archive.pieces(part, file):
                    self._add(pieces)
            self._flush()
            for part, file in zip(markers, files[len(samples) :], strict=True):
                for block in self.archive.markers(part, file):
                    self.writer.put_markers(block)
        if self.manifest.run.status.ended and (self.points or stored is None):
            self.writer.seal(self.run_id)
        if rows:
            self._put_rows()
        elif self.is_part:
            self._put_completeness()
        if pruned is not None:
            forget_pruned(self.writer, self.run_id)
        return Imported(
            self.manifest.run,
            self.points,
            self.manifest.points,
            stored is None,
            self.manifest.complete,
        )

    def _check_covers(self, pruned: PrunedRun) -> None:
        """Check that the archive has the whole run: only then may it replace thinned points."""
        if self.manifest.points < pruned.point_count:
            raise ArchiveError(
                f"{self.archive.location} has {self.manifest.points:,} of the "
                f"{pruned.point_count:,} points that run {self.run_id} had before it was thinned; "
                "nothing was changed",
                "Import into an empty data folder (--home) to compare both",
            )

    def _there(self) -> RunRecord | None:
        return next(iter(self.reader.runs(run_ids=[self.run_id])), None)

    def _rows_count(self, stored: RunRecord | None, counts: dict[int, int]) -> bool:
        """Return whether the archive's rows of the run take precedence over the store's.

        They do not if the store has the run's end, or more of its points.
        """
        if self.is_part or stored is None:
            return stored is None
        if self.manifest.complete:
            return True
        if stored.status.ended:
            return False
        archived = self.manifest.point_counts()
        return all(
            archived.get(number, 0) >= count
            for number, count in counts.items()
            if number < SERIES_OF_A_NODE  # others come in archives of their own
        )

    # -- points -----------------------------------------------------------------------------------

    def _add(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            self.waiting.setdefault(piece.series_no, []).append(piece)
            self.waiting_points += len(piece.samples)
        if self.waiting_points >= _POINTS_A_TURN:
            self._flush()

    def _flush(self) -> None:
        """Append the missing ones of the pending points, series by series, in one transaction."""
        if not self.waiting:
            return
        with self.writer.transaction():
            # Locks the run: no other process imports it between counting and appending.
            self.writer.append(self.run_id, [])
            counts = self.reader.point_counts(self.run_id)
            batches = list(self._missing(counts))
            self.writer.append(self.run_id, batches)
        self.points += sum(len(batch.samples) for batch in batches)
        self.waiting.clear()
        self.waiting_points = 0

    def _missing(self, counts: dict[int, int]) -> Iterator[SeriesBatch]:
        for series_no, pieces in self.waiting.items():
            first = pieces[0].first
            samples = joined([piece.samples for piece in pieces])
            known = counts.get(series_no, 0) - first
            if known < 0:
                raise ArchiveError(
                    f"points of run {self.run_id} were deleted from the store during the import",
                    "Import again while nothing else changes the store",
                )
            if 0 < known <= len(samples):
                self._check_same(series_no, first + known - 1, sliced(samples, known - 1, known))
            if known < len(samples):
                yield SeriesBatch(series_no, sliced(samples, known))

    def _check_same(self, series_no: int, number: int, archived: Samples) -> None:
        """Check that the last point common to store and archive is the same."""
        stored = self.reader.points_after(self.run_id, series_no, number, 1)
        if (
            stored.times_ns.tolist() != archived.times_ns.tolist()
            or stored.values.view(np.int64).tolist() != archived.values.view(np.int64).tolist()
        ):
            raise ArchiveError(
                f"run {self.run_id} has other values in the store than in {self.archive.location}",
                "Import into an empty data folder (--home) to compare both",
            )

    # -- rows -------------------------------------------------------------------------------------

    def _put_rows(self) -> None:
        manifest = self.manifest
        with self.writer.transaction():
            self.writer.append(self.run_id, [])  # locks the run
            stored = self._there()
            if not self._rows_count(stored, self.reader.point_counts(self.run_id)):
                return  # it continued meanwhile
            self._put_completeness()
            self.writer.put_params(self.run_id, manifest.params or {})
            self.writer.put_tags(self.run_id, manifest.tags or {})
            if manifest.workload is not None:
                self._put_workload(manifest.workload)
            if stored is None or self.points:
                # Its journals may still exist on this machine if it lost its store.
                self.writer.put_cursors(self.run_id, manifest.journals)
            if self.adoption is not None:
                if stored is None or not stored.status.ended or manifest.complete:
                    self.writer.put_run(self._adopted(self.adoption, stored))
            elif stored is None:
                self.writer.put_run(manifest.run)
                # The machine that recorded it uploads it to MLflow.
                self.writer.mark_run_delivered(self.run_id)
            elif not stored.status.ended:
                # The archive's address has no password; this machine's may need one.
                self.writer.put_run(replace(manifest.run, tracking_uri=stored.tracking_uri))
        self._end_workload()

    def _put_completeness(self) -> None:
        for ledger in self.manifest.ledger:
            self.writer.put_ledger(ledger)
        self.writer.put_gaps(self.manifest.gaps)

    def _adopted(self, adoption: Adoption, stored: RunRecord | None) -> RunRecord:
        """Return the archive's run as one of this machine, which may have begun to deliver it."""
        return replace(
            self.manifest.run,
            spool=str(adoption.spool),
            tracking_uri=adoption.tracking_uri if stored is None else stored.tracking_uri,
            mlflow_run_id=None if stored is None else stored.mlflow_run_id,
        )

    def _put_workload(self, archived: WorkloadRecord) -> None:
        same = (workload for workload in self.reader.workloads(archived.experiment))
        stored = next(
            (workload for workload in same if workload.workload_id == archived.workload_id), None
        )
        if stored is None and self.adoption is not None:
            uri = self.adoption.tracking_uri
            self.writer.put_workload(
                replace(archived, tracking_uri=uri, mlflow_experiment_id=None, mlflow_run_id=None)
            )
        elif stored is None:
            self.writer.put_workload(archived)
            self.writer.mark_workload_delivered(archived.workload_id)
        elif archived.ended_ns is not None and self.adoption is not None:
            self.writer.put_workload(
                replace(
                    archived,
                    tracking_uri=stored.tracking_uri,
                    mlflow_experiment_id=stored.mlflow_experiment_id,
                    mlflow_run_id=stored.mlflow_run_id,
                )
            )
        elif archived.ended_ns is not None:
            self.writer.put_workload(replace(archived, tracking_uri=stored.tracking_uri))

    def _end_workload(self) -> None:
        """End a workload with its last run, of which the run's archive may know nothing yet."""
        runs = self.reader.runs(workload_id=self.manifest.run.workload_id)
        if self.manifest.workload is None or any(run.ended_ns is None for run in runs):
            return
        workload = self.reader.workload(self.manifest.run.workload_id)
        ended_ns = max(run.ended_ns or 0 for run in runs)
        if workload.ended_ns is None or workload.ended_ns < ended_ns:
            self.writer.update_workload(
                workload.workload_id,
                ended_ns=ended_ns,
                status=RunStatus.worst(
                    run.status for run in runs if PARENT not in self.reader.tags(run.run_id)
                ),
            )


def _lacks(counts: dict[int, int], part: Part) -> bool:
    """Return whether a part has points that the store lacks."""
    return any(stretch.stop > counts.get(stretch.series_no, 0) for stretch in part.stretches)
