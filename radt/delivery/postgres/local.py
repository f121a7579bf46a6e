"""The store on this machine: runs that are due, their rows, and the cursor of copied data."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import bindparam, text

from radt.delivery.postgres.shipment import Content, contents
from radt.masking import masked
from radt.store.backend import StoreAddress
from radt.store.database import ReadDatabase, backend_of
from radt.store.place import COPIED, OpenFile
from radt.store.points import StoredChunks, chunks_after
from radt.store.records import (
    GapRecord,
    LedgerRecord,
    MarkerRecord,
    RunRecord,
    SeriesRecord,
    WorkloadRecord,
)
from radt.store.tables import GAPS, LEDGERS, MARKERS, RUNS, SERIES, WORKLOADS

#: Live runs first, then the newest. Runs thinned here are not copied, as their copies would pass
#: for complete, nor is part of a run that another data folder has completely.
_DUE_RUNS = text(
    "SELECT run.run_id, run.revision, run.ended_ns IS NOT NULL FROM run "
    "LEFT JOIN replicated ON replicated.target = :target AND replicated.key = run.run_id "
    "WHERE (replicated.revision IS NULL OR replicated.revision < run.revision) "
    "AND NOT EXISTS (SELECT 1 FROM pruned WHERE pruned.run_id = run.run_id) "
    "AND run.end_reason <> :copied "
    "ORDER BY run.ended_ns IS NOT NULL, COALESCE(run.ended_ns, run.created_ns) DESC, run.run_id"
).bindparams(copied=COPIED)
_DUE_WORKLOADS = text(
    "SELECT workload.workload_id, workload.revision FROM workload "
    "LEFT JOIN replicated ON replicated.target = :target "
    "AND replicated.key = workload.workload_id "
    "WHERE replicated.revision IS NULL OR replicated.revision < workload.revision "
    "ORDER BY workload.created_ns DESC, workload.workload_id"
)
_EXPERIMENTS = text("SELECT created_ns FROM experiment WHERE name = :name")
_TEXTS = {
    name: text(f"SELECT key, value FROM {name} WHERE run_id = :run_id")  # noqa: S608 - our own
    for name in ("param", "tag")
}
_NEW_MARKERS = "WHERE run_id = :run_id AND marker_no >= :first ORDER BY marker_no LIMIT :limit"
_SOME_MARKERS = text(
    f"{MARKERS.select} WHERE run_id = :run_id AND marker_no IN :numbers"
).bindparams(bindparam("numbers", expanding=True))
#: Databases limit the parameters of one statement.
_NUMBERS_A_STATEMENT = 500

_MARK = text(
    "INSERT INTO replicated (target, key, revision) VALUES (:target, :key, :revision) "
    "ON CONFLICT (target, key) DO UPDATE SET revision = excluded.revision"
)
_UNMARK = text("DELETE FROM replicated WHERE target = :target")
_FORGET_OTHERS = text("DELETE FROM replica WHERE label = :label AND target <> :target")
_REACHED = text(
    "INSERT INTO replica (target, label, reached_ns) VALUES (:target, :label, :now_ns) "
    "ON CONFLICT (target) DO UPDATE SET label = excluded.label, "
    "reached_ns = COALESCE(excluded.reached_ns, replica.reached_ns), "
    "problem = '', problem_ns = NULL"
)
_PROBLEM = text(
    "INSERT INTO replica (target, label, problem, problem_ns) "
    "VALUES (:target, :label, :problem, :now_ns) ON CONFLICT (target) DO UPDATE SET "
    "label = excluded.label, problem = excluded.problem, "
    "problem_ns = COALESCE(replica.problem_ns, excluded.problem_ns)"
)
_PROBLEM_LIMIT = 500


@dataclass(frozen=True, slots=True)
class DueRun:
    """A run that has changed since it was last copied completely."""

    run_id: str
    revision: int
    ended: bool


class LocalStore:
    """Reads a store on this machine.

    Raises:
        StoreError: The file does not exist or cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._database = ReadDatabase(StoreAddress.of(path))
        self._file = OpenFile.at(path)

    def close(self) -> None:
        self._database.close()

    @property
    def vanished(self) -> bool:
        return self._file.vanished

    def change_token(self) -> int:
        """Return a number that changes with every write."""
        return self._database.change_token()

    def due_runs(self, target: str) -> list[DueRun]:
        """Return the runs that are new or changed for another store: live ones, then the newest."""
        with self._database.snapshot() as connection:
            rows = connection.execute(_DUE_RUNS, {"target": target}).all()
        return [DueRun(str(run_id), int(rev), bool(ended)) for run_id, rev, ended in rows]

    def due_workloads(self, target: str) -> dict[str, int]:
        """Return the workloads that are new or changed, with their revisions."""
        with self._database.snapshot() as connection:
            rows = connection.execute(_DUE_WORKLOADS, {"target": target}).all()
        return {str(workload_id): int(revision) for workload_id, revision in rows}

    def workloads(self, workload_ids: Sequence[str]) -> list[WorkloadRecord]:
        statement = text(f"{WORKLOADS.select} WHERE workload_id IN :ids").bindparams(
            bindparam("ids", expanding=True)
        )
        with self._database.snapshot() as connection:
            rows = connection.execute(statement, {"ids": list(workload_ids)}).all()
        return [WORKLOADS.read(row) for row in rows]

    def experiment_created_ns(self, name: str) -> int | None:
        with self._database.snapshot() as connection:
            row = connection.execute(_EXPERIMENTS, {"name": name}).first()
        return None if row is None else int(row[0])

    def run(self, run_id: str) -> RunRecord | None:
        """Return the run's row; None if it was removed."""
        runs = self._database.select(RUNS, {"run_id": run_id}, "run_id")
        return runs[0] if runs else None

    def texts(self, table: str, run_id: str) -> list[tuple[str, str]]:
        """Return keys and values of a run, from ``param`` or ``tag``."""
        with self._database.snapshot() as connection:
            rows = connection.execute(_TEXTS[table], {"run_id": run_id}).all()
        return [(str(key), str(value)) for key, value in rows]

    def series(self, run_id: str) -> list[SeriesRecord]:
        return self._database.select(SERIES, {"run_id": run_id}, "series_no")

    def ledgers(self, run_id: str) -> list[LedgerRecord]:
        return self._database.select(LEDGERS, {"run_id": run_id}, "listener")

    def gaps(self, run_id: str) -> list[GapRecord]:
        return self._database.select(GAPS, {"run_id": run_id}, "start_ns")

    def new_markers(self, run_id: str, first: int, limit: int) -> list[MarkerRecord]:
        """Return at most ``limit`` markers from a number on."""
        key = {"run_id": run_id, "first": first, "limit": limit}
        return self._database.query(MARKERS, _NEW_MARKERS, key)

    def markers(self, run_id: str, numbers: Sequence[int]) -> list[MarkerRecord]:
        """Return markers by their numbers."""
        markers: list[MarkerRecord] = []
        with self._database.snapshot() as connection:
            for start in range(0, len(numbers), _NUMBERS_A_STATEMENT):
                some = list(numbers[start : start + _NUMBERS_A_STATEMENT])
                rows = connection.execute(_SOME_MARKERS, {"run_id": run_id, "numbers": some})
                markers += [MARKERS.read(row) for row in rows]
        return markers

    def points_after(
        self, run_id: str, skip: Mapping[int, int], limit: int
    ) -> dict[int, StoredChunks]:
        """Return chunks with about ``limit`` points of each series after its first ``skip``.

        All from one snapshot: series that were read together then have equally many points.
        """
        with self._database.snapshot() as connection:
            return {
                series_no: chunks_after(connection, run_id, series_no, count, limit)
                for series_no, count in skip.items()
            }

    def contents(self, run_ids: Sequence[str]) -> dict[str, Content]:
        """Return summaries of runs for comparison."""
        with self._database.snapshot() as connection:
            return contents(connection, run_ids)


class ReplicationCursor:
    """Records in the store on this machine what another store has; ``label`` is its address."""

    def __init__(self, path: Path, label: str) -> None:
        self._backend = backend_of(StoreAddress.of(path))
        self._engine = self._backend.writer_engine()
        self._label = label
        self._last_problem = ""

    def close(self) -> None:
        self._engine.dispose()

    def mark(self, target: str, revisions: Mapping[str, int]) -> None:
        """Record that the other store has these revisions of runs or workloads."""
        if revisions:
            rows = [
                {"target": target, "key": key, "revision": revision}
                for key, revision in revisions.items()
            ]
            with self._backend.translated_errors(), self._engine.begin() as connection:
                connection.execute(_MARK, rows)

    def reached(self, target: str, *, everything: bool) -> None:
        """Record that the other store works, and is complete if ``everything``."""
        now_ns = time.time_ns() if everything else None
        with self._backend.translated_errors(), self._engine.begin() as connection:
            row = {"target": target, "label": self._label, "now_ns": now_ns}
            # Rows from before its identity was known, or of another database at the address.
            connection.execute(_FORGET_OTHERS, row)
            connection.execute(_REACHED, row)
        self._last_problem = ""

    def problem(self, target: str, why: str) -> bool:
        """Record why copying fails; return whether that is new. ``target`` is empty if unknown."""
        why = masked(" ".join(why.split()))[:_PROBLEM_LIMIT]
        if why == self._last_problem:
            return False
        row = {
            "target": target or self._label,
            "label": self._label,
            "problem": why,
            "now_ns": time.time_ns(),
        }
        with self._backend.translated_errors(), self._engine.begin() as connection:
            connection.execute(_PROBLEM, row)
        self._last_problem = why
        return True

    def forget(self, target: str) -> None:
        """Compare every run again."""
        with self._backend.translated_errors(), self._engine.begin() as connection:
            connection.execute(_UNMARK, {"target": target})
