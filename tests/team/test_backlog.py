"""What is said of a database that was reached once and is away when the next run starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from radt.delivery.backlog import postgres_backlogs
from radt.delivery.problems import EVERYTHING, POSTGRES, ProblemLog
from radt.store.backend import StoreAddress
from radt.store.writer import StoreWriter
from tests.support.stores import add_runs

URI = "postgresql://me:secret@db.example.org/radt"


@pytest.mark.long
def test_what_is_there_is_not_forgotten_by_who_cannot_reach_it(tmp_path: Path) -> None:
    store = tmp_path / "radt.db"
    with StoreWriter(store) as writer:
        first, second = add_runs(writer, 2)
        for run in (first, second):
            run.end()
        label = str(StoreAddress.of(URI))
        writer.mark_replica("its identity", label, complete=False)
        writer.mark_replicated("its identity", {first.run_id: 2**40})
    problems = ProblemLog(store, POSTGRES, URI)
    problems.note(EVERYTHING, f"the database {label} cannot be reached")
    (one,) = postgres_backlogs(store, URI)
    assert (one.ended, one.identity) == (1, "its identity")
    assert "1 run is not complete in database" in one.sentence()
    assert "): it cannot be reached. It stays on this machine" in one.sentence()
    problems.solved(EVERYTHING)
    (one,) = postgres_backlogs(store, URI)
    assert (one.ended, one.problem) == (1, "")
