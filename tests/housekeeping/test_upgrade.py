"""A store is brought to this version on purpose, and says from which."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient
from sqlalchemy import text

from radt.cli.db import command
from radt.errors import SchemaTooNewError, SchemaTooOldError, StoreError, UsageError
from radt.home import Home
from radt.store import admin, migrations
from radt.store.admin import ViewSource, upgrade
from radt.store.backend import StoreAddress
from radt.store.migrations import Migration, latest_version
from radt.store.reader import StoreReader
from radt.store.writer import StoreWriter
from tests.housekeeping.conftest import rows

PutRun = Callable[..., str]

#: Columns and types that the first front-end knows; texts were varchar or text there.
FRONT_END = {
    "fe_experiments": {"experiment_id": "integer", "name": "character varying"},
    "fe_runs": {
        "run_uuid": "character varying",
        "experiment_id": "integer",
        "workload": "character varying",
        "status": "character varying",
        "start_time": "bigint",
        "duration": "numeric",
        "data": "character varying",
        "letter": "character varying",
        "model": "character varying",
        "params": "text",
    },
    "fe_metrics": {
        "run_uuid": "character varying",
        "key": "character varying",
        "value": "double precision",
        "timestamp": "bigint",
        "step": "bigint",
    },
    "fe_metrics_available": {"key": "character varying", "run_uuid": "character varying"},
}


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(command, ["upgrade", *arguments], standalone_mode=False)


def older(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Make stores of the version before; call what is returned to go on with this one."""
    known = migrations.migrations

    def before(*dialect: object) -> tuple[Migration, ...]:
        return known(*dialect)[:-1]  # type: ignore[arg-type]

    complete = migrations._complete_summaries
    monkeypatch.setattr(migrations, "migrations", before)
    monkeypatch.setattr(migrations, "_complete_summaries", lambda *_: None)

    def back() -> None:
        monkeypatch.setattr(migrations, "migrations", known)
        monkeypatch.setattr(migrations, "_complete_summaries", complete)

    return back


def test_an_older_store_is_brought_up_to_date_once(
    store: StoreAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    back = older(monkeypatch)
    StoreWriter(store).close()
    back()
    if store.is_postgres:
        with pytest.raises(SchemaTooOldError, match="radt db upgrade"):
            StoreReader(store)
    done = upgrade(store)
    assert (done.before, done.after) == (latest_version() - 1, latest_version())
    done = upgrade(store)
    assert (done.before, done.after) == (latest_version(), latest_version())
    with StoreReader(store) as reader:
        assert reader.runs() == []


def test_a_newer_store_is_refused(store: StoreAddress, writer: StoreWriter) -> None:
    with writer.rewriting("") as connection:
        connection.execute(text("INSERT INTO schema_version VALUES (99, 'later', 1, 'radt 99')"))
    for refuse in (StoreReader, StoreWriter, upgrade):
        with pytest.raises(SchemaTooNewError, match=r"has schema version 99.*Upgrade radt"):
            refuse(store)


def test_a_migration_that_fails_leaves_the_version_before(
    store: StoreAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    StoreWriter(store).close()
    broken = "CREATE TABLE half (a TEXT);\nALTER TABLE absent ADD COLUMN x TEXT;"
    known = migrations.migrations
    monkeypatch.setattr(
        migrations,
        "migrations",
        lambda *dialect: (*known(*dialect), Migration(latest_version_before + 1, "next", broken)),
    )
    with pytest.raises(StoreError, match="absent"):
        upgrade(store)
    monkeypatch.setattr(migrations, "migrations", known)
    with StoreReader(store) as reader, reader.snapshot() as connection:
        assert rows(connection, "SELECT MAX(version) FROM schema_version") == [
            (latest_version_before,)
        ]
    assert upgrade(store).before == latest_version_before


latest_version_before = latest_version()


def test_the_command_needs_a_store(home: Home, tmp_path: Path) -> None:
    done = invoke("--home", str(tmp_path / "absent"))
    assert isinstance(done.exception, StoreError)
    both = invoke("--home", str(home.path), "--store-uri", "postgresql://db/x")
    assert isinstance(both.exception, UsageError)


def test_an_empty_database_becomes_a_store(
    database: str, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RADT_STORE_URI", database)
    done = invoke()
    assert done.exception is None
    assert f"set up, schema version {latest_version()}" in done.output
    assert "MLflow's tables are not in this database" in done.output
    assert "p@ss" not in done.output
    assert "%40" not in done.output
    StoreWriter(home.store_path).close()
    both = invoke().output
    assert both.count("nothing to do") == 2


def columns_of(reader: StoreReader, schema: str = "radt") -> dict[str, dict[str, str]]:
    with reader.snapshot() as connection:
        found = rows(
            connection,
            "SELECT table_name, column_name, data_type FROM information_schema.columns "
            "WHERE table_schema = :schema AND table_name LIKE 'fe%' "
            "ORDER BY table_name, ordinal_position",
            schema=schema,
        )
    columns: dict[str, dict[str, str]] = {}
    for table, column, kind in found:
        columns.setdefault(str(table), {})[str(column)] = str(kind)
    return columns


@pytest.mark.parametrize("dialect", ["postgres"], indirect=True)
def test_the_first_front_end_has_its_views_without_mlflow(
    reader: StoreReader, put_run: PutRun
) -> None:
    run_id = put_run(points=4000)
    put_run("f" * 32, points=10, mlflow_run_id="m1", experiment="words", ended_ns=None)
    assert columns_of(reader) == FRONT_END
    with reader.snapshot() as connection:
        names = rows(connection, "SELECT experiment_id, name FROM fe_experiments")
        assert {name for _, name in names} == {"digits", "words"}
        runs = rows(connection, "SELECT * FROM fe_runs ORDER BY run_uuid")
        assert [row[0] for row in runs] == [run_id, "m1"]
        ids = {name: number for number, name in names}
        assert runs[0][1] == ids["digits"]
        assert runs[0][2:4] == ("1", "FINISHED")
        assert runs[0][5] == 4_000_000
        assert runs[0][7:] == ("a", "cnn", "--lr 0.1")
        keys = "SELECT key FROM fe_metrics_available WHERE run_uuid = :id ORDER BY key"
        assert [key for (key,) in rows(connection, keys, id=run_id)] == [
            "accuracy",
            "loss",
            "system/gpu.energy_per_s/gpu0",
            "system/gpu.power/gpu0",
        ]
        values = "SELECT value, step FROM fe_metrics WHERE run_uuid = :id AND key = :key"
        power = rows(connection, values, id=run_id, key="system/gpu.power/gpu0")
        assert len(power) == 2
        assert all(195 < float(str(value)) < 205 for value, _ in power)


def test_the_first_front_end_has_its_views_on_mlflow(
    mlflow_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = StoreAddress.of(mlflow_database)
    client = MlflowClient(store.uri)
    old = client.create_run("0").info.run_id
    params = {
        "workload": "3",
        "letter": "b",
        "model": "vit",
        "data": "mnist",
        "params": "'x' \"1\"",
    }
    client.log_batch(
        old,
        [Metric("loss", 0.5, 1000, 1), Metric("loss", float("nan"), 2000, 2)],
        [Param(key, value) for key, value in params.items()],
    )
    client.set_terminated(old)
    new = client.create_run("0", tags={"radt.run_id": "r", "radt.workload_id": "w"}).info.run_id
    client.create_run("0", tags={"radt.workload_id": "w"})  # stands for the workload
    deleted = client.create_run("0").info.run_id
    client.delete_run(deleted)

    assert upgrade(store).source is ViewSource.MLFLOW
    with StoreWriter(store) as writer:
        from radt.store.records import RunRecord

        writer.put_run(RunRecord("r", "w", "e", "7", "c", "cnn", 1, mlflow_run_id=new))
    with StoreReader(store) as reader, reader.snapshot() as connection:
        assert columns_of(reader) == FRONT_END
        shown = "run_uuid, workload, letter, model, data, params"
        runs = rows(connection, f"SELECT {shown} FROM fe_runs ORDER BY start_time")
        assert runs == [
            (old, "3", "b", "vit", "mnist", "x 1"),
            (new, "7", "c", "cnn", None, None),
        ]
        values = "SELECT key, value, timestamp, step FROM fe_metrics ORDER BY step"
        assert rows(connection, values) == [("loss", 0.5, 1000, 1), ("loss", None, 2000, 2)]
        assert rows(connection, "SELECT key, run_uuid FROM fe_metrics_available") == [("loss", old)]
        assert rows(connection, "SELECT * FROM fe_experiments") == [(0, "Default")]
    # Back and forth: the columns stay the same, so that it needs no DROP.
    monkeypatch.setattr(admin, "mlflow_schema", lambda _: None)
    assert upgrade(store).source is ViewSource.CHUNKS
    client._tracking_client.store.engine.dispose()


def test_public_views_take_the_place_of_the_old_ones_and_keep_their_readers(
    mlflow_database: str,
) -> None:
    store = StoreAddress.of(mlflow_database)
    upgrade(store)
    with StoreWriter(store) as writer, writer.rewriting("") as connection:
        connection.exec_driver_sql("CREATE VIEW public.fe_metrics AS SELECT 1 AS other")
        connection.exec_driver_sql("GRANT SELECT ON public.fe_metrics TO PUBLIC")
    upgrade(store)
    with StoreReader(store) as reader:
        assert columns_of(reader, "public") == {"fe_metrics": {"other": "integer"}}
        upgrade(store, public_views=True)
        upgrade(store)  # those in radt can be made anew below them
        assert columns_of(reader, "public") == FRONT_END
        with reader.snapshot() as connection:
            grants = rows(
                connection,
                "SELECT grantee::text FROM information_schema.role_table_grants "
                "WHERE table_schema = 'public' AND table_name = 'fe_metrics' "
                "AND grantee = 'PUBLIC'",
            )
            assert grants == [("PUBLIC",)]
