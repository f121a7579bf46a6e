"""Write the samples of a run to a file, one series after the other.

Only one series is in memory at a time, so the length of a run does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from radt.store.frames import select_series, series_frame
from radt.store.reader import StoreReader
from radt.store.records import RunRecord, SeriesRecord
from radt.store.tidy import COLUMNS, SCHEMA, parquet_writer, tidy_table
from radt.store.whole_file import whole_file


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
    series = select_series(reader, run, metrics)
    write = _write_parquet if file_format is ExportFormat.PARQUET else _write_csv
    with whole_file(path) as temporary:
        return write(reader, run, series, temporary)


def _write_parquet(
    reader: StoreReader, run: RunRecord, series: Sequence[SeriesRecord], path: Path
) -> int:
    count = 0
    with parquet_writer(path, SCHEMA) as writer:
        for one in series:
            samples = reader.samples(run.run_id, one.series_no)
            writer.write_table(tidy_table(run, [one], [samples]))
            count += len(samples)
    return count


def _write_csv(
    reader: StoreReader, run: RunRecord, series: Sequence[SeriesRecord], path: Path
) -> int:
    count = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(",".join(COLUMNS) + "\n")
        for one in series:
            frame = series_frame([run], [one], [reader.samples(run.run_id, one.series_no)])
            # NaN is a value; only the step can be missing.
            values = frame["value"].map(repr) if frame["value"].isna().any() else frame["value"]
            frame.assign(value=values).to_csv(file, header=False, index=False)
            count += len(frame)
    return count
