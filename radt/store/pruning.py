"""Retention: delete the samples of old runs or the runs themselves, and release the space.

SQLite keeps free pages for later rows. Because of ``auto_vacuum = INCREMENTAL``, a file can release
them a few at a time, concurrently with writers.

Each run is pruned in its own transaction, so that pruning can be interrupted and resumed. Deletions
are recorded (table ``pruned``): a copy of the run elsewhere must not restore it, and the pruned run
must not replace a complete copy.

If only the summaries of a run are kept, each series keeps a few hundred points and the headers that
describe all of it: count, mean, extremes, first and last value stay exact. So does the mean over
the epochs in reports, because a series is cut at their beginning and end. The kept points are real
points and include peaks (`radt.store.cells.kept`). For a counter, both sides of every fall are
kept, so that its total increase stays the same.
"""

from __future__ import annotations

import math
import shlex
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import Connection, text

from radt.errors import StoreError
from radt.model import MarkerKind, SeriesKind
from radt.store import chunks, summaries
from radt.store.backend import Dialect
from radt.store.cells import kept_places
from radt.store.reader import StoreReader
from radt.store.records import MarkerRecord, Samples, SeriesRecord
from radt.store.summaries import Summary, joined, summarised, to_header
from radt.store.tables import PUT_TAG, TABLES_OF_RUNS, text_rows
from radt.store.writer import StoreWriter
from radt.tags import PRUNED

#: Too little free space to bother.
_MIN_FREE_BYTES = 1_000_000
#: Pages per step; each step is a transaction.
_STEP_PAGES = 2000
_PATIENCE_S = 10.0
#: Value of ``PRAGMA auto_vacuum``.
_INCREMENTAL = 2


@dataclass(frozen=True, slots=True)
class Space:
    """Result of `give_back`; ``reason`` says why free pages remain, empty if none do."""

    given_back_bytes: int = 0
    left_bytes: int = 0
    reason: str = ""


def give_back(path: Path) -> Space:
    """Shrink a store's file to its content, if that is possible now.

    Raises:
        StoreError: The file is damaged or cannot be opened.
    """
    try:
        with closing(sqlite3.connect(path, timeout=_PATIENCE_S, isolation_level=None)) as store:
            before = _pages_bytes(store, "page_count")
            reason = _shrink(store, path)
            after = _pages_bytes(store, "page_count")
            left = _pages_bytes(store, "freelist_count")
            # Only a checkpoint shrinks the file itself.
            store.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except sqlite3.Error as error:
        raise StoreError(
            f"the free space in {path} cannot be released: {error}",
            "New runs will use it; `radt prune` tries again",
        ) from error
    return Space(max(0, before - after), left if reason else 0, reason)


def _shrink(store: sqlite3.Connection, path: Path) -> str:
    """Release free pages; return why some remain, if so."""
    if _pages_bytes(store, "freelist_count") < _MIN_FREE_BYTES:
        return ""
    if _pragma(store, "auto_vacuum") != _INCREMENTAL:
        remedy = f"sqlite3 {shlex.quote(str(path))} 'PRAGMA auto_vacuum = 2; VACUUM'"
        return f"this file cannot shrink step by step. Run: {remedy}"
    try:
        while pages := _pragma(store, "freelist_count"):
            store.execute(f"PRAGMA incremental_vacuum({_STEP_PAGES})").fetchall()
            if _pragma(store, "freelist_count") >= pages:
                break
    except sqlite3.OperationalError as error:
        if str(getattr(error, "sqlite_errorname", "")).startswith("SQLITE_BUSY"):
            return "another program is using the store; prune again later"
        raise
    return ""


def _pages_bytes(store: sqlite3.Connection, count: str) -> int:
    """Return pages in bytes; the file's size excludes pages in the write-ahead log."""
    return _pragma(store, count) * _pragma(store, "page_size")


def _pragma(store: sqlite3.Connection, name: str) -> int:
    return int(store.execute(f"PRAGMA {name}").fetchone()[0])


#: Rows per statement.
_GROUP = 64
#: Approximate size of a row of ``chunk`` without its blobs.
_ROW_BYTES = 150

_CANDIDATES = f"""
SELECT run.run_id, run.experiment, run.host, run.ended_ns,
    run.tracking_uri <> '' AS to_mlflow, run.delivery_done_ns IS NULL AS undelivered,
    run.delivery_note <> '' AS given_up,
    EXISTS (SELECT 1 FROM workload WHERE workload.workload_id = run.workload_id
        AND workload.tracking_uri <> '' AND workload.delivery_done_ns IS NULL) AS open_workload,
    (SELECT MIN(replica.label) FROM replica LEFT JOIN replicated
        ON replicated.target = replica.target AND replicated.key = run.run_id
        WHERE COALESCE(replicated.revision, -1) < run.revision) AS lacking,
    (SELECT SUM(stored_count) FROM series_summary AS series
        WHERE series.run_id = run.run_id) AS points,
    (SELECT SUM({_ROW_BYTES} + LENGTH(value_data) + COALESCE(LENGTH(time_data), 0)
        + COALESCE(LENGTH(step_data), 0)) FROM chunk WHERE chunk.run_id = run.run_id) AS bytes
FROM run WHERE run.ended_ns < :before
"""  # noqa: S608 - our own names
_OF_EXPERIMENT = "AND run.experiment = :experiment "
_NOT_THINNED = (
    "AND NOT EXISTS (SELECT 1 FROM pruned WHERE pruned.run_id = run.run_id "
    "AND pruned.kept = 'summaries') "
)
_REVISION = text("SELECT revision FROM run WHERE run_id = :run_id AND ended_ns IS NOT NULL")
_POINTS = text("SELECT SUM(count) FROM series_summary WHERE run_id = :run_id")
_DELETE_CHUNKS = text("DELETE FROM chunk WHERE run_id = :run_id")
_THIN = text(
    f"UPDATE series_summary SET stored_count = "  # noqa: S608
    f"(SELECT COALESCE(SUM({chunks.STORED_COUNT}), 0) "
    "FROM chunk WHERE chunk.run_id = series_summary.run_id "
    "AND chunk.series_no = series_summary.series_no) WHERE run_id = :run_id"
)
_RECORD = text(
    "INSERT INTO pruned (run_id, kept, pruned_ns, point_count, kept_count) "
    "VALUES (:run_id, :kept, :pruned_ns, :point_count, :kept_count) "
    "ON CONFLICT (run_id) DO UPDATE SET kept = excluded.kept, pruned_ns = excluded.pruned_ns, "
    "kept_count = excluded.kept_count"
)
#: The transaction raises the run's revision by one at its end.
_NOTHING_TO_BRING = text(
    "INSERT INTO replicated (target, key, revision) "
    "SELECT replica.target, run.run_id, run.revision + 1 FROM run, replica "
    "WHERE run.run_id = :run_id "
    "ON CONFLICT (target, key) DO UPDATE SET revision = excluded.revision"
)
_PRUNED = text("SELECT kept, point_count FROM pruned WHERE run_id = :run_id")
_MAKE_WAY = text("UPDATE pruned SET kept = :kept, kept_count = 0 WHERE run_id = :run_id")
_FORGET_REPLICATED = text("DELETE FROM replicated WHERE key = :key")
_WORKLOAD = text("SELECT workload_id, experiment FROM run WHERE run_id = :run_id")
_RUNS_LEFT = text("SELECT 1 FROM run WHERE workload_id = :key LIMIT 1")
_DELETE_WORKLOAD = text("DELETE FROM workload WHERE workload_id = :key")
_DELETE_EXPERIMENT = text(
    "DELETE FROM experiment WHERE name = :name "
    "AND NOT EXISTS (SELECT 1 FROM run WHERE run.experiment = :name) "
    "AND NOT EXISTS (SELECT 1 FROM workload WHERE workload.experiment = :name)"
)


class Keep(StrEnum):
    """Parts of a run to keep."""

    SUMMARIES = "summaries"  # all but samples, of which few are kept
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class PrunableRun:
    """A run old enough to prune. ``held_back`` is why it needs an explicit request, if so.

    ``size_bytes`` is the size of its samples; ``files_elsewhere``: MLflow has all files of the
    run's folder.
    """

    run_id: str
    experiment: str
    host: str
    ended_ns: int
    point_count: int
    size_bytes: int
    held_back: str = ""
    files_elsewhere: bool = False


def candidates(
    reader: StoreReader, before_ns: int, keep: Keep, experiment: str | None = None
) -> list[PrunableRun]:
    """Return runs that ended before a time and have more than ``keep`` retains, the oldest first.

    Raises:
        StoreError: The store cannot be read.
    """
    conditions = _OF_EXPERIMENT if experiment is not None else ""
    conditions += _NOT_THINNED if keep is Keep.SUMMARIES else ""
    statement = text(f"{_CANDIDATES}{conditions}ORDER BY run.ended_ns, run.run_id")
    parameters = {"before": before_ns}
    if experiment is not None:
        parameters["experiment"] = experiment  # type: ignore[assignment]
    with reader.snapshot() as connection:
        rows = connection.execute(statement, parameters).all()
        # Only the store of the machine that ran it uploads a run to MLflow.
        delivers = Dialect.of(connection) is Dialect.SQLITE
    return [_candidate(row, keep, delivers=delivers) for row in rows]


def _candidate(row: Any, keep: Keep, *, delivers: bool) -> PrunableRun:
    held_back = ""
    if delivers and row.to_mlflow and row.undelivered:
        held_back = "MLflow does not have all of it yet"
    elif delivers and row.to_mlflow and row.given_up:
        held_back = "MLflow did not accept all of it"
    elif delivers and row.open_workload and keep is Keep.NOTHING:
        held_back = "its workload has not ended in MLflow yet"
    elif row.lacking is not None:
        held_back = f"{row.lacking} does not have all of it yet"
    return PrunableRun(
        row.run_id,
        row.experiment,
        row.host,
        int(row.ended_ns),
        int(row.points or 0),
        int(row.bytes or 0),
        held_back,
        files_elsewhere=bool(row.to_mlflow) and not (row.undelivered or row.given_up),
    )


def prune_run(
    reader: StoreReader,
    writer: StoreWriter,
    run_id: str,
    keep: Keep,
    take_along: Callable[[], object] = lambda: None,
) -> ThinnedRun | None:
    """Prune an ended run; return None if it was written to meanwhile.

    `take_along` removes the run's data elsewhere; it is called once pruning is certain, before the
    store deletes the run.

    Raises:
        CodecError: A chunk is damaged; nothing was changed.
        StoreError: The store cannot be read or written; nothing was changed.
    """
    key = {"run_id": run_id}
    with reader.snapshot() as connection:
        revision = connection.execute(_REVISION, key).scalar()
        points = int(connection.execute(_POINTS, key).scalar() or 0)
    if revision is None:
        return None
    # Read and select before blocking other writers.
    thinned = thin_run(reader, run_id) if keep is Keep.SUMMARIES else ThinnedRun((), points, 0)
    with writer.rewriting(run_id) as connection:
        if connection.execute(_REVISION, key).scalar() != revision:
            return None
        take_along()
        if keep is Keep.SUMMARIES:
            _replace_chunks(connection, run_id, thinned)
        else:
            _delete(connection, run_id)
        connection.execute(
            _RECORD,
            {
                **key,
                "kept": str(keep),
                "pruned_ns": time.time_ns(),
                "point_count": thinned.point_count,
                "kept_count": thinned.kept_count,
            },
        )
    return thinned


def _replace_chunks(connection: Connection, run_id: str, thinned: ThinnedRun) -> None:
    connection.execute(_DELETE_CHUNKS, {"run_id": run_id})
    for start in range(0, len(thinned.rows), _GROUP):
        chunks.insert(connection, thinned.rows[start : start + _GROUP])
    connection.execute(_THIN, {"run_id": run_id})
    day = time.strftime("%Y-%m-%d", time.gmtime())
    note = f"{day}: {thinned.kept_count:,} of {thinned.point_count:,} points kept"
    connection.execute(PUT_TAG, text_rows(run_id, {PRUNED: note}))
    connection.execute(_NOTHING_TO_BRING, {"run_id": run_id})


def _delete(connection: Connection, run_id: str) -> None:
    key = {"run_id": run_id}
    workload_id, experiment = connection.execute(_WORKLOAD, key).one()
    for table in TABLES_OF_RUNS:
        connection.execute(text(f"DELETE FROM {table} WHERE run_id = :run_id"), key)  # noqa: S608
    connection.execute(_FORGET_REPLICATED, {"key": run_id})
    if connection.execute(_RUNS_LEFT, {"key": workload_id}).first() is None:
        connection.execute(_DELETE_WORKLOAD, {"key": workload_id})
        connection.execute(_FORGET_REPLICATED, {"key": workload_id})
        connection.execute(_DELETE_EXPERIMENT, {"name": experiment})


# -- thinning -------------------------------------------------------------------------------------

#: Approximate number of points kept of a series: enough for a chart on a page of many.
KEPT_POINTS = 240
#: Maximum number of falls of a counter whose two sides are kept.
_MAX_FALLS = 1000
#: Points in memory at a time.
_PAGE_POINTS = 1_000_000

Row = dict[str, Any]


@dataclass(slots=True)
class _Stretch:
    """Part of a series: the summary of all its points, and candidate points to keep."""

    summary: Summary
    parts: list[Samples]


@dataclass(frozen=True, slots=True)
class ThinnedRun:
    """Result of thinning; ``rows`` replace all of a run's chunks."""

    rows: Sequence[Row]
    point_count: int
    kept_count: int


def thin_run(reader: StoreReader, run_id: str) -> ThinnedRun:
    """Read a run and select the points to keep, without writing.

    Raises:
        CodecError: A chunk is damaged.
        StoreError: The store cannot be read.
    """
    cuts_ns = _cuts(reader.markers([run_id]))
    rows: list[Row] = []
    total = 0
    for series in reader.series([run_id]):
        made = list(_thin_series(reader, series, cuts_ns))
        rows += made
        total += sum(row["point_count"] for row in made)
    kept = sum(
        row["point_count"] if row["kept_count"] is None else row["kept_count"] for row in rows
    )
    return ThinnedRun(rows, total, kept)


def _cuts(markers: Sequence[MarkerRecord]) -> Sequence[int]:
    """Return the times to cut series at: start and end of all epochs but the first."""
    epochs = [
        marker
        for marker in markers
        if marker.kind is MarkerKind.EPOCH and marker.end_ns is not None and not marker.process
    ]
    counted = epochs[1:] or epochs
    if not counted:
        return ()
    end_ns = counted[-1].end_ns
    assert end_ns is not None
    # A point exactly at the end of an epoch belongs to it.
    return sorted({counted[0].start_ns, end_ns + 1})


def _thin_series(
    reader: StoreReader, series: SeriesRecord, cuts_ns: Sequence[int]
) -> Iterator[Row]:
    counter = series.kind is SeriesKind.COUNTER
    stretches: dict[int, _Stretch] = {}
    for page in reader.pages(series, _PAGE_POINTS):
        places = np.searchsorted(np.asarray(cuts_ns, dtype=np.int64), page.times_ns, side="right")
        for place in np.unique(places).tolist():
            part = page[places == place]
            summary: Summary = summarised(series, part)
            stretch = stretches.setdefault(place, _Stretch(summary, []))
            if stretch.parts:
                stretch.summary = joined(stretch.summary, summary, series)
            # Keeps more points per page than in the end, so that the final selection treats all
            # pages alike.
            stretch.parts.append(_thinned(chunks.time_sorted(part), 4 * KEPT_POINTS, counter))
    points = sum(stretch.summary.count for stretch in stretches.values())
    for number, place in enumerate(sorted(stretches)):
        stretch = stretches[place]
        samples = chunks.time_sorted(chunks.joined(stretch.parts))
        count = stretch.summary.count
        share = KEPT_POINTS * count / points
        kept = samples if points <= KEPT_POINTS else _thinned(samples, math.ceil(share), counter)
        header = to_header(stretch.summary)
        row = chunks.thinned_row(series.run_id, series.series_no, number, kept, header)
        if len(kept) == count:
            row["kept_count"] = None
        yield row


def _thinned(samples: Samples, max_points: int, counter: bool) -> Samples:
    """Return the points to keep; the given points are in time order."""
    chosen = kept_places(samples.values, max_points)
    if counter:
        # Both sides of each reset.
        readings = np.flatnonzero(np.isfinite(samples.values))
        fell = np.flatnonzero(np.diff(samples.values[readings]) < 0)[:_MAX_FALLS]
        chosen = np.union1d(chosen, np.union1d(readings[fell], readings[fell + 1]))
    return samples[chosen]


# -- restoring ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PrunedRun:
    """State of a pruned run: what was kept, and its number of points before."""

    kept: Keep
    point_count: int


def pruned_run(reader: StoreReader, run_id: str) -> PrunedRun | None:
    """Return how a run was pruned; None if it is complete.

    Raises:
        StoreError: The store cannot be read.
    """
    with reader.snapshot() as connection:
        return pruned_in(connection, run_id)


def pruned_in(connection: Connection, run_id: str) -> PrunedRun | None:
    """Return how a run was pruned, within a transaction; None if it is complete."""
    row = connection.execute(_PRUNED, {"run_id": run_id}).one_or_none()
    return None if row is None else PrunedRun(Keep(row.kept), int(row.point_count))


def make_way(writer: StoreWriter, run_id: str) -> None:
    """Delete the points that thinning left of a run, because all of its points will be restored.

    Until `forget_pruned`, the run counts as removed, so that an interrupted restore is never taken
    for a complete copy.
    """
    with writer.rewriting(run_id) as connection:
        connection.execute(_DELETE_CHUNKS, {"run_id": run_id})
        summaries.delete(connection, run_id)
        connection.execute(_MAKE_WAY, {"run_id": run_id, "kept": str(Keep.NOTHING)})


def forget_pruned(writer: StoreWriter, run_id: str) -> None:
    """Mark a run as complete again after restoring it from its archive."""
    with writer.rewriting(run_id) as connection:
        connection.execute(text("DELETE FROM pruned WHERE run_id = :run_id"), {"run_id": run_id})
        connection.execute(
            text("DELETE FROM tag WHERE run_id = :run_id AND key = :key"),
            {"run_id": run_id, "key": PRUNED},
        )
