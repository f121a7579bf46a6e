"""Read archives from before bundles: Parquet files, and a manifest that lists them.

radt 2.0 does not have to read them any more and can drop this module.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from radt.errors import ArchiveError
from radt.model import NO_STEP, MarkerKind
from radt.store.copy import Batch, Piece, Position, RunRows
from radt.store.records import GapRecord, MarkerRecord, Samples
from radt.store.tables import (
    CURSORS,
    GAPS,
    LEDGERS,
    RUNS,
    SERIES,
    WORKLOADS,
    WRONG,
    record_of,
    texts_of,
)

_FORMAT = 1
#: Maximum number of rows in memory at a time.
_ROWS = 400_000
_MARKERS = 20_000
#: Maximum size of their texts in memory at a time; radt itself wrote a hundredth of that.
_TEXT_BYTES = 256 << 20
_SAFE_PATH = re.compile(r"(?!.*\.\.)[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)?")
_TIME = pa.timestamp("ns", tz="UTC")
_SAMPLE_COLUMNS = {
    "series_no": pa.int32(),
    "time": _TIME,
    "value": pa.float64(),
    "step": pa.int64(),
}
_MARKER_COLUMNS = {
    "marker_no": pa.int64(),
    "kind": pa.string(),
    "name": pa.string(),
    "start": _TIME,
    "end": _TIME,
    "step": pa.int64(),
    "process": pa.string(),
    "detail": pa.string(),
}
_TEXTS = [name for name, kind in _MARKER_COLUMNS.items() if kind == pa.string()]

#: Returns a local copy of a file of the archive.
Fetch = Callable[[str], Path]
_Content = tuple[Sequence[Piece], Sequence[MarkerRecord]]


@dataclass(frozen=True, slots=True)
class _Part:
    """A Parquet file with markers, or with points from ``firsts`` to ``stops`` by series number.

    ``stepped`` are the series that were written with a column of steps.
    """

    path: str
    rows: int
    size_bytes: int
    sha256: str
    firsts: Mapping[int, int]
    stops: Mapping[int, int]
    stepped: frozenset[int]

    @classmethod
    def of(cls, data: Mapping[str, Any], counts: dict[int, int]) -> Self:
        """Read a part that follows ``counts`` points of each series, and increase these counts."""
        path = str(data["path"])
        if not _SAFE_PATH.fullmatch(path):
            raise ValueError(f"{path!r} is not a valid file name in an archive")
        firsts, stops = {}, {}
        for number, first, count, _ in data["stretches"]:
            if first != counts[int(number)] or count < 1:
                raise ValueError(f"{path} does not follow the file before it")
            firsts[int(number)], stops[int(number)] = int(first), int(first + count)
        counts |= stops
        stepped = frozenset(int(number) for number, _, _, steps in data["stretches"] if steps)
        size_bytes, sha256 = int(data["size_bytes"]), str(data["sha256"])
        return cls(path, int(data["rows"]), size_bytes, sha256, firsts, stops, stepped)


@dataclass(frozen=True, slots=True)
class ArchiveManifest:
    """The file ``run.json``: a run except its samples and markers, and the files with those."""

    rows: RunRows
    gaps: Sequence[GapRecord]
    written_ns: int
    parts: Sequence[_Part]

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)

    @classmethod
    def of(cls, text: bytes, where: str) -> Self | None:
        """Parse ``run.json``; return None for a newer one, which only describes a run for people.

        Raises:
            ArchiveError: It is damaged.
        """
        try:
            data = json.loads(text)
            return None if int(data["format"]) > _FORMAT else cls._read(data)
        except WRONG as error:
            raise _damaged(where, f"{type(error).__name__}: {error}") from error

    @classmethod
    def _read(cls, data: Mapping[str, Any]) -> Self:
        run = record_of(RUNS, data["run"])
        key = {"run_id": run.run_id}
        counts = {int(record["series_no"]): 0 for record in data["series"]}
        parts = [_Part.of(part, counts) for part in data["parts"]]
        rows = RunRows(
            run=run,
            workload=None if data["workload"] is None else record_of(WORKLOADS, data["workload"]),
            params=texts_of(data["params"]),
            tags=texts_of(data["tags"]),
            series=tuple(record_of(SERIES, record | key) for record in data["series"]),
            ledgers=tuple(record_of(LEDGERS, entry | key) for entry in data["ledger"]),
            journals=tuple(record_of(CURSORS, cursor) for cursor in data.get("journals", ())),
            points={number: count for number, count in counts.items() if count},
            revision=int(data.get("revision", -1)),
        )
        if rows.workload is not None and rows.workload.workload_id != run.workload_id:
            raise ValueError(f"the run is of another workload than {rows.workload.workload_id}")
        gaps = tuple(record_of(GAPS, gap | key) for gap in data["gaps"])
        return cls(rows, gaps, int(data["written_ns"]), parts)


def batches(
    manifest: ArchiveManifest, points: Mapping[int, int], fetch: Fetch, where: str
) -> Iterator[Batch]:
    """Check all files that a target lacks, then yield their content.

    Args:
        manifest: The archive's manifest.
        points: Number of the target's points by series number.
        fetch: Called with the path of a file.
        where: The archive's folder, for messages.

    Raises:
        ArchiveError: A file is missing or damaged; the message names it.
    """
    rows, is_first = manifest.rows, True
    needed = [
        (part, _checked_file(part, fetch, f"{where}/{part.path}"))
        for part in manifest.parts
        if not part.stops or any(stop > points.get(no, 0) for no, stop in part.stops.items())
    ]
    for part, file in needed:
        content = _pieces(part, file) if part.stops else _markers(part, file, rows.run.run_id)
        for pieces, markers in _guarded(content, f"{where}/{part.path}"):
            yield Batch(rows, Position(), pieces, markers, is_first=is_first, is_last=False)
            is_first = False
    until = Position(rows.points, revision=rows.revision)
    yield Batch(rows, until, gaps=manifest.gaps, is_first=is_first)


def _checked_file(part: _Part, fetch: Fetch, where: str) -> Path:
    file = fetch(part.path)
    with file.open("rb") as content:
        checksum = hashlib.file_digest(content, "sha256").hexdigest()
    if checksum != part.sha256:
        raise _damaged(where, "its SHA-256 sum is not that of the manifest")
    return file


def _pieces(part: _Part, file: Path) -> Iterator[_Content]:
    """Yield the points in a part, a limited number of rows at a time.

    A writer may create row groups of any size: a billion zeros compress to a few kilobytes.
    """
    _check_columns(file, _SAMPLE_COLUMNS)
    reached = dict(part.firsts)
    with pq.ParquetFile(file, page_checksum_verification=True) as parquet:
        for batch in parquet.iter_batches(_ROWS, columns=list(_SAMPLE_COLUMNS)):
            pieces = []
            for number, samples in _by_series(batch):
                if number not in part.stepped:
                    samples = Samples(samples.times_ns, samples.values)
                pieces.append(Piece(number, reached[number], samples))
                reached[number] += len(samples)
            if any(count > part.stops[number] for number, count in reached.items()):
                break
            yield pieces, ()
    if reached != part.stops:
        raise ValueError("it has other points than the manifest says")


def _by_series(batch: pa.RecordBatch) -> Iterator[tuple[int, Samples]]:
    numbers = batch["series_no"].to_numpy()
    times = batch["time"].cast(pa.int64()).to_numpy()
    values = batch["value"].to_numpy()
    steps = batch["step"].fill_null(NO_STEP).to_numpy(zero_copy_only=False)
    starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    for start, stop in pairwise(starts):
        if stop > start:
            some = slice(start, stop)
            yield int(numbers[start]), Samples(times[some], values[some], steps[some])


def _markers(part: _Part, file: Path, run_id: str) -> Iterator[_Content]:
    """Yield a part's markers in blocks.

    The size of texts is computed before decoding: a 1 MB name in 20,000 rows compresses to a few
    kilobytes.
    """
    _check_columns(file, _MARKER_COLUMNS)
    count = 0
    with pq.ParquetFile(file, read_dictionary=_TEXTS) as parquet:
        for number in range(parquet.num_row_groups):
            _check_texts(parquet.metadata.row_group(number).total_byte_size)
        for batch in parquet.iter_batches(_MARKERS):
            _check_texts(sum(_bytes_of(batch[name]) for name in _TEXTS))
            columns = [
                (batch[name].cast(pa.int64()) if kind == _TIME else batch[name]).to_pylist()
                for name, kind in _MARKER_COLUMNS.items()
            ]
            block = [
                MarkerRecord(run_id, no, MarkerKind(kind), *others)
                for no, kind, *others in zip(*columns, strict=True)
            ]
            count += len(block)
            yield (), block
    if count != part.rows:
        raise ValueError(f"it has {count:,} markers instead of {part.rows:,}")


def _check_columns(file: Path, wanted: Mapping[str, pa.DataType]) -> None:
    """Raise ValueError or KeyError unless the columns have their types, and thus their sizes."""
    columns = pq.read_schema(file)
    for name, kind in wanted.items():
        if columns.field(name).type != kind:
            raise ValueError(f"its column {name} is not {kind}")


def _check_texts(size_bytes: int) -> None:
    if size_bytes > _TEXT_BYTES:
        raise ValueError("its texts are longer than any that radt writes")


def _bytes_of(texts: pa.DictionaryArray) -> int:
    """Return the total size of the texts in bytes, counting each row."""
    lengths = pc.binary_length(texts.dictionary).cast(pa.int64())
    return pc.sum(lengths.take(texts.indices)).as_py() or 0


def _guarded(blocks: Iterator[_Content], where: str) -> Iterator[_Content]:
    """Turn exceptions from reading Parquet into `ArchiveError`."""
    try:
        yield from blocks
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise _damaged(where, (str(error) or type(error).__name__).splitlines()[0]) from error


def _damaged(where: str, detail: str) -> ArchiveError:
    return ArchiveError(
        f"{where} is damaged: {detail}", "Download it again from the run's artifacts"
    )
