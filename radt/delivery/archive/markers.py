"""Markers in the parts of an archive: find new markers and those that have changed.

Open epochs change when they end. To find changes among a million markers in little memory, eight
bytes of the hash of each written marker are kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from radt.model import MarkerKind
from radt.store.reader import StoreReader
from radt.store.records import Int64Array, MarkerRecord

#: Maximum number of markers in memory at a time.
_BLOCK = 20_000
#: Maximum size of their texts in memory at a time; radt itself writes a hundredth of that.
_TEXT_BYTES = 256 << 20
_TOO_LONG = "its texts are longer than any that radt writes"
_TIME = pa.timestamp("ns", tz="UTC")

MARKER_SCHEMA = pa.schema(
    [
        pa.field("marker_no", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("start", _TIME, nullable=False),
        pa.field("end", _TIME),
        pa.field("step", pa.int64()),
        pa.field("process", pa.string(), nullable=False),
        pa.field("detail", pa.string(), nullable=False),
    ]
)


@dataclass(slots=True)
class Fingerprints:
    """Numbers and hashes of the written markers."""

    numbers: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    hashes: npt.NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))

    @classmethod
    def load(cls, path: Path) -> Fingerprints:
        """Read a file; raise OSError or ValueError if it is missing or damaged."""
        with np.load(path, allow_pickle=False) as arrays:
            return cls(arrays["numbers"], arrays["hashes"])

    def save(self, path: Path) -> None:
        with path.open("wb") as file:
            np.savez(file, numbers=self.numbers, hashes=self.hashes)

    def changed(self, numbers: Int64Array, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Return which markers are new or have changed (N,)."""
        if not len(self.numbers):
            return np.ones(len(numbers), np.bool_)
        places = np.minimum(np.searchsorted(self.numbers, numbers), len(self.numbers) - 1)
        changed: npt.NDArray[np.bool_] = (self.numbers[places] != numbers) | (
            self.hashes[places] != hashes
        )
        return changed


def new_markers(
    reader: StoreReader, run_id: str, known: Fingerprints
) -> Iterator[tuple[Fingerprints, Sequence[MarkerRecord]]]:
    """Yield blocks of a run's markers: their fingerprints, and those that are not ``known``."""
    after = -1
    while block := reader.markers_after(run_id, after, _BLOCK):
        numbers = np.array([marker.marker_no for marker in block], dtype=np.int64)
        hashes = np.array([_hash(marker) for marker in block], dtype=np.uint64)
        changed = known.changed(numbers, hashes)
        yield Fingerprints(numbers, hashes), [block[i] for i in np.flatnonzero(changed)]
        after = block[-1].marker_no


def joined(prints: Sequence[Fingerprints]) -> Fingerprints:
    """Return the fingerprints of blocks in order."""
    if not prints:
        return Fingerprints()
    return Fingerprints(
        np.concatenate([fingerprints.numbers for fingerprints in prints]),
        np.concatenate([fingerprints.hashes for fingerprints in prints]),
    )


def _hash(marker: MarkerRecord) -> int:
    row = (
        f"{marker.kind.value}\0{marker.name}\0{marker.start_ns}\0{marker.end_ns}\0{marker.step}\0"
        f"{marker.process}\0{marker.detail}"
    )
    digest = hashlib.blake2b(row.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def marker_table(markers: Sequence[MarkerRecord]) -> pa.Table:
    """Return the rows of `MARKER_SCHEMA`."""
    columns = {
        "marker_no": [marker.marker_no for marker in markers],
        "kind": [marker.kind.value for marker in markers],
        "name": [marker.name for marker in markers],
        "start": [marker.start_ns for marker in markers],
        "end": [marker.end_ns for marker in markers],
        "step": [marker.step for marker in markers],
        "process": [marker.process for marker in markers],
        "detail": [marker.detail for marker in markers],
    }
    arrays = []
    for column_field in MARKER_SCHEMA:
        if column_field.type == _TIME:
            arrays.append(pa.array(columns[column_field.name], pa.int64()).cast(_TIME))
        else:
            arrays.append(pa.array(columns[column_field.name], column_field.type))
    return pa.table(arrays, schema=MARKER_SCHEMA)


def read_markers(path: Path, run_id: str) -> Iterator[Sequence[MarkerRecord]]:
    """Yield a part's markers in blocks; raise OSError, ValueError or KeyError if it is damaged.

    The size of texts is computed before decoding: a 1 MB name in 20,000 rows compresses to a few
    kilobytes.
    """
    check_columns(pq.read_schema(path), MARKER_SCHEMA)
    texts = [column.name for column in MARKER_SCHEMA if column.type == pa.string()]
    with pq.ParquetFile(path, read_dictionary=texts) as file:
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            columns = [group.column(place) for place in range(group.num_columns)]
            if any(column.total_uncompressed_size > _TEXT_BYTES for column in columns):
                raise ValueError(_TOO_LONG)
        for batch in file.iter_batches(_BLOCK):
            if sum(_bytes_of(batch.column(name)) for name in texts) > _TEXT_BYTES:
                raise ValueError(_TOO_LONG)
            yield list(_records(batch, run_id))


def check_columns(columns: pa.Schema, wanted: pa.Schema) -> None:
    """Raise ValueError or KeyError unless the columns have their types, and thus their sizes."""
    for column in wanted:
        if columns.field(column.name).type != column.type:
            raise ValueError(f"its column {column.name} is not {column.type}")


def _bytes_of(texts: pa.DictionaryArray) -> int:
    """Return the total size of the texts in bytes, counting each row."""
    lengths = pc.binary_length(texts.dictionary).fill_null(0).to_numpy(zero_copy_only=False)
    rows = texts.indices.drop_null().to_numpy()
    return int(lengths[rows].sum(dtype=np.int64)) if len(rows) else 0


def _records(batch: pa.RecordBatch, run_id: str) -> Iterable[MarkerRecord]:
    columns = []
    for column_field in MARKER_SCHEMA:
        column = batch.column(column_field.name)
        columns.append(column.cast(pa.int64()) if column_field.type == _TIME else column)
    for number, kind, name, start, end, step, process, detail in zip(
        *(column.to_pylist() for column in columns), strict=True
    ):
        yield MarkerRecord(
            run_id, number, MarkerKind(kind), name, start, end, step, process, detail
        )
