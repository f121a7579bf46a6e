"""Runs and workloads of the store on this machine that are due for a store in Postgres."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, text

from radt.store.place import COPIED
from radt.store.records import WorkloadRecord
from radt.store.tables import WORKLOADS

#: Live runs first, then the newest. Two kinds of runs are not copied: those thinned here, whose
#: copies would be taken for complete, and parts of runs that another data folder has completely.
_DUE_RUNS = text(
    "SELECT run.run_id, run.revision, run.ended_ns IS NOT NULL, "
    "COALESCE(run.ended_ns, run.created_ns) FROM run "
    "LEFT JOIN replicated ON replicated.target = :target AND replicated.key = run.run_id "
    "WHERE (replicated.revision IS NULL OR replicated.revision < run.revision) "
    "AND NOT EXISTS (SELECT 1 FROM pruned WHERE pruned.run_id = run.run_id) "
    "AND run.end_reason <> :copied ORDER BY 3, 4 DESC, 1"
).bindparams(copied=COPIED)
_DUE_WORKLOADS = text(
    f"SELECT {', '.join(WORKLOADS.fields)}, workload.revision FROM workload "  # noqa: S608
    "LEFT JOIN replicated ON replicated.target = :target "
    "AND replicated.key = workload.workload_id "
    "WHERE replicated.revision IS NULL OR replicated.revision < workload.revision "
    "ORDER BY workload.created_ns DESC, workload.workload_id"
)


class DueRun(NamedTuple):
    """A run that has changed since it was last copied completely.

    ``since_ns`` is its end, or its creation if it has not ended.
    """

    run_id: str
    revision: int
    ended: bool
    since_ns: int


def due_runs(connection: Connection, target: str) -> list[DueRun]:
    """Return the runs that are new or changed for another store: live ones, then the newest."""
    return [
        DueRun(str(run_id), int(revision), bool(ended), int(since_ns))
        for run_id, revision, ended, since_ns in connection.execute(_DUE_RUNS, {"target": target})
    ]


def due_workloads(connection: Connection, target: str) -> dict[WorkloadRecord, int]:
    """Return the workloads that are new or changed, with their revisions."""
    rows = connection.execute(_DUE_WORKLOADS, {"target": target})
    return {WORKLOADS.read(row[:-1]): int(row[-1]) for row in rows}
