"""Write the samples of a run to a file, one series after the other.

Only one series is in memory at a time, so the length of a run does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from radt.store.frames import select_series, series_frame
from radt.store.reader import StoreReader
from radt.store.records import RunRecord
from radt.store.whole_file import whole_file

_LABEL = pa.dictionary(pa.int32(), pa.string())
_SCHEMA = pa.schema(
    [
        pa.field("time", pa.timestamp("ns", tz="UTC")),
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
    ]
)


class ExportFormat(StrEnum):
    """Kinds of files to write."""

    PARQUET = "parquet"
    CSV = "csv"

    @classmethod
    def choose(cls, given: str | None, output: Path | None) -> ExportFormat:
        """What was asked for, else what the file's name ends with, else Parquet."""
        if given is not None:
            return cls(given)
        return cls.CSV if output is not None and output.suffix.lower() == ".csv" else cls.PARQUET


def export_run(
    reader: StoreReader,
    run: RunRecord,
    path: Path,
    file_format: ExportFormat,
    metrics: Sequence[str] | None = None,
) -> int:
    """Write a run's samples; the file appears when it is complete.

    Returns:
        The number of values written.

    Raises:
        UsageError: The run has none of the metrics, or the file cannot be written.
    """
    series = select_series(reader, [run], metrics)
    frames = (
        series_frame([run], [one], [reader.samples(run.run_id, one.series_no)]) for one in series
    )
    write = _write_parquet if file_format is ExportFormat.PARQUET else _write_csv
    with whole_file(path) as temporary:
        return write(frames, temporary)


def _write_parquet(frames: Iterable[pd.DataFrame], path: Path) -> int:
    count = 0
    # With pandas' own notes in the file, `read_parquet` gives integer steps back.
    notes = pa.Schema.from_pandas(series_frame([], [], []), preserve_index=False).metadata
    schema = _SCHEMA.with_metadata(notes)
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for frame in frames:
            table = pa.Table.from_pandas(frame, schema, preserve_index=False)
            # `from_pandas` takes NaN for missing, but it is a value: a loss that diverged.
            values = pa.array(frame["value"].to_numpy())
            writer.write_table(table.set_column(schema.get_field_index("value"), "value", values))
            count += len(frame)
    return count


def _write_csv(frames: Iterable[pd.DataFrame], path: Path) -> int:
    count = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(",".join(_SCHEMA.names) + "\n")
        for frame in frames:
            # NaN is a value; only the step can be missing.
            values = frame["value"].map(repr) if frame["value"].isna().any() else frame["value"]
            frame.assign(value=values).to_csv(file, header=False, index=False)
            count += len(frame)
    return count
