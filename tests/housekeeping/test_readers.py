"""The dashboard's role reads everything and writes nothing."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import psycopg2
import pytest
from click.testing import CliRunner
from psycopg2 import sql
from psycopg2.errors import InsufficientPrivilege, ReadOnlySqlTransaction

from radt.cli.db import command
from radt.errors import SchemaTooOldError, StoreError, UsageError
from radt.store.admin import grant_reader, has_role, revoke_reader, upgrade
from radt.store.backend import StoreAddress
from radt.store.reader import StoreReader
from radt.store.writer import StoreWriter
from tests.housekeeping.conftest import rows
from tests.support.postgres import Postgres
from tests.support.servers import run_sql
from tests.support.waiting import wait_until

PutRun = Callable[..., str]
PASSWORD = "pässword 'of\" %s a $reader"


@pytest.fixture
def store(name: str, database: str) -> StoreAddress:
    """In Postgres only."""
    return StoreAddress.of(database)


@pytest.fixture
def name(postgres: Postgres) -> Iterator[str]:
    """Of a role, with what has to be quoted."""
    name = f"re'ad\"er %s {secrets.token_hex(4)}"
    yield name
    role = sql.Identifier(name)
    if _role_is_there(postgres, name):
        run_sql(postgres, sql.SQL("DROP OWNED BY {}").format(role))
        run_sql(postgres, sql.SQL("DROP ROLE {}").format(role))


def _role_is_there(postgres: Postgres, name: str) -> bool:
    with closing(postgres.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (name,))
        return cursor.fetchone() is not None


def uri_of(database: str, name: str, password: str) -> str:
    return (
        f"postgresql://{quote(name, safe='')}:{quote(password, safe='')}@"
        + (database.rsplit("@", 1)[1])
    )


def test_the_dashboards_reader_works_with_it(
    store: StoreAddress, database: str, writer: StoreWriter, put_run: PutRun, name: str
) -> None:
    run_id = put_run(points=50)
    done = grant_reader(store, name, PASSWORD)
    assert (done.created, done.password_set, done.mlflow_schema) == (True, True, None)
    assert "p@ss" not in done.uri
    assert "%40" not in done.uri
    with StoreReader(uri_of(database, name, PASSWORD)) as reader:
        assert [run.run_id for run in reader.runs()] == [run_id]
        assert len(reader.samples(run_id, 0)) == 50
        assert reader.change_token()
        assert len(reader.summary([run_id])) == 4


def test_it_reads_everything_and_writes_nothing(
    store: StoreAddress, database: str, writer: StoreWriter, put_run: PutRun, name: str
) -> None:
    put_run(points=50)
    grant_reader(store, name, PASSWORD)
    # What a later version makes.
    with writer.rewriting("") as connection:
        connection.exec_driver_sql("CREATE TABLE later (a TEXT)")
        names = "SELECT relname::text, relkind::text FROM pg_class WHERE relkind IN ('r', 'v') "
        found = rows(connection, names + "AND relnamespace = 'radt'::regnamespace")
    assert len(found) > 20
    with closing(psycopg2.connect(uri_of(database, name, PASSWORD))) as connection:
        connection.autocommit = True
        for table, kind in found:
            with connection.cursor() as cursor:
                cursor.execute(f"SELECT COUNT(*) FROM radt.{table}")
                if kind == "v":
                    with pytest.raises(psycopg2.Error):
                        cursor.execute(f"DELETE FROM radt.{table}")
                    continue
                # It could take this off, and would have no right nonetheless.
                with pytest.raises(ReadOnlySqlTransaction):
                    cursor.execute("CREATE TEMP TABLE x (a TEXT)")
                cursor.execute("SET default_transaction_read_only = off")
                for statement in (
                    f"INSERT INTO radt.{table} DEFAULT VALUES",
                    f"DELETE FROM radt.{table}",
                    f"TRUNCATE radt.{table}",
                    f"DROP TABLE radt.{table}",
                ):
                    with pytest.raises(InsufficientPrivilege):
                        cursor.execute(statement)
                cursor.execute("RESET default_transaction_read_only")
        with connection.cursor() as cursor:
            cursor.execute("SET default_transaction_read_only = off")
            for statement in ("CREATE TABLE radt.mine (a TEXT)", "UPDATE radt.run SET name = ''"):
                with pytest.raises(InsufficientPrivilege):
                    cursor.execute(statement)


def test_it_reads_mlflows_tables_but_no_accounts(mlflow_database: str, name: str) -> None:
    store = StoreAddress.of(mlflow_database)
    upgrade(store)
    with StoreWriter(store) as writer, writer.rewriting("") as connection:
        connection.exec_driver_sql("CREATE TABLE public.users (password_hash TEXT)")
    assert grant_reader(store, name, PASSWORD).mlflow_schema == "public"
    with closing(psycopg2.connect(uri_of(mlflow_database, name, PASSWORD))) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            for table in ("runs", "metrics", "experiments", "params", "tags"):
                cursor.execute(f"SELECT COUNT(*) FROM public.{table}")
            cursor.execute("SELECT COUNT(*) FROM radt.fe_runs")
            with pytest.raises(InsufficientPrivilege):
                cursor.execute("SELECT * FROM public.users")
            cursor.execute("SET default_transaction_read_only = off")
            with pytest.raises(InsufficientPrivilege):
                cursor.execute("DELETE FROM public.runs")
    assert revoke_reader(store, name)


def _logs_statements(postgres: Postgres) -> bool:
    """Whether a connection that is made now has its statements logged."""
    with closing(postgres.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW log_statement")
        return bool(cursor.fetchone() == ("all",))


def test_a_password_is_in_no_log_and_shown_once(
    postgres: Postgres, store: StoreAddress, writer: StoreWriter, name: str
) -> None:
    run_sql(postgres, "ALTER SYSTEM SET log_statement = 'all'")
    run_sql(postgres, "SELECT pg_reload_conf()")
    try:
        wait_until(lambda: _logs_statements(postgres), "Postgres has read its settings")
        first = CliRunner().invoke(
            command, ["grant-reader", name, "--store-uri", store.uri], standalone_mode=False
        )
        assert first.exception is None, first.exception
        again = CliRunner().invoke(
            command, ["grant-reader", name, "--store-uri", store.uri], standalone_mode=False
        )
    finally:
        run_sql(postgres, "ALTER SYSTEM RESET log_statement")
        run_sql(postgres, "SELECT pg_reload_conf()")
    password = first.output.split("PGPASSWORD=")[1].split()[0]
    assert len(password) >= 32
    assert "PGPASSWORD" not in again.output
    log = postgres.log.read_text(errors="replace")
    assert "ALTER ROLE" in log
    assert "SCRAM-SHA-256$" in log
    assert password not in log
    database = store.uri.replace("+psycopg2", "")
    with StoreReader(uri_of(database, name, password)) as reader:
        assert reader.runs() == []


def test_a_password_from_a_variable(
    store: StoreAddress,
    database: str,
    writer: StoreWriter,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    arguments = ["grant-reader", name, "--password-variable", "MINE", "--home", str(tmp_path)]
    monkeypatch.setenv("RADT_STORE_URI", database)
    missing = CliRunner().invoke(command, arguments, standalone_mode=False)
    assert isinstance(missing.exception, UsageError)
    monkeypatch.setenv("MINE", PASSWORD)
    done = CliRunner().invoke(command, arguments, standalone_mode=False)
    assert done.exception is None
    assert "pässword" not in done.output
    StoreReader(uri_of(database, name, PASSWORD)).close()


def test_a_reader_can_be_taken_back(
    postgres: Postgres, store: StoreAddress, database: str, writer: StoreWriter, name: str
) -> None:
    grant_reader(store, name, PASSWORD)
    assert has_role(store, name)
    assert revoke_reader(store, name)
    assert not has_role(store, name)
    with pytest.raises(UsageError, match="there is no role"):
        revoke_reader(store, name)
    run_sql(postgres, sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))
    grant_reader(store, name, PASSWORD)
    assert not revoke_reader(store, name)  # somebody else's: it stays, and reads no more
    with pytest.raises(StoreError, match="radt db grant-reader"):
        StoreReader(uri_of(database, name, PASSWORD))


@pytest.mark.parametrize("wrong", ["", "pg_monitor", "x" * 64, "public", "a\0b", "postgres"])
def test_who_can_do_more_is_no_reader(store: StoreAddress, writer: StoreWriter, wrong: str) -> None:
    with pytest.raises(UsageError):
        grant_reader(store, wrong, PASSWORD)


def test_a_role_that_may_write_by_other_ways_is_refused(
    postgres: Postgres, store: StoreAddress, writer: StoreWriter, name: str
) -> None:
    role = sql.Identifier(name)
    run_sql(postgres, sql.SQL("CREATE ROLE {} LOGIN").format(role))
    run_sql(postgres, sql.SQL("GRANT pg_write_all_data TO {}").format(role))
    with pytest.raises(StoreError, match="may write"):
        grant_reader(store, name, PASSWORD)
    with writer.rewriting("") as connection:
        statement = "SELECT has_schema_privilege(:name, 'radt', 'USAGE')"
        run_sql(postgres, sql.SQL("REVOKE pg_write_all_data FROM {}").format(role))
        assert rows(connection, statement, name=name) == [(False,)]


def test_a_store_that_is_not_up_to_date_or_a_file_has_no_readers(
    database: str, tmp_path: object, name: str
) -> None:
    with pytest.raises(SchemaTooOldError):
        grant_reader(StoreAddress.of(database), name, PASSWORD)
    with pytest.raises(UsageError, match="is a file"):
        grant_reader(StoreAddress.of(f"{tmp_path}/radt.db"), name, PASSWORD)
