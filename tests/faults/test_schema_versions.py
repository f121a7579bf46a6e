"""A store that an older radt wrote is used as it is; one of a newer radt is refused, kindly."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from radt.home import Home
from radt.model import MarkerKind, MissingReason, RunStatus, Scope, SeriesKind
from radt.store.migrations import latest_version, migrations
from radt.store.reader import StoreReader
from radt.store.records import (
    GapRecord,
    JournalCursor,
    LedgerRecord,
    MarkerRecord,
    RunRecord,
    Samples,
    SeriesBatch,
    SeriesRecord,
    WorkloadRecord,
)
from radt.store.sqlite import statements
from radt.store.writer import StoreWriter
from tests.support.bench import Bench

RUN = "0123456789abcdef0123456789abcdef"
POINTS = 5000


def fill(path: Path) -> None:
    """A store of today with something in every table that a run fills."""
    with StoreWriter(path) as writer:
        writer.put_workload(WorkloadRecord("w" * 32, "study", "1", 1, RunStatus.FINISHED))
        writer.put_run(
            RunRecord(
                RUN, "w" * 32, "study", "1", "a", "train", 2, RunStatus.FINISHED,
                started_ns=3, ended_ns=10**12, exit_code=0,
            )
        )  # fmt: skip
        writer.put_params(RUN, {"lr": "0.1"})
        writer.put_tags(RUN, {"radt.devices": "cpu"})
        gauge = SeriesKind.GAUGE
        writer.add_series(
            [
                SeriesRecord(RUN, 0, "run", "loss", "", Scope.RUN, gauge),
                SeriesRecord(RUN, 1, "top", "cpu", "1", Scope.HOST, gauge, interval_s=1.0),
            ]
        )
        times = np.arange(POINTS) * 10**8
        steps = np.arange(POINTS)
        writer.append(RUN, [SeriesBatch(0, Samples(times, np.sin(steps), steps))])
        for first in range(0, POINTS, 50):
            part = slice(first, first + 50)
            writer.append(RUN, [SeriesBatch(1, Samples(times[part], np.cos(steps[part])))])
        writer.put_markers([MarkerRecord(RUN, 0, MarkerKind.EPOCH, "epoch", 5, 50, 1)])
        writer.put_ledger(LedgerRecord(RUN, "top", 1.0, POINTS + 1, POINTS, 1, 7))
        writer.put_gaps([GapRecord(RUN, "top", 1, 5, 6, MissingReason.LOST)])
        writer.put_cursors(RUN, [JournalCursor("1-abc", 1, 2, 3, ("loss",))])


def as_of(version: int, today: Path, path: Path) -> None:
    """The same content as a radt of that schema version had it."""
    with closing(sqlite3.connect(path)) as old:
        old.isolation_level = None
        old.execute("PRAGMA journal_mode = WAL")
        old.execute(
            "CREATE TABLE schema_version (version INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL,"
            " applied_ns INTEGER NOT NULL, applied_by TEXT NOT NULL)"
        )
        for step in migrations()[:version]:
            for statement in statements(step.sql):
                old.execute(statement)
            old.execute(
                "INSERT INTO schema_version VALUES (?, ?, 0, 'radt 0')", (step.version, step.name)
            )
        old.execute("ATTACH ? AS today", (str(today),))
        tables = old.execute(
            "SELECT name FROM main.sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        ).fetchall()
        for (table,) in tables:
            if table in ("schema_version", "store_identity"):
                continue
            columns = ", ".join(row[1] for row in old.execute(f"PRAGMA main.table_info({table})"))
            old.execute(f"INSERT INTO main.{table} ({columns}) SELECT {columns} FROM today.{table}")


def content(path: Path) -> dict[str, object]:
    with closing(StoreReader(path)) as reader:
        samples = [reader.samples(RUN, number) for number in (0, 1)]
        return {
            "experiments": reader.experiments(),
            "workloads": reader.workloads(),
            "runs": reader.runs(),
            "params": reader.params(RUN),
            "tags": reader.tags(RUN),
            "series": reader.series([RUN]),
            "values": [one.values.tobytes() for one in samples],
            "times": [one.times_ns.tobytes() for one in samples],
            # The last digits of a sum depend on the order of adding up.
            "summary": [
                replace(each, total=float(f"{each.total:.9g}")) for each in reader.summary([RUN])
            ],
            "markers": reader.markers([RUN]),
            "ledger": reader.ledger([RUN]),
            "gaps": reader.gaps([RUN]),
            "cursors": reader.cursors(RUN),
        }


@pytest.mark.parametrize("version", range(1, latest_version()))
@pytest.mark.parametrize("first", ["reader", "writer"])
def test_an_older_store_is_read_and_written_on(tmp_path: Path, version: int, first: str) -> None:
    today, old = tmp_path / "today.db", tmp_path / "radt.db"
    fill(today)
    as_of(version, today, old)
    if first == "writer":
        StoreWriter(old).close()
    assert content(old) == content(today)
    with StoreWriter(old) as writer:
        more = np.array([10**15])
        writer.append(RUN, [SeriesBatch(1, Samples(more, np.array([7.0])))])
        writer.seal(RUN)
    with closing(StoreReader(old)) as reader:
        assert reader.samples(RUN, 1).values[-1] == 7.0
        assert len(reader.samples(RUN, 1)) == POINTS + 1
    with closing(sqlite3.connect(old)) as database:
        rows = database.execute("SELECT MAX(version) FROM schema_version").fetchall()
        assert rows == [(latest_version(),)]
        assert database.execute("SELECT COUNT(*) FROM store_identity").fetchall() == [(1,)]


SCRIPT = """\
import radt
with radt.Run() as run:
    for epoch in run.epochs(3):
        run.log_metric("loss", 1 / (1 + epoch))
print("trained")
"""
LOAD = f"import radt; radt.load('{RUN}')"


def test_a_newer_store_is_refused_by_all_and_trained_beside(bench: Bench) -> None:
    home = Home(bench.home).create()
    fill(home.store_path)
    with closing(sqlite3.connect(home.store_path)) as database, database:
        database.execute("INSERT INTO schema_version VALUES (999, 'future', 0, 'radt 9')")
    before = home.store_path.read_bytes()
    script = bench.script("train.py", SCRIPT)
    path = bench.experiment("Workload,Status,Run,Devices,File\n1,,,cpu,train.py\n")
    rows = path.read_bytes()
    for arguments in (
        (path.name,),
        ("report", "study"),
        ("export", RUN),
    ):
        done = bench.radt(*arguments, code=None)
        said = " ".join((done.stdout + done.stderr).split())
        assert done.returncode not in (0, -15), arguments
        assert "version 999" in said, arguments
        assert "Upgrade radt" in said, arguments
        assert "Traceback" not in said, arguments
    assert path.read_bytes() == rows
    loaded = subprocess.run(
        [sys.executable, "-c", LOAD], cwd=bench.folder, env=bench.env,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert loaded.returncode == 1
    assert "SchemaTooNewError" in loaded.stderr
    assert "Upgrade radt" in loaded.stderr
    alone = subprocess.run(
        [sys.executable, script], cwd=bench.folder, env=bench.env,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (alone.returncode, alone.stdout) == (0, "trained\n"), alone.stderr
    assert "Traceback" not in alone.stderr
    print(alone.stderr)
    assert "version 999" in alone.stderr
    assert home.store_path.read_bytes() == before
