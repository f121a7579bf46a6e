"""Find the runs that a store already has, and whether they were imported."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import text

from radt.store.reader import StoreReader
from radt.tags import IMPORTED

_KNOWN = text(
    "SELECT run.run_id, run.mlflow_run_id, tag.value FROM run "
    "LEFT JOIN tag ON tag.run_id = run.run_id AND tag.key = :key"
)
_PRUNED = text("SELECT run_id FROM pruned")


def known_runs(reader: StoreReader) -> dict[str, str | None]:
    """Return the value of the tag IMPORTED by run id; None for runs that were not imported.

    MLflow's ids of recorded runs and pruned runs count as recorded, too.
    """
    known: dict[str, str | None] = {}
    with reader.snapshot() as connection:
        for (run_id,) in connection.execute(_PRUNED):
            known[str(run_id)] = None
        for run_id, mlflow_run_id, value in connection.execute(_KNOWN, {"key": IMPORTED}):
            if value is None and mlflow_run_id:
                known[str(mlflow_run_id)] = None
            if str(run_id) not in known:
                known[str(run_id)] = value
    return known


def is_ours(run_id: str, known: Mapping[str, str | None]) -> bool:
    """Return whether the store lacks a run, or has it from an import."""
    return run_id not in known or known[run_id] is not None
