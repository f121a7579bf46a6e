"""`radt report`: windows, formats, files, and what it refuses."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from radt.cli import report as module
from radt.errors import UsageError
from radt.model import RunStatus
from tests.frontend.report_support import Planted, Study


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Study]:
    home = tmp_path / "radt-data"
    home.mkdir()
    made = Study(home / "radt.db")
    made.workload("solo", [Planted("a", 2.0)])
    made.workload("pair", [Planted("a", 3.0), Planted("b", 4.0)])
    yield made
    made.writer.close()


def report(study: Study, *arguments: str, experiment: str = "study") -> Result:
    home = str(Path(study.store).parent)
    return CliRunner(catch_exceptions=False).invoke(
        module.command, [experiment, "--home", home, *arguments], env={"COLUMNS": "80"}
    )


def times(study: Study, *arguments: str) -> dict[str, float]:
    """Time per epoch by workload."""
    rows = csv.DictReader(io.StringIO(report(study, "--format", "csv", *arguments).stdout))
    return {
        row["workload"]: float(row["value"]) for row in rows if row["quantity"] == "time_per_epoch"
    }


def test_a_file_is_named_as_it_is_written(study: Study, tmp_path: Path) -> None:
    file = tmp_path / "Mine.CSV"
    file.write_text("Experiment,File\nstudy,train.py\n")
    assert report(study, experiment=str(file)).stdout == report(study).stdout


def test_a_window_is_chosen(study: Study) -> None:
    assert times(study) == pytest.approx({"solo": 2.0, "pair": 3.5})
    assert times(study, "--window", "epoch:1") == pytest.approx({"solo": 9.0, "pair": 9.0})
    assert "window: epoch 1" in report(study, "--window", "epoch:1").stdout
    # The second epoch of b goes on when a has ended.
    both = report(study, "--overlap", "--format", "json").stdout
    assert json.loads(both)["window"]["study"].endswith("while all runs of the workload ran")
    with pytest.raises(UsageError, match="epoch:x"):
        report(study, "--window", "epoch:x")


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("a.md", "# study"),
        ("a.html", "<!doctype html>"),
        ("a.csv", "experiment,workload,"),
        ("a.json", "{"),
        ("a.txt", "study\n"),
    ],
)
def test_files_are_replaced_whole(study: Study, tmp_path: Path, name: str, begins: str) -> None:
    file = tmp_path / name
    file.write_text("what was there before")
    before = file.stat().st_ino
    done = report(study, "--output", str(file))
    assert done.exit_code == 0
    assert done.stdout.startswith(str(file))
    assert file.read_text().startswith(begins)
    assert file.stat().st_ino != before
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".")] == []


def test_a_folder_gets_a_file_of_that_name(study: Study, tmp_path: Path) -> None:
    folder = tmp_path / "reports"
    folder.mkdir()
    report(study, "--format", "html", "--output", str(folder))
    assert [one.name for one in folder.iterdir()] == ["radt-study-report.html"]


def test_the_standard_output_has_nothing_but_the_report(study: Study) -> None:
    document = report(study, "--format", "json", "--output", "-").stdout
    assert json.loads(document)["experiments"] == ["study"]


def test_what_cannot_be_written_is_said_before_anything_is_read(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object, **__: object) -> None:
        raise AssertionError("the store was read")

    monkeypatch.setattr("radt.analysis.report.read_report", read)
    missing = tmp_path / "missing"
    for path in (missing / "a.html", Path(study.store).parent / "radt.db" / "a.html"):
        with pytest.raises(UsageError, match="Cannot write"):
            report(study, "--output", str(path))
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="not a regular file"):
        report(study, "--output", str(pipe))
    with pytest.raises(UsageError, match="Expected a file name"):
        report(study, "--output", str(tmp_path / "a.xlsx"))
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(UsageError, match="Cannot create"):
        report(study, "--figures", str(file / "figures"))
    assert not missing.exists()


def test_an_experiment_without_results_is_no_report(study: Study) -> None:
    with pytest.raises(UsageError, match="Expected a finished run of experiment 'other'") as raised:
        report(study, experiment="other")
    assert "study" in (raised.value.remedy or "")
    open_ = Study(study.store, "open")
    open_.workload("solo", [Planted("a", 2.0, status=RunStatus.RUNNING)])
    open_.writer.close()
    with pytest.raises(UsageError, match="Expected a finished run"):
        report(study, experiment="open")


def test_on_80_columns(study: Study) -> None:
    lines = report(study).stdout.splitlines()
    assert lines[1:8] == [
        "study",
        "  2 workloads · 3 runs · window: all epochs after the first",
        "",
        "  workload  runs          n  time/epoch  vs solo  samples/s  speed-up  makespan",
        "  solo      resnet26      1      2.00 s        –      1,000         –    15.0 s",
        "  pair      2 × resnet26  1      3.50 s    1.75×      2,000     1.58×    19.0 s",
        "",
    ]
