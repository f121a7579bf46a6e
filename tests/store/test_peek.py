"""Whether a start may leave opening the store for later."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from radt.model import RunStatus
from radt.store.migrations import latest_version
from radt.store.peek import is_settled
from radt.store.records import RunRecord
from radt.store.writer import StoreWriter

MakeRun = Callable[..., RunRecord]


def test_settled_is_a_store_whose_runs_have_all_ended(
    store_path: Path, run_record: MakeRun
) -> None:
    assert not is_settled(store_path)
    with StoreWriter(store_path) as writer:
        assert is_settled(store_path)
        writer.put_run(run_record())
        assert not is_settled(store_path)
        writer.end_run(run_record().run_id, RunStatus.FINISHED, 1)
        assert is_settled(store_path)
    assert is_settled(store_path)


@pytest.mark.parametrize("step", [-1, 1])
def test_a_store_of_another_schema_is_not(store_path: Path, step: int) -> None:
    StoreWriter(store_path).close()
    with closing(sqlite3.connect(store_path)) as connection, connection:
        connection.execute("DELETE FROM schema_version WHERE version = ?", (latest_version(),))
        connection.execute(
            "INSERT OR REPLACE INTO schema_version VALUES (?, 'other', 0, '')",
            (latest_version() + step,),
        )
    assert not is_settled(store_path)


def test_another_file_is_not(tmp_path: Path) -> None:
    path = tmp_path / "radt.db"
    path.write_bytes(b"no database" * 1000)
    assert not is_settled(path)
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE other (number INTEGER)")
    assert not is_settled(path)
