"""The process that brings a store to Postgres: kills, bad links, many runs, two machines."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import psutil
import psycopg2
import pytest

from radt.store.reader import StoreReader
from radt.store.writer import StoreWriter
from tests.delivery.postgres.conftest import (
    DEADLINE_S,
    Processes,
    log_text,
    problem_of,
    through,
    wait_same,
)
from tests.support.bench import wait_until
from tests.support.links import Link
from tests.support.postgres import Postgres
from tests.support.servers import database_of, postgres_cluster
from tests.support.stores import WrittenRun, add_runs, differences


def points_at(uri: str) -> int:
    try:
        with closing(psycopg2.connect(uri)) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT COALESCE(SUM(point_count), 0) FROM radt.chunk")
            return int(cursor.fetchone()[0])  # type: ignore[index]
    except psycopg2.Error:
        return -1


def grow(runs: list[WrittenRun], rounds: int = 1) -> None:
    for _ in range(rounds):
        for run in runs:
            run.record(20, flush=10)
            run.log([1.0, 2.0])
            run.mark()


def test_a_server_that_is_killed_and_comes_back(
    store: Path, writer: StoreWriter, processes: Processes
) -> None:
    """Durable settings: what it had said to have is there after the crash."""
    durable = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}
    with postgres_cluster(durable) as postgres, database_of(postgres) as uri:
        runs = add_runs(writer, 3)
        (early,) = add_runs(writer)
        early.record(100)
        early.end()
        process = processes.start(store, uri)
        for _ in range(2):
            before = points_at(uri)
            grow(runs, 3)
            processes.notify(process)
            wait_until(lambda before=before: points_at(uri) > before, "it is under way")
            postgres.kill()
            grow(runs, 3)
            processes.notify(process)
            wait_until(lambda: problem_of(store), "the problem is written down")
            postgres.start()
            wait_same(store, uri)
        assert process.poll() is None
        for run in runs:
            run.end()
        processes.finish(process)
        assert differences(store, uri) == []
        assert problem_of(store) == ""


@pytest.mark.long
def test_64_runs_at_once(
    store: Path, writer: StoreWriter, database: str, link: Link, by_link: str, processes: Processes
) -> None:
    runs = add_runs(writer, 64, series=3)
    process = processes.start(store, by_link)
    for _ in range(2):
        grow(runs)
        processes.notify(process)
    for run in runs:
        run.end()
    processes.finish(process)
    assert differences(store, database) == []
    assert link.traffic.connections < 4


def test_two_machines_write_the_same_experiment(
    tmp_path: Path, database: str, processes: Processes
) -> None:
    """Both begin with an empty database, at the same instant."""
    stores = [tmp_path / host / "radt.db" for host in ("one", "two")]
    writers = [StoreWriter(path) for path in stores]
    everything = [
        add_runs(writer, 8, host=path.parent.name)
        for writer, path in zip(writers, stores, strict=True)
    ]
    started = [processes.start(path, database) for path in stores]

    def work(runs: list[WrittenRun]) -> None:
        grow(runs, 6)
        for run in runs:
            run.end()

    threads = [threading.Thread(target=work, args=(runs,)) for runs in everything]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for process in started:
        processes.finish(process)
    for path, writer in zip(stores, writers, strict=True):
        assert differences(path, database) == []
        writer.close()
    with StoreReader(database) as reader:
        assert [one.run_count for one in reader.experiments()] == [16]


def test_a_server_that_is_down_costs_nothing_and_floods_no_log(
    store: Path, writer: StoreWriter, database: str, postgres: Postgres, processes: Processes
) -> None:
    with Link(postgres.port, refusing=True) as link:
        runs = add_runs(writer, 2)
        process = processes.start(store, through(database, postgres.port, link))
        wait_until(lambda: problem_of(store), "the problem is written down")
        wait_until(lambda: "cannot be reached" in log_text(), "and said then")
        attempts = log_text().count("cannot be reached")
        for _ in range(30):
            grow(runs)
            processes.notify(process)
        link.pass_through()
        wait_same(store, database)
        processes.finish(process)  # it removes the problem last
        assert attempts == 1
        assert log_text().count("waits: ") == 1
        assert log_text().count("resumed after") == 1
        assert problem_of(store) == ""


def test_nobody_reads_the_password(
    store: Path, writer: StoreWriter, database: str, processes: Processes
) -> None:
    add_runs(writer)
    process = processes.start(store, database.replace("p%40ss", "geheim"))
    wait_until(lambda: problem_of(store), "refused")
    assert "password authentication failed" in problem_of(store)
    shown = [problem_of(store), log_text(), *psutil.Process(process.pid).cmdline()]
    assert not [text for text in shown if "geheim" in text]
    for path in Path(os.environ["RADT_RUNTIME_DIR"]).glob("replicate-*.log"):
        assert path.stat().st_mode & 0o077 == 0


@pytest.mark.long
def test_two_processes_do_not_work_at_once(
    store: Path, writer: StoreWriter, database: str, processes: Processes
) -> None:
    """One whose collector was killed finishes up while its successor starts.

    Either may have the first turn, and the other one ends after it.
    """
    runs = add_runs(writer, 4)
    both = [processes.start(store, database), processes.start(store, database)]
    grow(runs, 4)
    for run in runs:
        run.end()
    for process in both:
        processes.tell_to_finish(process)
    for process in both:
        processes.finish(process)
    assert differences(store, database) == []


def test_with_a_server_that_is_down_it_ends_and_says_that_something_is_left(
    store: Path, writer: StoreWriter, database: str, postgres: Postgres, processes: Processes
) -> None:
    (run,) = add_runs(writer)
    run.end()
    with Link(postgres.port, refusing=True) as link:
        process = processes.start(store, through(database, postgres.port, link))
        process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1


def test_light() -> None:
    """It runs beside the collector for days."""
    heavy = {"mlflow", "pandas", "pyarrow", "torch", "dash"}
    program = (
        "import sys; import radt.delivery.postgres.__main__, radt.delivery.postgres.replicator; "
        f"print(*{heavy!r} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == ""
