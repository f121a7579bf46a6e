"""MLflow's SQLite file: built by real processes that are killed meanwhile, and repaired."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from radt.delivery.problems import problem_file, read_problems
from radt.home import Home
from tests.delivery.mlflow.lab import DEADLINE_S, Lab, finish, make_lab, wait_until
from tests.delivery.mlflow.lab import closing as closing_lab
from tests.support.bench import mlflow_database

BUILD = """
import sys
from mlflow.tracking import MlflowClient
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


def kill_within(process: subprocess.Popen[bytes], database: Path, *, moved: bool) -> None:
    """Kill it while it migrates a database, in the middle of a table's rebuild if it can be."""

    def migrating() -> bool:
        names = tables(database)
        return "alembic_version" in names and (
            not moved or any(name.startswith("_alembic_tmp_") for name in names)
        )

    deadline_s = time.monotonic() + DEADLINE_S
    while not migrating():  # without a pause: a table's rebuild takes milliseconds
        assert time.monotonic() < deadline_s, "the database is half made"
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


def test_an_uploader_that_is_killed_while_it_builds_leaves_no_half(fresh: Home) -> None:
    database = fresh.path / "mlflow.db"
    with closing_lab(make_lab(fresh, fresh.default_tracking_uri)) as lab:
        lab.add_workload()
        process = lab.start_deliverer()
        kill_within(process, fresh.path / ".mlflow.db.building", moved=False)
        assert not database.exists()
        is_delivered(lab)
    left = {path.name for path in fresh.path.iterdir() if "mlflow.db" in path.name}
    assert left <= {"mlflow.db", "mlflow.db-wal", "mlflow.db-shm"}


def test_one_that_mlflow_left_half_made_is_replaced_and_kept_aside(fresh: Home) -> None:
    database = fresh.path / "mlflow.db"
    builder = subprocess.Popen([sys.executable, "-c", BUILD, fresh.default_tracking_uri])
    kill_within(builder, database, moved=True)
    with closing_lab(make_lab(fresh, fresh.default_tracking_uri)) as lab:
        is_delivered(lab)
    kept = tables(fresh.path / "mlflow.db.incomplete")
    assert any(name.startswith("_alembic_tmp_") for name in kept)


def test_one_that_stopped_between_two_migrations_is_replaced(fresh: Home) -> None:
    database = fresh.path / "mlflow.db"
    builder = subprocess.Popen([sys.executable, "-c", BUILD, fresh.default_tracking_uri])
    kill_within(builder, database, moved=False)
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
