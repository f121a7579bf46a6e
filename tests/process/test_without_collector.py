"""Training begins and ends without a collector, and is recorded all the same."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

import radt
from radt.collector.client import CollectorClient
from radt.model import RunStatus
from radt.store.records import RunRecord
from tests.support.bench import RADT, TIMEOUT_S, Bench, wait_until

#: Logs 100 values, says that it has, and waits for the test where there is a pipe to wait at.
SCRIPT = """\
import os, sys, radt
with radt.Run() as run:
    for step in range(100):
        run.log_metric("loss", step / 2, step)
    open("logged", "w").close()
    if os.path.exists("go.fifo"):
        open("go.fifo").read()
"""
TWO_WORKLOADS = (
    "Experiment,Workload,Devices,Listeners,File\n"
    "alone,1,cpu,top@100ms,train.py\nalone,1,cpu,top@100ms,train.py\n"
    "alone,2,cpu,top@100ms,train.py\n"
)
ONE = "Experiment,Workload,Devices,Listeners,File\nalone,1,cpu,top@100ms,train.py\n"
#: A collector whose processes of one kind end as they begin, for as long as a file is there.
FAILING = """\
import os, sys
if "{module}" in sys.orig_argv and os.path.exists({file!r}):
    os._exit(7)
"""


@pytest.fixture
def stopped(bench: Bench) -> int:
    """The process id of a collector that is there and does not run."""
    with CollectorClient(timeout_s=TIMEOUT_S, patience_s=TIMEOUT_S).reach() as client:
        pid = client.status().pid
    os.kill(pid, signal.SIGSTOP)
    return pid


def fail(bench: Bench, module: str) -> Path:
    """Have the collector fail until the file that this returns is removed."""
    file = bench.folder / "fails"
    file.touch()
    folder = bench.script("site/sitecustomize.py", FAILING.format(module=module, file=str(file)))
    bench.env["PYTHONPATH"] = str(folder.parent)
    bench.env["RADT_COLLECTOR_PATIENCE_S"] = "2"  # one that cannot start needs no patience
    return file


def steps(bench: Bench, run: RunRecord) -> Sequence[int]:
    frame = radt.load(run.run_id, home=bench.home, metrics=["loss"])
    return [int(step) for step in frame["step"]]


def manifests(bench: Bench) -> list[Path]:
    return [path for name in ("run", "end") for path in bench.home.glob(f"runs/*/{name}.json")]


def whole(bench: Bench, runs: int, status: RunStatus = RunStatus.FINISHED) -> None:
    """Assert that so many runs are recorded with all their values, and nothing is left."""
    recorded = bench.reader.runs()
    assert [run.status for run in recorded] == [status] * runs
    for run in recorded:
        assert steps(bench, run) == list(range(100))
        assert run.started_ns is not None
        assert run.ended_ns is not None
        assert run.started_ns <= run.ended_ns
    assert all(workload.status is status for workload in bench.reader.workloads())
    assert manifests(bench) == []


def test_a_stopped_collector_records_what_ran_meanwhile_when_it_goes_on(
    bench: Bench, stopped: int
) -> None:
    bench.script("train.py", SCRIPT)
    path = bench.experiment(TWO_WORKLOADS)
    done = bench.radt(path.name)
    assert [row["Status"] for row in bench.rows(path)] == ["FINISHED"] * 3
    assert done.stdout.count("the collector is stopped") == 1, done.stdout
    assert f"kill -CONT {stopped}" in done.stdout
    assert done.stderr == ""
    os.kill(stopped, signal.SIGCONT)
    wait_until(lambda: not manifests(bench), "the collector takes up what waits")
    whole(bench, 3)


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("module", ["radt.collector", "radt.collector.worker"])
def test_a_collector_that_cannot_start_stops_no_training(bench: Bench, module: str) -> None:
    fails = fail(bench, module)
    bench.script("train.py", SCRIPT)
    path = bench.experiment(TWO_WORKLOADS)
    done = bench.radt(path.name)
    assert [row["Status"] for row in bench.rows(path)] == ["FINISHED"] * 3
    assert done.stdout.count("runs continue without hardware samples") == 1, done.stdout
    assert done.stderr == ""
    fails.unlink()
    bench.radt("sync", "--home", "radt-data")
    whole(bench, 3)


@pytest.mark.long
def test_the_collector_joins_a_run_that_began_without_it(bench: Bench) -> None:
    fails = fail(bench, "radt.collector")
    bench.script("train.py", SCRIPT)
    bench.signal_ready("go.fifo")
    path = bench.experiment(ONE)
    process = bench.start(path.name)
    wait_until((bench.folder / "logged").exists, "training began")
    fails.unlink()
    (run,) = bench.reader.runs()
    wait_until(
        lambda: sum(row.received for row in bench.reader.ledger([run.run_id])) > 3,
        "hardware is sampled",
    )
    (bench.folder / "go.fifo").write_text("go", encoding="ascii")
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 0, output
    assert "the collector responds" in output
    whole(bench, 1)


@pytest.mark.long
def test_a_runner_that_is_killed_beside_a_stopped_collector_leaves_a_run_that_ends(
    bench: Bench, stopped: int
) -> None:
    bench.script("train.py", SCRIPT)
    bench.signal_ready("go.fifo")
    process = bench.start(bench.experiment(ONE).name)
    wait_until((bench.folder / "logged").exists, "training began")
    process.kill()
    process.wait()
    bench.radt("sync", "--home", "radt-data", code=None)
    os.kill(stopped, signal.SIGCONT)
    wait_until(lambda: not manifests(bench), "the run is taken up")
    (run,) = bench.reader.runs()
    assert (run.status, run.end_reason) == (RunStatus.KILLED, "its runner was killed")
    assert steps(bench, run) == list(range(100))


@pytest.mark.long
def test_a_store_that_refuses_the_rows_gets_them_later(bench: Bench) -> None:
    bench.script("train.py", SCRIPT)
    bench.radt(bench.experiment(ONE, "first.csv").name)
    path = bench.experiment(TWO_WORKLOADS)
    with closing(sqlite3.connect(bench.home / "radt.db", timeout=180)) as store, store:
        store.execute(
            "CREATE TRIGGER broken BEFORE INSERT ON run "
            "BEGIN SELECT RAISE(FAIL, 'disk I/O error'); END"
        )
    done = bench.radt(path.name)
    assert [row["Status"] for row in bench.rows(path)] == ["FINISHED"] * 3
    assert done.stdout.count("disk I/O error") == 1, done.stdout
    assert len(bench.reader.runs()) == 1
    with closing(sqlite3.connect(bench.home / "radt.db", timeout=180)) as store, store:
        store.execute("DROP TRIGGER broken")
    bench.radt("sync", "--home", "radt-data")
    whole(bench, 4)


STOPS_IT = """\
import os, signal, radt
from radt.collector.client import CollectorClient
with radt.Run(listeners="none") as run:
    run.log_metric("loss", 0.5)
    run.name  # as soon as the collector has the run
    with CollectorClient(timeout_s=60, patience_s=60).reach() as client:
        while not client.status().runs:
            pass
        os.kill(client.status().pid, signal.SIGSTOP)
"""


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("by_runner", [False, True], ids=["script", "radt"])
def test_whoever_waits_for_uploads_sees_a_run_that_a_stopped_collector_has_not_stored(
    bench: Bench, *, by_runner: bool
) -> None:
    bench.env |= {"RADT_TRACKING_URI": "http://127.0.0.1:9", "RADT_WAIT": "1"}
    bench.env |= {"RADT_COLLECTOR_PATIENCE_S": "2", "RADT_COLLECTOR_DELIVERY_S": "3"}
    script = bench.script("train.py", STOPS_IT)
    command = [RADT, bench.experiment(ONE).name] if by_runner else [sys.executable, str(script)]
    done = subprocess.run(
        command,
        cwd=bench.folder,
        env=bench.env,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    # The last one if it was stopped while it wrote.
    left = ("some data is only in", "database is locked")
    assert any(text in done.stdout + done.stderr for text in left), done
