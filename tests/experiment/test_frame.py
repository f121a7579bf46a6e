"""Tables of runs: how their cells are written down, and what comes back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radt.devices.machine import Machine
from radt.errors import ExperimentError, HeldError, UsageError
from radt.experiment.frame import FrameExperiment, read_table, with_statuses
from radt.experiment.lock import ExperimentLock
from radt.experiment.source import ExperimentFile
from radt.experiment.status import RowStatus
from radt.experiment.table import parse_table
from radt.listeners.api import Registry
from tests.experiment.sweep_kit import SMALL, SweepBench


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with ``train.py``, as the current one."""
    monkeypatch.chdir(folder)
    return folder


def stored_cells(path: Path) -> list[list[str]]:
    table = parse_table(path.read_bytes().decode())
    assert table.header is not None
    return [[cell.value for cell in record.cells] for record in (table.header, *table.rows)]


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("Params", None, ""),
        ("Params", float("nan"), ""),
        ("Params", pd.NA, ""),
        ("Params", pd.NaT, ""),
        ("Params", "--lr 0.1", "--lr 0.1"),
        ("Params", ["--name", "it's a", 0.1], "--name 'it'\"'\"'s a' 0.1"),
        ("Params", 'say "a, b"\nand\r\nc', 'say "a, b"\nand\r\nc'),
        ("Params", "# no comment", "# no comment"),
        ("devices", 0.0, "0"),  # what missing values make of a column of numbers
        ("Devices", np.int64(1), "1"),
        ("Timeout", 1.5, "1.5"),
        ("Own", 1.0, "1.0"),
        ("Own", True, "True"),
        ("Own", Path("a b"), "a b"),
        ("Own", pd.Timestamp("2026-01-31"), "2026-01-31 00:00:00"),
        ("File", "train.py", "{here}/train.py"),
        ("File", "./train.py", "{here}/train.py"),
        ("File", "-m package.module", "-m package.module"),
        ("File", "{Model}.py", "{Model}.py"),
        ("File", "a" * 5000, "a" * 5000),
    ],
)
def test_cells_are_written_as_a_file_has_them(
    here: Path, column: str, value: Any, text: str
) -> None:
    frame = pd.DataFrame({column: pd.Series([value], dtype="object"), "Name": ["x"]})

    path = FrameExperiment.of(frame).store(here / "frames")
    assert FrameExperiment.of(frame).store(here / "frames") == path, "found again"

    assert stored_cells(path) == [[column, "Name"], [text.replace("{here}", str(here)), "x"]]


def test_types_of_pandas_are_written_alike(here: Path) -> None:
    frame = pd.DataFrame(
        {
            "Name": pd.Series(["a", None], dtype="category"),
            "Devices": pd.array([1, None], dtype="Int64"),
            "Timeout": np.array([30, 60], dtype="int8"),
            "Own": pd.array([True, None], dtype="boolean"),
        }
    )

    experiment = FrameExperiment.of(frame)

    assert experiment.rows == (("a", "1", "30", "True"), ("", "", "60", ""))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.lists(st.text("ab ,\"'#\n\r;é\t\\", max_size=6), min_size=2, max_size=2), max_size=4
    )
)
def test_any_text_comes_back_from_the_file(texts: list[list[str]]) -> None:
    frame = pd.DataFrame([["x", *row] for row in texts], columns=["Name", "Params", "Own"])

    experiment = FrameExperiment.of(frame)

    table = parse_table(experiment.text)
    assert not table.defects
    assert [[cell.value for cell in row.cells] for row in table.rows] == [
        ["x", *row] for row in texts
    ]


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (pd.DataFrame(), [(None, "the file is empty")]),
        (pd.DataFrame({"File": []}), [(None, "expected at least one run, got none")]),
        (pd.DataFrame({0: ["train.py"]}), [(None, "the column 0 has no name")]),
        (pd.DataFrame({("a", "b"): ["train.py"]}), [(None, "the column ('a', 'b') has no")]),
        (pd.DataFrame({"Name": ["x"]}), [("File", "this column is missing")]),
        (
            pd.DataFrame([["train.py", "train.py"]], columns=["File", "file"]),
            [("file", "this column appears twice")],
        ),
        (
            pd.DataFrame({"File": ["train.py", ""]}, index=["a", "b"]),
            [("row b", "the row is empty")],
        ),
        (
            pd.DataFrame({"File": ["none.py", "train.py"], "Devices": [0, 9]}, index=[7, 8]),
            [
                ("row 7, File", "there is no file"),
                ("row 7, Devices", "GPU 0"),
                ("row 8, Devices", "GPU 9"),
            ],
        ),
        (
            pd.DataFrame({"Params": ["x\ny\nz", "'"], "File": "train.py"}, index=["long", "short"]),
            [("row short, Params", "a quote is never closed")],
        ),
        (
            pd.DataFrame({"File": ["train.py"], "Own": [{"a": 1}], "Name": [["x"]]}),
            [("row 0, Own", "it holds a dict"), ("row 0, Name", "it holds a list")],
        ),
        (
            pd.DataFrame({"File": ["train.py"], "Own": ["\ud800"]}, dtype="object"),
            [("row 0, Own", "it has characters")],
        ),
        (pd.DataFrame({"File": ["train.py"], "Own": ["\0"]}), [("row 0, Own", "a NUL byte")]),
    ],
)
def test_problems_name_rows_as_the_index_does(
    here: Path,
    cpu_only: Machine,
    registry: Registry,
    frame: pd.DataFrame,
    expected: list[tuple[str | None, str]],
) -> None:
    with pytest.raises(ExperimentError) as caught:
        FrameExperiment.of(frame).check(here / "x.csv", cpu_only, registry)

    problems = caught.value.problems
    assert [one.column for one in problems] == [place for place, _ in expected]
    for problem, (place, cause) in zip(problems, expected, strict=True):
        assert problem.line is None and problem.cause.startswith(cause)
        assert f"{place}: {cause}" if place else cause in str(caught.value)


class TestFiles:
    """The file that is kept for a table."""

    FRAME = pd.DataFrame({"File": ["train.py", "train.py"], "Params": ["--a", "--b"]})

    def write(self, path: Path, line: int, status: str) -> None:
        ExperimentFile.read(path).writer().set_many({line: RowStatus(status, "abc")})

    def test_the_same_rows_have_the_same_file(self, here: Path) -> None:
        path = FrameExperiment.of(self.FRAME).store(here)
        self.write(path, 2, "FINISHED")
        kept = path.read_bytes()

        table = with_statuses(self.FRAME, path)
        again = FrameExperiment.of(table).store(here)

        assert again == path and path.read_bytes() == kept
        assert with_statuses(table, path).equals(table)
        reindexed = self.FRAME.set_index(pd.Index(["x", "y"]))
        assert FrameExperiment.of(reindexed).store(here) == path

    @pytest.mark.parametrize(
        "frame",
        [
            FRAME.iloc[::-1],
            FRAME.iloc[:1],
            FRAME.assign(Name="x"),
            FRAME.rename(columns={"Params": "Own"}),
        ],
    )
    def test_other_rows_have_another(self, here: Path, frame: pd.DataFrame) -> None:
        assert FrameExperiment.of(frame).store(here) != FrameExperiment.of(self.FRAME).store(here)

    def test_other_folders_have_another(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        first = FrameExperiment.of(self.FRAME).name
        (here / "sub").mkdir()
        (here / "sub" / "train.py").touch()
        monkeypatch.chdir(here / "sub")

        assert FrameExperiment.of(self.FRAME).name != first

    def test_statuses_that_the_table_has_are_taken_over_once(self, here: Path) -> None:
        frame = self.FRAME.assign(Status=["FINISHED", None], Run=["abc", None])
        path = FrameExperiment.of(frame).store(here)
        assert stored_cells(path)[1][2:] == ["FINISHED", "abc"]
        self.write(path, 3, "FINISHED")

        FrameExperiment.of(frame).store(here)

        assert list(with_statuses(frame, path)["Status"]) == ["FINISHED", "FINISHED"]

    def test_statuses_are_found_whatever_the_case_of_the_columns_names(self, here: Path) -> None:
        path = FrameExperiment.of(self.FRAME.assign(status="", RUN="")).store(here)
        self.write(path, 3, "FINISHED")
        assert list(with_statuses(self.FRAME, path)["Status"]) == ["", "FINISHED"]
        other = with_statuses(self.FRAME.assign(STATUS=""), path)
        assert list(other["STATUS"]) == ["", "FINISHED"]
        assert "Status" not in other

    def test_a_fresh_start_forgets(self, here: Path) -> None:
        path = FrameExperiment.of(self.FRAME).store(here)
        self.write(path, 2, "FINISHED")

        FrameExperiment.of(self.FRAME).store(here, fresh=True)

        assert list(with_statuses(self.FRAME, path)["Status"]) == ["", ""]

    def test_a_file_that_somebody_changed_is_not_used(self, here: Path) -> None:
        path = FrameExperiment.of(self.FRAME).store(here)
        path.write_text(path.read_text(encoding="utf-8").replace("--a", "--c"), encoding="utf-8")

        with pytest.raises(UsageError, match="was changed") as caught:
            FrameExperiment.of(self.FRAME).store(here)
        assert "Remove it" in str(caught.value)

    @pytest.mark.parametrize("fresh", [False, True])
    def test_while_it_is_run_nobody_else_touches_it(self, here: Path, fresh: bool) -> None:
        path = FrameExperiment.of(self.FRAME).store(here)
        self.write(path, 2, "RUNNING")
        kept = path.read_bytes()

        with ExperimentLock(path), pytest.raises(HeldError):
            FrameExperiment.of(self.FRAME).store(here, fresh=fresh)
        assert path.read_bytes() == kept

    def test_a_folder_that_cannot_be_written_is_said(self, here: Path) -> None:
        (here / "file").touch()

        with pytest.raises(UsageError, match="cannot be written: Not a directory"):
            FrameExperiment.of(self.FRAME).store(here / "file" / "frames")

    @pytest.mark.parametrize(
        ("experiments", "start"),
        [
            (["digits", "digits"], "digits-"),
            (["a/b ä?", "a/b ä?"], "a-b-ä-"),
            (["..", ".."], "table-"),
            (["a", "b"], "table-"),
            (["", ""], "table-"),
        ],
    )
    def test_it_is_called_after_its_experiment(
        self, here: Path, experiments: list[str], start: str
    ) -> None:
        path = FrameExperiment.of(self.FRAME.assign(Experiment=experiments)).store(here)

        assert path.parent == here and path.name.startswith(start)


def test_what_comes_back_is_the_users_table_with_two_columns(here: Path) -> None:
    frame = pd.DataFrame(
        {
            "Seed": np.array([1, 2], dtype="int8"),
            "status": [np.nan, np.nan],
            "File": ["train.py", "train.py"],
            "Devices": [np.nan, 0.0],
        },
        index=pd.MultiIndex.from_tuples([("a", 1), ("a", 1)]),
    )
    before = frame.copy()
    path = FrameExperiment.of(frame).store(here)
    ExperimentFile.read(path).writer().set_many({3: RowStatus("FAILED: exit code 1", "abc")})

    table = with_statuses(frame, path)

    assert list(table.columns) == ["Seed", "status", "File", "Devices", "Run"]
    assert list(table["status"]) == ["", "FAILED: exit code 1"]
    assert list(table["Run"]) == ["", "abc"]
    pd.testing.assert_frame_equal(
        table[["Seed", "File", "Devices"]], before[["Seed", "File", "Devices"]]
    )
    pd.testing.assert_frame_equal(frame, before)


def test_a_csv_file_is_read_as_text(here: Path) -> None:
    path = here / "e.csv"
    path.write_text("# note\nFile, Devices,Own,\ntrain.py, 0,010,\ntrain.py,,\n", encoding="utf-8")

    table = read_table(path)

    assert table.to_dict("list") == {
        "File": ["train.py", "train.py"],
        "Devices": ["0", ""],
        "Own": ["010", ""],
    }


def test_a_sweep_is_a_row_a_run(here: Path, cpu_only: Machine, registry: Registry) -> None:
    sweep = SweepBench(here / "s.yaml", cpu_only, registry)
    sweep.write(SMALL + "Name: x\nGroup: mine\nparams: --e 1\n").record(
        {"--e 1 --lr 0.1 --bs 64": "FINISHED"}
    )

    table = read_table(sweep.path)

    assert list(table["lr"]) == [0.1, 0.1, 0.01, 0.01]
    assert list(table["bs"]) == [32, 64, 32, 64]
    assert list(table["Status"]) == ["", "FINISHED", "", ""]
    assert list(table["Run"]) == ["", "abc", "", ""]
    assert table["Params"][0] == "--e 1 --lr 0.1 --bs 32"
    assert set(table["Group"]) == {"mine"} and set(table["Experiment"]) == {"s"}
    assert "Timeout" not in table


def test_nobody_pays_for_pandas_who_has_no_table() -> None:
    program = (
        "import sys, radt, radt.experiment.frame\n"
        "assert callable(radt.run_experiment) and 'run_experiment' in dir(radt)\n"
        "print('pandas' in sys.modules, 'radt.runner' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False"]
