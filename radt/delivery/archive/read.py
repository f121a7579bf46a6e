"""Read an archive: its manifest, and its parts after checking them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from radt.delivery.archive.locations import HINT, FileMissingError, Location, location_of
from radt.delivery.archive.manifest import (
    ARCHIVE_FOLDER,
    MANIFEST_FILE,
    Manifest,
    Part,
    PartKind,
    Stretch,
    sha256_of,
)
from radt.delivery.archive.markers import check_columns, read_markers
from radt.errors import ArchiveError
from radt.model import NO_STEP
from radt.store.chunks import joined, time_sorted
from radt.store.records import MarkerRecord, Samples, SeriesRecord
from radt.store.tidy import NUMBERED_SCHEMA, SERIES_NO

#: Maximum number of rows in memory at a time.
_ROWS = 400_000
_COLUMNS = [SERIES_NO, "time", "value", "step"]
_SCHEMA = pa.schema([NUMBERED_SCHEMA.field(name) for name in _COLUMNS])
_OTHER_POINTS = "it has other points than the manifest says"
_REMEDY = "Download it again from the run's artifacts"


@dataclass(frozen=True, slots=True)
class Piece:
    """Points of one series from number ``first`` on, in the order of writing."""

    series_no: int
    first: int
    samples: Samples


@dataclass(frozen=True, slots=True)
class Archive:
    """An archive of one run. Create one with `open`."""

    location: Location
    manifest: Manifest

    @classmethod
    def open(cls, where: str | Path | Location, tracking_uri: str = "") -> Archive:
        """Read the manifest of an archive, or of the one in a folder (`location_of`).

        Raises:
            FileMissingError: There is no archive.
            ArchiveError: The archive cannot be read, is damaged, or has a newer format.
        """
        location = location_of(where, tracking_uri) if isinstance(where, str | Path) else where
        with _temporary_folder() as folder:
            try:
                folder_location = location
                file = _fetched(folder_location, MANIFEST_FILE, folder)
            except FileMissingError as error:
                folder_location = location.below(ARCHIVE_FOLDER)
                try:
                    file = _fetched(folder_location, MANIFEST_FILE, folder)
                except FileMissingError:
                    raise FileMissingError(
                        f"{location} does not contain an archive", error.remedy
                    ) from error
            where = f"{folder_location}/{MANIFEST_FILE}"
            try:
                text = file.read_bytes()
            except OSError as error:
                raise ArchiveError(
                    f"{where} cannot be read: {error.strerror or error}", "Check its permissions"
                ) from error
            return cls(folder_location, Manifest.from_json(text, where))

    @contextmanager
    def files(self, parts: Sequence[Part]) -> Iterator[list[Path]]:
        """Yield the checked files of parts; remote files are copied to this machine.

        Raises:
            ArchiveError: A file is missing or damaged; the message names it.
        """
        with _temporary_folder() as folder:
            yield [self._checked(part, folder) for part in parts]

    def _checked(self, part: Part, folder: Path) -> Path:
        where = f"{self.location}/{part.path}"
        try:
            file = _fetched(self.location, part.path, folder)
            size = file.stat().st_size
        except FileNotFoundError as error:
            raise _missing(where) from error
        except FileMissingError as error:
            raise _missing(where) from error
        if size != part.size_bytes:
            raise _damaged(where, f"it has {size:,} bytes instead of {part.size_bytes:,}")
        try:
            checksum = sha256_of(file)
        except OSError as error:
            raise _damaged(where, error.strerror or str(error)) from error
        if checksum != part.sha256:
            raise _damaged(where, "its SHA-256 sum is not that of the manifest")
        return file

    def pieces(self, part: Part, file: Path) -> Iterator[list[Piece]]:
        """Yield the points in a part, a block of some series at a time.

        Raises:
            ArchiveError: The file does not match the manifest.
        """
        where = f"{self.location}/{part.path}"
        next_no = {stretch.series_no: stretch.first for stretch in part.stretches}
        stretches = {stretch.series_no: stretch for stretch in part.stretches}
        for block in _guarded(_blocks(file), where):
            pieces: list[Piece] = []
            for series_no, samples in block:
                if series_no not in stretches:
                    raise _damaged(where, f"it has points of series {series_no}")
                first = next_no[series_no]
                next_no[series_no] += len(samples)
                if next_no[series_no] > stretches[series_no].stop:
                    raise _damaged(where, _OTHER_POINTS)
                pieces.append(Piece(series_no, first, _with_steps(samples, stretches[series_no])))
            yield pieces
        if next_no != {number: stretch.stop for number, stretch in stretches.items()}:
            raise _damaged(where, _OTHER_POINTS)

    def markers(self, part: Part, file: Path) -> Iterator[Sequence[MarkerRecord]]:
        """Yield the markers in a part, in blocks.

        Raises:
            ArchiveError: The file does not match the manifest.
        """
        where = f"{self.location}/{part.path}"
        count = 0
        for block in _guarded(read_markers(file, self.manifest.run.run_id), where):
            count += len(block)
            yield block
        if count != part.rows:
            raise _damaged(where, f"it has {count:,} markers instead of {part.rows:,}")

    def samples_of(self, series: Sequence[SeriesRecord]) -> list[Samples]:
        """Return all points of each of the series, as `StoreReader.samples` does.

        Raises:
            ArchiveError: A part is missing or damaged.
        """
        samples: dict[int, list[Samples]] = {record.series_no: [] for record in series}
        for part in self.manifest.parts:
            if not any(stretch.series_no in samples for stretch in part.stretches):
                continue
            with self.files([part]) as (file,):
                for pieces in self.pieces(part, file):
                    for piece in pieces:
                        if piece.series_no in samples:
                            samples[piece.series_no].append(piece.samples)
        return [time_sorted(joined(samples[record.series_no])) for record in series]

    def parts(self, kind: PartKind) -> list[Part]:
        """Return the parts of a kind, in order."""
        return [part for part in self.manifest.parts if part.kind is kind]


def find_archives(where: str | Path, tracking_uri: str = "") -> list[Archive]:
    """Return the archive at a location, or else all those below it, by their runs' creation times.

    Raises:
        FileMissingError: There is no archive.
        ArchiveError: An archive cannot be read, is damaged, or has a newer format.
    """
    location = location_of(where, tracking_uri)
    try:
        return [Archive.open(location)]
    except FileMissingError:
        archives = [Archive.open(location.below(path)) for path in location.archives()]
        if not archives:
            raise
        return sorted(archives, key=lambda archive: archive.manifest.run.created_ns)


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    try:
        folder = tempfile.TemporaryDirectory(prefix="radt-archive-")
    except OSError as error:
        raise ArchiveError(
            f"cannot create a temporary folder: {error.strerror or error}",
            "Free some disk space, or set TMPDIR to another folder",
        ) from error
    with folder as name:
        yield Path(name)


def _fetched(location: Location, path: str, folder: Path) -> Path:
    """Return a file of a location: itself, or a copy in ``folder``."""
    if (local := location.local(path)) is not None:
        if not local.is_file():
            raise FileMissingError(f"{local} does not exist", HINT)
        return local
    target = folder / path.replace("/", "-")
    location.fetch(path, target)
    return target


BlockT = TypeVar("BlockT")
_Block = list[tuple[int, Samples]]


def _blocks(file: Path) -> Iterator[_Block]:
    """Yield a file of samples by series, with as many rows at a time as fit into memory.

    A writer may make row groups of any size: a billion zeros compress to a few kilobytes.
    """
    check_columns(pq.read_schema(file), _SCHEMA)
    with pq.ParquetFile(file, page_checksum_verification=True) as parquet:
        for batch in parquet.iter_batches(_ROWS, columns=_COLUMNS):
            yield _by_series(batch)


def _by_series(batch: pa.RecordBatch) -> _Block:
    numbers = batch[SERIES_NO].to_numpy()
    times = batch["time"].cast(pa.int64()).to_numpy()
    values = batch["value"].to_numpy()
    steps = batch["step"].fill_null(NO_STEP).to_numpy(zero_copy_only=False)
    if not len(numbers):
        return []
    starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    return [
        (int(numbers[start]), Samples(times[start:stop], values[start:stop], steps[start:stop]))
        for start, stop in pairwise(starts)
    ]


def _with_steps(samples: Samples, stretch: Stretch) -> Samples:
    return samples if stretch.steps else Samples(samples.times_ns, samples.values)


def _guarded(blocks: Iterator[BlockT], where: str) -> Iterator[BlockT]:
    """Turn exceptions from reading Parquet into `ArchiveError`."""
    try:
        yield from blocks
    except ArchiveError:
        raise
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise _damaged(where, (str(error) or type(error).__name__).splitlines()[0]) from error


def _missing(where: str) -> ArchiveError:
    return ArchiveError(f"the archive is incomplete: {where} is missing", _REMEDY)


def _damaged(where: str, detail: str) -> ArchiveError:
    return ArchiveError(f"{where} is damaged: {detail}", _REMEDY)
