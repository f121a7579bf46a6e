"""Projects that are copied or renamed with their data folder, before, between and during runs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from radt.home import Home
from radt.model import RunStatus
from radt.store.place import COPIED, NOTE_FILE
from tests.collector.collector_kit import holder
from tests.process.test_without_collector import fail
from tests.support.bench import Bench, stop_collectors, wait_until

pytestmark = pytest.mark.mlflow

#: Waits for the test where there is a pipe to wait at.
SCRIPT = """\
import os, radt
with radt.Run() as run:
    for step in range(50):
        run.log_metric("loss", step / 2, step)
    run.log_text(os.getcwd(), "notes.txt")
    open("logged", "w").close()
    if os.path.exists("go.fifo"):
        open("go.fifo").read()
    for step in range(50, 100):
        run.log_metric("loss", step / 2, step)
"""
ONE = "Experiment,Workload,Devices,Listeners,File\nmoved,1,cpu,top@100ms,train.py\n"


@pytest.fixture
def project(bench: Bench) -> Bench:
    bench.script("train.py", SCRIPT)
    return bench


def train(bench: Bench) -> None:
    bench.radt(bench.experiment(ONE).name)


def copy_of(bench: Bench) -> Bench:
    folder = bench.folder.with_name("a copy: 100% é#?")
    subprocess.run(["cp", "-r", bench.folder, folder], check=True)
    return replace(bench, folder=folder)


def rename(bench: Bench) -> Path:
    """Rename the project, and return where it was."""
    former = bench.folder
    bench.folder = former.rename(former.with_name("renamed: 100% é#?"))
    return former


def contents(folder: Path) -> set[str]:
    """The files and their hashes, by another process: closing a file ends SQLite's locks here."""
    command = ["find", ".", "-type", "f", "-exec", "sha256sum", "{}", "+"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines())


def steps(bench: Bench, run_id: str) -> list[float]:
    (series,) = (each for each in bench.reader.series([run_id]) if each.metric == "loss")
    return list(bench.reader.samples(run_id, series.series_no).values * 2)


def check(bench: Bench, runs: int) -> None:
    """All runs are whole and in MLflow, whose locations are in the data folder."""
    bench.radt("sync")
    bench.wait_delivered()
    home = Home(bench.home)
    records = bench.reader.runs()
    assert len(records) == runs
    for run in records:
        assert run.status is RunStatus.FINISHED
        assert (run.spool, run.tracking_uri) == (
            str(home.run_dir(run.run_id).path),
            home.default_tracking_uri,
        )
        assert steps(bench, run.run_id) == list(range(100))
        info = bench.mlflow.get_run(str(run.mlflow_run_id)).info
        assert info.artifact_uri.startswith(home.artifacts.as_uri())
        assert "notes.txt" in {file.path for file in bench.mlflow.list_artifacts(info.run_id)}
    experiment = bench.mlflow.get_experiment_by_name("moved")
    assert experiment is not None
    assert experiment.artifact_location == home.artifacts.as_uri()
    bench.shown("db", "check")


def test_a_copy_and_its_original_are_apart(project: Bench) -> None:
    train(project)
    project.wait_delivered()
    runtime = Path(project.env["RADT_RUNTIME_DIR"])
    # A collector that starts again would go on with runs that one has not let go of.
    wait_until(lambda: not any((runtime / "runs").iterdir()), "the collector has let go of the run")
    stop_collectors(runtime)
    before = contents(project.folder)
    copy = copy_of(project)
    train(copy)
    check(copy, 2)
    stop_collectors(Path(project.env["RADT_RUNTIME_DIR"]))
    assert contents(project.folder) == before
    in_copy = contents(copy.home / "artifacts")
    train(project)
    train(copy)
    check(project, 2)
    check(copy, 3)
    assert in_copy < contents(copy.home / "artifacts")


@pytest.mark.long
def test_a_renamed_project_goes_on_in_its_new_place(project: Bench) -> None:
    train(project)
    project.wait_delivered()
    former = rename(project)
    (project.home / NOTE_FILE).unlink()  # as one has it that an earlier radt has recorded
    train(project)
    check(project, 2)
    assert not former.exists()


@pytest.fixture
def other_run(project: Bench, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of another project, for which uploads wait until the test opens the gate."""
    project.env["RADT_UPLOAD_WAIT_S"] = "600"
    other = replace(project, folder=project.folder.with_name("other"))
    other.home.mkdir(parents=True)
    other.env = {**project.env, "RADT_TRACKING_URI": "none"}
    gate = other.signal_ready("go.fifo")
    other.script("train.py", SCRIPT)
    other.start(other.experiment(ONE).name)
    wait_until((other.folder / "logged").exists, "the other run has begun")
    return gate


@pytest.mark.quick_variants(1)
@pytest.mark.parametrize("next_command", ["sync", "run"])
def test_a_run_is_uploaded_though_its_project_was_renamed_before(
    project: Bench, other_run: Path, next_command: str
) -> None:
    train(project)
    assert project.reader.runs_to_deliver(Home(project.home).default_tracking_uri)
    former = rename(project)
    project.shown("db", "check")
    if next_command == "sync":
        project.radt("sync")
    else:
        train(project)
    other_run.write_text("go", encoding="ascii")
    check(project, 1 if next_command == "sync" else 2)
    wait_until(lambda: holder("worker") is None, "the collector has ended")
    assert not former.exists()


@pytest.mark.long
def test_a_run_that_no_collector_has_recorded_is_uploaded_from_the_new_place(
    project: Bench,
) -> None:
    train(project)
    fail(project, "radt.collector.worker")
    stop_collectors(Path(project.env["RADT_RUNTIME_DIR"]))
    subprocess.run([sys.executable, "train.py"], cwd=project.folder, env=project.env, check=True)
    stop_collectors(Path(project.env["RADT_RUNTIME_DIR"]))
    assert list(project.home.glob("runs/*/run.json"))
    former = rename(project)
    project.env.pop("PYTHONPATH")
    check(project, 2)
    assert not former.exists()


@pytest.fixture
def running(project: Bench) -> subprocess.Popen[str]:
    """A run that waits at ``go.fifo``, and has logged half of its values."""
    project.signal_ready("go.fifo")
    process = project.start(project.experiment(ONE).name)
    wait_until((project.folder / "logged").exists, "the run has begun")
    return process


@pytest.mark.long
def test_a_project_that_is_renamed_during_a_run_loses_no_value(
    project: Bench, running: subprocess.Popen[str]
) -> None:
    former = rename(project)
    (project.folder / "go.fifo").write_text("go", encoding="ascii")
    output, _ = running.communicate(timeout=180)
    assert f"{former}/experiment.csv cannot be read" in output
    wait_until(lambda: holder("worker") is None, "the collector has ended")
    assert not former.exists()
    project.radt("sync")
    project.shown("db", "check")
    (run,) = project.reader.runs()
    assert (run.status, run.end_reason) == (RunStatus.KILLED, "its runner was killed")
    assert steps(project, run.run_id) == list(range(100))


@pytest.mark.long
def test_a_copy_made_during_a_run_leaves_the_run_to_the_original(
    project: Bench, running: subprocess.Popen[str]
) -> None:
    (project.folder / "go.fifo").rename(project.folder.with_name("go.fifo"))
    copy = copy_of(project)
    train(copy)
    copy.radt("sync")
    project.folder.with_name("go.fifo").write_text("go", encoding="ascii")
    output, _ = running.communicate(timeout=180)
    assert running.returncode == 0, output
    check(project, 1)
    copy.radt("sync")
    copy.shown("db", "check")
    copied, own = copy.reader.runs()
    assert (copied.status, copied.end_reason) == (RunStatus.KILLED, COPIED)
    assert steps(copy, copied.run_id) == list(range(50))
    assert steps(copy, own.run_id) == list(range(100))
    assert own.status is RunStatus.FINISHED
