"""`radt prune`: shows, asks, does, and goes on after a kill."""

from __future__ import annotations

import os
import platform
import shlex
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from radt.cli.prune import command
from radt.errors import UsageError
from radt.home import Home
from radt.store import pruning
from radt.store.backend import Dialect
from radt.store.check import check, check_deep
from radt.store.pruning import Keep, give_back, prune_run
from radt.store.reader import StoreReader
from radt.store.records import Samples, SeriesBatch
from radt.store.writer import StoreWriter
from radt.tags import PRUNED
from tests.housekeeping.conftest import GAUGE
from tests.support.bench import wait_until

PutRun = Callable[..., str]
Execute = Callable[..., None]
SQLITE_ONLY = pytest.mark.parametrize("dialect", [Dialect.SQLITE], indirect=True, ids=str)
THIN = ("--older-than", "90d", "--keep", "summaries")
REMOVE = ("--older-than", "90d", "--keep", "nothing")


def prune(*arguments: str, code: int = 0) -> str:
    done: Result = CliRunner().invoke(command, arguments, standalone_mode=False)
    assert done.exception is None, done.exception
    assert done.return_value == code, done.output
    return done.output


def noisy(writer: StoreWriter, run_id: str) -> None:
    """Values that cannot be compressed."""
    random = np.random.default_rng(1)
    ended = 2**60
    for first in range(0, 300_000, 50_000):
        times = ended + first + np.arange(50_000)
        writer.append(run_id, [SeriesBatch(GAUGE, Samples(times, random.normal(size=50_000)))])
    writer.seal(run_id)


def pruned(reader: StoreReader) -> list[str]:
    tags = reader.tags_of([run.run_id for run in reader.runs()])
    return sorted(run_id for run_id, found in tags.items() if PRUNED in found)


def test_nothing_is_done_before_it_is_said(
    home: Home, writer: StoreWriter, reader: StoreReader, put_run: PutRun
) -> None:
    old, young = put_run("a" * 32, points=1000), put_run("b" * 32, days_ago=89, points=10)
    where = () if not writer.address.is_postgres else ("--store-uri", writer.address.uri)
    text = prune(*THIN, "--dry-run", *where)
    assert "1 run to be thinned to summaries, 3,003 points" in text
    assert "p@ss" not in text
    with_no_terminal = CliRunner().invoke(command, [*THIN, *where], standalone_mode=False)
    assert isinstance(with_no_terminal.exception, UsageError)
    assert "--yes" in str(with_no_terminal.exception)
    assert pruned(reader) == []

    text = prune(*THIN, "--yes", *where)
    assert "1 run pruned" in text
    assert pruned(reader) == [old]
    assert "0 runs to be thinned" in prune(*THIN, "--yes", *where)
    # What is left of it, not what it once had.
    assert "1 run to be deleted, 715 points" in prune(*REMOVE, "--yes", *where)
    assert [run.run_id for run in reader.runs()] == [young]


@SQLITE_ONLY
def test_an_experiment_that_is_misspelt_is_said(reader: StoreReader, put_run: PutRun) -> None:
    put_run(points=10)
    done = CliRunner().invoke(command, [*THIN, "--experiment", "digit"], standalone_mode=False)
    assert isinstance(done.exception, UsageError)
    assert done.exception.message.endswith(" has no experiment 'digit'")
    assert done.exception.remedy == "Did you mean 'digits'?"


@SQLITE_ONLY
def test_the_shared_store_is_pruned_only_by_name(
    reader: StoreReader, put_run: PutRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RADT_STORE_URI", "postgresql://127.0.0.1:9/absent")
    run_id = put_run(points=1000)
    both = [*THIN, "--yes", "--home", "radt-data", "--store-uri", "postgresql://db/x"]
    done = CliRunner().invoke(command, both, standalone_mode=False)
    assert isinstance(done.exception, UsageError)
    prune(*THIN, "--yes")
    assert pruned(reader) == [run_id]


@SQLITE_ONLY
def test_folders_of_pruned_runs_go_and_others_stay(
    home: Home, reader: StoreReader, put_run: PutRun
) -> None:
    here = platform.node()
    there = {"points": 10, "tracking_uri": "http://mlflow"}
    names = {key: put_run(key * 32, host=here, **there) for key in "abc"}
    put_run("d" * 32, host="another", **there)
    for key in "abcd":
        home.run_dir(key * 32).create()
        home.run_dir(key * 32).output_log.write_text("lines")
    (home.run_dir(names["b"]).journal / "1234").mkdir()
    (home.run_dir(names["c"]).journal / "labels").mkdir()
    text = prune(*THIN, "--yes", "--force")
    assert "their last values are not in the store yet; run radt sync" in text
    assert sorted(path.name[0] for path in (home.path / "runs").iterdir()) == ["b", "d"]
    assert [run_id[0] for run_id in pruned(reader)] == ["a", "c", "d"]


@SQLITE_ONLY
def test_files_that_nobody_else_has_stay_beside_summaries(
    home: Home, writer: StoreWriter, reader: StoreReader, put_run: PutRun, execute: Execute
) -> None:
    """Without MLflow, given up by it, not delivered yet; and one that it has."""
    here = {"points": 10, "host": platform.node()}
    put_run("a" * 32, **here)
    for key in "bcd":
        put_run(key * 32, tracking_uri="http://mlflow", **here)
    writer.mark_run_delivered("b" * 32, "artifact model.pt refused")
    execute("UPDATE run SET delivery_done_ns = NULL WHERE run_id = :id", id="c" * 32)
    for key in "abcd":
        home.run_dir(key * 32).create()
    assert "1 run stays: MLflow did not accept all of it; --force" in prune(*THIN, "--yes")
    assert [run_id[0] for run_id in pruned(reader)] == ["a", "d"]
    prune(*THIN, "--yes", "--force")
    assert [run_id[0] for run_id in pruned(reader)] == ["a", "b", "c", "d"]
    assert sorted(path.name[0] for path in (home.path / "runs").iterdir()) == ["a", "b", "c"]
    prune(*REMOVE, "--yes", "--force")
    assert list((home.path / "runs").iterdir()) == []


@SQLITE_ONLY
def test_a_run_that_is_written_meanwhile_keeps_its_files(
    home: Home, writer: StoreWriter, put_run: PutRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = put_run(points=10, host=platform.node(), tracking_uri="http://mlflow")
    home.run_dir(run_id).create()

    def slow(reader: StoreReader, run_id: str) -> object:
        writer.put_tags(run_id, {"said": "now"})
        return thin_run(reader, run_id)

    thin_run = pruning.thin_run
    monkeypatch.setattr(pruning, "thin_run", slow)
    assert "changed in the meantime and stays" in prune(*THIN, "--yes")
    assert home.run_dir(run_id).path.is_dir()


@SQLITE_ONLY
def test_a_run_whose_workload_is_open_in_mlflow_is_not_removed(
    writer: StoreWriter, reader: StoreReader, put_run: PutRun, execute: Execute
) -> None:
    run_id = put_run(points=10, tracking_uri="http://mlflow")
    writer.update_workload(f"w-{run_id}", tracking_uri="http://mlflow")
    assert "its workload has not ended in MLflow yet" in prune(*REMOVE, "--yes")
    writer.mark_workload_delivered(f"w-{run_id}")
    assert "1 run pruned" in prune(*REMOVE, "--yes")


@SQLITE_ONLY
def test_what_is_held_back_is_said_and_can_be_forced(
    reader: StoreReader, put_run: PutRun, execute: Execute
) -> None:
    put_run(points=10, tracking_uri="http://mlflow")
    execute("UPDATE run SET delivery_done_ns = NULL")
    text = prune(*THIN, "--yes")
    assert "1 run stays: MLflow does not have all of it yet; --force" in text
    assert pruned(reader) == []
    prune(*THIN, "--yes", "--force")
    assert len(pruned(reader)) == 1


@SQLITE_ONLY
def test_one_run_that_cannot_be_pruned_keeps_no_other_from_it(
    reader: StoreReader, put_run: PutRun, execute: Execute
) -> None:
    for key in "abc":
        put_run(key * 32, points=10)
    execute("UPDATE chunk SET checksum = 1 WHERE run_id = :id", id="b" * 32)
    text = prune(*THIN, "--yes", code=1)
    assert f"run {'b' * 32}: a chunk of samples is damaged" in text
    assert [run_id[0] for run_id in pruned(reader)] == ["a", "c"]


@SQLITE_ONLY
def test_room_is_given_back(
    home: Home, writer: StoreWriter, reader: StoreReader, put_run: PutRun
) -> None:
    for key in "ab":
        noisy(writer, put_run(key * 32, points=10))
        assert "MB freed" in prune(*THIN, "--yes")
        assert home.store_path.stat().st_size < 1_000_000
        with closing(sqlite3.connect(home.store_path)) as store:
            assert store.execute("PRAGMA auto_vacuum").fetchone() == (2,)
    assert len(pruned(reader)) == 2
    writer.put_tags("a" * 32, {"still": "works"})
    assert list(check_deep(reader)) == []


@SQLITE_ONLY
def test_room_is_not_given_back_while_another_program_writes(
    home: Home,
    writer: StoreWriter,
    reader: StoreReader,
    put_run: PutRun,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noisy(writer, put_run("a" * 32, points=10))
    prune_run(reader, writer, "a" * 32, Keep.SUMMARIES)
    with closing(sqlite3.connect(home.store_path)) as other:
        other.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr("radt.store.pruning._PATIENCE_S", 0.01)
        assert "another program" in give_back(home.store_path).reason
    assert give_back(home.store_path).given_back_bytes > 2_000_000


@SQLITE_ONLY
def test_a_file_that_cannot_shrink_step_by_step_says_how_it_can(
    home: Home, writer: StoreWriter, put_run: PutRun
) -> None:
    noisy(writer, put_run("a" * 32, points=10))
    writer.close()
    with closing(sqlite3.connect(home.store_path)) as store:
        store.executescript("PRAGMA auto_vacuum = 0; VACUUM")
    text = prune(*THIN, "--yes")
    assert "MB freed" not in text
    assert "MB are free inside the file: this file cannot shrink step by step. Run: " in text
    shell = text.partition("step by step. Run: ")[2].splitlines()[0]
    _, file, commands = shlex.split(shell)
    with closing(sqlite3.connect(file)) as store:
        store.executescript(commands)
        assert store.execute("PRAGMA auto_vacuum").fetchone() == (2,)
        assert store.execute("PRAGMA freelist_count").fetchone() == (0,)


@SQLITE_ONLY
def test_after_a_kill_the_same_command_goes_on(
    home: Home, reader: StoreReader, put_run: PutRun, tmp_path: Path
) -> None:
    for number in range(12):
        put_run(f"{number:032}", points=50, host=platform.node(), tracking_uri="http://mlflow")
        home.run_dir(f"{number:032}").create()
    # Stops for good in the fifth transaction, before its end.
    program = tmp_path / "stops.py"
    program.write_text(
        "import os, signal, sys, radt.store.pruning as pruning\n"
        "real, calls = pruning._replace_chunks, []\n"
        "def replace(*args):\n"
        "    real(*args)\n"
        "    calls.append(1)\n"
        "    if len(calls) == 5:\n"
        "        open(sys.argv.pop(1), 'w').close()\n"
        "        os.kill(os.getpid(), signal.SIGSTOP)\n"
        "pruning._replace_chunks = replace\n"
        "mark = sys.argv[1]\n"
        "from radt.cli import main\n"
        "main(['prune', *sys.argv[2:]])\n"
    )
    mark = tmp_path / "stopped"
    process = subprocess.Popen(
        [sys.executable, program, mark, *THIN, "--yes", "--home", home.path],
        stdout=subprocess.DEVNULL,
    )
    wait_until(mark.exists, "it stands in the middle of a run")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert len(pruned(reader)) == 4
    assert [*check(reader), *check_deep(reader)] == []

    assert "8 runs pruned" in prune(*THIN, "--yes")
    assert len(pruned(reader)) == 12
    assert [*check(reader), *check_deep(reader)] == []
    assert list((home.path / "runs").iterdir()) == []
