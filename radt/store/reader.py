"""Read the sample store: never writes, never creates, never waits for writers.

Modules that read points are imported on first use: a runner starts without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from sqlalchemy import Connection, TextClause, text

from radt.errors import RunNotFoundError
from radt.masking import masked
from radt.model import RunStatus
from radt.store.backend import StoreAddress, backend_of
from radt.store.migrations import prepare_to_read
from radt.store.records import (
    ExperimentSummary,
    GapRecord,
    JournalCursor,
    LedgerRecord,
    MarkerRecord,
    RunRecord,
    Samples,
    SavedView,
    SeriesRecord,
    WorkloadRecord,
)
from radt.store.tables import (
    CURSORS,
    DELIVERED,
    DELIVERED_ARTIFACTS,
    EXPERIMENTS,
    FIND_RUN,
    GAPS,
    HAS_TAG,
    LEDGERS,
    MARKERS,
    REVISIONS,
    RUN_COUNTS,
    RUNS,
    SAVED_VIEWS,
    SERIES,
    TAGGED,
    TO_DELIVER,
    WORKLOADS,
    RecordT,
    RecordTable,
    of_runs,
)

if TYPE_CHECKING:
    from radt.store.summaries import SeriesSummary

#: Minimum length of an id prefix that may stand for the id.
MIN_PREFIX = 4
#: Databases limit the parameters of one statement (SQLite before 3.32: 999).
_IDS_PER_STATEMENT = 500

ResultT = TypeVar("ResultT")


class StoreReader:
    """Reads a store. Thread-safe; each call sees everything committed before.

    Args:
        store: The SQLite file, or the address of a Postgres database.

    Raises:
        StoreError: The store does not exist, cannot be read, or is not a radt store.
        SchemaTooNewError: It was written by a later radt.
        SchemaTooOldError: It is in Postgres and must be upgraded.
        UsageError: The address is invalid.
    """

    def __init__(self, store: StoreAddress | Path | str) -> None:
        self.address = StoreAddress.of(store)
        self._backend = backend_of(self.address)
        self._backend.check_there()
        self.engine = self._backend.reader_engine()
        with self._backend.translated_errors():
            prepare_to_read(self._backend, self.engine)
        self._changes = self._backend.changes(self.engine)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store. Idempotent."""
        self._changes.close()
        self.engine.dispose()

    def change_token(self) -> int:
        """Return a number that changes with every write to the store; takes microseconds.

        It is below 2**53, so that JavaScript represents it exactly.
        """
        with self._backend.translated_errors():
            return self._changes.token()

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Yield a connection that sees the store as of now until the end of the block."""
        with self._backend.translated_errors(), self.engine.begin() as connection:
            yield connection

    # -- experiments, workloads, runs -------------------------------------------------------------

    def experiments(self) -> list[ExperimentSummary]:
        """Return all experiments, the most recently active first."""
        statuses: dict[str, dict[RunStatus, int]] = {}
        last_ns: dict[str, int] = {}
        with self.snapshot() as connection:
            for name, created_ns in connection.execute(EXPERIMENTS):
                statuses[name], last_ns[name] = {}, created_ns
            for name, status, count, active_ns in connection.execute(RUN_COUNTS):
                statuses[name][RunStatus(status)] = count
                last_ns[name] = max(last_ns[name], active_ns)
        return sorted(
            (
                ExperimentSummary(name, sum(counts.values()), counts, last_ns[name])
                for name, counts in statuses.items()
            ),
            key=lambda summary: summary.last_activity_ns,
            reverse=True,
        )

    def workloads(self, experiment: str | None = None) -> list[WorkloadRecord]:
        """Return the workloads of one experiment or of all, oldest first."""
        return self._select(WORKLOADS, {"experiment": experiment}, "created_ns, workload_id")

    def workload(self, workload_id: str) -> WorkloadRecord:
        """Return a workload; raise RunNotFoundError if it does not exist."""
        for workload in self._select(WORKLOADS, {"workload_id": workload_id}, "workload_id"):
            return workload
        raise RunNotFoundError(f"there is no workload {workload_id} in {self.address}")

    def runs(
        self,
        *,
        experiment: str | None = None,
        workload_id: str | None = None,
        status: RunStatus | None = None,
        run_ids: Sequence[str] | None = None,
    ) -> list[RunRecord]:
        """Return runs that meet all conditions, oldest first, by letter within a workload."""
        conditions = {
            "experiment": experiment,
            "workload_id": workload_id,
            "status": None if status is None else status.value,
        }
        order = "created_ns, LENGTH(letter), letter, run_id"
        if run_ids is None:
            return self._select(RUNS, conditions, order)
        wanted = {name: [value] for name, value in conditions.items() if value is not None}
        # Groups are sorted separately, so the result has to be sorted again.
        return sorted(
            self._select_of(RUNS, run_ids, order, **wanted),
            key=lambda run: (run.created_ns, len(run.letter), run.letter, run.run_id),
        )

    def run(self, run_id: str) -> RunRecord:
        """Return a run by its id; raise RunNotFoundError if it does not exist."""
        for run in self._select(RUNS, {"run_id": run_id}, "run_id"):
            return run
        raise RunNotFoundError(
            f"there is no run {run_id} in {self.address}", "`radt ls` lists the runs"
        )

    def find_run(self, given: str) -> RunRecord:
        """Return the run with this radt id, MLflow id or id prefix.

        Raises:
            RunNotFoundError: No run or several match, or fewer than 4 characters were given.
        """
        matches = self.matching_runs(given)
        if not matches:
            raise RunNotFoundError(
                f"no run matches '{given}' in {self.address}", "`radt ls` lists the runs"
            )
        if len(matches) == 1:
            return matches[0]
        some = ", ".join(run.run_id[:12] for run in matches[:3])
        raise RunNotFoundError(f"several runs match '{given}': {some}…", "Give more characters")

    def matching_runs(self, given: str) -> list[RunRecord]:
        """Return the run with this radt or MLflow id; without one, some runs with this prefix.

        Raises:
            RunNotFoundError: Fewer than 4 characters were given.
        """
        prefix = given.strip().lower()
        if len(prefix) < MIN_PREFIX:
            raise RunNotFoundError(
                f"'{given}' is too short for a run id", f"Give {MIN_PREFIX} characters or more"
            )
        # A range uses the index for any prefix; LIKE would not, and has wildcards.
        row = {"first": prefix, "last": prefix + chr(0x10FFFF)}
        with self.snapshot() as connection:
            rows = connection.execute(FIND_RUN, row).all()
        runs = {run.run_id: run for run in map(RUNS.read, rows)}
        exact = [run for run in runs.values() if prefix in (run.run_id, run.mlflow_run_id)]
        return exact or list(runs.values())

    def unended_runs(self) -> list[RunRecord]:
        """Return runs that have not ended, oldest first."""
        return self._query(RUNS, "WHERE ended_ns IS NULL ORDER BY created_ns", {})

    def runs_to_deliver(self, tracking_uri: str) -> list[RunRecord]:
        """Return runs not yet marked by `StoreWriter.mark_run_delivered`, oldest first."""
        return self._query(RUNS, TO_DELIVER, {"uri": masked(tracking_uri)})

    def workloads_to_deliver(self, tracking_uri: str) -> list[WorkloadRecord]:
        """Return workloads not yet marked by `StoreWriter.mark_workload_delivered`."""
        return self._query(WORKLOADS, TO_DELIVER, {"uri": masked(tracking_uri)})

    def params(self, run_id: str) -> dict[str, str]:
        """Return the parameters of a run."""
        return self.params_of([run_id]).get(run_id, {})

    def params_of(self, run_ids: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the parameters of runs; runs without any are left out."""
        return self._texts("param", run_ids)

    def revisions(self, experiment: str) -> dict[str, int]:
        """Return the revisions of an experiment's runs by id. A change to a run increases its own.

        Read them before the data, so that later writes are read again rather than missed.
        """
        with self.snapshot() as connection:
            rows = connection.execute(REVISIONS, {"experiment": experiment}).all()
        return {str(run_id): int(revision) for run_id, revision in rows}

    def tags(self, run_id: str) -> dict[str, str]:
        """Return the tags of a run."""
        return self.tags_of([run_id]).get(run_id, {})

    def tags_of(self, run_ids: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the tags of runs; runs without any are left out."""
        return self._texts("tag", run_ids)

    def tagged(self, key: str, experiment: str) -> dict[str, str]:
        """Return the values of one tag by run; runs of the experiment without it are left out."""
        with self.snapshot() as connection:
            rows = connection.execute(TAGGED, {"key": key, "experiment": experiment}).all()
        return {str(run_id): str(value) for run_id, value in rows}

    def has_tag(self, key: str, value: str) -> bool:
        """Return whether any run has a tag with this value."""
        with self.snapshot() as connection:
            return connection.execute(HAS_TAG, {"key": key, "value": value}).first() is not None

    def saved_views(self) -> list[SavedView]:
        """Return the saved views by name."""
        return self._query(SAVED_VIEWS, "ORDER BY name", {})

    # -- samples ----------------------------------------------------------------------------------

    def series(
        self, run_ids: Sequence[str], metrics: Sequence[str] | None = None
    ) -> list[SeriesRecord]:
        """Return the series of runs, of some metrics or of all, by run and number."""
        wanted = {} if metrics is None else {"metric": list(metrics)}
        return self._select_of(SERIES, run_ids, "run_id, series_no", **wanted)

    def samples(
        self,
        run_id: str,
        series_no: int,
        *,
        start_ns: int | None = None,
        end_ns: int | None = None,
    ) -> Samples:
        """Return the points of a series in a range of time, in time order, at full resolution.

        An unknown series has no points.

        Raises:
            CodecError: A chunk is damaged.
        """
        from radt.store import chunks, points

        with self.snapshot() as connection:
            stored = points.chunks_between(connection, run_id, series_no, start_ns, end_ns)
        return chunks.between(chunks.time_sorted(stored.decode()), start_ns, end_ns)

    def point_counts(self, run_id: str) -> dict[int, int]:
        """Return the number of stored points of each series of a run, by the series' number."""
        return {each.series.series_no: each.stored_count for each in self.summary([run_id])}

    def points_after(self, run_id: str, series_no: int, skip: int, limit: int) -> Samples:
        """Return at most ``limit`` points in the order of writing, after the first ``skip``.

        That order never changes, so a reader that counts its points misses none and gets none
        twice, even if times go backwards.

        Raises:
            CodecError: A chunk is damaged.
        """
        from radt.store import points

        with self.snapshot() as connection:
            stored = points.chunks_after(connection, run_id, series_no, skip, limit)
        return stored.decode()[:limit]

    def pages(self, series: SeriesRecord, limit: int) -> Iterator[Samples]:
        """Yield all points of a series in the order of writing, at most ``limit`` at a time."""
        done = 0
        while len(page := self.points_after(series.run_id, series.series_no, done, limit)):
            yield page
            done += len(page)

    def summary(
        self, run_ids: Sequence[str], metrics: Sequence[str] | None = None
    ) -> list[SeriesSummary]:
        """Return the summary of every series of runs that has points, by run and number.

        `metrics` selects metrics; None for all.
        """
        from radt.store import summaries

        return self._in_groups(
            run_ids, lambda connection, ids: summaries.read(connection, ids, metrics)
        )

    def newest_ns(self, run_ids: Sequence[str]) -> dict[str, int]:
        """Return the time of the newest point of each run that has any."""
        from radt.store import summaries

        return {str(run_id): int(ns) for run_id, ns in self.rows_of(summaries.NEWEST, run_ids)}

    # -- other data of runs ------------------------------------------------------------------------

    def markers(self, run_ids: Sequence[str]) -> list[MarkerRecord]:
        """Return the markers of runs, by run and start."""
        return self._select_of(MARKERS, run_ids, "run_id, start_ns, marker_no")

    def blocks(
        self, table: RecordTable[RecordT], run_id: str, limit: int
    ) -> Iterator[list[RecordT]]:
        """Yield the records of a run by key, at most ``limit`` at a time."""
        keys = table.keys[1:]
        columns, wanted = ", ".join(keys), ", ".join(f":{name}" for name in keys)
        order = f"ORDER BY {columns} LIMIT :limit"
        after = ""
        row: dict[str, object] = {"run_id": run_id, "limit": limit}
        while block := self._query(table, f"WHERE run_id = :run_id {after} {order}", row):
            yield block
            after = f"AND ({columns}) > ({wanted})"
            row |= {name: getattr(block[-1], name) for name in keys}

    def ledger(self, run_ids: Sequence[str]) -> list[LedgerRecord]:
        """Return the numbers of samples expected and received from each listener of the runs."""
        return self._select_of(LEDGERS, run_ids, "run_id, listener")

    def gaps(self, run_ids: Sequence[str]) -> list[GapRecord]:
        """Return the gaps of runs, intervals without values, by run and start."""
        return self._select_of(GAPS, run_ids, "run_id, start_ns, listener, series_no")

    def cursors(self, run_id: str) -> dict[str, JournalCursor]:
        """Return how far each journal of a run was read, by the journal's name."""
        rows = self._query(CURSORS, "WHERE run_id = :run_id", {"run_id": run_id})
        return {cursor.journal: cursor for cursor in rows}

    def delivered(self, run_id: str) -> dict[int, int]:
        """Return the positions recorded by `StoreWriter.mark_delivered`, by series number."""
        return {int(number): int(count) for number, count in self.rows_of(DELIVERED, [run_id])}

    def delivered_artifacts(self, run_id: str) -> set[str]:
        """Return the artifacts recorded by `StoreWriter.mark_artifacts`."""
        return {str(path) for (path,) in self.rows_of(DELIVERED_ARTIFACTS, [run_id])}

    # -- statements -------------------------------------------------------------------------------

    def _query(
        self, table: RecordTable[RecordT], clauses: str, parameters: Mapping[str, object]
    ) -> list[RecordT]:
        """Return the records of a table selected by SQL clauses."""
        with self.snapshot() as connection:
            rows = connection.execute(text(f"{table.select} {clauses}"), parameters).all()
        return [table.read(row) for row in rows]

    def _select(
        self, table: RecordTable[RecordT], conditions: Mapping[str, str | None], order: str
    ) -> list[RecordT]:
        """Return the records whose columns equal the given values; None sets no condition."""
        given = {name: value for name, value in conditions.items() if value is not None}
        where = " AND ".join(f"{name} = :{name}" for name in given)
        return self._query(table, f"{f'WHERE {where}' if where else ''} ORDER BY {order}", given)

    def _select_of(
        self,
        table: RecordTable[RecordT],
        run_ids: Sequence[str],
        order: str,
        **wanted: Sequence[str],
    ) -> list[RecordT]:
        """Return the records of runs whose columns have one of the ``wanted`` values.

        The order must begin with the run's id.
        """
        more = "".join(f" AND {column} IN :{column}" for column in wanted)
        statement = of_runs(f"{table.select} WHERE run_id IN :ids{more} ORDER BY {order}", *wanted)
        return [table.read(row) for row in self.rows_of(statement, run_ids, **wanted)]

    def _texts(self, table: str, run_ids: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the keys and values of runs by run id, from ``param`` or ``tag``."""
        statement = of_runs(
            f"SELECT run_id, key, value FROM {table} "  # noqa: S608 - our own names
            "WHERE run_id IN :ids ORDER BY run_id, key"
        )
        texts: dict[str, dict[str, str]] = {}
        shared: dict[str, str] = {}  # many runs have the same keys and values
        for run_id, key, value in self.rows_of(statement, run_ids):
            of_run = texts.setdefault(run_id, {})
            of_run[shared.setdefault(key, key)] = shared.setdefault(value, value)
        return texts

    def rows_of(
        self, statement: TextClause, run_ids: Sequence[str], **parameters: object
    ) -> list[Any]:
        """Return the rows of a statement from `radt.store.tables.of_runs`, in order of the ids."""
        return self._in_groups(
            run_ids,
            lambda connection, ids: list(
                connection.execute(statement, {"ids": ids, **parameters}).all()
            ),
        )

    def _in_groups(
        self,
        run_ids: Sequence[str],
        read: Callable[[Connection, Sequence[str]], list[ResultT]],
    ) -> list[ResultT]:
        """Call ``read`` with groups of ids, in order, all in one snapshot."""
        results: list[ResultT] = []
        unique = sorted(set(run_ids))
        with self.snapshot() as connection:
            for start in range(0, len(unique), _IDS_PER_STATEMENT):
                results += read(connection, unique[start : start + _IDS_PER_STATEMENT])
        return results
