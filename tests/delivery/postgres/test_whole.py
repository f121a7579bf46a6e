"""Whole runs with a team's Postgres: recorded, brought there, told about; collectors killed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from radt.errors import StoreError
from radt.store.reader import StoreReader
from tests.delivery.postgres.conftest import through, wait_same
from tests.support.bench import Bench, alive, bench_in, let_go, wait_until
from tests.support.links import Link
from tests.support.postgres import Postgres

SCRIPT = """
import os, radt
with radt.Run() as run:
    for step in range(200):
        run.log_metric("loss", 1.0 / (step + 1), step=step)
    open("go").read()
    run.log_metric("accuracy", 0.5)
"""
CSV = """Experiment,Workload,Status,Run,Devices,Collocation,File,Listeners
digits,1,,,,,train.py,top@100ms
digits,1,,,,,train.py,top@100ms
"""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    often = {"RADT_COLLECTOR_IDLE_S": "2", "RADT_REPLICATION_S": "0.2"}
    with bench_in(tmp_path, columns=200, **often) as made:
        made.script("train.py", SCRIPT)
        made.experiment(CSV)
        yield made


def processes_of(bench: Bench, module: str) -> list[psutil.Process]:
    mine = bench.env["RADT_RUNTIME_DIR"]
    found = []
    for process in psutil.process_iter(["cmdline"]):
        try:
            if module not in (process.info["cmdline"] or ()):
                continue
            if process.environ().get("RADT_RUNTIME_DIR") == mine:
                found.append(process)
        except psutil.Error:
            continue
    return found


def points_at(uri: str) -> int:
    try:
        with StoreReader(uri) as reader:
            return sum(sum(reader.point_counts(run.run_id).values()) for run in reader.runs())
    except StoreError:
        return 0


def test_a_run_is_in_postgres_while_it_runs_and_wholly_at_its_end(
    bench: Bench, database: str
) -> None:
    """Collector, worker and replicator are killed on the way, and the password is in no list.

    Only MLflow's start is put off while runs are on.
    """
    bench.signal_ready("go")
    bench.env |= {"RADT_UPLOAD_WAIT_S": "3600"}
    # SQLAlchemy's way, with the password where libpq looks for it.
    bench.env |= {"PGPASSWORD": "p@ss/wörd:1"}
    uri = f"postgresql://postgres@{database.rsplit('@', 1)[1]}"
    radt = bench.start("experiment.csv", "--store-uri", uri, "--quiet")
    wait_until(lambda: points_at(database) > 400, "while it runs")
    for module in ("radt.delivery.postgres", "radt.collector.worker"):
        killed = processes_of(bench, module)
        for process in killed:
            process.kill()
        wait_until(lambda killed=killed: not any(alive(one.pid) for one in killed), "the end of it")
        before = points_at(database)  # points that it uploaded itself do not count
        wait_until(lambda before=before: points_at(database) > before, f"after {module}")
    let_go(bench.folder / "go")
    out, _ = radt.communicate(timeout=180)
    assert radt.returncode == 0, out
    wait_same(bench.home / "radt.db", database)


def test_sync_brings_what_was_left_and_status_says_so(
    bench: Bench, database: str, postgres: Postgres
) -> None:
    (bench.folder / "go").write_text("on")
    with Link(postgres.port, refusing=True) as link:
        uri = through(database, postgres.port, link)
        bench.env |= {"RADT_STORE_URI": uri}
        bench.radt("experiment.csv", "--quiet")
        store = bench.home / "radt.db"
        waiting = json.loads(bench.shown("status", "experiment.csv", "--json"))["waiting"]
        assert [one["runs"] for one in waiting if "postgres" in one["place"]] == [2]
        said = bench.shown("status", "experiment.csv")
        assert "2 runs" in said
        assert "p%40ss" not in said + json.dumps(waiting)
        failed = bench.radt("sync", code=1)
        assert "2 runs not uploaded" in failed.stdout
        assert "cannot be reached" in failed.stdout
        assert "wörd" not in failed.stdout
        link.pass_through()
        done = bench.radt("sync")
        assert "up to date" in done.stdout or "2 runs uploaded" in done.stdout
        wait_same(store, database)
        assert "2 runs uploaded" not in bench.radt("sync").stdout
        assert "2 runs uploaded" in bench.radt("sync", "--all").stdout
        assert "does not have" not in bench.shown("status", "experiment.csv")
