"""The store on this machine: runs that are due, and the record of what was copied."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, bindparam, text

from radt.store.backend import StoreAddress, backend_of
from radt.store.place import COPIED
from radt.store.reader import StoreReader
from radt.store.records import WorkloadRecord
from radt.store.tables import WORKLOADS

#: Live runs first, then the newest. Two kinds of runs are not copied: those thinned here, whose
#: copies would be taken for complete, and parts of runs that another data folder has completely.
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
_WORKLOADS = text(f"{WORKLOADS.select} WHERE workload_id IN :ids").bindparams(
    bindparam("ids", expanding=True)
)
_MARK = text(
    "INSERT INTO replicated (target, key, revision) VALUES (:target, :key, :revision) "
    "ON CONFLICT (target, key) DO UPDATE SET revision = excluded.revision"
)
_UNMARK = text("DELETE FROM replicated WHERE target = :target")
_FORGET_OTHERS = text("DELETE FROM replica WHERE label = :label AND target <> :target")
_REACHED = text(
    "INSERT INTO replica (target, label, reached_ns) VALUES (:target, :label, :now_ns) "
    "ON CONFLICT (target) DO UPDATE SET label = excluded.label, "
    "reached_ns = COALESCE(excluded.reached_ns, replica.reached_ns)"
)


@dataclass(frozen=True, slots=True)
class DueRun:
    """A run that has changed since it was last copied completely."""

    run_id: str
    revision: int
    ended: bool


def due_runs(store: StoreReader, target: str) -> list[DueRun]:
    """Return the runs that are new or changed for another store: live ones, then the newest."""
    with store.snapshot() as connection:
        rows = connection.execute(_DUE_RUNS, {"target": target}).all()
    return [DueRun(str(run_id), int(rev), bool(ended)) for run_id, rev, ended in rows]


def due_workloads(store: StoreReader, target: str) -> dict[str, int]:
    """Return the workloads that are new or changed, with their revisions."""
    with store.snapshot() as connection:
        rows = connection.execute(_DUE_WORKLOADS, {"target": target}).all()
    return {str(workload_id): int(revision) for workload_id, revision in rows}


def workloads(store: StoreReader, workload_ids: Sequence[str]) -> list[WorkloadRecord]:
    """Return the workloads with these ids; one may have been removed meanwhile."""
    with store.snapshot() as connection:
        rows = connection.execute(_WORKLOADS, {"ids": list(workload_ids)}).all()
    return [WORKLOADS.read(row) for row in rows]


class ReplicationCursor:
    """Records in the local store what another store has; ``label`` is the other store's address."""

    def __init__(self, path: Path, label: str) -> None:
        self._backend = backend_of(StoreAddress.of(path))
        self._engine = self._backend.writer_engine()
        self._label = label

    def close(self) -> None:
        self._engine.dispose()

    def mark(self, target: str, revisions: Mapping[str, int]) -> None:
        """Record that the other store has these revisions of runs or workloads."""
        rows = [{"target": target, "key": key, "revision": rev} for key, rev in revisions.items()]
        if rows:
            with self._transaction() as connection:
                connection.execute(_MARK, rows)

    def reached(self, target: str, *, everything: bool) -> None:
        """Record that the other store works, and that it is complete if ``everything``."""
        now_ns = time.time_ns() if everything else None
        row = {"target": target, "label": self._label, "now_ns": now_ns}
        with self._transaction() as connection:
            connection.execute(_FORGET_OTHERS, row)  # another database at the address
            connection.execute(_REACHED, row)

    def forget(self, target: str) -> None:
        """Forget what the other store has, so that every run is compared again."""
        with self._transaction() as connection:
            connection.execute(_UNMARK, {"target": target})

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self._backend.translated_errors(), self._engine.begin() as connection:
            yield connection
