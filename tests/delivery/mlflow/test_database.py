"""MLflow's SQLite file: built by real processes that are killed meanwhile, and repaired.

``python -m tests.delivery.mlflow.test_database > schemas/mlflow.sql`` writes the file of another
version of MLflow.
"""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient
from mlflow.version import VERSION

from radt.delivery.mlflow.database import SCHEMA, prepare, schema_title
from radt.delivery.problems import problem_file, read_problems
from radt.home import Home
from radt.paths import sqlite_uri
from tests.delivery.mlflow.lab import Lab, finish, make_lab, wait_until
from tests.delivery.mlflow.lab import closing as closing_lab
from tests.support.bench import mlflow_database
from tests.support.waiting import stands_still

#: Stands still as soon as others see a table whose name begins so.
STOPS = """
import os, signal, sqlite3, sys
from contextlib import closing
from sqlalchemy import event
from sqlalchemy.engine import Engine

@event.listens_for(Engine, "after_cursor_execute")
def stop(connection, *_):
    file = f"file:{connection.engine.url.database}?mode=ro"
    with closing(sqlite3.connect(file, uri=True, timeout=0)) as other:
        try:
            names = [name for name, in other.execute("SELECT name FROM sqlite_master")]
        except sqlite3.OperationalError:  # locked
            return
    if any(name.startswith(sys.argv[2]) for name in names):
        os.kill(os.getpid(), signal.SIGSTOP)
"""
BUILD_WITHOUT_SCHEMA = """
import sys
from pathlib import Path
from radt.delivery.mlflow import database
database.VERSION = "another"
database.prepare(Path(sys.argv[1]))
"""
BUILD = """
import sys
from mlflow.tracking import MlflowClient
from mlflow.version import VERSION
MlflowClient(sys.argv[1]).search_experiments()
"""


def tables(database: Path) -> set[str]:
    if not database.exists():
        return set()
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        try:
            return {n for (n,) in connection.execute("SELECT name FROM sqlite_master")}
        except sqlite3.OperationalError:  # locked, or not there yet
            return set()


def killed_within(build: str, place: str, *, rebuild: bool) -> None:
    """Kill what builds a database, between two migrations or in the middle of a table's rebuild."""
    table = "_alembic_tmp_" if rebuild else "alembic_version"
    process = subprocess.Popen([sys.executable, "-c", STOPS + build, place, table])
    wait_until(lambda: stands_still(process.pid), "the database is half made")
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.fixture
def fresh(tmp_path: Path) -> Home:
    return Home(tmp_path / "radt-data").create()


def problem_of(lab: Lab) -> str:
    problems = read_problems(problem_file(lab.home.store_path, lab.tracking_uri))
    return " ".join(problem.text for problem in problems.values())


def is_delivered(lab: Lab) -> None:
    (run,) = lab.add_workload()
    lab.start(run)
    lab.log(run, "loss", [1.0, 2.0])
    lab.end(run)
    finish(lab.start_deliverer())
    assert lab.mlflow_run(run).data.metrics["loss"] == 2.0
    assert run.run_id not in {left.run_id for left in lab.reader.runs_to_deliver(lab.tracking_uri)}


def schema_of(database: Path) -> list[str]:
    """Return what makes a database like this one, but for its place and the time."""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE experiments SET artifact_location = ''")
        connection.execute("UPDATE experiments SET creation_time = 0, last_update_time = 0")
        _, *statements, _ = connection.iterdump()  # without BEGIN and COMMIT
        return statements


def words(statements: list[str]) -> list[str]:
    """Return something to compare: MLflow makes indexes and constraints in no certain order."""
    return sorted("\n".join(statements).replace(",", " ").split())


def built_by_mlflow(folder: Path) -> Path:
    database = folder / "mlflow.db"
    subprocess.run([sys.executable, "-c", BUILD, sqlite_uri(database)], check=True)
    return database


def experiments(database: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(database)) as connection:
        columns = "experiment_id, name, artifact_location, lifecycle_stage, workspace"
        return connection.execute(f"SELECT {columns} FROM experiments").fetchall()


def test_the_prepared_schema_is_what_the_installed_mlflow_builds(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
    ours, theirs = tmp_path / "ours" / "mlflow.db", built_by_mlflow(tmp_path / "theirs")
    prepare(ours)
    assert [(0, "Default", str(ours.parent / "mlruns" / "0"), "active", "default")] == experiments(
        ours
    )
    assert words(schema_of(ours)) == words(schema_of(theirs))
    assert SCHEMA.read_text(encoding="utf-8").splitlines()[0] == schema_title(VERSION)


def test_another_version_of_mlflow_builds_its_own(tmp_path: Path) -> None:
    database = tmp_path / "mlflow.db"
    subprocess.run([sys.executable, "-c", BUILD_WITHOUT_SCHEMA, str(database)], check=True)
    assert [name for _, name, *_ in experiments(database)] == ["Default"]


def test_one_that_is_killed_while_it_builds_leaves_no_half(fresh: Home) -> None:
    database = fresh.path / "mlflow.db"
    with closing_lab(make_lab(fresh, fresh.default_tracking_uri)) as lab:
        killed_within(BUILD_WITHOUT_SCHEMA, str(database), rebuild=False)
        assert "alembic_version" in tables(fresh.path / ".mlflow.db.building")
        assert not database.exists()
        is_delivered(lab)
    left = {path.name for path in fresh.path.iterdir() if "mlflow.db" in path.name}
    assert left <= {"mlflow.db", "mlflow.db-wal", "mlflow.db-shm"}


def test_one_that_mlflow_left_half_made_is_replaced_and_kept_aside(fresh: Home) -> None:
    killed_within(BUILD, fresh.default_tracking_uri, rebuild=True)
    with closing_lab(make_lab(fresh, fresh.default_tracking_uri)) as lab:
        is_delivered(lab)
    kept = tables(fresh.path / "mlflow.db.incomplete")
    assert any(name.startswith("_alembic_tmp_") for name in kept)


def test_one_that_stopped_between_two_migrations_is_replaced(fresh: Home) -> None:
    killed_within(BUILD, fresh.default_tracking_uri, rebuild=False)
    assert "alembic_version" in tables(fresh.path / "mlflow.db")
    with closing_lab(make_lab(fresh, fresh.default_tracking_uri)) as lab:
        is_delivered(lab)


def test_one_with_runs_is_never_replaced(fresh: Home) -> None:
    database = fresh.path / "mlflow.db"
    database.write_bytes(mlflow_database().read_bytes())
    kept = MlflowClient(fresh.default_tracking_uri).create_run("0").info.run_id
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")
    with closing_lab(make_lab(fresh, fresh.default_tracking_uri)) as lab:
        (run,) = lab.add_workload()
        process = lab.start_deliverer()
        wait_until(lambda: problem_of(lab), "the problem is reported")
        assert "out-of-date" in problem_of(lab)
        process.kill()
        process.wait()
        assert lab.record(run).mlflow_run_id is None
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT run_uuid FROM runs").fetchall() == [(kept,)]
    assert not (fresh.path / "mlflow.db.incomplete").exists()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(schema_title(VERSION))
        print(*schema_of(built_by_mlflow(Path(folder))), sep="\n")
