"""Export a run as files: its samples as Parquet or CSV, everything else in the store as JSON.

Points are processed in blocks, so runs may be of any length. Pandas is imported for CSV only: it
would double the memory and start-up time of the process that archives runs.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from radt import __version__
from radt.errors import RunNotFoundError, UsageError
from radt.files import output_file, whole_file
from radt.model import SeriesKind
from radt.store import bundle, counters
from radt.store.chunks import time_sorted
from radt.store.copy import Position, changes
from radt.store.reader import StoreReader
from radt.store.records import RunRecord, Samples, SeriesRecord
from radt.store.tables import GAPS, LEDGERS, MARKERS, RUNS, SERIES, WORKLOADS, RecordTable, Value
from radt.store.tidy import COLUMNS, SCHEMA, parquet_writer, tidy_table
from radt.units import in_json
from radt.usage import KERNEL

if TYPE_CHECKING:
    import pandas as pd

RecordT = TypeVar("RecordT")

#: Points in memory at a time: some 40 MB as columns. A longer series is read in blocks in the order
#: of writing, and each block is sorted by time.
_BLOCK_POINTS = 400_000


@dataclass(frozen=True, slots=True)
class RunSource:
    """A run and the store to read it from."""

    reader: StoreReader
    run: RunRecord


def load_frame(
    sources: Sequence[RunSource],
    metrics: Sequence[str] | None = None,
    *,
    with_run_id: bool = False,
    rates: bool = False,
) -> pd.DataFrame:
    """Return the samples of runs; see `radt.load` for the columns and for ``rates``.

    Raises:
        UsageError: No run has one of the metrics.
    """
    declared = [(source.reader, source.reader.series([source.run.run_id])) for source in sources]
    _check_metrics([record for _, series in declared for record in series], metrics, len(sources))
    chosen: list[SeriesRecord] = []
    parts: list[Samples] = []
    for reader, series in declared:
        for record in series:
            if record.listener == KERNEL:  # totals, which `radt.totals` returns
                continue
            if metrics is None or record.metric in metrics:
                samples = reader.samples(record.run_id, record.series_no)
                if rates and record.kind is SeriesKind.COUNTER:
                    samples = counters.rates(samples, record)
                    record = counters.rate_series(record)
                if len(samples):
                    chosen.append(record)
                    parts.append(samples)
    runs = [source.run for source in sources]
    frame: pd.DataFrame = tidy_table(runs, chosen, parts, with_run_id=with_run_id).to_pandas()
    return frame


def _check_metrics(
    series: Sequence[SeriesRecord], metrics: Sequence[str] | None, run_count: int
) -> None:
    known = sorted({record.metric for record in series})
    for metric in metrics or ():
        if metric not in known:
            near = difflib.get_close_matches(metric, known, n=1)
            remedy = f"Did you mean '{near[0]}'?" if near else f"Available: {', '.join(known)}"
            noun = "run has" if run_count == 1 else "runs have"
            raise UsageError(f"the {noun} no metric '{metric}'", remedy if known else None)


class ExportFormat(StrEnum):
    """Format of an exported file."""

    PARQUET = "parquet"
    CSV = "csv"
    RADT = "radt"

    @classmethod
    def choose(cls, given: str | None, output: Path | None) -> ExportFormat:
        """Return the given format, else the one of the file's suffix, else Parquet."""
        if given is not None:
            return cls(given)
        suffix = "" if output is None else output.suffix.lower().removeprefix(".")
        return next((choice for choice in cls if choice == suffix), cls.PARQUET)


def export_run(
    reader: StoreReader,
    run: RunRecord,
    path: Path,
    file_format: ExportFormat,
    metrics: Sequence[str] | None = None,
) -> int:
    """Write a run's samples to a file, atomically, and return their number.

    Args:
        reader: The store.
        run: The run.
        path: The file.
        file_format: Parquet and CSV have the columns of `radt.load`; a bundle has all of the run.
        metrics: Write only these; not for a bundle.

    Raises:
        UsageError: The run lacks one of the metrics, or the file cannot be written.
        CodecError: A chunk is damaged.
        PrunedError: The run was pruned, and its bundle would lack points.
    """
    with output_file(path) as temporary:
        if file_format is ExportFormat.RADT:
            until = bundle.write(changes(reader, run.run_id, Position()), temporary, Position())
            assert until is not None
            return sum(until.points.values())
        series = reader.series([run.run_id])
        _check_metrics(series, metrics, 1)
        if metrics is not None:
            series = [record for record in series if record.metric in metrics]
        write = _write_parquet if file_format is ExportFormat.PARQUET else _write_csv
        return write(reader, run, series, temporary)


def _write_parquet(
    reader: StoreReader, run: RunRecord, series: Sequence[SeriesRecord], path: Path
) -> int:
    count = 0
    with parquet_writer(path, SCHEMA) as writer:
        for group, samples in _blocks(reader, series):
            table = tidy_table([run], group, samples)
            # One row group: series with the same times compress better together.
            writer.write_table(table, row_group_size=max(1, len(table)))
            count += len(table)
    return count


def _blocks(
    reader: StoreReader, series: Sequence[SeriesRecord]
) -> Iterator[tuple[list[SeriesRecord], list[Samples]]]:
    """Yield series with their points, a limited number of points at a time."""
    group: list[SeriesRecord] = []
    samples: list[Samples] = []
    for record in series:
        for page in reader.pages(record, _BLOCK_POINTS):
            group.append(record)
            samples.append(time_sorted(page))
            if sum(map(len, samples)) >= _BLOCK_POINTS:
                yield group, samples
                group, samples = [], []
    if group:
        yield group, samples


def _write_csv(
    reader: StoreReader, run: RunRecord, series: Sequence[SeriesRecord], path: Path
) -> int:
    count = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(",".join(COLUMNS) + "\n")
        for group, samples in _blocks(reader, series):
            frame = tidy_table([run], group, samples).to_pandas()
            # NaN is a value; only the step can be missing.
            values = frame["value"].map(repr) if frame["value"].isna().any() else frame["value"]
            frame.assign(value=values).to_csv(file, header=False, index=False)
            count += len(frame)
    return count


#: Format 1 was the manifest of an archive of Parquet files.
_DESCRIPTION_FORMAT = 2
_MARKERS_AT_A_TIME = 20_000


def describe_run(reader: StoreReader, run: RunRecord, path: Path) -> None:
    """Write all that the store has of a run, except its samples, as JSON.

    Each record is on its own line and is written as it is read, so that a run with many markers
    needs little memory.

    Raises:
        OSError: The file cannot be written.
    """
    key = run.run_id
    markers = reader.blocks(MARKERS, key, _MARKERS_AT_A_TIME)
    fields: dict[str, Any] = {
        "format": _DESCRIPTION_FORMAT,
        "written_by": f"radt {__version__}",
        "run": RUNS.row(run),
        "workload": _workload_row(reader, run.workload_id),
        "params": reader.params(key),
        "tags": reader.tags(key),
        "series": _rows(SERIES, reader.series([key])),
        "ledger": _rows(LEDGERS, reader.ledger([key])),
        "gaps": _rows(GAPS, reader.gaps([key])),
        "markers": _rows(MARKERS, chain.from_iterable(markers)),
    }
    with whole_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for number, (name, value) in enumerate(fields.items()):
            file.write(f"{',' if number else '{'}\n {json.dumps(name)}: ")
            if not isinstance(value, Iterator):
                file.write(_json(value))
                continue
            file.write("[")
            for place, row in enumerate(value):
                file.write(f"{',' if place else ''}\n  {_json(row)}")
            file.write("]")
        file.write("\n}\n")


def _rows(table: RecordTable[RecordT], records: Iterable[RecordT]) -> Iterator[dict[str, Value]]:
    """Yield rows without the run's id, which would otherwise be repeated in thousands of lines."""
    for record in records:
        yield {name: value for name, value in table.row(record).items() if name != "run_id"}


def _workload_row(reader: StoreReader, workload_id: str) -> dict[str, Value] | None:
    try:
        return WORKLOADS.row(reader.workload(workload_id))
    except RunNotFoundError:
        return None  # not replicated to this store yet


def _json(value: object) -> str:
    return json.dumps(in_json(value), ensure_ascii=False)
