"""Arrow tables as files, part by part: what was sent needs no memory.

Numbers are exact in both formats: CSV has the shortest digits that read back as the same number.
NaN is a value (a loss that diverged, a gap of a chart) and reads ``nan``; nothing is a missing one.
Texts come from anywhere, and spreadsheets run what looks like a formula, so in CSV those get an
apostrophe in front (https://owasp.org/www-community/attacks/CSV_Injection).
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from radt.frontend.export.asked import FileFormat

# Arrow takes half a second to load, and most who open a dashboard never export.
if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

#: Rows of a Parquet row group at least, but for the last: tables are gathered.
GROUP_ROWS = 128 * 1024
_FORMULA = r"^[=+\-@\t\r\n]"
#: Of the numbers that never repeat: their bytes sorted compress to half.
_SORTED_BYTES = ("x", "elapsed_s")
_DELTAS = ("time", "step")


def written(
    tables: Iterable[pa.Table], schema: pa.Schema, file_format: FileFormat
) -> Iterator[bytes]:
    """The parts of a file with these tables below each other."""
    if file_format is FileFormat.PARQUET:
        return _parquet(tables, schema)
    return _csv(tables, schema)


def label(text: str, count: int) -> pa.DictionaryArray:
    """A column that says the same in all rows."""
    import pyarrow as pa

    zeros = pa.repeat(pa.scalar(0, pa.int32()), count)
    return pa.DictionaryArray.from_arrays(zeros, pa.array([text], pa.string()))


def _csv(tables: Iterable[pa.Table], schema: pa.Schema) -> Iterator[bytes]:
    import pyarrow.csv

    yield (",".join(schema.names) + "\n").encode()
    options = pyarrow.csv.WriteOptions(include_header=False)
    for table in tables:
        buffer = io.BytesIO()
        pyarrow.csv.write_csv(_inert(table), buffer, options)
        yield buffer.getvalue()


def _inert(table: pa.Table) -> pa.Table:
    """With texts that no spreadsheet runs."""
    import pyarrow as pa

    columns = []
    for column in table.columns:
        if pa.types.is_dictionary(column.type):
            chunks = [
                pa.DictionaryArray.from_arrays(one.indices, _quoted(one.dictionary))
                for one in column.chunks
            ]
            columns.append(pa.chunked_array(chunks, column.type))
        elif pa.types.is_string(column.type):
            columns.append(_quoted(column))
        else:
            columns.append(column)
    return pa.table(columns, names=table.column_names)


def _quoted(texts: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    looks_so = pc.match_substring_regex(texts, _FORMULA)
    return pc.if_else(looks_so, pc.binary_join_element_wise("'", texts, ""), texts)


def _parquet(tables: Iterable[pa.Table], schema: pa.Schema) -> Iterator[bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = _Sink()
    labels = [field.name for field in schema if pa.types.is_dictionary(field.type)]
    encodings = dict.fromkeys(_SORTED_BYTES, "BYTE_STREAM_SPLIT")
    encodings |= dict.fromkeys(_DELTAS, "DELTA_BINARY_PACKED")
    writer = pq.ParquetWriter(
        pa.PythonFile(sink, mode="w"),
        schema,
        compression="zstd",
        # Numbers never: a dictionary holds one NaN for all of them.
        use_dictionary=labels,
        column_encoding={name: how for name, how in encodings.items() if name in schema.names},
        write_page_checksum=True,
    )
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(len(one) for one in waiting) >= GROUP_ROWS:
            _write_group(writer, waiting)
            waiting = []
            yield sink.taken()
    if waiting:
        _write_group(writer, waiting)
    writer.close()
    yield sink.taken()


def _write_group(writer: pq.ParquetWriter, tables: list[pa.Table]) -> None:
    import pyarrow as pa

    together = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
    writer.write_table(together, row_group_size=max(1, len(together)))


class _Sink(io.RawIOBase):
    """Takes what is written until it is fetched. Nothing can be written twice: a download."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []
        self._length = 0

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        part = bytes(memoryview(data))  # type: ignore[arg-type]
        self._parts.append(part)
        self._length += len(part)
        return len(part)

    def tell(self) -> int:
        return self._length

    def taken(self) -> bytes:
        """What was written since the last time."""
        parts, self._parts = self._parts, []
        return b"".join(parts)
