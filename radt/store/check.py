"""Check a store for inconsistencies.

`check` only reads headers and small tables; `check_deep` also decodes all chunks and compares the
points with their headers. Both read a few runs at a time, so memory use does not grow with the
store.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median_low
from typing import Any

import numpy as np
from sqlalchemy import Connection, Row, bindparam, text

from radt.errors import CodecError
from radt.model import SOFTWARE
from radt.store import chunks
from radt.store.reader import StoreReader
from radt.store.records import Int64Array, Samples, node_of


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
    DOUBLED = "doubled"  # points are stored twice
    MLFLOW = "mlflow"  # a run is in only one of MLflow and the store
    SPOOL = "spool"  # a run's folder or its row in the store is missing


@dataclass(frozen=True, slots=True)
class Finding:
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
    points: int
    pruned_runs: int


_RUNS_AT_A_TIME = 200
#: Harmless differences between samples and points: the first reading of a difference yields no
#: point, and a killed collector may not have counted what it had written.
_SLACK_POINTS = 2
_SLACK_RATIO = 0.02

_BACKUP = "Restore the run from its archive (`radt import`) or the store from a backup"
_REPORT = "Restore the store from a backup; if it was never copied or edited, please report this"

#: Tables with rows of runs, by what their rows are called.
_OF_RUNS = {
    "param": "parameters",
    "tag": "tags",
    "series": "series",
    "chunk": "chunks",
    "marker": "markers",
    "ledger": "ledger rows",
    "gap": "gaps",
    "journal_cursor": "journal positions",
    "delivery": "notes of delivery",
    "artifact_delivered": "notes of artifacts",
}

_COUNTS = text(
    "SELECT (SELECT COUNT(*) FROM experiment), (SELECT COUNT(*) FROM workload), "
    "(SELECT COUNT(*) FROM run), (SELECT COUNT(*) FROM series), (SELECT COUNT(*) FROM marker), "
    "(SELECT COUNT(*) FROM chunk), (SELECT COALESCE(SUM(point_count), 0) FROM chunk), "
    "(SELECT COUNT(*) FROM pruned)"
)
_LEDGER = text(
    "SELECT run_id, listener, expected, received, missed FROM ledger "
    "WHERE expected <> received + missed OR received < 0 OR missed < 0 ORDER BY run_id, listener"
)
_BACKWARD_GAPS = text(
    "SELECT run_id, listener, series_no FROM gap WHERE end_ns < start_ns ORDER BY run_id"
)
_GAPS_OF_NOTHING = text(
    "SELECT gap.run_id, gap.listener, gap.series_no FROM gap WHERE gap.series_no >= 0 "
    "AND NOT EXISTS (SELECT 1 FROM series WHERE series.run_id = gap.run_id "
    "AND series.series_no = gap.series_no) ORDER BY gap.run_id"
)
_RUNS_WITHOUT_WORKLOAD = text(
    "SELECT run_id, workload_id FROM run WHERE NOT EXISTS (SELECT 1 FROM workload "
    "WHERE workload.workload_id = run.workload_id) ORDER BY run_id"
)
_WITHOUT_EXPERIMENT = text(
    "SELECT DISTINCT experiment FROM (SELECT experiment FROM run UNION "
    "SELECT experiment FROM workload) AS used "
    "WHERE NOT EXISTS (SELECT 1 FROM experiment WHERE experiment.name = used.experiment)"
)
_NEXT_RUNS = text(
    "SELECT run_id, ended_ns IS NOT NULL FROM run WHERE run_id > :after ORDER BY run_id LIMIT :some"
)
_SERIES = text(
    "SELECT run_id, series_no, listener, interval_s IS NOT NULL, entity FROM series "
    "WHERE run_id IN :ids"
).bindparams(bindparam("ids", expanding=True))
_CHUNKS = text(
    "SELECT run_id, series_no, SUM(point_count), COUNT(*), MIN(chunk_no), MAX(chunk_no) "
    "FROM chunk WHERE run_id IN :ids GROUP BY run_id, series_no ORDER BY run_id, series_no"
).bindparams(bindparam("ids", expanding=True))
_RECEIVED = text(
    "SELECT run_id, listener, received, EXISTS (SELECT 1 FROM gap WHERE gap.run_id = ledger.run_id "
    "AND gap.listener = ledger.listener) FROM ledger WHERE run_id IN :ids ORDER BY run_id, listener"
).bindparams(bindparam("ids", expanding=True))
_LOST_TIMES = text(
    "SELECT run_id, series_no, chunk_no FROM chunk "
    "WHERE run_id IN :ids AND time_data IS NULL AND NOT EXISTS (SELECT 1 FROM chunk AS other "
    "WHERE other.run_id = chunk.run_id AND other.series_no = chunk.time_series_no "
    "AND other.chunk_no = chunk.time_chunk_no AND other.time_data IS NOT NULL) "
    "ORDER BY run_id, series_no, chunk_no"
).bindparams(bindparam("ids", expanding=True))


def count(reader: StoreReader) -> Counts:
    """Return the number of rows in a store."""
    with reader.snapshot() as connection:
        return Counts(*(int(number) for number in connection.execute(_COUNTS).one()))


def check(reader: StoreReader) -> Iterator[Finding]:
    """Yield all inconsistencies of a store.

    Raises:
        StoreError: The store cannot be read.
    """
    yield from _check_ledger(reader)
    yield from _check_gaps(reader)
    yield from _check_orphans(reader)
    for runs in _run_groups(reader):
        with reader.snapshot() as connection:
            findings = list(_check_runs(connection, runs))
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


def _check_ledger(reader: StoreReader) -> Iterator[Finding]:
    with reader.snapshot() as connection:
        rows = connection.execute(_LEDGER).all()
    for run_id, listener, expected, received, missed in rows:
        yield Finding(
            Trouble.LEDGER,
            f"run {run_id}, {listener}",
            f"{expected:,} samples expected, but {received:,} received and {missed:,} missed",
            _REPORT,
            run_id,
        )


def _check_gaps(reader: StoreReader) -> Iterator[Finding]:
    with reader.snapshot() as connection:
        backward = connection.execute(_BACKWARD_GAPS).all()
        nothing = connection.execute(_GAPS_OF_NOTHING).all()
    for rows, cause in (
        (backward, "a gap ends before it begins"),
        (nothing, "a gap in a series that does not exist"),
    ):
        for run_id, listener, series_no in rows:
            which = "" if series_no < 0 else f" series {series_no}"
            yield Finding(
                Trouble.GAP, f"run {run_id}, {listener}{which}", cause, _REPORT, str(run_id)
            )


def _check_orphans(reader: StoreReader) -> Iterator[Finding]:
    for table, called in _OF_RUNS.items():
        with reader.snapshot() as connection:
            rows = connection.execute(text(_orphans_in(table))).all()
        for (run_id,) in rows:
            yield Finding(
                Trouble.ORPHAN,
                f"run {run_id}",
                f"it has {called}, but no run",
                "Run `radt sync` on the machine that ran it, or `radt import` its archive",
                str(run_id),
            )
    with reader.snapshot() as connection:
        runs = connection.execute(_RUNS_WITHOUT_WORKLOAD).all()
        experiments = connection.execute(_WITHOUT_EXPERIMENT).all()
    for run_id, workload_id in runs:
        yield Finding(
            Trouble.ORPHAN,
            f"run {run_id}",
            f"its workload {workload_id} does not exist",
            "Run `radt sync` on the machine that ran it, or `radt import` its archive",
            str(run_id),
        )
    for (name,) in experiments:
        yield Finding(Trouble.ORPHAN, f"experiment {name}", "it has runs, but no row", _REPORT)


def _orphans_in(table: str) -> str:
    """Return a query for ids of missing runs that jumps from id to id in the index."""
    return (
        f"WITH RECURSIVE ids (id) AS (SELECT MIN(run_id) FROM {table} UNION ALL "  # noqa: S608
        f"SELECT (SELECT MIN(run_id) FROM {table} WHERE run_id > ids.id) FROM ids "
        "WHERE ids.id IS NOT NULL) SELECT id FROM ids WHERE id IS NOT NULL "
        "AND NOT EXISTS (SELECT 1 FROM run WHERE run.run_id = ids.id)"
    )


def _check_runs(connection: Connection, runs: dict[str, bool]) -> Iterator[Finding]:
    """Yield the inconsistencies of a group of runs."""
    ids = {"ids": list(runs)}
    listeners: dict[tuple[str, int], tuple[str, bool]] = {
        (run_id, number): (_ledger_name(number, listener, entity), bool(regular))
        for run_id, number, listener, regular, entity in connection.execute(_SERIES, ids)
    }
    points: dict[tuple[str, str], list[int]] = {}
    totals: dict[tuple[str, str], int] = {}
    for run_id, number, stored, rows, first, last in connection.execute(_CHUNKS, ids):
        known = listeners.get((run_id, number))
        if known is None:
            yield Finding(
                Trouble.ORPHAN,
                f"run {run_id}, series {number}",
                f"{rows:,} chunks, but no series",
                _BACKUP,
                run_id,
            )
            continue
        if first != 0 or last - first + 1 != rows:
            yield Finding(
                Trouble.CHUNK,
                f"run {run_id}, series {number}",
                f"{last + 1 - rows:,} of its {last + 1:,} chunks are missing",
                _BACKUP,
                run_id,
            )
        listener, regular = known
        if regular:
            points.setdefault((run_id, listener), []).append(int(stored))
        totals[run_id, listener] = totals.get((run_id, listener), 0) + int(stored)
    for run_id, number, chunk_no in connection.execute(_LOST_TIMES, ids):
        yield Finding(
            Trouble.TIMES,
            f"run {run_id}, series {number}",
            f"the times of its chunk {chunk_no} lie in a missing chunk",
            _BACKUP,
            run_id,
        )
    for run_id, listener, received, has_gaps in connection.execute(_RECEIVED, ids):
        if runs[run_id]:  # an active run may have counted samples that it has not stored yet
            key = (run_id, listener)
            if cause := _received_cause(
                listener, int(received), points.get(key, ()), totals.get(key, 0), bool(has_gaps)
            ):
                yield Finding(Trouble.POINTS, f"run {run_id}, {listener}", cause, _BACKUP, run_id)


def _ledger_name(series_no: int, listener: str, entity: str) -> str:
    """Return whose ledger counts a series: each node of a run has listeners of its own."""
    node = node_of(series_no, entity)
    return f"{node}/{listener}" if node else listener


def _received_cause(
    listener: str, received: int, points: Sequence[int], total: int, has_gaps: bool
) -> str:
    """Return the error in the points of a listener's regular series, or an empty text.

    Each reading adds at most one point to most series. A reading that adds none to any series is
    covered by a gap with its reason.
    """
    if listener.rpartition("/")[2] == SOFTWARE:
        return f"{received:,} values were logged, {total:,} are stored" if total < received else ""
    if not points:
        # A listener without regular series only yields values now and then.
        return (
            f"{received:,} samples were received, none is stored"
            if received and not (total or has_gaps)
            else ""
        )
    slack = received * _SLACK_RATIO + _SLACK_POINTS
    if max(points) < received - slack and not has_gaps:
        return f"{received:,} samples were received, {max(points):,} are stored"
    if median_low(points) > received + slack:
        return f"{received:,} samples were received, {median_low(points):,} are stored"
    return ""


_CHUNKS_AT_A_TIME = 256
#: Sums of the same numbers in another order differ in the last digits.
_TOLERANCE = 1e-9
#: One in this many times of a series is remembered.
_ONE_OF = 16

_REMEDY = "Restore the run from its archive (`radt import`) or the store from a backup"
_HEADER = (
    *("point_count", "finite_count", "first_ns", "last_ns", "first_value", "last_value"),
    *("value_min", "value_max", "value_sum"),
)
#: Header columns that a thinned chunk still shares with its points: extremes and ends.
_KEPT = ("first_ns", "last_ns", "first_value", "last_value", "value_min", "value_max")
_NEXT = text(
    f"SELECT {chunks.DATA_COLUMNS}, run_id, series_no, kept_count, "  # noqa: S608 - our own names
    f"{', '.join(f'{name} AS said_{name}' for name in _HEADER)}, "
    "(SELECT listener FROM series WHERE series.run_id = chunk.run_id "
    "AND series.series_no = chunk.series_no) AS listener FROM chunk "
    "WHERE (run_id, series_no, chunk_no) > (:run_id, :series_no, :chunk_no) "
    "ORDER BY run_id, series_no, chunk_no LIMIT :some"
)


class _Times:
    """Times of one series so far: a listener never reads twice at the same instant.

    Of chunks before the last one, a sample of the times is kept, chosen by value so that a
    duplicate is chosen too.
    """

    def __init__(self) -> None:
        self._start(None)

    def _start(self, series: tuple[str, int] | None) -> None:
        self._series = series
        self._last_chunk: Int64Array = np.empty(0, dtype=np.int64)
        self._some: list[Int64Array] = []
        self._latest_ns = -(2**63)

    def seen(self, series: tuple[str, int], samples: Samples) -> int:
        """Return about how many points of the next chunk have been seen before."""
        if series != self._series:
            self._start(series)
        times_ns = np.unique(samples.times_ns)
        twice = len(samples) - len(times_ns)
        some = times_ns[(times_ns ^ (times_ns >> 13)) % _ONE_OF == 0]
        if times_ns[0] <= self._latest_ns:
            near = len(np.intersect1d(times_ns, self._last_chunk, assume_unique=True))
            far = len(np.intersect1d(some, np.concatenate(self._some))) * _ONE_OF
            twice += near or min(far, len(times_ns))
        self._some.append(some)
        self._last_chunk = times_ns
        self._latest_ns = max(self._latest_ns, int(times_ns[-1]))
        return twice


def check_deep(
    reader: StoreReader, progress: Callable[[int], object] = lambda _points: None
) -> Iterator[Finding]:
    """Yield chunks that cannot be decoded or have a wrong header, and duplicate points.

    `progress` is called with the number of points read so far.

    Raises:
        StoreError: The store cannot be read.
    """
    key: dict[str, Any] = {"run_id": "", "series_no": -1, "chunk_no": -1}
    before = _Times()
    done = 0
    while True:
        with reader.snapshot() as connection:
            rows = connection.execute(_NEXT, key | {"some": _CHUNKS_AT_A_TIME}).all()
        for row in rows:
            yield from _check_chunk(row, before)
            done += int(row.point_count)
        if not rows:
            return
        progress(done)
        last = rows[-1]
        key = {"run_id": last.run_id, "series_no": last.series_no, "chunk_no": last.chunk_no}


def _check_chunk(row: Row[Any], before: _Times) -> Iterator[Finding]:
    subject = f"run {row.run_id}, series {row.series_no}, chunk {row.chunk_no}"
    if row.time_data is None:
        return  # `check` reports it
    try:
        samples = chunks.ChunkData._make(row[: len(chunks.ChunkData._fields)]).samples()
    except CodecError as error:
        yield Finding(Trouble.DAMAGED, subject, error.message, _REMEDY, row.run_id)
        return
    header = chunks.header_of(samples)
    for name in _HEADER if row.kept_count is None else _KEPT:
        stated = getattr(row, f"said_{name}")
        actual: Any = header[name]
        if not _same(stated, actual):
            yield Finding(
                Trouble.HEADER,
                subject,
                f"its header gives {name} {stated}, its points give {actual}",
                _REMEDY,
                row.run_id,
            )
    if row.listener in (SOFTWARE, None):
        return  # a script may log the same value again
    if twice := before.seen((row.run_id, row.series_no), samples):
        yield Finding(
            Trouble.DOUBLED,
            subject,
            f"about {twice:,} points are stored twice",
            _REMEDY,
            row.run_id,
        )


def _same(stated: Any, actual: Any) -> bool:
    if stated is None or actual is None or isinstance(actual, int):
        return bool(stated == actual)
    return math.isclose(stated, actual, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
