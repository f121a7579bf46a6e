"""The columns of a file: radt's, and the user's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from radt.environments.spec import EnvironmentKind
from radt.errors import StatusError
from radt.experiment.columns import ColumnPositions
from radt.experiment.plan import ExperimentPlan
from radt.experiment.source import ExperimentFile
from radt.experiment.status import StatusWriter
from radt.experiment.table import parse_table

Plan = Callable[..., ExperimentPlan]
Write = Callable[[str | bytes], Path]


def header_of(line: str) -> ColumnPositions:
    record = parse_table(line).header
    assert record is not None
    return ColumnPositions.of(record)


def test_the_users_own_columns_are_logged(plan: Plan) -> None:
    planned = plan(
        "File,Seed, Batch Size ,model,DATA,Größe β,Notes\n"
        'train.py,1," 64 ",vit,/data,µ,"two\nlines"\n'
        "train.py,2,,-,,,\n"
    )

    first, second = planned.runs
    assert first.columns == {
        "Seed": "1",
        "Batch Size": "64",
        "model": "vit",  # as the header says it
        "DATA": "/data",
        "Größe β": "µ",
        "Notes": "two\nlines",
    }
    assert first.model == "vit" and second.model == ""
    assert second.columns == {"Seed": "2"}  # empty cells are not worth a parameter


@pytest.mark.parametrize(
    "header",
    [
        "File,Seed,Budget,Times,Batch,Notes,Node,Date,Optimizer,lr,Learning Rate",
        'File,"Mode"',  # in quotes: the user means it
        "File,Mode,Model",  # Model is there, so Mode is another
    ],
)
def test_columns_that_are_the_users_own(plan: Plan, header: str) -> None:
    columns = header.replace('"', "").split(",")
    (run,) = plan(f"{header}\ntrain.py{',x' * (len(columns) - 1)}\n").runs

    assert run.columns == dict.fromkeys(columns[1:], "x")


def test_what_all_columns_mean_together(plan: Plan, folder: Path) -> None:
    (folder / "requirements.txt").touch()
    (folder / "my data").mkdir()

    first, second, third = plan(
        "Environment,Cpus,Timeout,Data,File\n"
        "uv,1,1h30min,my data,train.py\n"
        "local,0-1,1:00:00.5,cifar10,train.py\n"
        "docker:image:1,-,-,my data,train.py\n"
    ).runs

    assert first.environment.kind is EnvironmentKind.UV
    assert first.environment.source == folder / "requirements.txt"
    assert (str(first.cpus), first.timeout_s) == ("1", 5400.0)
    assert second.environment.kind is EnvironmentKind.LOCAL
    assert (second.cpus.cpus, second.timeout_s) == ((0, 1), 3600.5)
    assert (third.environment.image, third.environment.data) == ("image:1", (folder / "my data",))
    assert (third.cpus.count, third.cpus.cpus, third.timeout_s) == (None, (), None)


@pytest.mark.parametrize(
    ("cell", "seconds"),
    [("90", 90), ("90s", 90), ("10min", 600), ("2h", 7200), ("1d", 86400), ("26:00:01", 93601)],
)
def test_timeouts(plan: Plan, cell: str, seconds: float) -> None:
    (run,) = plan(f"File,Timeout\ntrain.py,{cell}\n").runs

    assert run.timeout_s == seconds


@pytest.mark.parametrize(
    ("status", "done"),
    [
        ("", 0),
        ("-", 0),
        ("FINISHED", 1),
        ("FINISHED 3/3", 3),
        ("finished 2/3", 2),
        ("FINISHED bright-cat-123 (0_A)", 1),
        ("FINISHED 12/24/2025", 1),  # somebody's date
        ("RUNNING 1/3", 0),
        ("RUNNING 2/3", 1),
        ("KILLED 2/3: stopped by the user", 1),
        ("KILLED: 2/3 of it", 1),
        ("FAILED 3/5: exit code 1", 2),
        ("SKIPPED 1/2", 0),
        ("SKIPPED 0/2", 0),
        ("FAILED: exit code 3", 0),
        ("RUNNING", 0),
    ],
)
def test_repeats_that_are_done(plan: Plan, status: str, done: int) -> None:
    (run,) = plan(f"File,Status\ntrain.py,{status}\n").runs

    assert run.repeats_done == done


def test_a_row_stays_the_same_when_columns_move_or_empty_ones_come() -> None:
    before = parse_table("File,Seed,Status,Name\ntrain.py,1,RUNNING,x\n")
    after = parse_table("seed , Name,Run,Tag,FILE,Status\n1,x,abc,,train.py,\n")
    other = parse_table("File,Seed,Status,Name\ntrain.py,2,RUNNING,x\n")
    swapped = parse_table("File,Seed,Status,Name\ntrain.py,x,RUNNING,1\n")

    one, same, different, mixed = (
        header_of(table.text).identity(table.rows[0]) for table in (before, after, other, swapped)
    )

    assert one == same
    assert len({one, different, mixed}) == 3


def test_rows_that_differ_in_an_own_column_only_are_told_apart(write: Write) -> None:
    path = write("File,Seed,Status\ntrain.py,1,\ntrain.py,2,\n")
    writer = StatusWriter(path)
    path.write_text("File,Seed,Status\ntrain.py,2,\ntrain.py,1,\n")

    writer.set(2, "FINISHED")

    assert path.read_text() == "File,Seed,Status\ntrain.py,2,\ntrain.py,1,FINISHED\n"


def test_a_row_whose_own_cell_was_changed_is_another(write: Write) -> None:
    path = write("File,Seed,Status\ntrain.py,1,\n")
    writer = StatusWriter(path)
    path.write_text("File,Seed,Status\ntrain.py,9,\n")

    with pytest.raises(StatusError):
        writer.set(2, "FINISHED")

    assert path.read_text() == "File,Seed,Status\ntrain.py,9,\n"


def test_own_columns_survive_the_way_through_a_spreadsheet(
    write: Write, cpu_only: object, registry: object
) -> None:
    """Which quotes every cell, the headers too."""
    path = write('"File","Batch Size","Status"\r\n"train.py","64",""\r\n')
    file = ExperimentFile.read(path)
    file.writer().set(2, "FINISHED 1/3")

    (run,) = ExperimentFile.read(path).plan(cpu_only, registry).runs  # type: ignore[arg-type]

    assert (run.columns, run.repeats_done) == ({"Batch Size": "64"}, 1)
