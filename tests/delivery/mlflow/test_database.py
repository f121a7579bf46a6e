"""MLflow's SQLite file: built by real processes that are killed meanwhile."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from radt.delivery.mlflow import database as building
from radt.delivery.mlflow.database import prepare
from radt.delivery.problems import MLFLOW, read_problems
from radt.home import Home
from radt.paths import sqlite_uri
from tests.delivery.mlflow.lab import Lab, finish, make_lab, wait_until
from tests.delivery.mlflow.lab import closing as closing_lab
from tests.support.bench import mlflow_database
from tests.support.waiting import TIMEOUT_S, stands_still

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
PREPARE = """
import sys
from pathlib import Path
from radt.delivery.mlflow.database import prepare
prepare(Path(sys.argv[1]))
"""
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
    problems = read_problems(lab.home.store_path, MLFLOW, lab.tracking_uri)
    return " ".join(problem.text for problem in problems.values())


def is_delivered(lab: Lab) -> None:
    (run,) = lab.add_workload()
    lab.start(run)
    lab.log(run, "loss", [1.0, 2.0])
    lab.end(run)
    finish(lab.start_deliverer())
    assert lab.mlflow_run(run).data.metrics["loss"] == 2.0
    assert run.run_id not in {left.run_id for left in lab.reader.runs_to_deliver(lab.tracking_uri)}


def test_a_new_one_is_in_wal_mode_and_keeps_artifacts_beside_it(tmp_path: Path) -> None:
    """The current folder is the uploader's, which is ``/``."""
    database = tmp_path / "mlflow.db"
    prepare(database)
    with closing(sqlite3.connect(database)) as connection:
        columns = "experiment_id, name, artifact_location, lifecycle_stage"
        rows = connection.execute(f"SELECT {columns} FROM experiments").fetchall()
        assert rows == [(0, "Default", str(tmp_path / "mlruns" / "0"), "active")]
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    kept = database.read_bytes()
    prepare(database)
    assert database.read_bytes() == kept
    assert sorted(os.listdir(tmp_path)) == ["mlflow.db"]


@pytest.mark.long
def test_two_that_build_at_the_same_time(tmp_path: Path) -> None:
    database = tmp_path / "mlflow.db"
    command = [sys.executable, "-c", PREPARE, str(database)]
    processes = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait(TIMEOUT_S) for process in processes] == [0, 0]
    MlflowClient(sqlite_uri(database)).create_run("0")


def test_one_that_another_program_makes_meanwhile_keeps_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow's UI, or another uploader, is started while this process builds one."""
    database = tmp_path / "mlflow.db"
    template = mlflow_database().read_bytes()
    made = []

    def slow(new: Path, _: Path) -> None:
        new.write_bytes(template)
        database.write_bytes(template)
        made.append(MlflowClient(sqlite_uri(database)).create_run("0").info.run_id)
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # the file itself has the run

    monkeypatch.setattr(building, "_build", slow)
    prepare(database)
    # MLflow's client keeps what it has opened, also if that is no longer the file of this name.
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT run_uuid FROM runs").fetchall() == [(made[0],)]


@pytest.mark.long
def test_one_that_is_killed_while_it_builds_leaves_no_half(fresh: Home) -> None:
    database = fresh.path / "mlflow.db"
    with closing_lab(make_lab(fresh, fresh.default_tracking_uri)) as lab:
        killed_within(PREPARE, str(database), rebuild=False)
        (half,) = fresh.path.glob(".mlflow.db-*/mlflow.db")
        assert "alembic_version" in tables(half)
        assert not database.exists()
        is_delivered(lab)


def test_one_that_mlflow_left_half_made_is_a_problem_with_a_remedy(fresh: Home) -> None:
    database = fresh.path / "mlflow.db"
    killed_within(BUILD, fresh.default_tracking_uri, rebuild=True)
    with closing_lab(make_lab(fresh, fresh.default_tracking_uri)) as lab:
        lab.add_workload()
        process = lab.start_deliverer()
        wait_until(lambda: problem_of(lab), "the problem is reported")
        assert f"built {database}, rename that" in problem_of(lab)
        process.kill()
        process.wait()
        database.rename(fresh.path / "aside")
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
