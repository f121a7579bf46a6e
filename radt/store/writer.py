"""Write the sample store: safe for several threads and for several processes at once.

Modules that write points are imported on first use: a runner, which writes none, starts without
them.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy import Connection, TextClause

from radt.errors import ReadOnlyStoreError, StoreError
from radt.model import RunStatus, SeriesKind
from radt.run_name import number_of, numbered
from radt.store import place, tables
from radt.store.backend import StoreAddress, backend_of
from radt.store.migrations import prepare_to_write
from radt.store.records import (
    GapRecord,
    JournalCursor,
    LedgerRecord,
    MarkerRecord,
    RunRecord,
    SavedView,
    SeriesBatch,
    SeriesRecord,
    WorkloadRecord,
)
from radt.store.tables import (
    CURSORS,
    GAPS,
    LEDGERS,
    MARKERS,
    RUNS,
    SAVED_VIEWS,
    SERIES,
    WORKLOADS,
    RecordTable,
    Row,
    Value,
    to_column,
)
from radt.tags import PARENT

if TYPE_CHECKING:
    from radt.store.chunks import Loose
    from radt.store.summaries import Summary


class OtherSeriesError(StoreError):
    """The number belongs to another series of the run."""


class StoreWriter:
    """Writes a store, creating it if missing and upgrading it if old.

    All methods raise `StoreError` (full disk, no permission, damaged file …) and leave the store as
    it was before the transaction. Threads take turns; processes wait for each other.

    Args:
        store: The SQLite file, or the address of a Postgres database.
        upgrade: Also upgrade a Postgres store, which others share.

    Raises:
        StoreError: The store cannot be created or opened, or belongs to another program.
        SchemaTooNewError: It was written by a later radt.
        SchemaTooOldError: It is in Postgres and must be upgraded.
        UsageError: The address is invalid.
    """

    def __init__(self, store: StoreAddress | Path | str, *, upgrade: bool = False) -> None:
        self.address = StoreAddress.of(store)
        self._backend = backend_of(self.address)
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self._doomed = False
        self._closed = False
        self._file: os.stat_result | None = None
        # Caches, both by run and cleared when a transaction is rolled back.
        self._series: dict[str, dict[int, SeriesRecord]] = {}
        self._loose: dict[str, dict[int, Loose]] = {}
        # Runs and workloads that this transaction has changed.
        self._changed_runs: set[str] = set()
        self._changed_workloads: set[str] = set()
        self._backend.make_room()
        self._engine = self._backend.writer_engine()
        with self._backend.translated_errors():
            prepare_to_write(self._backend, self._engine, upgrade=upgrade)
            if self.address.path is not None:
                with self._engine.begin() as connection:
                    tables.hide_passwords(connection)
                place.repair(self.address.path, self._engine)
                self._file = self.address.path.stat()

    @property
    def path(self) -> Path:
        """Return the file; only for a store in a file."""
        assert self.address.path is not None
        return self.address.path

    @property
    def vanished(self) -> bool:
        """Return whether the file was moved, replaced or deleted since it was opened."""
        try:
            return self._file is not None and not os.path.samestat(self._file, self.path.stat())
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False  # this does not say whether the file still exists

    def check_in_place(self) -> None:
        """Raise StoreError if the file has vanished: SQLite would continue writing to it."""
        if self.vanished:
            raise StoreError(
                f"the store {self.address} was moved or deleted while it was open",
                "Run `radt sync` in its new place",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store. Idempotent."""
        with self._lock:
            self._closed = True
            self._engine.dispose()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Group writes into a transaction: all of them happen, or none.

        May be nested; the outermost transaction counts. If a write inside fails, all of it is
        rolled back even if the caller catches the error.
        """
        with self._lock:
            if self._connection is None:
                with self._outermost_transaction():
                    yield
                return
            try:
                yield
            except BaseException:
                self._doomed = True
                raise

    @contextmanager
    def _outermost_transaction(self) -> Iterator[None]:
        if self._closed:
            raise StoreError(f"the store {self.address} is closed")
        self.check_in_place()
        self._doomed = False
        try:
            with self._backend.translated_errors(), self._engine.begin() as self._connection:
                yield
                self._check_not_doomed()
                tables.raise_revisions(
                    self._connection, self._changed_runs, self._changed_workloads
                )
        except BaseException as error:
            self._series.clear()
            self._loose.clear()
            if isinstance(error, ReadOnlyStoreError):
                # SQLite opens a file on a read-only disk for reading, and the connection stays
                # read-only after the disk becomes writable: the next transaction reconnects.
                self._engine.dispose()
            raise
        finally:
            self._connection = None
            self._changed_runs.clear()
            self._changed_workloads.clear()

    def _check_not_doomed(self) -> None:
        if self._doomed:
            raise StoreError(f"a write to {self.address} failed, its transaction was undone")

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self.transaction():
            assert self._connection is not None
            yield self._connection

    # -- workloads and runs -----------------------------------------------------------------------

    def put_workload(self, workload: WorkloadRecord) -> None:
        """Insert or replace a workload."""
        with self._writing() as connection:
            tables.put_experiment(connection, workload.experiment, workload.created_ns)
            connection.execute(WORKLOADS.upsert, WORKLOADS.row(workload))
            self._changed_workloads.add(workload.workload_id)

    def update_workload(self, workload_id: str, /, **fields: object) -> None:
        """Change fields of a workload; None becomes NULL.

        Raises:
            TypeError: A name is not a field of `WorkloadRecord`.
            RunNotFoundError: The workload does not exist.
        """
        self._update(WORKLOADS, workload_id, fields, self._changed_workloads)

    def put_run(self, run: RunRecord) -> None:
        """Insert or replace a run."""
        with self._writing() as connection:
            tables.put_experiment(connection, run.experiment, run.created_ns)
            connection.execute(RUNS.upsert, RUNS.row(run))
            self._changed_runs.add(run.run_id)

    def numbered_name(self, name: str, experiment: str) -> str:
        """Return a name with the next number of an experiment: ``train #3``.

        The number is unique if the run is put in the same transaction.
        """
        with self._writing() as connection:
            rows = connection.execute(tables.NUMBERED_NAMES, {"experiment": experiment})
            return numbered(name, max((number_of(row[0]) for row in rows), default=0) + 1)

    def update_run(self, run_id: str, /, **fields: object) -> None:
        """Change fields of a run; None becomes NULL.

        Raises:
            TypeError: A name is not a field of `RunRecord`.
            RunNotFoundError: The run does not exist.
        """
        self._update(RUNS, run_id, fields, self._changed_runs)

    def begin_run(self, run_id: str, pid: int | None, started_ns: int) -> None:
        """Record the start of a run, which is then RUNNING unless it was ended meanwhile.

        Raises:
            RunNotFoundError: The run does not exist.
        """
        row = {"run_id": run_id, "pid": pid, "started_ns": started_ns}
        with self._writing() as connection:
            running = {"status": to_column(RunStatus.RUNNING)}
            if not connection.execute(tables.BEGIN_RUN, row | running).rowcount:
                tables.check_exists(connection, RUNS, run_id)
            self._changed_runs.add(run_id)

    def end_run(
        self,
        run_id: str,
        status: RunStatus,
        ended_ns: int,
        exit_code: int | None = None,
        reason: str = "",
    ) -> bool:
        """End a run unless it has already ended; return whether this call ended it.

        Raises:
            RunNotFoundError: The run does not exist.
        """
        with self._writing() as connection:
            row = {
                "run_id": run_id,
                "status": to_column(status),
                "ended_ns": ended_ns,
                "exit_code": exit_code,
                "reason": to_column(reason),
            }
            if connection.execute(tables.END_RUN, row).rowcount:
                self._changed_runs.add(run_id)
                return True
            tables.check_exists(connection, RUNS, run_id)
            return False

    def end_workload(self, workload_id: str) -> bool:
        """End a workload with its runs' worst status if all have ended; return whether it did.

        The status of children (`radt.Run.child`) is ignored.
        """
        with self._writing() as connection:
            key = {"workload_id": workload_id}
            runs = connection.execute(tables.RUN_ENDS, key | {"parent_key": PARENT}).all()
            statuses = [RunStatus(status) for status, _ in runs if status is not None]
            if not statuses or any(ended_ns is None for _, ended_ns in runs):
                return False
            row = key | {
                "status": to_column(RunStatus.worst(statuses)),
                "ended_ns": max(ended_ns for _, ended_ns in runs),
            }
            if not connection.execute(tables.END_WORKLOAD, row).rowcount:
                return False
            self._changed_workloads.add(workload_id)
            return True

    def put_params(self, run_id: str, params: Mapping[str, str]) -> None:
        """Set parameters of a run; the last value of a key wins."""
        self._put_of_runs(tables.PUT_PARAM, tables.text_rows(run_id, params))

    def put_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Set tags of a run; the last value of a key wins."""
        self._put_of_runs(tables.PUT_TAG, tables.text_rows(run_id, tags))

    # -- saved views ------------------------------------------------------------------------------

    def save_view(self, view: SavedView) -> None:
        """Insert or replace the saved view of that name."""
        self._execute(SAVED_VIEWS.upsert, [SAVED_VIEWS.row(view)])

    def forget_view(self, name: str) -> None:
        """Delete the saved view of that name, if any."""
        self._execute(tables.FORGET_VIEW, [{"name": name}])

    # -- samples ----------------------------------------------------------------------------------

    def add_series(self, series: Sequence[SeriesRecord]) -> None:
        """Declare series, before points are appended to them. Idempotent.

        Raises:
            OtherSeriesError: Another series of the run has the number.
        """
        recounted: list[SeriesRecord] = []
        with self._writing() as connection:
            for run_id in {record.run_id for record in series}:
                known = {
                    record.series_no: record
                    for record in tables.declared_series(connection, run_id)
                }
                for declared in (declared for declared in series if declared.run_id == run_id):
                    existing = known.setdefault(declared.series_no, declared)
                    if existing.identity != declared.identity:
                        raise OtherSeriesError(
                            f"series {declared.series_no} of run {run_id} is {existing.metric} "
                            f"already and cannot become {declared.metric}"
                        )
                    if _counting(existing) != _counting(declared):
                        recounted.append(declared)
            if series:
                connection.execute(SERIES.upsert, [SERIES.row(record) for record in series])
            for record in series:
                self._series.setdefault(record.run_id, {})[record.series_no] = record
                self._changed_runs.add(record.run_id)
            if recounted:
                from radt.store import summaries

                for record in recounted:
                    summaries.again(connection, record.run_id, [record])

    def append(self, run_id: str, batches: Sequence[SeriesBatch]) -> None:
        """Append points; the order of writing is kept, and times may go backwards.

        Loose chunks are merged as needed, so that there are never many.

        Raises:
            StoreError: A series was not declared, or a column has the wrong type or length.
        """
        from radt.store import chunks, summaries

        with self.adding(run_id) as connection:
            series = self._declared(connection, run_id, batches)
            new: dict[int, Summary] = {}
            loose = self._loose.setdefault(run_id, {})
            times = chunks.SharedTimes()
            rows: list[dict[str, Value]] = []

            def append(rows: Sequence[dict[str, Value]]) -> None:
                if rows:
                    tables.execute_rows(connection, chunks.APPEND, rows)

            for batch in batches:
                samples = chunks.checked(batch.samples)
                if not len(samples):
                    continue
                if len(samples) >= chunks.POINTS_PER_CHUNK:
                    # Earlier batches of the same series in this call come first.
                    append(rows)
                    rows.clear()
                    chunks.merge_loose(connection, run_id, batch.series_no, times, samples)
                    loose.pop(batch.series_no, None)
                    header = chunks.header_of(samples)
                else:
                    header = chunks.loose_row(run_id, batch.series_no, samples)
                    rows.append(header)
                    counted = loose.setdefault(batch.series_no, chunks.Loose())
                    counted.chunks += 1
                    counted.points += len(samples)
                record = series[batch.series_no]
                part = summaries.summary_of(header, samples, record)
                earlier = new.get(batch.series_no)
                new[batch.series_no] = (
                    part if earlier is None else summaries.joined(earlier, part, record)
                )
            append(rows)
            summaries.add(connection, run_id, new, series)
            for series_no in [number for number, counted in loose.items() if counted.many]:
                chunks.merge_loose(connection, run_id, series_no, times)
                del loose[series_no]

    def seal(self, run_id: str) -> None:
        """Compress all loose chunks of an ended run. Points may still be appended later."""
        from radt.store import chunks

        times = chunks.SharedTimes()
        with self.rewriting(run_id) as connection:
            for series_no in chunks.loose_series(connection, run_id):
                chunks.merge_loose(connection, run_id, series_no, times, seal_rest=True)

    @contextmanager
    def adding(self, run_id: str) -> Iterator[Connection]:
        """Yield a transaction in which no other process changes stored points of a run.

        Use it to read the store's data of the run before adding to it with this writer's methods.
        """
        with self._writing() as connection:
            self._backend.lock_run(connection, run_id)
            self._changed_runs.add(run_id)
            yield connection

    @contextmanager
    def rewriting(self, run_id: str) -> Iterator[Connection]:
        """Yield a transaction like `adding` in which stored points may be changed."""
        with self.adding(run_id) as connection:
            yield connection
            self._loose.pop(run_id, None)
            self._series.pop(run_id, None)

    def _declared(
        self, connection: Connection, run_id: str, batches: Sequence[SeriesBatch]
    ) -> Mapping[int, SeriesRecord]:
        """Return the run's series by number after checking that those of the batches exist."""
        wanted = {batch.series_no for batch in batches}
        known = self._series.get(run_id, {})
        if not wanted <= known.keys():
            records = tables.declared_series(connection, run_id)
            known = self._series[run_id] = {record.series_no: record for record in records}
        if missing := sorted(wanted - known.keys()):
            raise StoreError(f"run {run_id} has no series {', '.join(map(str, missing))}")
        return known

    # -- other records of a run --------------------------------------------------------------------

    def put_markers(self, markers: Sequence[MarkerRecord]) -> None:
        """Insert markers; an existing number is replaced."""
        self._put_of_runs(MARKERS.upsert, [MARKERS.row(marker) for marker in markers])

    def put_ledger(self, ledger: LedgerRecord) -> None:
        """Insert or replace the ledger of one listener in one run."""
        self._put_of_runs(LEDGERS.upsert, [LEDGERS.row(ledger)])

    def put_gaps(self, gaps: Sequence[GapRecord]) -> None:
        """Insert gaps; a gap with the same start is replaced, which is how a gap grows."""
        self._put_of_runs(GAPS.upsert, [GAPS.row(gap) for gap in gaps])

    def put_cursors(self, run_id: str, cursors: Sequence[JournalCursor]) -> None:
        """Record how far journals were read, in the transaction that stores their data."""
        rows = [{"run_id": run_id, **CURSORS.row(cursor)} for cursor in cursors]
        self._execute(CURSORS.upsert, rows)

    # -- delivery to MLflow -----------------------------------------------------------------------

    def mark_delivered(self, run_id: str, delivered: Mapping[int, int]) -> None:
        """Record the uploader's position in each series, by series number."""
        rows: list[Row] = [
            {"run_id": run_id, "series_no": int(number), "delivered": int(count)}
            for number, count in delivered.items()
        ]
        self._execute(tables.PUT_DELIVERED, rows)

    def mark_artifacts(self, run_id: str, paths: Sequence[str]) -> None:
        """Record artifacts (paths within the run) as delivered."""
        self._execute(
            tables.PUT_ARTIFACT, [{"run_id": run_id, "path": to_column(p)} for p in paths]
        )

    def mark_run_delivered(self, run_id: str, note: str = "", revision: int | None = None) -> bool:
        """Record that MLflow has all of an ended run, or in ``note`` why it never will.

        Return False and record nothing if the run is no longer at ``revision``.
        """
        return self._mark_done(RUNS, run_id, note, revision)

    def mark_workload_delivered(
        self, workload_id: str, note: str = "", revision: int | None = None
    ) -> bool:
        """Record that MLflow has all of an ended workload, or in ``note`` why it never will.

        Return False and record nothing if the workload is no longer at ``revision``.
        """
        return self._mark_done(WORKLOADS, workload_id, note, revision)

    def _mark_done(
        self, table: RecordTable[Any], key: str, note: str, revision: int | None
    ) -> bool:
        row = {
            "now_ns": time.time_ns(),
            "note": to_column(note),
            "key": key,
            "revision": revision,
        }
        with self._writing() as connection:
            return bool(connection.execute(tables.mark_done(table), row).rowcount)

    def deliver_again(self, run_id: str) -> None:
        """Upload a run's new data, and its workload, to MLflow even if it is marked as uploaded."""
        with self.rewriting(run_id) as connection:
            for statement in (tables.NOT_DELIVERED, tables.WORKLOAD_NOT_DELIVERED):
                connection.execute(statement, {"run_id": run_id})

    # -- delivery to Postgres ---------------------------------------------------------------------

    def mark_replicated(self, target: str, revisions: Mapping[str, int]) -> None:
        """Record that another store has these revisions of runs or workloads.

        ``target`` is its identity.
        """
        rows: list[Row] = [
            {"target": target, "key": key, "revision": revision}
            for key, revision in revisions.items()
        ]
        self._execute(tables.PUT_REPLICATED, rows)

    def mark_replica(self, target: str, label: str, *, complete: bool) -> None:
        """Record that another store works at the address ``label``, and whether it is complete."""
        row = {"target": target, "label": label, "now_ns": time.time_ns() if complete else None}
        with self._writing() as connection:
            connection.execute(tables.FORGET_OTHER_REPLICAS, row)  # another database at the address
            connection.execute(tables.PUT_REPLICA, row)

    def replicate_again(self, target: str) -> None:
        """Forget what another store has, so that every run is compared again."""
        self._execute(tables.FORGET_REPLICATED, [{"target": target}])

    # -- helpers ----------------------------------------------------------------------------------

    def _execute(self, statement: TextClause, rows: Sequence[Row]) -> None:
        if rows:
            with self._writing() as connection:
                connection.execute(statement, rows)

    def _put_of_runs(self, statement: TextClause, rows: Sequence[Row]) -> None:
        """Execute a statement for rows that contain their run's id."""
        if rows:
            with self._writing() as connection:
                connection.execute(statement, rows)
                self._changed_runs.update(str(row["run_id"]) for row in rows)

    def _update(
        self, table: RecordTable[Any], key: str, fields: Mapping[str, object], changed: set[str]
    ) -> None:
        changes = table.changes(fields)
        with self._writing() as connection:
            tables.update(connection, table, key, changes)
            changed.add(key)


def _counting(series: SeriesRecord) -> tuple[SeriesKind, float | None]:
    """Return the fields that a counter's growth depends on."""
    return series.kind, series.wraps_at
