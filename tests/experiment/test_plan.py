"""From files to plans."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from radt.devices.machine import Machine
from radt.errors import Problem
from radt.experiment.plan import ExperimentPlan
from radt.experiment.source import ExperimentFile
from radt.listeners.api import Registry
from radt.model import ListenerChoice, RunStatus
from radt.run_name import row_letter

Plan = Callable[..., ExperimentPlan]
Problems = Callable[..., list[Problem]]

#: As people wrote it for radT 0.2: padded, numbers for ids, statuses with the run's name.
ORIGINAL = (Path(__file__).parent / "original.csv").read_text(encoding="utf-8")


def test_the_originals_file(plan: Plan, two_gpus: Machine, folder: Path) -> None:
    planned = plan(ORIGINAL, two_gpus)

    assert [(w.experiment, w.label, len(w.runs)) for w in planned.workloads] == [
        ("1", "1", 2),
        ("1", "2", 1),
    ]
    first, second, third = planned.runs
    assert (first.line, second.line, third.line) == (3, 4, 6)
    assert [run.letter for run in planned.runs] == ["a", "b", "a"]
    assert (first.status, second.status, third.status) == (
        RunStatus.FINISHED,
        None,
        RunStatus.FAILED,
    )
    assert first.run_id == "3f2a1b"
    assert [str(run.devices) for run in planned.runs] == ["0", "0+1", "cpu"]
    assert first.listeners == (ListenerChoice("smi"), ListenerChoice("top"))
    assert second.listeners == (ListenerChoice("top"),)
    assert third.listeners == (ListenerChoice("top", 0.5),)
    assert first.params == ("--lr", "0.1,", "--sizes", "1, 2")
    assert first.params_text == '--lr 0.1, --sizes "1, 2"'
    assert third.params == ("--name", "it's", "a b")
    assert {str(run.collocation) for run in planned.runs} == {"-"}
    assert first.program.path == folder / "train.py"
    assert first.program.folder == folder
    assert third.label == "big" and first.label == "train"


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("last", [True, False])
def test_bom_and_line_ends_do_not_matter(
    plan: Plan, two_gpus: Machine, bom: bytes, newline: bytes, last: bool
) -> None:
    content = ORIGINAL.encode().replace(b"\n", newline)
    content = bom + (content if last else content.removesuffix(newline))

    assert plan(content, two_gpus) == plan(ORIGINAL, two_gpus)


def test_only_file_is_needed_and_case_does_not_matter(plan: Plan, cpu_only: Machine) -> None:
    (first, second) = plan("FILE\ntrain.py\ntrain.py\n").workloads

    assert (first.experiment, first.label) == ("experiment", "1")
    assert (second.experiment, second.label) == ("experiment", "2")
    (run,) = first.runs
    assert run.devices.is_cpu
    assert run.listeners == (ListenerChoice("top"),)  # not dcgm, which does not work here
    assert run.params == () and run.status is None and run.run_id == ""


def test_rows_without_workload_never_join_another(plan: Plan) -> None:
    planned = plan("Workload,File\n2,train.py\n,train.py\n2,train.py\n,train.py\n")

    assert [(w.label, [run.line for run in w.runs]) for w in planned.workloads] == [
        ("2", [2, 4]),
        ("row 2", [3]),
        ("4", [5]),
    ]


def test_the_same_workload_id_in_two_experiments(plan: Plan) -> None:
    planned = plan("Experiment,Workload,File\nb,1,train.py\na,1,train.py\nb,1,train.py\n")

    assert [(w.experiment, [r.letter for r in w.runs]) for w in planned.workloads] == [
        ("b", ["a", "b"]),
        ("a", ["a"]),
    ]
    assert planned.name == "experiment"


def test_empty_columns_and_rows_of_a_spreadsheet(plan: Plan) -> None:
    planned = plan("File,Name,,\ntrain.py,a,,\n,,,\ntrain.py,b,,,,\ntrain.py,c\n")

    assert [run.name for run in planned.runs] == ["a", "b", "c"]


def test_a_first_gpu_where_nothing_is_said(plan: Plan, two_gpus: Machine) -> None:
    (run,) = plan("File\ntrain.py\n", two_gpus).runs

    assert run.devices.gpus == (0,)
    assert run.listeners == (ListenerChoice("top"),)


@pytest.mark.parametrize("text", ["none", "None", "-"])
def test_no_listeners(plan: Plan, text: str) -> None:
    (run,) = plan(f"File,Listeners\ntrain.py,{text}\n").runs

    assert run.listeners == ()


@pytest.mark.parametrize(
    ("text", "seconds"), [("top@500ms", 0.5), ("TOP @ 2s", 2.0), ("top@.5s", 0.5), ("top@1min", 60)]
)
def test_intervals(plan: Plan, text: str, seconds: float) -> None:
    (run,) = plan(f"File,Listeners\ntrain.py,{text}\n").runs

    assert run.listeners == (ListenerChoice("top", seconds),)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("", None),
        ("-", None),
        ("FINISHED", RunStatus.FINISHED),
        ("FAILED: exit code 3", RunStatus.FAILED),
        ("finished bright-cat-123 (0_A)", RunStatus.FINISHED),
        ("RUNNING", RunStatus.RUNNING),
        ("KILLED: its runner died", RunStatus.KILLED),
    ],
)
def test_statuses(plan: Plan, text: str, status: RunStatus | None) -> None:
    (run,) = plan(f"File,Status\ntrain.py,{text}\n").runs

    assert run.status is status


def test_hostile_names_reach_the_plan_unchanged(plan: Plan, folder: Path) -> None:
    script = "a \"quoted\",\nname 'ü'.py"
    (folder / script).touch()
    quoted = script.replace('"', '""')
    text = (
        "Experiment,Name,File,Params\n"
        f'"Größe, β=0.9 ✓","x\ny","{quoted}","\'a\nb\' ""c d"" $HOME *"\n'
    )

    (run,) = plan(text).runs

    assert run.experiment == "Größe, β=0.9 ✓"
    assert run.name == "x\ny"
    assert run.program.path == folder / script
    assert run.params == ("a\nb", "c d", "$HOME", "*")


def test_scripts_are_sought_beside_the_file_then_in_the_current_folder(
    plan: Plan, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    current = tmp_path / "current"
    (current / "sub").mkdir(parents=True)
    for script in ("train.py", "sub/here.py"):
        (current / script).touch()
    elsewhere = tmp_path / "elsewhere.py"
    elsewhere.touch()
    monkeypatch.chdir(current)

    both, here, absolute, up = plan(
        f"File\ntrain.py\nsub/here.py\n{elsewhere}\n../elsewhere.py\n"
    ).runs

    assert both.program.path == folder / "train.py"
    assert here.program.path == current / "sub/here.py" and here.program.folder == current / "sub"
    assert absolute.program.path == elsewhere
    assert up.program.path == elsewhere


def test_a_linked_script_runs_in_the_folder_of_the_link(plan: Plan, folder: Path) -> None:
    (folder / "inner").mkdir()
    (folder / "inner/link.py").symlink_to(folder / "train.py")

    (run,) = plan("File\ninner/link.py\n").runs

    assert run.program.path == folder / "inner/link.py" and run.program.folder == folder / "inner"


def test_any_executable_may_be_run(plan: Plan, folder: Path) -> None:
    program = folder / "train.sh"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)

    (run,) = plan("File\ntrain.sh\n").runs

    assert run.program.path == program and not run.program.is_python


def test_a_relative_path_to_the_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, cpu_only: Machine, registry: Registry
) -> None:
    (folder / "e.csv").write_text("File\ntrain.py\n")
    monkeypatch.chdir(folder.parent)

    planned = ExperimentFile.read(os.path.join(folder.name, "e.csv")).plan(cpu_only, registry)

    assert planned.path == folder / "e.csv"
    assert next(planned.runs).program.path == folder / "train.py"


def test_letters() -> None:
    assert [row_letter(n) for n in (0, 25, 26, 51, 52, 701, 702)] == [
        "a", "z", "aa", "az", "ba", "zz", "aaa",
    ]  # fmt: skip


def test_default_among_others(plan: Plan) -> None:
    (run,) = plan("File,Listeners\ntrain.py,default+smi+top@2s\n").runs

    assert run.listeners == (ListenerChoice("top", 2.0), ListenerChoice("smi"))


def test_a_profiler_stands_among_listeners(plan: Plan) -> None:
    planned = plan("File,Listeners\ntrain.py,default+nsys+torch\ntrain.py,TORCH\n")

    assert [[choice.name for choice in run.listeners] for run in planned.runs] == [
        ["top", "nsys", "torch"],
        ["torch"],
    ]
    assert planned.warnings == ()


def test_what_stands_before_a_command_does_not_reach_into_containers(
    plan: Plan, problems: Problems
) -> None:
    (problem,) = problems("File,Environment,Listeners\ntrain.py,docker:image,nsys+torch\n")
    assert "nsys cannot profile inside containers" in problem.cause
    assert problem.column == "Listeners"

    assert plan("File,Environment,Listeners\ntrain.py,docker:image,torch\n")
