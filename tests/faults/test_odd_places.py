"""Data folders and experiment files that are read-only, or not where they seem to be."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from radt.model import RunStatus
from radt.paths import sqlite_uri
from radt.store.reader import StoreReader
from tests.support.bench import Bench, stop_collectors, wait_until
from tests.support.disk import SmallDisk

SCRIPT = """\
import radt
with radt.Run() as run:
    for step in range(100):
        run.log_metric("loss", 1 / (1 + step), step=step)
print("trained")
"""
ROWS = "Workload,Status,Run,Devices,Listeners,File\n1,,,cpu,top,train.py\n"


def losses(reader: StoreReader) -> list[float]:
    (run,) = reader.runs()
    (series,) = (one for one in reader.series([run.run_id]) if one.metric == "loss")
    return [float(value) for value in reader.samples(run.run_id, series.series_no).values]


def radt(bench: Bench, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """As a user elsewhere would call it."""
    return subprocess.run(
        [sys.executable, "-m", "radt", *arguments],
        cwd=folder,
        env=bench.env,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def test_a_data_folder_on_a_read_only_disk_is_read(
    bench: Bench, small_disk: SmallDisk, tmp_path: Path
) -> None:
    bench.folder = small_disk.path
    bench.script("train.py", SCRIPT)
    path = bench.experiment(ROWS)
    bench.radt(path.name)
    stop_collectors(Path(bench.env["RADT_RUNTIME_DIR"]))
    with small_disk.read_only():
        _reads_and_refuses(bench, small_disk.path, path, tmp_path)
    bench.radt(path.name)  # nothing is broken


def _reads_and_refuses(bench: Bench, disk: Path, path: Path, tmp_path: Path) -> None:
    with closing(bench.reader) as reader:
        assert losses(reader) == [1 / (1 + step) for step in range(100)]
        (run,) = reader.runs()
        token = reader.change_token()
        assert reader.change_token() == token
    home = str(bench.home)
    report = radt(bench, tmp_path, "report", "experiment", "--home", home)
    assert report.returncode == 0, report.stderr
    assert "train" in report.stdout
    export = radt(bench, tmp_path, "export", run.run_id, "-o", "samples.csv", "--home", home)
    assert export.returncode == 0, export.stderr
    assert "loss" in (tmp_path / "samples.csv").read_text()
    status = radt(bench, disk, "status", path.name)
    assert status.returncode == 0, status.stderr
    load = f"import radt; print(len(radt.load('{run.run_id}', home={home!r}, metrics='loss')))"
    loaded = subprocess.run(
        [sys.executable, "-c", load], env=bench.env, capture_output=True, text=True, check=False
    )
    assert loaded.stdout == "100\n", loaded.stderr

    before = path.read_bytes()
    refused = radt(bench, disk, path.name, "--rerun")
    assert refused.returncode == 2, refused.stderr
    assert "Read-only file system" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert path.read_bytes() == before
    alone = subprocess.run(
        [sys.executable, "train.py"], cwd=disk, env=bench.env,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (alone.returncode, alone.stdout) == (0, "trained\n"), alone.stderr
    assert "Read-only file system" in alone.stderr
    assert "Traceback" not in alone.stderr


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("relative", [False, True])
def test_an_experiment_file_behind_a_link_stays_behind_it(
    bench: Bench, tmp_path: Path, relative: bool
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    target = shared / "study.csv"
    bench.script("train.py", SCRIPT)
    target.write_text(ROWS.replace("train.py", str(bench.folder / "train.py")), encoding="utf-8")
    target.chmod(0o640)
    link = bench.folder / "experiment.csv"
    link.symlink_to(os.path.relpath(target, bench.folder) if relative else target)
    bench.radt(link.name)
    assert link.is_symlink()
    assert link.resolve() == target
    (row,) = bench.rows(target)
    assert row["Status"] == "FINISHED"
    assert target.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in shared.iterdir()) == ["study.csv"], "nothing is left"
    again = bench.radt(link.name)
    assert "1 row done" in again.stdout
    assert "1 workload" in bench.shown("status", link.name)


@pytest.mark.long
@pytest.mark.mlflow
def test_a_data_folder_that_is_a_link(bench: Bench, tmp_path: Path) -> None:
    elsewhere = tmp_path / "big disk"
    bench.home.rename(elsewhere)
    bench.home.symlink_to(elsewhere)
    bench.script("train.py", SCRIPT)
    path = bench.experiment(ROWS)
    bench.radt(path.name)
    assert bench.home.is_symlink()
    with closing(StoreReader(elsewhere / "radt.db")) as reader:
        assert len(losses(reader)) == 100
        assert reader.runs()[0].status is RunStatus.FINISHED
    bench.wait_delivered()
    alone = subprocess.run(
        [sys.executable, "train.py"], cwd=bench.folder, env=bench.env,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert alone.stdout == "trained\n"
    assert len(bench.reader.runs()) == 2


@pytest.mark.mlflow
def test_a_data_folder_whose_path_means_something_else_in_a_uri(bench: Bench) -> None:
    """MLflow's database is made anew, in the folder, and everything finds it there."""
    bench.folder = bench.folder.rename(bench.folder.with_name("100% a?b#c%20d"))
    for file in bench.home.glob("mlflow.db*"):
        file.unlink()
    bench.script("train.py", SCRIPT)
    bench.radt(bench.experiment(ROWS).name)
    bench.wait_delivered()
    assert len(losses(bench.reader)) == 100
    (run,) = (run for run in bench.mlflow_runs("experiment").values() if "loss" in run.data.metrics)
    (artifacts, *_) = bench.mlflow.list_artifacts(run.info.run_id)
    assert artifacts.path
    assert (bench.home / "mlflow.db").stat().st_size
    bench.shown("db", "check")
    alone = subprocess.run(
        [sys.executable, "train.py"], cwd=bench.folder, env=bench.env,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert alone.stdout == "trained\n"
    assert {run.tracking_uri for run in bench.reader.runs()} == {
        sqlite_uri(bench.home / "mlflow.db")
    }


def test_what_is_recorded_is_for_its_user_alone(bench: Bench) -> None:
    """Whatever the umask says."""
    bench.script("train.py", SCRIPT)
    path = bench.experiment(ROWS)
    before = os.umask(0)
    try:
        bench.radt(path.name, "--detach")
    finally:
        os.umask(before)
    wait_until(lambda: bench.rows(path)[0].get("Status") == "FINISHED", "it has run")
    # As long as it is open, the files beside the store stay, though the collector goes.
    with closing(bench.reader) as reader, reader.snapshot():
        (run,) = reader.runs()
        spool = Path(run.spool)
        private = [*bench.home.glob("radt.db*"), *(bench.home / "logs").iterdir()]
        private += [bench.home / "logs", bench.home / "runs", spool, spool / "output.log"]
        assert len(private) >= 6
        assert [file.name for file in private if file.stat().st_mode & 0o077] == []
