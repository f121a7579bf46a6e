"""Write the data of a run that its archive lacks as new parts of the archive.

Points are added in the order of writing, a block of all series of a listener at a time, so that a
run of any length only needs the memory of a block, and written parts never change.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

from radt.delivery.archive.manifest import Manifest, Part, PartKind, Stretch, sha256_of
from radt.delivery.archive.markers import (
    MARKER_SCHEMA,
    Fingerprints,
    joined,
    marker_table,
    new_markers,
)
from radt.delivery.archive.spool import ArchiveSpool, progress_of, settle
from radt.errors import ArchiveError, RunNotFoundError
from radt.store.chunks import POINTS_PER_CHUNK
from radt.store.pruning import pruned_run
from radt.store.reader import StoreReader
from radt.store.records import JournalCursor, RunRecord, Samples, SeriesRecord, WorkloadRecord
from radt.store.tidy import NUMBERED_SCHEMA, parquet_writer, tidy_table
from radt.store.whole_file import whole_file

#: Points in memory at a time, and per row group: some 40 MB as columns.
BLOCK_POINTS = 400_000
#: Maximum number of points in a file: some 200 MB.
PART_POINTS = 50_000_000


class PrunedError(ArchiveError):
    """The store no longer has all of the run, so an archive must not be overwritten from it."""


def write_archive(reader: StoreReader, run_id: str, spool: ArchiveSpool) -> Manifest:
    """Update the archive of a run; call it within ``spool.locked()``.

    Raises:
        StoreError: The store cannot be read.
        CodecError: A chunk of it is damaged.
        PrunedError: The run was pruned.
        UsageError: The spool cannot be written.
        OSError: The spool cannot be written.
    """
    _check_whole(reader, run_id)
    revision = progress_of(reader, run_id).revision  # later data is left for the next time
    run = reader.run(run_id)  # read first: once the run has ended, the store has all of it
    counts, journals = _counts(reader, run_id)
    spool.discard_unfinished()
    before = _continued(spool.manifest(), run_id, counts)
    parts = list(before.parts) if before is not None else []
    series = reader.series([run_id])
    parts += _sample_parts(reader, run, series, counts, parts, spool.path)
    marker_parts, prints = _marker_parts(reader, run_id, parts, spool)
    parts += marker_parts
    manifest = Manifest(
        run=run,
        workload=_workload(reader, run.workload_id),
        params=reader.params(run_id),
        tags=reader.tags(run_id),
        series=series,
        ledger=reader.ledger([run_id]),
        gaps=reader.gaps([run_id]),
        journals=journals,
        parts=parts,
        complete=run.status.ended,
        revision=revision,
        written_ns=time.time_ns(),
    )
    _check_whole(reader, run_id)  # nor meanwhile
    with _settled(spool.manifest_file) as temporary:
        temporary.write_text(manifest.to_json(), encoding="utf-8")
    if prints is not None:
        # After the manifest: if this is lost, markers are written twice rather than never.
        with whole_file(spool.prints_file) as temporary:
            prints.save(temporary)
    return manifest


def _counts(reader: StoreReader, run_id: str) -> tuple[dict[int, int], Sequence[JournalCursor]]:
    """Return the numbers of points, and the positions of the journals at the same moment.

    An import continues from these positions if the journals still exist.
    """
    journals = reader.cursors(run_id)
    while True:
        counts = reader.point_counts(run_id)
        # Points and cursor of a journal are written in one transaction.
        before, journals = journals, reader.cursors(run_id)
        if before == journals:
            return counts, tuple(journals.values())


def _check_whole(reader: StoreReader, run_id: str) -> None:
    if pruned_run(reader, run_id) is not None:
        raise PrunedError(
            f"run {run_id} was pruned; the store no longer has all of it",
            "Keep its existing archive",
        )


def _continued(
    manifest: Manifest | None, run_id: str, counts: Mapping[int, int]
) -> Manifest | None:
    """Return the earlier manifest, unless it belongs to another run or the store was replaced."""
    if manifest is None or manifest.run.run_id != run_id:
        return None
    if any(count > counts.get(number, 0) for number, count in manifest.point_counts().items()):
        return None
    return manifest


def _workload(reader: StoreReader, workload_id: str) -> WorkloadRecord | None:
    try:
        return reader.workload(workload_id)
    except RunNotFoundError:
        return None  # not replicated to this store yet


@contextmanager
def _settled(path: Path) -> Iterator[Path]:
    """Write a `whole_file` that is flushed to disk before it takes its place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as temporary:
        yield temporary
        settle(temporary)
    settle(path.parent)


# -- samples --------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Progress:
    """Points of one series: ``done`` are written, out of ``total`` to write."""

    series: SeriesRecord
    done: int
    total: int

    def take(self, reader: StoreReader, run_id: str, limit: int) -> Samples:
        samples = reader.points_after(
            run_id, self.series.series_no, self.done, min(limit, self.total - self.done)
        )
        self.done += len(samples)
        return samples


@dataclass(slots=True)
class _Stretches:
    """Content of the part that is being written."""

    rows: int = 0
    by_no: dict[int, Stretch] = field(default_factory=dict)

    def add(self, series_no: int, first: int, samples: Samples) -> None:
        self.rows += len(samples)
        known = self.by_no.get(series_no, Stretch(series_no, first, 0, steps=False))
        self.by_no[series_no] = Stretch(
            series_no,
            known.first,
            known.count + len(samples),
            known.steps or samples.steps is not None,
        )


def _sample_parts(
    reader: StoreReader,
    run: RunRecord,
    series: Sequence[SeriesRecord],
    counts: Mapping[int, int],
    parts: Sequence[Part],
    folder: Path,
) -> Iterator[Part]:
    """Write the points that are in no part yet."""
    done: dict[int, int] = {}
    for stretch in (stretch for part in parts for stretch in part.stretches):
        done[stretch.series_no] = stretch.stop
    taken = [part.path for part in parts]
    for listener in dict.fromkeys(record.listener for record in series):
        new = [
            _Progress(record, done.get(record.series_no, 0), counts[record.series_no])
            for record in series
            if record.listener == listener
            and done.get(record.series_no, 0) < counts.get(record.series_no, 0)
        ]
        blocks = _blocks(reader, run.run_id, new)
        block = next(blocks, None)
        while block is not None:
            path = _free_path(f"{PartKind.SAMPLES.value}/{_plain(listener)}", taken)
            taken.append(path)
            stretches = _Stretches()
            with (
                _settled(folder / path) as temporary,
                parquet_writer(temporary, NUMBERED_SCHEMA) as writer,
            ):
                while block is not None and stretches.rows < PART_POINTS:
                    _write_block(writer, run, block, stretches)
                    block = next(blocks, None)
            yield _part(folder, path, PartKind.SAMPLES, stretches.rows, listener, stretches.by_no)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Points of one series in a block."""

    series: SeriesRecord
    first: int
    samples: Samples


def _blocks(
    reader: StoreReader, run_id: str, series: Sequence[_Progress]
) -> Iterator[Sequence[_Piece]]:
    """Yield the points to write, as many series and points at a time as fit the memory limit.

    Points of the same time stay together as far as possible, so that the store can share the times
    of a listener's series.
    """
    together = max(1, BLOCK_POINTS // POINTS_PER_CHUNK)
    for start in range(0, len(series), together):
        group = series[start : start + together]
        each = BLOCK_POINTS // len(group)
        limit = each // POINTS_PER_CHUNK * POINTS_PER_CHUNK or each
        while left := [progress for progress in group if progress.done < progress.total]:
            pieces = []
            for progress in left:
                first = progress.done
                samples = progress.take(reader, run_id, limit)
                if not len(samples):
                    progress.total = progress.done  # pruned meanwhile
                    continue
                pieces.append(_Piece(progress.series, first, samples))
            if pieces:
                yield pieces


def _write_block(
    writer: pq.ParquetWriter, run: RunRecord, block: Sequence[_Piece], stretches: _Stretches
) -> None:
    table = tidy_table(
        run, [piece.series for piece in block], [piece.samples for piece in block], NUMBERED_SCHEMA
    )
    writer.write_table(table, row_group_size=max(1, len(table)))
    for piece in block:
        stretches.add(piece.series.series_no, piece.first, piece.samples)


# -- markers --------------------------------------------------------------------------------------


def _marker_parts(
    reader: StoreReader, run_id: str, parts: Sequence[Part], spool: ArchiveSpool
) -> tuple[list[Part], Fingerprints | None]:
    """Write the markers that are new or changed, then the fingerprints of all."""
    known = Fingerprints()
    if any(part.kind is PartKind.MARKERS for part in parts):
        try:
            known = Fingerprints.load(spool.prints_file)
        except (OSError, ValueError, KeyError):
            pass  # lost: all markers are written again, and the last ones count
    prints: list[Fingerprints] = []
    path = _free_path(PartKind.MARKERS.value, [part.path for part in parts])
    blocks = new_markers(reader, run_id, known)
    for block_prints, markers in blocks:
        prints.append(block_prints)
        if markers:
            break
    else:
        return [], None
    rows = 0
    with (
        _settled(spool.path / path) as temporary,
        pq.ParquetWriter(temporary, MARKER_SCHEMA, compression="zstd") as writer,
    ):
        while True:
            if markers:
                writer.write_table(marker_table(markers))
                rows += len(markers)
            following = next(blocks, None)
            if following is None:
                break
            prints.append(following[0])
            markers = following[1]
    return [_part(spool.path, path, PartKind.MARKERS, rows)], joined(prints)


# -- files ----------------------------------------------------------------------------------------


def _part(
    folder: Path,
    path: str,
    kind: PartKind,
    rows: int,
    listener: str = "",
    stretches: Mapping[int, Stretch] | None = None,
) -> Part:
    file = folder / path
    return Part(
        path,
        kind,
        rows,
        file.stat().st_size,
        sha256_of(file),
        listener,
        tuple((stretches or {}).values()),
    )


def _free_path(stem: str, taken: Sequence[str]) -> str:
    number = 1 + sum(
        re.fullmatch(rf"{re.escape(stem)}-\d+\.parquet", path) is not None for path in taken
    )
    return f"{stem}-{number:05}.parquet"


def _plain(listener: str) -> str:
    """Return a name that is valid in every file system and artifact store."""
    return re.sub(r"[^A-Za-z0-9_]", "_", listener) or "_"
