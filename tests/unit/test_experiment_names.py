"""An experiment file stands for its experiment's name in report, compare, advise and export."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from radt.cli import advise, compare, export, report, trace
from radt.errors import UsageError
from radt.store.reader import StoreReader
from tests.frontend.report_support import Planted, Study

HEADER = "Experiment, Workload, File\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where ``e.csv`` (experiment study) and ``single.csv`` ran."""
    home = tmp_path / "radt-data"
    home.mkdir()
    for name, letters in (("study", "ab"), ("single", "a")):
        study = Study(home / "radt.db", name)
        study.workload("solo", [Planted("a", 2.0)])
        if len(letters) > 1:
            study.workload("pair", [Planted(letter, 3.0) for letter in letters])
        study.writer.close()
    (tmp_path / "e.csv").write_text(f"{HEADER}study, solo, train.py\nstudy, pair, train.py\n")
    (tmp_path / "single.csv").write_text("Workload, File\nsolo, train.py\n")
    (tmp_path / "sweep.csv").write_text(f"{HEADER}study, solo, train.py\n")
    (tmp_path / "sweep.yaml").write_text("grid: {}\n")
    (tmp_path / "never.csv").write_text("Workload, File\nsolo, train.py\n")
    (tmp_path / "two.csv").write_text(f"{HEADER}study, solo, train.py\nother, solo, train.py\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(command: click.Command, *arguments: str) -> Result:
    return CliRunner().invoke(command, [*arguments, "--home", "radt-data"])


@pytest.mark.parametrize("file", ["e.csv", "./e.csv", "sweep.yaml"])
def test_a_file_is_reported(folder: Path, file: str) -> None:
    done = call(report.command, file)
    assert done.exit_code == 0, done.exception
    assert done.output == call(report.command, "study").output


def test_files_and_their_workloads_are_compared(folder: Path) -> None:
    done = call(compare.command, "e.csv/solo", "e.csv/pair")
    assert done.exit_code == 0, done.exception
    assert done.output == call(compare.command, "study/solo", "study/pair").output


def test_a_file_of_one_run_is_exported(folder: Path) -> None:
    assert call(export.command, "single.csv", "-o", "run.csv").exit_code == 0
    assert (folder / "run.csv").stat().st_size
    several = call(export.command, "e.csv").exception
    assert isinstance(several, UsageError)
    assert "Expected one run, got experiment 'study' with 3 runs" in str(several)


@pytest.mark.parametrize("command", [report.command, advise.command, export.command])
def test_a_file_that_was_never_run_says_so(folder: Path, command: click.Command) -> None:
    (folder / "train.py").touch()
    error = call(command, "never.csv").exception
    assert isinstance(error, UsageError)
    assert "never.csv was never run: experiment 'never' has no runs in" in str(error)
    assert "Run `radt never.csv`" in str(error)


def test_a_file_of_several_experiments_needs_a_name(folder: Path) -> None:
    error = call(compare.command, "two.csv", "e.csv").exception
    assert isinstance(error, UsageError)
    assert "Expected one experiment in two.csv, got 2: study, other" in str(error)


def test_the_beginning_of_an_id_names_a_run_everywhere(folder: Path) -> None:
    with StoreReader(folder / "radt-data" / "radt.db") as reader:
        (run,) = (run for run in reader.runs(experiment="study") if run.workload == "solo")
    short = run.run_id[:12]  # eight of the planted ones number the workload
    assert call(export.command, short, "-o", "run.csv").exit_code == 0
    assert call(trace.command, short).exit_code == 0
    compared = call(compare.command, short, "study/pair")
    assert compared.exit_code == 0 and f"vs run {short[:8]}" in compared.output
    error = str(call(report.command, short).exception)
    assert error.startswith(f"Expected an experiment, got '{short}', a run of study")
