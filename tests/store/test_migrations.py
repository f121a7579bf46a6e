"""A store is at one version or the next, never between."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from radt.errors import StoreError
from radt.store import migrations
from radt.store.backend import Dialect
from radt.store.migrations import Migration, latest_version
from radt.store.reader import StoreReader
from radt.store.sqlite import statements
from radt.store.writer import StoreWriter


def columns(path: Path, table: str) -> list[str]:
    connection = sqlite3.connect(path)
    try:
        return [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    finally:
        connection.close()


def versions(path: Path) -> list[tuple[int, str]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute("SELECT version, name FROM schema_version").fetchall()
    finally:
        connection.close()


@pytest.fixture
def add_migration(monkeypatch: pytest.MonkeyPatch):
    def add(sql: str) -> None:
        after = Migration(latest_version() + 1, "next", sql)
        together = (*migrations.migrations(), after)
        monkeypatch.setattr(migrations, "migrations", lambda *_: together)

    return add


def test_migrations_are_numbered_without_holes() -> None:
    found = migrations.migrations()
    assert [one.version for one in found] == list(range(1, len(found) + 1))
    assert all(list(statements(one.sql)) for one in found)


def test_both_kinds_of_databases_have_the_same_migrations() -> None:
    names = [
        [(one.version, one.name) for one in migrations.migrations(dialect)] for dialect in Dialect
    ]
    assert names[0] == names[1]


def test_statements_are_cut_where_sqlite_says() -> None:
    sql = "-- a; comment\nCREATE TABLE a (b TEXT DEFAULT ';');\n\n"
    sql += "CREATE TRIGGER t INSERT ON a BEGIN\n  DELETE FROM a;\nEND;\n-- the end"
    first, second = statements(sql)
    assert first.endswith("(b TEXT DEFAULT ';');")
    assert second.endswith("END;")
    with pytest.raises(StoreError, match="middle of a statement"):
        list(statements("CREATE TABLE a (b)"))


def test_an_older_store_is_migrated_by_a_writer_once(
    writer: StoreWriter, run_id: str, add_migration
) -> None:
    before = columns(writer.path, "run")
    add_migration("ALTER TABLE run ADD COLUMN colour TEXT;")
    for _ in range(2):
        StoreWriter(writer.path).close()
        assert columns(writer.path, "run") == [*before, "colour"]
        assert versions(writer.path)[-1] == (latest_version(), "next")
    with StoreReader(writer.path) as reader:
        assert [run.run_id for run in reader.runs()] == [run_id]


def test_an_older_store_is_migrated_by_a_reader(writer: StoreWriter, add_migration) -> None:
    add_migration("ALTER TABLE run ADD COLUMN colour TEXT;")
    with StoreReader(writer.path) as reader:
        assert reader.runs() == []
    assert versions(writer.path)[-1] == (latest_version(), "next")


def test_a_migration_that_fails_leaves_the_store_as_it_was(
    writer: StoreWriter, run_id: str, add_migration
) -> None:
    before, applied = columns(writer.path, "run"), versions(writer.path)
    add_migration("ALTER TABLE run ADD COLUMN colour TEXT;\nALTER TABLE absent ADD COLUMN x;")
    with pytest.raises(StoreError, match="no such table"):
        StoreWriter(writer.path)
    assert columns(writer.path, "run") == before
    assert versions(writer.path) == applied
    writer.put_tags(run_id, {"still": "works"})
