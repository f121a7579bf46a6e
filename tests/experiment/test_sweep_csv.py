"""A sweep is expanded once into the CSV beside it, which then holds its state."""

from __future__ import annotations

from pathlib import Path

import pytest

from radt.devices.machine import Machine
from radt.errors import ExperimentError, HeldError, StatusError
from radt.experiment.lock import ExperimentLock
from radt.experiment.source import open_source
from radt.listeners.api import Registry
from radt.model import RunStatus
from tests.experiment.sweep_kit import SMALL, SweepBench

A, B, C, D = (f"--lr {lr} --bs {bs}" for lr in ("0.1", "0.01") for bs in (32, 64))


@pytest.fixture
def sweep(folder: Path, cpu_only: Machine, registry: Registry) -> SweepBench:
    return SweepBench(folder / "sweep.yaml", cpu_only, registry).write(SMALL)


def test_the_first_start_writes_the_rows(sweep: SweepBench) -> None:
    assert sweep.expand() == f"added 4 rows to {sweep.csv}"

    mark, header, first, *others = sweep.csv.read_text(encoding="utf-8").splitlines()
    assert mark.startswith("# Expanded from sweep.yaml by radt (")
    assert header == (
        "Experiment,Workload,Name,Status,Run,Devices,Collocation,Listeners,File,Params"
    )
    assert first == f"sweep,000,,,,cpu,,,train.py,{A}"
    assert len(others) == 3
    assert sweep.path.read_text() == SMALL
    assert not list(sweep.csv.parent.glob("*radt-new"))


def test_the_second_start_resumes_and_writes_nothing(sweep: SweepBench) -> None:
    sweep.record({A: "FINISHED", B: "KILLED 2/3: stopped by the user"})
    before = sweep.csv.read_bytes()

    assert sweep.expand() == ""

    assert sweep.csv.read_bytes() == before
    runs = sweep.runs()
    assert {params: run.status for params, run in runs.items()} == {
        A: RunStatus.FINISHED,
        B: RunStatus.KILLED,
        C: None,
        D: None,
    }
    assert (runs[A].run_id, runs[B].repeats_done) == ("abc", 1)


def test_the_csv_runs_by_itself(sweep: SweepBench) -> None:
    sweep.record({A: "FINISHED"})

    plan = open_source(sweep.csv).plan(sweep.machine, sweep.registry)

    assert [run.params_text for run in plan.runs] == [A, B, C, D]
    assert [one.label for one in plan.workloads] == ["000", "001", "002", "003"]


def test_one_lock_holds_for_both_files(sweep: SweepBench) -> None:
    with (
        ExperimentLock(sweep.path),
        pytest.raises(HeldError, match=r"radt stop .*sweep\.csv|being run"),
        ExperimentLock(sweep.csv),
    ):
        raise AssertionError("both cannot be held")


def test_new_values_are_added_at_the_end_and_what_ran_stays(sweep: SweepBench) -> None:
    sweep.record({A: "FINISHED", C: "FAILED: exit code 1"})
    before = sweep.csv.read_text().splitlines()[1:]

    sweep.write(sweep.text.replace("[0.1, 0.01]", "[0.5, 0.01, 0.1]").replace("64", "96"))
    assert sweep.expand().startswith(f"added 4 rows to {sweep.csv}; 2 rows of")

    after = sweep.csv.read_text().splitlines()[1:]
    assert after[: len(before)] == before
    assert [line.split(",")[1] for line in after[len(before) :]] == ["004", "005", "006", "007"]
    assert list(sweep.statuses)[4:] == [
        "--lr 0.5 --bs 32",
        "--lr 0.5 --bs 96",
        "--lr 0.01 --bs 96",
        "--lr 0.1 --bs 96",
    ]


def test_reordering_adds_no_row(sweep: SweepBench) -> None:
    sweep.record({A: "FINISHED"})
    lines = sweep.csv.read_text().splitlines()

    swapped = SMALL.replace("  lr: {values: [0.1, 0.01]}   # from the paper\n", "")
    sweep.write(swapped + "  lr: {values: [0.01, 0.1]}\n")

    assert "adds no row" in sweep.expand()
    assert sweep.csv.read_text().splitlines()[1:] == lines[1:]
    assert sweep.expand() == ""


def test_more_trials_of_a_random_sweep_add_to_the_earlier_ones(sweep: SweepBench) -> None:
    text = "file: train.py\nmethod: random\ntrials: 3\nparameters: {lr: {min: 0.0, max: 1.0}}\n"
    sweep.write(text).expand()
    first = sweep.rows

    sweep.write(text.replace("trials: 3", "trials: 5"))
    assert sweep.expand() == f"added 2 rows to {sweep.csv}"

    assert sweep.rows[:3] == first
    sweep.csv.unlink()
    sweep.expand()
    assert sorted(row[-1] for row in sweep.rows) == sorted({row[-1] for row in sweep.rows})
    assert [row[-1] for row in sweep.rows[:3]] == [row[-1] for row in first], "the same seed"


def test_new_rows_share_workloads_of_their_own(sweep: SweepBench) -> None:
    sweep.write(SMALL + "at_once: 3\n").expand()
    sweep.write(SMALL.replace("0.1, 0.01", "0.1, 0.01, 0.5") + "at_once: all\n").expand()

    assert [row[1] for row in sweep.rows] == ["000"] * 3 + ["001"] + ["002"] * 2


def test_rows_edited_by_hand_are_kept(sweep: SweepBench) -> None:
    sweep.expand()
    mark, header, *rows = sweep.csv.read_text().splitlines()
    edited = [
        "# mine",
        mark,
        f"Note,{header}",
        f"slow,{rows[2].replace('cpu,,,', 'cpu,,top, ')}",
        f",{rows[0]}",
        ",other,x,,,,cpu,,,train.py,--mine 1",
    ]
    sweep.csv.write_text("\r\n".join(edited))

    assert sweep.expand() == "", "rows that were deleted stay deleted"
    assert [run.params_text for run in sweep.plan().runs] == [C, A, "--mine 1"]

    sweep.write(SMALL.replace("64", "128") + "Timeout: 1h\n")
    assert "added 2 rows" in sweep.expand()

    content = sweep.csv.read_bytes().decode().split("\r\n")
    assert content[0] == "# mine" and content[2] == f"Note,{header},Timeout"
    assert content[5] == ",other,x,,,,cpu,,,train.py,--mine 1,"
    assert content[6] == ",sweep,003,,,,cpu,,,train.py,--lr 0.1 --bs 128,1h"
    assert [run.timeout_s for run in sweep.plan().runs] == [None] * 3 + [3600.0] * 2


def test_a_csv_of_somebody_else_is_left_alone(sweep: SweepBench) -> None:
    own = "File,Params\ntrain.py,--lr 0.1 --bs 32\n"
    sweep.csv.write_text(own)

    with pytest.raises(ExperimentError) as caught:
        sweep.file()

    (problem,) = caught.value.problems
    assert caught.value.path == str(sweep.csv)
    assert "'# Expanded from sweep.yaml by radt', got 'File,Params'" in problem.cause
    assert sweep.csv.read_text() == own
    sweep.csv.write_text(f"# Expanded from sweep.yaml by radt\n{own}")
    assert sweep.expand() == f"added 3 rows to {sweep.csv}", "the remedy works"
    assert [run.params_text for run in sweep.plan().runs] == [A, B, C, D]


def test_problems_name_the_file_that_has_them(sweep: SweepBench) -> None:
    sweep.expand()
    damaged = sweep.csv.read_text().replace("cpu", "gpu", 1)
    sweep.csv.write_text(damaged)
    sweep.write(SMALL.replace("64", "128"))
    with pytest.raises(ExperimentError) as caught:
        sweep.plan()
    assert (caught.value.path, caught.value.problems[0].line) == (str(sweep.csv), 3)

    sweep.csv.write_text(damaged.replace("gpu", '"'))
    with pytest.raises(ExperimentError) as caught:
        sweep.plan()
    assert (caught.value.path, caught.value.problems[0].line) == (str(sweep.csv), 3)

    sweep.csv.write_text(damaged.replace("gpu", "cpu"))
    sweep.write(SMALL.replace("64", "128").replace("devices: cpu", "devices: gpu"))
    with pytest.raises(ExperimentError) as caught:
        sweep.plan()
    assert (caught.value.path, caught.value.problems[0].line) == (str(sweep.path), 3)
    assert sweep.csv.read_text() == damaged.replace("gpu", "cpu")


def test_edits_between_reading_and_writing_are_not_lost(sweep: SweepBench) -> None:
    sweep.expand()
    sweep.write(SMALL.replace("64", "128"))
    file = sweep.file()
    edited = sweep.csv.read_text() + "# saved meanwhile\n"
    sweep.csv.write_text(edited)

    with pytest.raises(StatusError, match="changed while radt read it"):
        file.writer()

    assert sweep.csv.read_text() == edited


def test_a_folder_that_cannot_be_written_is_reported(
    sweep: SweepBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("radt.experiment.sweep.create_file", full)
    with pytest.raises(StatusError, match="No space left on device"):
        sweep.file().writer()
