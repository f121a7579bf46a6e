"""Tables as CSV, JSON or Parquet: the visible data of charts, or every sample."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from radt.errors import UsageError
from radt.frontend.data.cached_store import CachedStore
from radt.frontend.data.metrics import series_of
from radt.frontend.export.request import FileFormat
from radt.frontend.selection import SelectedRuns
from radt.store.reader import StoreReader
from radt.store.records import RunRecord, Samples
from radt.store.summaries import SeriesSummary

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


# Arrow takes half a second to load, and most users of a dashboard never export.

#: Minimum number of rows in a Parquet row group, except the last; smaller tables are collected.
GROUP_ROWS = 128 * 1024
_FORMULA = r"^[=+\-@\t\r\n]"


def written(
    tables: Iterable[pa.Table], schema: pa.Schema, file_format: FileFormat
) -> Iterator[bytes]:
    """Yield the parts of a file that concatenates these tables."""
    if file_format is FileFormat.PARQUET:
        return _parquet(tables, schema)
    return _csv(tables, schema)


def label(text: str, count: int) -> pa.DictionaryArray:
    """Return a column with the same text in all rows."""
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
    """Escape texts that a spreadsheet would run as formulas."""
    import pyarrow as pa

    columns = []
    for column in table.columns:
        if pa.types.is_dictionary(column.type):
            chunks = [
                pa.DictionaryArray.from_arrays(chunk.indices, _quoted(chunk.dictionary))
                for chunk in column.chunks
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

    from radt.store.tidy import parquet_writer

    sink = _Sink()
    writer = parquet_writer(pa.PythonFile(sink, mode="w"), schema)
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(len(batch) for batch in waiting) >= GROUP_ROWS:
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
    """Buffers written bytes until they are sent."""

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
        """Return the bytes written since the last call."""
        parts, self._parts = self._parts, []
        return b"".join(parts)


#: Number of points read at once: 1.5 MB of samples, some 14 MB as text.
SLICE_POINTS = 64 * 1024
#: Maximum number of rows. For larger files use `radt export`, where no browser has to wait.
MAX_ROWS = 200_000_000
_GROWTH = 4.0

_WHOSE = ("run_id", "experiment", "workload", "letter", "name")


@cache
def full_schema() -> pa.Schema:
    """Return the columns of `radt.load` for several runs, and the runs' names."""
    # Imported here: pyarrow takes half a second, and most visitors never export.
    from radt.store.tidy import tidy_schema

    return tidy_schema(_WHOSE)


@dataclass(frozen=True, slots=True)
class Full:
    """Size of an export: its ``rows``, and the series that have points."""

    summaries: tuple[SeriesSummary, ...]
    rows: int


def measure(source: CachedStore, selection: SelectedRuns, metrics: Sequence[str]) -> Full:
    """Count the points of the metrics of the runs.

    Raises:
        UsageError: There are no points, or more than `MAX_ROWS`.
        StoreError: The store cannot be read.
    """
    run_ids = tuple(selection.runs)
    known = series_of(source, run_ids)
    wanted = {
        (summary.run_id, summary.series_no)
        for metric in metrics
        for summary in known.get(metric, ())
    }
    summaries = source.remember(("summary", run_ids), lambda reader: reader.summary(run_ids))
    having = [
        summary
        for summary in summaries
        if (summary.series.run_id, summary.series.series_no) in wanted
    ]
    # In the order of `radt.load`: by run as given, then as recorded.
    places = {run_id: place for place, run_id in enumerate(run_ids)}
    having.sort(key=lambda summary: (places[summary.series.run_id], summary.series.series_no))
    rows = sum(summary.count for summary in having)
    if not rows:
        raise UsageError(
            "the selected runs have no samples of this metric",
            "Select other runs, or another chart",
        )
    if rows > MAX_ROWS:
        raise UsageError(
            f"{rows:,} samples are too many for a download",
            "Select fewer runs, or use `radt export` on the machine of the store",
        )
    return Full(tuple(having), rows)


def full_tables(reader: StoreReader, selection: SelectedRuns, full: Full) -> Iterator[pa.Table]:
    """Yield the samples, series by series.

    Raises:
        StoreError: The store can no longer be read.
    """
    import pyarrow as pa

    from radt.store.tidy import tidy_table

    for summary in full.summaries:
        series = summary.series
        run = selection.runs[series.run_id].record

        def read(
            start_ns: int, end_ns: int, number: int = series.series_no, of: RunRecord = run
        ) -> Samples:
            return reader.samples(of.run_id, number, start_ns=start_ns, end_ns=end_ns)

        for samples in slices(read, summary.first_ns, summary.last_ns, summary.count):
            table = tidy_table([run], [series], [samples])
            whose = [label(str(getattr(run, name)), len(table)) for name in _WHOSE]
            yield pa.table([*whose, *table.columns], schema=full_schema())


def slices(
    read: Callable[[int, int], Samples], first_ns: int, last_ns: int, count: int
) -> Iterator[Samples]:
    """Yield points between two times in time order, in slices of about `SLICE_POINTS`.

    ``read`` returns the points from one time to another, both inclusive. The time spans get shorter
    where points are denser than on average, and longer where they are sparser.
    """
    span_ns = last_ns - first_ns + 1
    pieces = max(1, -(-count // SLICE_POINTS))
    length_ns = max(1, -(-span_ns // pieces))
    start_ns = first_ns
    while start_ns <= last_ns:
        end_ns = min(last_ns, start_ns + length_ns - 1)
        samples = read(start_ns, end_ns)
        if len(samples):
            yield samples
        start_ns = end_ns + 1
        growth = min(_GROWTH, SLICE_POINTS / max(1, len(samples)))
        length_ns = max(1, round(length_ns * growth))
