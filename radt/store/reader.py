"""Read the sample store: never writes, never creates, never waits for writers."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self, TypeVar

from sqlalchemy import Connection, bindparam, text

from radt.errors import RunNotFoundError, StoreError
from radt.model import SOFTWARE, RunStatus
from radt.store import chunks
from radt.store.downsample import envelope
from radt.store.engine import is_foreign, reader_engine, translated_errors
from radt.store.migrations import bring_up_to_date
from radt.store.queries import (
    EXPERIMENTS,
    FIND_RUN,
    LAST_VALUES,
    RUN_COUNTS,
    SUMMARY,
    TO_DELIVER,
    last_value,
    skipped_chunks,
    summary_record,
)
from radt.store.records import (
    ExperimentSummary,
    GapRecord,
    JournalCursor,
    LastValue,
    LedgerRecord,
    MarkerRecord,
    RunRecord,
    Samples,
    SeriesRecord,
    SummaryRecord,
    WorkloadRecord,
)
from radt.store.tables import (
    CURSORS,
    GAPS,
    LEDGERS,
    MARKERS,
    RUNS,
    SERIES,
    WORKLOADS,
    RecordT,
    Table,
)

#: A prefix of an id must have this many characters to stand for it.
MIN_PREFIX = 4

#: Databases limit the parameters of one statement (SQLite before 3.32: 999).
_IDS_PER_STATEMENT = 500

ResultT = TypeVar("ResultT")


class StoreReader:
    """Reads a store. Safe from several threads; each call sees all that was committed before.

    Args:
        path: The SQLite file.

    Raises:
        StoreError: The file is not there, cannot be read, or is not a store.
        SchemaTooNewError: It was written by a later radt.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).absolute()
        if not self.path.exists():
            raise StoreError(
                f"there is no store {self.path}",
                "Run an experiment first, or set RADT_HOME (or --home) to the folder of one",
            )
        self._engine = reader_engine(self.path)
        with translated_errors(self.path):
            bring_up_to_date(self._engine, self.path)
        self._token_lock = threading.Lock()
        self._token_connection: Connection | None = None
        # `data_version` counts from the opening of a connection. Something random in front keeps a
        # browser from taking a restarted dashboard's token for one it knows. Exact in JavaScript.
        self._token_base = secrets.randbelow(2**20) << 32
        self._foreign = is_foreign(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; harmless if it is closed."""
        with self._token_lock:
            if self._token_connection is not None:
                self._token_connection.close()
                self._token_connection = None
        self._engine.dispose()

    def change_token(self) -> int:
        """A number that changes whenever somebody has written to the store; costs microseconds.

        It is below 2**53, so that JavaScript keeps it exactly.
        """
        if self._foreign:
            return self._token_of_files()
        with self._token_lock, translated_errors(self.path):
            if self._token_connection is None:
                # One connection for good: SQLite compares with what this connection saw before.
                self._token_connection = self._engine.connect()
            version = self._token_connection.exec_driver_sql("PRAGMA data_version").scalar_one()
            # Ends the transaction that SQLAlchemy began: inside it the store would never change.
            self._token_connection.rollback()
            return self._token_base + int(version)

    def _token_of_files(self) -> int:
        """For somebody else's store, where no connection may be kept; a tick of 4 ms coarse."""
        token = 0
        for path in (self.path, self.path.with_name(f"{self.path.name}-wal")):
            with suppress(FileNotFoundError):
                status = path.stat()
                token = hash((token, status.st_mtime_ns, status.st_size))
        return token % 2**53

    # -- experiments, workloads, runs -------------------------------------------------------------

    def experiments(self) -> list[ExperimentSummary]:
        """All experiments, the one with the latest activity first."""
        statuses: dict[str, dict[RunStatus, int]] = {}
        last_ns: dict[str, int] = {}
        workload_counts: dict[str, int] = {}
        with self._snapshot() as connection:
            for name, created_ns, count in connection.execute(EXPERIMENTS):
                statuses[name], last_ns[name], workload_counts[name] = {}, created_ns, count
            for name, status, count, active_ns in connection.execute(RUN_COUNTS):
                statuses[name][RunStatus(status)] = count
                last_ns[name] = max(last_ns[name], active_ns)
        return sorted(
            (
                ExperimentSummary(
                    name, workload_counts[name], sum(counts.values()), counts, last_ns[name]
                )
                for name, counts in statuses.items()
            ),
            key=lambda summary: summary.last_activity_ns,
            reverse=True,
        )

    def workloads(self, experiment: str | None = None) -> list[WorkloadRecord]:
        """Workloads of one experiment or of all, oldest first."""
        return self._select(WORKLOADS, {"experiment": experiment}, "created_ns, workload_id")

    def workload(self, workload_id: str) -> WorkloadRecord:
        """One workload.

        Raises:
            RunNotFoundError: It is not there.
        """
        for workload in self._select(WORKLOADS, {"workload_id": workload_id}, "workload_id"):
            return workload
        raise RunNotFoundError(f"there is no workload {workload_id} in {self.path}")

    def runs(
        self,
        *,
        experiment: str | None = None,
        workload_id: str | None = None,
        status: RunStatus | None = None,
        run_ids: Sequence[str] | None = None,
    ) -> list[RunRecord]:
        """Runs that meet all the given conditions, oldest first, by letter within a workload."""
        conditions = {
            "experiment": experiment,
            "workload_id": workload_id,
            "status": None if status is None else status.value,
        }
        order = "created_ns, LENGTH(letter), letter, run_id"
        if run_ids is None:
            return self._select(RUNS, conditions, order)
        found = self._select_of(RUNS, run_ids, order)
        wanted = {name: value for name, value in conditions.items() if value is not None}
        return [
            run
            for run in found
            if all(getattr(run, name) == value for name, value in wanted.items())
        ]

    def run(self, run_id: str) -> RunRecord:
        """One run by its id.

        Raises:
            RunNotFoundError: It is not there.
        """
        for run in self._select(RUNS, {"run_id": run_id}, "run_id"):
            return run
        raise RunNotFoundError(
            f"there is no run {run_id} in {self.path}", "`radt dashboard` lists the runs"
        )

    def find_run(self, given: str) -> RunRecord:
        """The run that radt's or MLflow's id, or the beginning of one, stands for.

        Raises:
            RunNotFoundError: None or several match, or fewer than 4 characters were given.
        """
        prefix = given.strip().lower()
        if len(prefix) < MIN_PREFIX:
            raise RunNotFoundError(
                f"'{given}' is too short for a run id", f"Give {MIN_PREFIX} characters or more"
            )
        # A range uses the index whatever the prefix holds; LIKE would not, and has wildcards.
        row = {"first": prefix, "last": prefix + chr(0x10FFFF)}
        with self._snapshot() as connection:
            rows = connection.execute(FIND_RUN, row).all()
        found = {run.run_id: run for run in map(RUNS.read, rows)}
        exact = [run for run in found.values() if prefix in (run.run_id, run.mlflow_run_id)]
        matches = exact or list(found.values())
        if len(matches) == 1:
            return matches[0]
        if not matches:
            raise RunNotFoundError(
                f"no run matches '{given}' in {self.path}", "`radt dashboard` lists the runs"
            )
        some = ", ".join(run.run_id[:12] for run in matches[:3])
        raise RunNotFoundError(f"several runs match '{given}': {some}…", "Give more characters")

    def unended_runs(self) -> list[RunRecord]:
        """Runs that nobody has ended, oldest first."""
        return self._query(RUNS, "WHERE ended_ns IS NULL ORDER BY created_ns", {})

    def runs_to_deliver(self, tracking_uri: str) -> list[RunRecord]:
        """Runs that `StoreWriter.mark_run_delivered` was not called for, oldest first."""
        return self._query(RUNS, TO_DELIVER, {"uri": tracking_uri})

    def workloads_to_deliver(self, tracking_uri: str) -> list[WorkloadRecord]:
        """Workloads that `StoreWriter.mark_workload_delivered` was not called for."""
        return self._query(WORKLOADS, TO_DELIVER, {"uri": tracking_uri})

    def params(self, run_id: str) -> dict[str, str]:
        """Parameters of a run."""
        return self.params_of([run_id]).get(run_id, {})

    def params_of(self, run_ids: Sequence[str]) -> dict[str, dict[str, str]]:
        """Parameters of runs; runs without any are left out."""
        return self._texts("param", run_ids)

    def tags(self, run_id: str) -> dict[str, str]:
        """Tags of a run."""
        return self.tags_of([run_id]).get(run_id, {})

    def tags_of(self, run_ids: Sequence[str]) -> dict[str, dict[str, str]]:
        """Tags of runs; runs without any are left out."""
        return self._texts("tag", run_ids)

    # -- samples ----------------------------------------------------------------------------------

    def series(self, run_ids: Sequence[str]) -> list[SeriesRecord]:
        """All series of runs, by run and number."""
        return self._select_of(SERIES, run_ids, "run_id, series_no")

    def samples(
        self,
        run_id: str,
        series_no: int,
        *,
        start_ns: int | None = None,
        end_ns: int | None = None,
        skip: int = 0,
    ) -> Samples:
        """Points of a series at full resolution, in time order; none if there is no such series.

        Args:
            run_id: The run.
            series_no: The series' number in it.
            start_ns: Leave out points before this time.
            end_ns: Leave out points after this time.
            skip: Leave out that many of the points that were written first. Writing never changes
                which those are, so a reader that counts what it got misses none and gets none
                twice, even where times go backwards.

        Raises:
            CodecError: A chunk is damaged.
        """
        key = {"run_id": run_id, "series_no": series_no, "first": 0}
        conditions = ["run_id = :run_id AND series_no = :series_no AND chunk_no >= :first"]
        if start_ns is not None:
            conditions.append("last_ns >= :start")
            key["start"] = start_ns
        if end_ns is not None:
            conditions.append("first_ns <= :end")
            key["end"] = end_ns
        statement = text(
            f"SELECT {chunks.DATA_COLUMNS} FROM chunk "  # noqa: S608 - our own names
            f"WHERE {' AND '.join(conditions)} ORDER BY chunk_no"
        )
        with self._snapshot() as connection:
            skipped_within: tuple[int, int] | None = None
            if skip > 0:
                number, rest = skipped_chunks(connection, run_id, series_no, skip)
                key["first"], skipped_within = number, (number, rest)
            rows = connection.execute(statement, key).all()
        parts = []
        for chunk in map(chunks.ChunkData._make, rows):
            part = chunk.samples()
            if skipped_within is not None and chunk.chunk_no == skipped_within[0]:
                part = chunks.sliced(part, skipped_within[1])
            parts.append(part)
        return chunks.between(chunks.time_sorted(chunks.joined(parts)), start_ns, end_ns)

    def envelope(
        self,
        run_id: str,
        series_no: int,
        *,
        start_ns: int | None = None,
        end_ns: int | None = None,
        max_points: int = 2000,
    ) -> Samples:
        """At most ``max_points`` real points of a series that keep its peaks, for a chart.

        See `radt.store.downsample.envelope`.

        Raises:
            CodecError: A chunk is damaged.
        """
        samples = self.samples(run_id, series_no, start_ns=start_ns, end_ns=end_ns)
        return envelope(samples, max_points)

    def last_values(self, run_ids: Sequence[str]) -> list[LastValue]:
        """The newest point of everything that scripts logged in these runs."""
        return self._in_groups(
            run_ids,
            lambda connection, ids: [
                last_value(row)
                for row in connection.execute(LAST_VALUES, {"ids": ids, "listener": SOFTWARE})
            ],
        )

    def summary(self, run_ids: Sequence[str]) -> list[SummaryRecord]:
        """Count, mean, extremes and ends of every series that has points, from headers alone."""
        return self._in_groups(
            run_ids,
            lambda connection, ids: [
                summary_record(row) for row in connection.execute(SUMMARY, {"ids": ids})
            ],
        )

    # -- what else is known of runs ---------------------------------------------------------------

    def markers(self, run_ids: Sequence[str]) -> list[MarkerRecord]:
        """Markers of runs, by run and start."""
        return self._select_of(MARKERS, run_ids, "run_id, start_ns, marker_no")

    def ledger(self, run_ids: Sequence[str]) -> list[LedgerRecord]:
        """Samples expected and received of every listener of runs."""
        return self._select_of(LEDGERS, run_ids, "run_id, listener")

    def gaps(self, run_ids: Sequence[str]) -> list[GapRecord]:
        """Stretches without values, by run and start."""
        return self._select_of(GAPS, run_ids, "run_id, start_ns, listener, series_no")

    def cursors(self, run_id: str) -> dict[str, JournalCursor]:
        """How far each journal of a run was read, by the journal's name."""
        rows = self._query(CURSORS, "WHERE run_id = :run_id", {"run_id": run_id})
        return {cursor.journal: cursor for cursor in rows}

    def delivered(self, run_id: str) -> dict[int, int]:
        """What `StoreWriter.mark_delivered` was told last, by series number."""
        with self._snapshot() as connection:
            rows = connection.execute(
                text("SELECT series_no, delivered FROM delivery WHERE run_id = :run_id"),
                {"run_id": run_id},
            )
            return {int(number): int(count) for number, count in rows}

    def delivered_artifacts(self, run_id: str) -> set[str]:
        """Artifacts that `StoreWriter.mark_artifacts` was told of."""
        with self._snapshot() as connection:
            rows = connection.execute(
                text("SELECT path FROM artifact_delivered WHERE run_id = :run_id"),
                {"run_id": run_id},
            )
            return {str(path) for (path,) in rows}

    # -- helpers ----------------------------------------------------------------------------------

    @contextmanager
    def _snapshot(self) -> Iterator[Connection]:
        """A connection that sees the store as it is now, until the end of the block."""
        with translated_errors(self.path), self._engine.begin() as connection:
            yield connection

    def _query(
        self, table: Table[RecordT], clauses: str, parameters: Mapping[str, object]
    ) -> list[RecordT]:
        with self._snapshot() as connection:
            rows = connection.execute(text(f"{table.select} {clauses}"), parameters).all()
        return [table.read(row) for row in rows]

    def _select(
        self, table: Table[RecordT], conditions: Mapping[str, str | None], order: str
    ) -> list[RecordT]:
        given = {name: value for name, value in conditions.items() if value is not None}
        where = " AND ".join(f"{name} = :{name}" for name in given)
        return self._query(table, f"{f'WHERE {where}' if where else ''} ORDER BY {order}", given)

    def _select_of(
        self, table: Table[RecordT], run_ids: Sequence[str], order: str
    ) -> list[RecordT]:
        statement = text(f"{table.select} WHERE run_id IN :ids ORDER BY {order}").bindparams(
            bindparam("ids", expanding=True)
        )
        return self._in_groups(
            run_ids,
            lambda connection, ids: [
                table.read(row) for row in connection.execute(statement, {"ids": ids})
            ],
        )

    def _texts(self, table: str, run_ids: Sequence[str]) -> dict[str, dict[str, str]]:
        statement = text(
            f"SELECT run_id, key, value FROM {table} "  # noqa: S608 - our own names
            "WHERE run_id IN :ids ORDER BY run_id, key"
        ).bindparams(bindparam("ids", expanding=True))
        rows = self._in_groups(
            run_ids, lambda connection, ids: list(connection.execute(statement, {"ids": ids}))
        )
        texts: dict[str, dict[str, str]] = {}
        for run_id, key, value in rows:
            texts.setdefault(run_id, {})[key] = value
        return texts

    def _in_groups(
        self,
        run_ids: Sequence[str],
        read: Callable[[Connection, Sequence[str]], list[ResultT]],
    ) -> list[ResultT]:
        """Call ``read`` with some ids at a time, all in one snapshot."""
        results: list[ResultT] = []
        unique = sorted(set(run_ids))
        with self._snapshot() as connection:
            for start in range(0, len(unique), _IDS_PER_STATEMENT):
                results += read(connection, unique[start : start + _IDS_PER_STATEMENT])
        return results
