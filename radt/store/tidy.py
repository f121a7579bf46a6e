"""Samples as Arrow tables with the columns of `radt.load`, written to Parquet.

Avoids pandas, which the process that archives runs does without: it costs 48 MB and 0.4 s. The
tables carry their pandas dtypes, so that ``pandas.read_parquet`` returns those of `radt.load`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from radt.model import NO_STEP
from radt.store.chunks import joined
from radt.store.records import RunRecord, Samples, SeriesRecord

#: Columns that are constant within a series; stored as categories, a byte or two per row.
LABELS = ("metric", "unit", "scope", "entity", "listener", "kind", "method")

_LABEL = pa.dictionary(pa.int32(), pa.string())
_TIME = pa.timestamp("ns", tz="UTC")
_FIELDS = (
    pa.field("time", _TIME),
    pa.field("elapsed_s", pa.float64()),
    pa.field("metric", _LABEL),
    pa.field("value", pa.float64()),
    pa.field("unit", _LABEL),
    pa.field("scope", _LABEL),
    pa.field("entity", _LABEL),
    pa.field("listener", _LABEL),
    pa.field("step", pa.int64()),
    pa.field("kind", _LABEL),
    pa.field("estimated", pa.bool_()),
    pa.field("method", _LABEL),
    pa.field("wraps_at", pa.float64()),
)
#: Names of the columns, in order.
COLUMNS = tuple(field.name for field in _FIELDS)

#: Nullable dtypes for pandas to use for columns with missing values, so that steps stay integers.
#: (Format: https://pandas.pydata.org/docs/development/developer.html)
_PANDAS_TYPES = {
    "time": ("datetimetz", "datetime64[ns, UTC]", {"timezone": "UTC"}),
    "elapsed_s": ("float64", "float64", None),
    "value": ("float64", "float64", None),
    "step": ("int64", "Int64", None),
    "estimated": ("bool", "bool", None),
    "wraps_at": ("float64", "Float64", None),
}


def _pandas_notes(fields: Sequence[pa.Field]) -> dict[bytes, bytes]:
    """Return the schema metadata that `pandas.read_parquet` uses."""
    columns = []
    for field in fields:
        label = ("categorical", "int32", {"ordered": False})
        kind, numpy_type, more = _PANDAS_TYPES.get(field.name, label)
        columns.append(
            {
                "name": field.name,
                "field_name": field.name,
                "pandas_type": kind,
                "numpy_type": numpy_type,
                "metadata": more,
            }
        )
    notes = {
        "index_columns": [],
        "column_indexes": [],
        "columns": columns,
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "3.0.0",
    }
    return {b"pandas": json.dumps(notes).encode()}


def tidy_schema(more: Sequence[str] = ()) -> pa.Schema:
    """Return the columns of `radt.load`, preceded by additional labels of runs."""
    fields = (*(pa.field(name, _LABEL) for name in more), *_FIELDS)
    return pa.schema(fields, metadata=_pandas_notes(fields))


SCHEMA = tidy_schema()
_SCHEMA_OF_RUNS = tidy_schema(("run_id",))


def tidy_table(
    runs: Sequence[RunRecord],
    series: Sequence[SeriesRecord],
    samples: Sequence[Samples],
    *,
    with_run_id: bool = False,
) -> pa.Table:
    """Return the points of series of some runs as one long table, in the given order.

    ``with_run_id`` adds the run's id as the first column. Calling ``to_pandas`` on the table gives
    `radt.load`.
    """
    together = joined(samples)
    counts = np.array([len(points) for points in samples], dtype=np.int64)
    # Index of each row's series.
    codes = np.repeat(np.arange(len(series), dtype=np.int32), counts)
    index = _array(codes, pa.int32())
    origins = {run.run_id: run.origin_ns for run in runs}
    starts_ns = np.array([origins[record.run_id] for record in series], dtype=np.int64)

    def each(values: Sequence[object], kind: pa.DataType) -> pa.Array:
        return pa.array(values, kind).take(index)

    columns: dict[str, pa.Array] = {
        "time": _array(together.times_ns, _TIME),
        # Integers are subtracted first: a float holds nanoseconds since 1970 only to 256 ns.
        "elapsed_s": _array((together.times_ns - starts_ns[codes]) / 1e9, pa.float64()),
        # NaN is a valid value here (a diverged loss), not a missing one.
        "value": _array(together.values, pa.float64()),
        "step": _steps(together),
        "estimated": each([record.estimated for record in series], pa.bool_()),
        "wraps_at": each([record.wraps_at for record in series], pa.float64()),
    }
    for label in ("run_id", *LABELS):
        columns[label] = each([str(getattr(record, label)) for record in series], _LABEL)
    schema = _SCHEMA_OF_RUNS if with_run_id else SCHEMA
    return pa.table([columns[name] for name in schema.names], schema=schema)


def parquet_writer(file: Path | pa.NativeFile, schema: pa.Schema) -> pq.ParquetWriter:
    """Return a writer of a Parquet file with the columns of these tables.

    Numbers are never dictionary-encoded: Parquet's dictionaries collapse all NaNs into one.
    """
    labels = [field.name for field in schema if pa.types.is_dictionary(field.type)]
    # Measured on loads, watts and bytes: values compress best with plain zstd (1 to 3 bytes),
    # seconds, which never repeat, with byte stream split (4 instead of 7).
    encodings = {
        "time": "DELTA_BINARY_PACKED",
        "step": "DELTA_BINARY_PACKED",
        "elapsed_s": "BYTE_STREAM_SPLIT",
        "x": "BYTE_STREAM_SPLIT",
        "wraps_at": "BYTE_STREAM_SPLIT",
    }
    return pq.ParquetWriter(
        file,
        schema,
        compression="zstd",
        use_dictionary=labels,
        column_encoding={name: how for name, how in encodings.items() if name in schema.names},
        write_page_checksum=True,
    )


def _array(
    column: npt.NDArray[Any], kind: pa.DataType, missing: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """Return a column of numbers without copying it."""
    valid = None
    if missing is not None:
        valid = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    data = pa.py_buffer(np.ascontiguousarray(column))
    return pa.Array.from_buffers(kind, len(column), [valid, data])


def _steps(samples: Samples) -> pa.Array:
    if samples.steps is None:
        return pa.nulls(len(samples), pa.int64())
    return _array(samples.steps, pa.int64(), samples.steps == NO_STEP)
