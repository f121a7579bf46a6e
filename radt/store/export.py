"""Export series of the store: tidy pandas DataFrames, Parquet and CSV files.

Only one series is in memory at a time, so runs may be of any length.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
import pandas as pd

from radt.errors import UsageError
from radt.model import NO_STEP, SeriesKind
from radt.store import counters
from radt.store.chunks import joined
from radt.store.reader import StoreReader
from radt.store.records import Int64Array, RunRecord, Samples, SeriesRecord
from radt.store.tidy import (
    COLUMNS,
    LABELS,
    SCHEMA,
    elapsed_s,
    parquet_writer,
    tidy_table,
)
from radt.store.whole_file import whole_file
from radt.usage import KERNEL


@dataclass(frozen=True, slots=True)
class RunSource:
    """A run, its series, and a reader of their points in time order: from a store or an archive."""

    run: RunRecord
    series: Sequence[SeriesRecord]
    read: Callable[[Sequence[SeriesRecord]], list[Samples]]

    @classmethod
    def of_store(cls, reader: StoreReader, run: RunRecord) -> RunSource:
        return cls(
            run,
            reader.series([run.run_id]),
            lambda series: [reader.samples(record.run_id, record.series_no) for record in series],
        )


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
    _check_metrics(
        [record for source in sources for record in source.series], metrics, len(sources)
    )
    chosen: list[SeriesRecord] = []
    samples: list[Samples] = []
    for source in sources:
        mine = [
            record
            for record in source.series
            if (metrics is None or record.metric in metrics)
            and record.listener != KERNEL  # `radt.totals`
        ]
        chosen += mine
        samples += source.read(mine)
    if rates:
        for index, series in enumerate(chosen):
            if series.kind is SeriesKind.COUNTER:
                samples[index] = counters.rates(samples[index], series)
                chosen[index] = counters.rate_series(series)
    runs = [source.run for source in sources]
    return series_frame(runs, chosen, samples, with_run_id=with_run_id)


def select_series(
    reader: StoreReader, run: RunRecord, metrics: Sequence[str] | None
) -> list[SeriesRecord]:
    """Return all series of a run, or those of the given metrics.

    Raises:
        UsageError: The run lacks one of the metrics.
    """
    series = reader.series([run.run_id])
    _check_metrics(series, metrics, 1)
    return [record for record in series if metrics is None or record.metric in metrics]


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


def series_frame(
    runs: Sequence[RunRecord],
    series: Sequence[SeriesRecord],
    samples: Sequence[Samples],
    *,
    with_run_id: bool = False,
) -> pd.DataFrame:
    """Return the points of series as one long frame, optionally with ``run_id`` first."""
    filled = [position for position, points in enumerate(samples) if len(points)]
    series, samples = [series[i] for i in filled], [samples[i] for i in filled]
    counts = [len(points) for points in samples]
    together = joined(samples)
    origins = {run.run_id: run.origin_ns for run in runs}
    starts = np.repeat(
        np.array([origins[record.run_id] for record in series], dtype=np.int64), counts
    )
    columns: dict[str, object] = {
        "time": pd.DatetimeIndex(together.times_ns.view("datetime64[ns]")).tz_localize("UTC"),
        "elapsed_s": elapsed_s(together.times_ns, starts),
        "value": together.values,
        "step": _steps(together.steps, len(together)),
        "estimated": np.repeat(
            np.array([record.estimated for record in series], dtype=np.bool_), counts
        ),
        "wraps_at": _limits([record.wraps_at for record in series], counts),
    }
    for label in LABELS:
        columns[label] = _labels([str(getattr(record, label)) for record in series], counts)
    names = list(COLUMNS)
    if with_run_id:
        columns["run_id"] = _labels([record.run_id for record in series], counts)
        names.insert(0, "run_id")
    return pd.DataFrame({name: columns[name] for name in names})


def _labels(labels: Sequence[str], counts: Sequence[int]) -> pd.Categorical:
    categories = list(dict.fromkeys(labels))
    codes = [categories.index(label) for label in labels]
    return pd.Categorical.from_codes(
        np.repeat(np.array(codes, dtype=np.int32), counts),
        categories=pd.Index(categories, dtype="str"),
    )


def _limits(limits: Sequence[float | None], counts: Sequence[int]) -> pd.arrays.FloatingArray:
    missing = np.array([limit is None for limit in limits], dtype=np.bool_)
    values = np.array([limit or 0.0 for limit in limits], dtype=np.float64)
    return pd.arrays.FloatingArray(np.repeat(values, counts), np.repeat(missing, counts))


def _steps(steps: Int64Array | None, count: int) -> pd.arrays.IntegerArray:
    if steps is None:
        return pd.arrays.IntegerArray(np.zeros(count, np.int64), np.ones(count, np.bool_))
    missing = steps == NO_STEP
    return pd.arrays.IntegerArray(np.where(missing, 0, steps), missing)


class ExportFormat(StrEnum):
    """Format of an exported file."""

    PARQUET = "parquet"
    CSV = "csv"

    @classmethod
    def choose(cls, given: str | None, output: Path | None) -> ExportFormat:
        """Return the given format, else the one of the file's suffix, else Parquet."""
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
    """Write a run's samples and return their number. The file appears when it is complete.

    Raises:
        UsageError: The run lacks one of the metrics, or the file cannot be written.
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
        for record in series:
            samples = reader.samples(run.run_id, record.series_no)
            writer.write_table(tidy_table(run, [record], [samples]))
            count += len(samples)
    return count


def _write_csv(
    reader: StoreReader, run: RunRecord, series: Sequence[SeriesRecord], path: Path
) -> int:
    count = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(",".join(COLUMNS) + "\n")
        for record in series:
            frame = series_frame([run], [record], [reader.samples(run.run_id, record.series_no)])
            # NaN is a value; only the step can be missing.
            values = frame["value"].map(repr) if frame["value"].isna().any() else frame["value"]
            frame.assign(value=values).to_csv(file, header=False, index=False)
            count += len(frame)
    return count
