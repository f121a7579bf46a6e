"""What is special about a store in Postgres: who may, who comes first, and servers that go away."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import URL, make_url, text
from sqlalchemy.exc import DBAPIError

from radt.errors import SchemaTooOldError, StoreError, UsageError
from radt.model import Scope, SeriesKind
from radt.store import migrations
from radt.store.backend import StoreAddress
from radt.store.reader import StoreReader
from radt.store.records import Samples, SeriesBatch, SeriesRecord
from radt.store.writer import StoreWriter
from tests.support.postgres import Postgres
from tests.support.servers import database_of, postgres_cluster

RUN_ID = "ab" * 16


def points(start: int, count: int) -> Samples:
    numbers = np.arange(start, start + count, dtype=np.int64)
    return Samples(numbers, numbers / 7)


def with_series(uri: str) -> StoreWriter:
    writer = StoreWriter(uri)
    writer.add_series([SeriesRecord(RUN_ID, 0, "smi", "x", "1", Scope.GPU, SeriesKind.GAUGE)])
    return writer


def in_process(program: str, *arguments: str, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=os.environ | (env or {}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# Addresses and passwords ----------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_all_ways_to_write_the_address_are_psycopg2s(database: str, scheme: str) -> None:
    StoreWriter(database).close()
    with StoreReader(database.replace("postgresql", scheme, 1)) as reader:
        assert reader.runs() == []
        assert reader.engine.driver == "psycopg2"


def test_a_database_of_any_encoding_holds_any_text(postgres: Postgres) -> None:
    """initdb makes databases in SQL_ASCII where no locale is set, as in many containers."""
    options = "ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    with database_of(postgres, options) as uri:
        with StoreWriter(uri) as writer:
            writer.put_tags(RUN_ID, {"note": "Ærøskøbing …"})
        with StoreReader(uri) as reader:
            assert reader.tags(RUN_ID) == {"note": "Ærøskøbing …"}


@pytest.mark.parametrize("place", ["PGPASSWORD", "PGPASSFILE", "passfile"])
def test_the_password_may_be_elsewhere(
    database: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = make_url(database)
    assert url.password is not None
    bare = URL.create(url.drivername, url.username, None, url.host, url.port, url.database)
    passfile = tmp_path / "pgpass"
    escaped = str(url.password).replace("\\", "\\\\").replace(":", "\\:")
    passfile.write_text(f"*:*:*:*:{escaped}\n", encoding="utf-8")
    passfile.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))
    with pytest.raises(StoreError, match="PGPASSWORD") as raised:
        StoreWriter(bare.render_as_string(hide_password=False))
    assert str(url.password) not in str(raised.value)
    if place == "passfile":
        bare = bare.update_query_dict({"passfile": str(passfile)})
    else:
        monkeypatch.setenv(place, str(passfile) if place == "PGPASSFILE" else str(url.password))
    StoreWriter(bare.render_as_string(hide_password=False)).close()


def test_a_wrong_password_is_said_without_it(database: str) -> None:
    wrong = make_url(database).set(password="not-this-one").render_as_string(hide_password=False)
    with pytest.raises(StoreError) as raised:
        StoreWriter(wrong)
    assert "password authentication failed" in raised.value.message
    assert "PGPASSWORD" in (raised.value.remedy or "")
    assert "not-this-one" not in str(raised.value)
    assert "not-this-one" not in repr(StoreAddress.of(wrong)) + str(StoreAddress.of(wrong))


def test_what_is_no_address_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not the address of a store"):
        StoreReader("mysql://me:secret@db/radt")
    with pytest.raises(UsageError, match="cannot be read as the address") as raised:
        StoreReader("postgresql://me:secret@db:port/radt")
    assert "secret" not in str(raised.value)
    with pytest.raises(StoreError, match="cannot be reached"):
        StoreReader("postgresql://nobody@127.0.0.1:9/none")


# Schemas --------------------------------------------------------------------------------------


def test_a_database_without_store_is_not_set_up_by_a_reader(database: str) -> None:
    with pytest.raises(StoreError, match=r"there is no store in postgresql://\*\*\*@"):
        StoreReader(database)
    with pytest.raises(StoreError, match="there is no store"):
        StoreReader(database)


def test_a_schema_radt_of_somebody_else_is_left_alone(database: str) -> None:
    in_process(
        "import psycopg2, sys; c = psycopg2.connect(sys.argv[1]); "
        "c.cursor().execute('CREATE SCHEMA radt; CREATE TABLE radt.theirs (a int)'); c.commit()",
        database,
    )
    for store in (StoreReader, StoreWriter):
        with pytest.raises(StoreError, match="is not a radt store"):
            store(database)


def test_processes_set_up_an_empty_database_together(database: str) -> None:
    program = (
        "import sys; from radt.store.writer import StoreWriter; "
        "StoreWriter(sys.argv[1]).put_tags(sys.argv[2], {'a': 'b'})"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", program, database, f"run{number}"])
        for number in range(4)
    ]
    assert [process.wait() for process in started] == [0] * 4
    with StoreReader(database) as reader:
        assert len(reader.tags_of([f"run{number}" for number in range(4)])) == 4


@pytest.fixture
def older(database: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store of the version before."""
    complete = migrations.migrations
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "migrations", lambda *dialect: complete(*dialect)[:-1])
        patch.setattr(migrations, "_complete_summaries", lambda *_: None)  # there are none yet
        StoreWriter(database).close()
    return database


def test_an_older_store_is_brought_up_to_date_only_if_somebody_says_so(older: str) -> None:
    for store in (StoreReader, StoreWriter):
        with pytest.raises(SchemaTooOldError, match="radt db upgrade"):
            store(older)
    StoreWriter(older, upgrade=True).close()
    StoreWriter(older).close()
    with StoreReader(older) as reader:
        assert reader.runs() == []


# Several at once ------------------------------------------------------------------------------


def test_writers_of_one_run_take_turns(database: str) -> None:
    writers = [with_series(database) for _ in range(4)]

    def write(number: int) -> None:
        for index in range(100):
            writers[number].append(RUN_ID, [SeriesBatch(0, points(number * 1000 + index, 1))])

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with StoreReader(database) as reader:
        times = reader.samples(RUN_ID, 0).times_ns.tolist()
    assert times == [number * 1000 + index for number in range(4) for index in range(100)]
    for writer in writers:
        writer.close()


def test_a_reader_cannot_write(database: str) -> None:
    with_series(database).close()
    with (
        StoreReader(database) as reader,
        reader.engine.connect() as connection,
        pytest.raises(DBAPIError, match="read-only transaction"),
    ):
        connection.execute(text("DELETE FROM series"))


def test_a_snapshot_does_not_see_what_comes_later(database: str) -> None:
    with with_series(database) as writer, StoreReader(database) as reader:
        with reader.snapshot() as connection:
            count = text("SELECT COUNT(*) FROM chunk")
            assert connection.execute(count).scalar() == 0
            writer.append(RUN_ID, [SeriesBatch(0, points(0, 1))])
            assert connection.execute(count).scalar() == 0
        assert reader.point_counts(RUN_ID) == {0: 1}


# Servers that go away -------------------------------------------------------------------------


def test_a_killed_server_loses_nothing_that_was_committed() -> None:
    """And reader and writer go on with it when it is back."""
    with (
        postgres_cluster({"fsync": "on", "synchronous_commit": "on"}) as postgres,
        database_of(postgres) as uri,
        with_series(uri) as writer,
        StoreReader(uri) as reader,
    ):
        writer.append(RUN_ID, [SeriesBatch(0, points(0, 10))])
        assert reader.point_counts(RUN_ID) == {0: 10}
        postgres.kill()
        with pytest.raises(StoreError, match="cannot be reached"):
            writer.append(RUN_ID, [SeriesBatch(0, points(10, 10))])
        with pytest.raises(StoreError, match="cannot be reached"):
            reader.point_counts(RUN_ID)
        postgres.start()
        assert reader.point_counts(RUN_ID) == {0: 10}
        writer.append(RUN_ID, [SeriesBatch(0, points(10, 10))])
        assert reader.samples(RUN_ID, 0).times_ns.tolist() == list(range(20))


def test_a_transaction_is_undone_with_its_connection(database: str) -> None:
    with with_series(database) as writer, StoreReader(database) as reader:
        with (
            pytest.raises(StoreError, match="cannot be reached"),
            writer.transaction(),
        ):
            writer.append(RUN_ID, [SeriesBatch(0, points(0, 10))])
            assert writer._connection is not None
            pid = writer._connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
            with StoreWriter(database) as other, other._engine.begin() as connection:
                connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
            writer.append(RUN_ID, [SeriesBatch(0, points(10, 10))])
        assert reader.point_counts(RUN_ID) == {}
        writer.append(RUN_ID, [SeriesBatch(0, points(0, 10))])
        assert reader.point_counts(RUN_ID) == {0: 10}
