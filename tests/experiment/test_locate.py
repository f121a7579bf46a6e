"""Modules and MLproject folders as programs; scripts are in test_plan.py."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from radt.devices.machine import Machine
from radt.errors import Problem, UsageError
from radt.experiment.plan import ExperimentPlan
from radt.experiment.program import ProgramKind, find_program
from radt.experiment.source import direct_plan
from radt.listeners.api import Registry

Plan = Callable[..., ExperimentPlan]
Problems = Callable[..., list[Problem]]


@pytest.fixture
def package(folder: Path) -> Path:
    """``tools/train.py``, ``tools/net/__main__.py``, and ``bare`` without a main module."""
    (folder / "tools/net").mkdir(parents=True)
    (folder / "tools/train.py").touch()
    (folder / "tools/net/__main__.py").touch()
    (folder / "bare").mkdir()
    (folder / "bare/__init__.py").write_text("raise SystemExit('imported')\n")
    return folder


@pytest.mark.parametrize("name", ["tools.train", "tools.net", "train"])
def test_modules_beside_the_file(plan: Plan, package: Path, name: str) -> None:
    (run,) = plan(f"File\n-m  {name}\n").runs

    assert run.program.kind is ProgramKind.MODULE
    assert (run.program.module, run.program.folder) == (name, package)
    assert run.label == name and run.program.is_python


def test_modules_in_the_current_folder(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    current = tmp_path / "current"
    (current / "pkg").mkdir(parents=True)
    (current / "pkg/here.py").touch()
    monkeypatch.chdir(current)

    (run,) = plan("File\n-m pkg.here\n").runs

    assert run.program.folder == current


@pytest.mark.parametrize("name", ["json.tool", "unittest", "timeit", "pytest"])
def test_installed_modules_run_beside_the_file(plan: Plan, folder: Path, name: str) -> None:
    (run,) = plan(f"File\n-m {name}\n").runs

    assert (run.program.module, run.program.folder) == (name, folder)


def test_looking_for_an_installed_module_imports_no_package(tmp_path: Path) -> None:
    """Some take seconds and gigabytes to import."""
    heavy = tmp_path / "heavy"
    heavy.mkdir()
    (heavy / "__init__.py").write_text("raise SystemExit('imported')\n")
    (heavy / "train.py").touch()
    program = (
        "from pathlib import Path; from radt.experiment.program import find_program; "
        "print(find_program('-m heavy.train', [Path('/')]).module)"
    )

    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.stdout, done.stderr) == ("heavy.train\n", "")


@pytest.mark.parametrize(
    ("cell", "cause", "remedy"),
    [
        ("-m", "-m needs a module", "-m package.module"),
        ("-m tools.trian", "there is no module 'tools.trian'", "Did you mean 'train'?"),
        ("-m nowhere.at.all", "there is no module 'nowhere.at.all'", "in this file's folder"),
        ("-m json.tool.x", "there is no module 'json.tool.x'", "at installed packages"),
        ("-m json.tool.timeit", "there is no module 'json.tool.timeit'", "at installed packages"),
        ("-m bare", "the package bare has no __main__.py", "Name a module in it"),
        ("-m json", "the package json has no __main__.py", "Name a module in it"),
        ("-m tools/train.py", "'tools/train.py' is not the name of a module", "without .py"),
        ("-m tools.train --lr 1", "is not the name of a module", "arguments go into Params"),
    ],
)
def test_modules_that_are_none(
    problems: Problems, package: Path, cell: str, cause: str, remedy: str
) -> None:
    (problem,) = problems(f"File\n{cell}\n")

    assert (problem.line, problem.column) == (2, "File")
    assert cause in problem.cause and remedy in problem.remedy


def test_another_environment_may_have_modules_that_this_one_lacks(folder: Path) -> None:
    with pytest.raises(UsageError):
        find_program("-m only.there", [folder])

    program = find_program("-m only.there", [folder], own_python=False)

    assert (program.module, program.folder) == ("only.there", folder)


def test_a_row_of_another_environment_may_name_such_a_module(plan: Plan, folder: Path) -> None:
    (folder / "requirements.txt").touch()

    (run,) = plan("Environment,File\nuv,-m only.there\n").runs

    assert run.program.module == "only.there"


def test_a_folder_with_an_mlproject(plan: Plan, folder: Path) -> None:
    (folder / "my project").mkdir()
    (folder / "my project/MLproject").write_text("name: x\n")
    (folder / "mlPROJECT").write_text("name: y\n")  # as MLflow does, in any case

    inner, own = plan("File\nmy project/\n.\n").runs

    assert inner.program.kind is own.program.kind is ProgramKind.PROJECT
    assert inner.program.folder == folder / "my project" and inner.label == "my project"
    assert own.program.folder == folder and own.label == folder.name
    assert not inner.program.is_python


def test_a_folder_without_one(problems: Problems, folder: Path) -> None:
    (folder / "src").mkdir()

    (problem,) = problems("File\nsrc\n")

    assert "a folder with MLflow's MLproject file, got the folder 'src'" in problem.cause


def test_modules_and_projects_from_the_command_line(
    package: Path, monkeypatch: pytest.MonkeyPatch, cpu_only: Machine, registry: Registry
) -> None:
    monkeypatch.chdir(package)
    (package / "proj").mkdir()
    (package / "proj/MLproject").write_text("name: x\n")

    module = direct_plan("-m tools.train", ["{Model}"], machine=cpu_only, registry=registry)
    project = direct_plan("proj", [], machine=cpu_only, registry=registry)

    (run,) = module.runs
    assert (run.program.module, run.experiment) == ("tools.train", "tools.train")
    assert run.params == ("{Model}",)  # there are no columns to fill in
    assert project.name == "proj"
