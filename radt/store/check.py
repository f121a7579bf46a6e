"""Check a store for inconsistencies.

`check` only reads headers and small tables; `check_deep` also decodes all chunks and compares the
points with their headers. Both read a few runs at a time, so memory use does not grow with the
store.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from statistics import median_low
from typing import Any

import numpy as np
from sqlalchemy import Connection, Row, text

from radt.errors import CodecError
from radt.model import SOFTWARE
from radt.store import chunks, summaries
from radt.store.codec import EncodedSamples, decode
from radt.store.reader import StoreReader
from radt.store.summaries import SUMMARIES
from radt.store.tables import SERIES, TABLES_OF_RUNS, of_runs


class Trouble(StrEnum):
    """Kind of inconsistency."""

    LEDGER = "ledger"  # samples expected, received and missed do not add up
    POINTS = "points"  # there are fewer or more points than samples received
    GAP = "gap"  # a stretch without values has impossible bounds
    ORPHAN = "orphan"  # rows refer to a missing run or series
    CHUNK = "chunk"  # chunks of a series are missing
    TIMES = "times"  # a chunk's times are stored in a missing chunk
    DAMAGED = "damaged"  # a chunk cannot be decoded
    HEADER = "header"  # a chunk's header contradicts its points
    SUMMARY = "summary"  # the summary of a series contradicts its chunks
    DOUBLED = "doubled"  # points are stored twice
    MLFLOW = "mlflow"  # a run is in only one of MLflow and the store
    SPOOL = "spool"  # a run's folder or its row in the store is missing


@dataclass(frozen=True, slots=True)
class Defect:
    """An inconsistency; ``run_id`` is empty if it belongs to no run."""

    trouble: Trouble
    subject: str
    cause: str
    remedy: str
    run_id: str = ""

    def __str__(self) -> str:
        return f"{self.subject}: {self.cause}"


@dataclass(frozen=True, slots=True)
class Counts:
    """Number of rows by kind."""

    experiments: int
    workloads: int
    runs: int
    series: int
    markers: int
    chunks: int
    pruned_runs: int
    points: int


_BACKUP = "Restore the run from its archive (`radt import`) or the store from a backup"
_REPORT = "Restore the store from a backup; if it was never copied or edited, please report this"
_BRING = "Run `radt sync` on the machine that ran it, or `radt import` its archive"


@dataclass(frozen=True, slots=True)
class _Check:
    """A query for inconsistencies. The texts have its columns in braces."""

    trouble: Trouble
    subject: str
    cause: str
    remedy: str
    query: str

    def findings(self, connection: Connection, **parameters: object) -> list[Defect]:
        statement = of_runs(self.query) if parameters else text(self.query)
        return [
            Defect(
                self.trouble,
                self.subject.format_map(row),
                self.cause.format_map(row),
                self.remedy,
                row.get("run_id", ""),
            )
            for row in map(dict, connection.execute(statement, parameters).mappings())
        ]


#: Checks of the whole store. Ids of missing runs are found by jumping from id to id in the index.
_OF_STORE = (
    _Check(
        Trouble.LEDGER,
        "run {run_id}, {listener}",
        "{expected:,} samples expected, but {received:,} received and {missed:,} missed",
        _REPORT,
        "SELECT run_id, listener, expected, received, missed FROM ledger WHERE "
        "expected <> received + missed OR received < 0 OR missed < 0 ORDER BY run_id, listener",
    ),
    _Check(
        Trouble.GAP,
        "run {run_id}, {listener}",
        "a gap ends before it begins",
        _REPORT,
        "SELECT run_id, listener FROM gap WHERE end_ns < start_ns ORDER BY run_id",
    ),
    _Check(
        Trouble.GAP,
        "run {run_id}, {listener} series {series_no}",
        "a gap in a series that does not exist",
        _REPORT,
        "SELECT run_id, listener, series_no FROM gap WHERE series_no >= 0 "
        "AND NOT EXISTS (SELECT 1 FROM series WHERE series.run_id = gap.run_id "
        "AND series.series_no = gap.series_no) ORDER BY run_id",
    ),
    *(
        _Check(
            Trouble.ORPHAN,
            "run {run_id}",
            f"it has rows of {table}, but no run",
            _BRING,
            f"WITH RECURSIVE ids (run_id) AS (SELECT MIN(run_id) FROM {table} UNION ALL "  # noqa: S608
            f"SELECT (SELECT MIN(run_id) FROM {table} WHERE run_id > ids.run_id) FROM ids "
            "WHERE ids.run_id IS NOT NULL) SELECT run_id FROM ids WHERE run_id IS NOT NULL "
            "AND NOT EXISTS (SELECT 1 FROM run WHERE run.run_id = ids.run_id)",
        )
        for table in TABLES_OF_RUNS
        if table != "run"
    ),
    _Check(
        Trouble.ORPHAN,
        "run {run_id}",
        "its workload {workload_id} does not exist",
        _BRING,
        "SELECT run_id, workload_id FROM run WHERE NOT EXISTS (SELECT 1 FROM workload "
        "WHERE workload.workload_id = run.workload_id) ORDER BY run_id",
    ),
    _Check(
        Trouble.ORPHAN,
        "experiment {experiment}",
        "it has runs, but no row",
        _REPORT,
        "SELECT DISTINCT experiment FROM (SELECT experiment FROM run UNION "
        "SELECT experiment FROM workload) AS used "
        "WHERE NOT EXISTS (SELECT 1 FROM experiment WHERE experiment.name = used.experiment)",
    ),
)
#: Checks of some runs at a time.
_OF_RUNS = (
    _Check(
        Trouble.ORPHAN,
        "run {run_id}, series {series_no}",
        "{rows:,} chunks, but no series",
        _BACKUP,
        "SELECT run_id, series_no, COUNT(*) AS rows FROM chunk WHERE run_id IN :ids "
        "AND NOT EXISTS (SELECT 1 FROM series WHERE series.run_id = chunk.run_id "
        "AND series.series_no = chunk.series_no) GROUP BY run_id, series_no",
    ),
    _Check(
        Trouble.CHUNK,
        "run {run_id}, series {series_no}",
        "{missing:,} of its {total:,} chunks are missing",
        _BACKUP,
        "SELECT run_id, series_no, MAX(chunk_no) + 1 - COUNT(*) AS missing, "
        "MAX(chunk_no) + 1 AS total FROM chunk WHERE run_id IN :ids GROUP BY run_id, series_no "
        "HAVING MIN(chunk_no) <> 0 OR MAX(chunk_no) + 1 <> COUNT(*) ORDER BY run_id, series_no",
    ),
    _Check(
        Trouble.TIMES,
        "run {run_id}, series {series_no}",
        "the times of its chunk {chunk_no} lie in a missing chunk",
        _BACKUP,
        "SELECT run_id, series_no, chunk_no FROM chunk "
        "WHERE run_id IN :ids AND time_data IS NULL AND NOT EXISTS (SELECT 1 FROM chunk AS other "
        "WHERE other.run_id = chunk.run_id AND other.series_no = chunk.time_series_no "
        "AND other.chunk_no = chunk.time_chunk_no AND other.time_data IS NOT NULL) "
        "ORDER BY run_id, series_no, chunk_no",
    ),
)

_RUNS_AT_A_TIME = 200
#: Harmless differences between samples and points: the first reading of a difference yields no
#: point, and a killed collector may not have counted the last points that it wrote.
_SLACK_POINTS = 2
_SLACK_RATIO = 0.02

_COUNTED = ("experiment", "workload", "run", "series", "marker", "chunk", "pruned")
_COUNTS = text(
    f"SELECT {', '.join(f'(SELECT COUNT(*) FROM {table})' for table in _COUNTED)}, "  # noqa: S608
    "(SELECT COALESCE(SUM(count), 0) FROM series_summary)"
)
_NEXT_RUNS = text(
    "SELECT run_id, ended_ns IS NOT NULL FROM run WHERE run_id > :after ORDER BY run_id LIMIT :some"
)
_SERIES = of_runs(f"{SERIES.select} WHERE run_id IN :ids ORDER BY run_id, series_no")
#: Fields of a summary that can also be computed from chunk headers.
_SUMMED = {
    "count": "SUM(point_count)",
    "stored_count": f"SUM({chunks.STORED_COUNT})",
    "finite_count": "SUM(finite_count)",
    "first_ns": "MIN(first_ns)",
    "last_ns": "MAX(last_ns)",
    "minimum": "MIN(value_min)",
    "maximum": "MAX(value_max)",
}
_SUMS = of_runs(
    f"SELECT run_id, series_no, {', '.join(_SUMMED.values())} FROM chunk "  # noqa: S608
    "WHERE run_id IN :ids GROUP BY run_id, series_no"
)
_RECEIVED = of_runs(
    "SELECT run_id, listener, received, EXISTS (SELECT 1 FROM gap WHERE gap.run_id = ledger.run_id "
    "AND gap.listener = ledger.listener) FROM ledger WHERE run_id IN :ids ORDER BY run_id, listener"
)


def count(reader: StoreReader) -> Counts:
    """Return the number of rows in a store."""
    with reader.snapshot() as connection:
        return Counts(*(int(number) for number in connection.execute(_COUNTS).one()))


def check(reader: StoreReader) -> Iterator[Defect]:
    """Yield all inconsistencies of a store.

    Raises:
        StoreError: The store cannot be read.
    """
    for each in _OF_STORE:
        with reader.snapshot() as connection:
            findings = each.findings(connection)
        yield from findings
    for runs in _run_groups(reader):
        with reader.snapshot() as connection:
            findings = [
                finding for each in _OF_RUNS for finding in each.findings(connection, ids=[*runs])
            ]
            findings += _check_points(connection, runs)
        yield from findings


def _run_groups(reader: StoreReader) -> Iterator[dict[str, bool]]:
    """Yield groups of run ids, each with whether the run has ended."""
    after = ""
    while True:
        with reader.snapshot() as connection:
            row = {"after": after, "some": _RUNS_AT_A_TIME}
            runs = {str(key): bool(ended) for key, ended in connection.execute(_NEXT_RUNS, row)}
        if not runs:
            return
        yield runs
        after = max(runs)


def _check_points(connection: Connection, runs: Mapping[str, bool]) -> Iterator[Defect]:
    """Compare the chunks' headers with the summaries, and their points with the ledgers."""
    ids = {"ids": list(runs)}
    sums = {(row[0], row[1]): list(row[2:]) for row in connection.execute(_SUMS, ids)}
    known = {
        summary.series: [getattr(summary, name) for name in _SUMMED]
        for summary in summaries.read(connection, list(runs))
    }
    #: For each run and listener, the points of its series and whether they are sampled regularly.
    points: dict[tuple[str, str], list[tuple[bool, int]]] = {}
    for series in map(SERIES.read, connection.execute(_SERIES, ids)):
        stored = sums.get((series.run_id, series.series_no))
        if stored != known.get(series):
            yield _wrong_summary(series.run_id, series.series_no)
        if stored is not None:
            of_listener = points.setdefault((series.run_id, series.counted_as), [])
            of_listener.append((series.interval_s is not None, int(stored[0])))
    for run_id, listener, received, has_gaps in connection.execute(_RECEIVED, ids):
        # An active run may have counted samples that it has not stored yet.
        if runs[run_id] and (
            cause := _received_cause(
                listener, int(received), points.get((run_id, listener), ()), bool(has_gaps)
            )
        ):
            yield Defect(Trouble.POINTS, f"run {run_id}, {listener}", cause, _BACKUP, run_id)


def _wrong_summary(run_id: str, series_no: int) -> Defect:
    subject = f"run {run_id}, series {series_no}"
    return Defect(Trouble.SUMMARY, subject, "its summary differs from its chunks", _REPORT, run_id)


def _received_cause(
    listener: str, received: int, points: Sequence[tuple[bool, int]], has_gaps: bool
) -> str:
    """Return an inconsistency between a listener's samples and points, or an empty text.

    Each reading adds at most one point to most series. A reading that adds none to any series is
    covered by a gap with its reason.
    """
    total = sum(number for _, number in points)
    if listener.rpartition("/")[2] == SOFTWARE:
        return f"{received:,} values were logged, {total:,} are stored" if total < received else ""
    regular = [number for is_regular, number in points if is_regular]
    if not regular:
        # A listener without regular series only yields occasional values.
        lacks_all = received and not (total or has_gaps)
        return f"{received:,} samples were received, none is stored" if lacks_all else ""
    slack = received * _SLACK_RATIO + _SLACK_POINTS
    if max(regular) < received - slack and not has_gaps:
        return f"{received:,} samples were received, {max(regular):,} are stored"
    if median_low(regular) > received + slack:
        return f"{received:,} samples were received, {median_low(regular):,} are stored"
    return ""


_CHUNKS_AT_A_TIME = 256
#: Sums of the same numbers in another order differ in the last digits.
_TOLERANCE = 1e-9
#: Header columns that a thinned chunk still shares with its points: extremes and ends.
_KEPT = ("first_ns", "last_ns", "first_value", "last_value", "value_min", "value_max")
_NEXT = text(
    f"SELECT {chunks.DATA_COLUMNS}, series_no, chunk_no, kept_count, "  # noqa: S608 - our own names
    f"{', '.join(f'{name} AS said_{name}' for name in chunks.HEADER)}, "
    "(SELECT listener FROM series WHERE series.run_id = chunk.run_id "
    "AND series.series_no = chunk.series_no) AS listener FROM chunk "
    "WHERE run_id = :run_id AND (series_no, chunk_no) > (:series_no, :chunk_no) "
    "ORDER BY series_no, chunk_no LIMIT :some"
)


def check_deep(
    reader: StoreReader, progress: Callable[[int], object] = lambda _points: None
) -> Iterator[Defect]:
    """Yield damaged chunks, wrong headers and summaries, and duplicate points.

    `progress` is called with the number of points read so far.

    Raises:
        StoreError: The store cannot be read.
    """
    done = 0
    for runs in _run_groups(reader):
        for run_id in runs:
            unreadable: set[int] = set()
            latest: dict[int, int] = {}
            for row in _chunks_of(reader, run_id):
                findings = list(_check_chunk(reader, run_id, row, latest))
                yield from findings
                if row.time_data is None or any(f.trouble is Trouble.DAMAGED for f in findings):
                    unreadable.add(row.series_no)
                done += int(row.point_count)
                progress(done)
            with reader.snapshot() as connection:
                wrong = _wrong_summaries(connection, run_id)
            for number in wrong:
                if number not in unreadable:
                    yield _wrong_summary(run_id, number)


def _chunks_of(reader: StoreReader, run_id: str) -> Iterator[Row[Any]]:
    key = {"run_id": run_id, "series_no": -1, "chunk_no": -1, "some": _CHUNKS_AT_A_TIME}
    while True:
        with reader.snapshot() as connection:
            rows = connection.execute(_NEXT, key).all()
        if not rows:
            return
        yield from rows
        key |= {"series_no": rows[-1].series_no, "chunk_no": rows[-1].chunk_no}


def _check_chunk(
    reader: StoreReader, run_id: str, row: Row[Any], latest: dict[int, int]
) -> Iterator[Defect]:
    """Check one chunk; ``latest`` has the latest time of the chunks before it, by series."""
    subject, number = f"run {run_id}, series {row.series_no}, chunk {row.chunk_no}", row.series_no
    if row.time_data is None:
        return  # `check` reports it
    try:
        samples = decode([EncodedSamples._make(row[: len(EncodedSamples._fields)])])
    except CodecError as error:
        yield Defect(Trouble.DAMAGED, subject, error.message, _BACKUP, run_id)
        return
    header: Mapping[str, Any] = chunks.header_of(samples)
    for name in chunks.HEADER if row.kept_count is None else _KEPT:
        stated, actual = getattr(row, f"said_{name}"), header[name]
        if not _same(stated, actual):
            cause = f"its header gives {name} {stated}, its points give {actual}"
            yield Defect(Trouble.HEADER, subject, cause, _BACKUP, run_id)
    if row.listener in (SOFTWARE, None):
        return  # a script may log the same value again
    times_ns = samples.times_ns
    first_ns, last_ns = int(times_ns.min()), int(times_ns.max())
    if first_ns <= latest.get(number, first_ns - 1):
        with suppress(CodecError):  # the damaged chunk is reported on its own
            times_ns = reader.samples(run_id, number, start_ns=first_ns, end_ns=last_ns).times_ns
    latest[number] = max(last_ns, latest.get(number, last_ns))
    # A listener never reads twice at the same instant.
    if twice := len(times_ns) - len(np.unique(times_ns)):
        cause = f"about {twice:,} points are stored twice"
        yield Defect(Trouble.DOUBLED, subject, cause, _BACKUP, run_id)


def _wrong_summaries(connection: Connection, run_id: str) -> list[int]:
    """Return the series whose summary differs from their points, if all of these are stored."""
    stored = {summary.series: summary for summary in summaries.read(connection, [run_id])}
    whole = [series for series, summary in stored.items() if not summary.is_thinned]
    actual = summaries.of_chunks(connection, run_id, whole)
    return [
        series.series_no
        for series in whole
        if not all(
            _same(getattr(stored[series], name), getattr(actual[series.series_no], name))
            for name in SUMMARIES.fields
        )
    ]


def _same(stated: Any, actual: Any) -> bool:
    if stated is None or actual is None or isinstance(actual, int):
        return bool(stated == actual)
    if math.isnan(actual):
        return math.isnan(stated)
    return math.isclose(stated, actual, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
