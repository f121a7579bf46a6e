"""The real deliverer process on a SQLite database: crashes, locks, pokes, silence."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow.entities import Metric
from mlflow.tracking import MlflowClient

from radt.delivery.problems import destination_name
from radt.home import Home, RunDir
from radt.model import RunStatus
from tests.delivery.mlflow.lab import (
    Lab,
    closing,
    count_points,
    finish,
    make_lab,
    notify,
    wait_until,
)


def test_killed_in_the_middle_of_many_points_and_started_again(lab: Lab) -> None:
    total = 20_000
    (run,) = lab.add_workload()
    lab.start(run)
    lab.log(run, "loss", [float(i) for i in range(total // 2)], interval_ns=1000)
    # Without steps and many in one millisecond: what tells them apart is their number.
    lab.log(run, "flat", [1.0] * (total // 2), series_no=1, interval_ns=1000)
    database = lab.home.path / "mlflow.db"

    for part in (0.15, 0.5):
        process = lab.start_deliverer()
        wait_until(
            lambda part=part: sum(lab.reader.delivered(run.run_id).values()) >= part * total,
            f"{part:.0%} delivered",
        )
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert sum(lab.reader.delivered(run.run_id).values()) < total
    lab.end(run)
    finish(lab.start_deliverer())

    for key in ("loss", "flat"):
        assert count_points(database, lab.mlflow_id(run), key) == total // 2
    assert [point.value for point in lab.client.get_metric_history(lab.mlflow_id(run), "loss")] == [
        float(i) for i in range(total // 2)
    ]
    assert lab.mlflow_run(run).info.status == "FINISHED"
    assert lab.reader.runs_to_deliver(lab.tracking_uri) == []


@pytest.mark.long
def test_from_the_first_run_of_a_fresh_folder_with_a_hostile_name(tmp_path: Path) -> None:
    """No database yet; nothing may reach the console; ids come on a notify, the end at once."""
    home = Home(tmp_path / "a folder\nof 'Zoë' 100 %").create()
    with closing(make_lab(home, home.default_tracking_uri)) as lab:
        process = lab.start_deliverer("--live-interval-s", "3600")
        runs = lab.add_workload(8)
        notify(process)
        wait_until(lambda: all(lab.record(run).mlflow_run_id for run in runs), "all have ids")
        for run in runs:
            lab.start(run)
            lab.log(run, "loss", [1.0, 2.0])
        RunDir(Path(runs[0].spool)).output_log.write_text("hello\n")
        for run in runs:
            lab.end(run, RunStatus.KILLED)
        notify(process)
        wait_until(lambda: not lab.reader.workloads_to_deliver(lab.tracking_uri), "all delivered")
        wait_until(lambda: not lab.reader.runs_to_deliver(lab.tracking_uri), "all delivered")
        assert {lab.mlflow_run(run).info.status for run in runs} == {"KILLED"}
        assert lab.mlflow_run(runs[0]).data.metrics["loss"] == 2.0
        log = home.artifacts / lab.mlflow_id(runs[0]) / "artifacts" / "output.log"
        assert log.read_text() == "hello\n"
        finish(process)  # which asserts that nothing was printed
        with contextlib.closing(sqlite3.connect(home.path / "mlflow.db")) as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.long
def test_changes_of_the_store_are_noticed_without_a_poke(lab: Lab) -> None:
    process = lab.start_deliverer("--live-interval-s", "3600")
    (run,) = lab.add_workload()
    notify(process)
    wait_until(lambda: lab.record(run).mlflow_run_id, "registered: the deliverer is up")
    lab.start(run)
    lab.end(run)
    wait_until(lambda: not lab.reader.runs_to_deliver(lab.tracking_uri), "delivered")
    finish(process)


@pytest.mark.long
def test_running_runs_are_delivered_while_they_run(lab: Lab) -> None:
    (run,) = lab.add_workload()
    lab.start(run)
    process = lab.start_deliverer("--live-interval-s", "0.1")
    for count in (1, 2, 3):
        if count > 1:
            process.send_signal(signal.SIGINT)  # Ctrl-C is for others
        lab.log(run, "loss", [float(count)])
        wait_until(
            lambda count=count: lab.reader.delivered(run.run_id).get(0) == count, f"point {count}"
        )
    finish(process)
    assert lab.mlflow_run(run).info.status == "RUNNING"


def test_two_deliverers_create_no_run_twice(lab: Lab) -> None:
    """One whose collector died finishes up while its successor starts."""
    runs = lab.add_workload(4)
    processes = [lab.start_deliverer() for _ in range(2)]
    wait_until(lambda: all(lab.record(run).mlflow_run_id for run in runs), "all have ids")
    for run in runs:
        lab.end(run)
    for process in processes:  # either may be the one that waits for the other
        assert process.stdin is not None
        process.stdin.close()
    for process in processes:
        assert process.wait() == 0
    found = lab.client.search_runs([lab.mlflow_run(runs[0]).info.experiment_id])
    assert len(found) == 5
    assert {one.info.status for one in found} == {"FINISHED"}


@pytest.mark.long
def test_while_another_holds_the_order_nothing_is_done(lab: Lab) -> None:
    """Told to finish before its turn, it still looks: the other one may have looked too early."""
    name = destination_name(lab.home.store_path, lab.tracking_uri)
    lock = Path(os.environ["RADT_RUNTIME_DIR"]) / f"deliver-{name}.lock"
    (run,) = lab.add_workload()
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        waiting = lab.start_deliverer()
        assert waiting.stdin is not None
        waiting.stdin.close()
        wait_until(lambda: _waits_for_a_lock(waiting.pid), "it waits for its turn")
        assert lab.record(run).mlflow_run_id is None
    assert waiting.wait() == 0
    assert lab.record(run).mlflow_run_id


def _waits_for_a_lock(pid: int) -> bool:
    locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return any(words[1] == "->" and words[5] == str(pid) for words in locks)


@pytest.mark.long
def test_a_script_that_writes_to_the_same_database(lab: Lab) -> None:
    """Neither of the two may lose a point to "database is locked"."""
    (run,) = lab.add_workload()
    lab.start(run)
    lab.log(run, "ours", [float(i) for i in range(3000)])
    lab.creator().register_pending()
    script = MlflowClient(lab.tracking_uri)
    process = lab.start_deliverer("--live-interval-s", "0.1")
    written = 0
    while lab.reader.delivered(run.run_id).get(0, 0) < 3000 or written < 100:
        script.log_batch(lab.mlflow_id(run), [Metric("theirs", 1.0, written, written)])
        written += 1
    lab.end(run)
    finish(process)
    database = lab.home.path / "mlflow.db"
    assert count_points(database, lab.mlflow_id(run), "ours") == 3000
    assert count_points(database, lab.mlflow_id(run), "theirs") == written


def test_a_store_that_is_missing_ends_it_with_a_reason_in_the_log(lab: Lab, tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "radt.delivery.mlflow", "--store", str(tmp_path / "no.db")],
        env=os.environ | {"RADT_TRACKING_URI": lab.tracking_uri},
        stdin=subprocess.DEVNULL,
        timeout=180,
    )
    assert answer.returncode == 1
    assert "there is no store" in lab.log_text()
