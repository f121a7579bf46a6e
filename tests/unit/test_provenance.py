"""What a run ran on and with, taken from real repositories and real interpreters."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from radt import git as radt_git
from radt import provenance
from radt.analysis.operands import resolve_commit
from radt.devices import hardware as radt_hardware
from radt.devices.gpus import Gpu, Gpus
from radt.packages import LIST_PACKAGES, installed
from tests.support.git import git


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing remembered from another test."""
    radt_hardware.read_hardware.cache_clear()
    provenance._packages.cache_clear()
    radt_git._git_states.clear()
    yield
    radt_hardware.read_hardware.cache_clear()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "a repository\nwith 'hostile' name ü"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "train.py").write_text("print(1)\n")
    git(folder, "add", "train.py")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def test_clean_repository_from_a_folder_inside(repository: Path) -> None:
    inner = repository / "inner"
    inner.mkdir()
    (inner / "untracked.txt").write_text("results do not make the code dirty")

    state = radt_git.read_git(inner)

    assert state == radt_git.GitState(git(repository, "rev-parse", "HEAD"), dirty=False)


@pytest.mark.parametrize("staged", [False, True])
def test_changed_file_is_dirty(repository: Path, staged: bool) -> None:
    (repository / "train.py").write_text("print(2)\n")
    if staged:
        git(repository, "add", "train.py")

    state = radt_git.read_git(repository)

    assert state == radt_git.GitState(git(repository, "rev-parse", "HEAD"), dirty=True)


def test_the_rows_of_a_workload_share_one_reading_and_later_ones_do_not(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not radt_git.read_git(repository).dirty
    (repository / "train.py").write_text("print(2)\n")
    assert not radt_git.read_git(repository).dirty
    monkeypatch.setattr(radt_git, "_FRESH_S", 0.0)
    assert radt_git.read_git(repository).dirty


def test_repository_without_a_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert radt_git.read_git(tmp_path) == radt_git.GitState()


def test_no_repository(tmp_path: Path) -> None:
    found = provenance.collect_provenance(tmp_path)
    assert found.git == radt_git.GitState()
    assert not any("git" in name for name in found.tags)


def test_git_is_asked_about_the_scripts_folder_whatever_the_environment_says(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    state = radt_git.read_git(repository)
    monkeypatch.delenv("GIT_DIR")
    assert state.commit == git(repository, "rev-parse", "HEAD")


def test_git_missing(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = provenance.collect_provenance(repository)
    assert found.git.commit is None
    assert "the git commit is unknown: git is not installed" in found.problems
    assert not provenance.collect_provenance(tmp_path).problems, "there is no repository to miss"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")
def test_a_repository_of_another_user_that_also_owns_the_script(repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    (repository / "train.py").write_text("print(2)\n")
    for path in (repository, *repository.rglob("*")):
        os.chown(path, 12345, 12345)
    assert "dubious ownership" in refused(repository), "what users see without radt"

    assert radt_git.read_git(repository) == radt_git.GitState(commit, dirty=True)
    assert resolve_commit("HEAD", repository) == commit


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")
def test_a_repository_that_another_user_put_around_the_script_is_a_problem(
    repository: Path,
) -> None:
    own = repository / "own"
    own.mkdir()
    for path in (repository, *repository.rglob(".git/**")):
        os.chown(path, 12345, 12345)

    state = radt_git.read_git(own)

    assert state.commit is None
    assert state.problem is not None
    assert "dubious ownership" in state.problem
    assert "\n" not in state.problem


def refused(folder: Path) -> str:
    command = ["git", "status"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stderr


def test_folder_gone(tmp_path: Path) -> None:
    problem = radt_git.read_git(tmp_path / "gone").problem
    assert problem is not None
    assert "no folder" in problem


def test_git_that_refuses_is_a_problem_not_an_absence(repository: Path) -> None:
    (repository / ".git" / "config").write_text("[core]\n\trepositoryformatversion = 99\n")
    state = radt_git.read_git(repository)
    assert state.commit is None
    assert state.problem is not None
    assert "99" in state.problem


def test_hardware_is_this_machines() -> None:
    hardware = radt_hardware.read_hardware()
    assert hardware.memory_bytes == psutil.virtual_memory().total
    assert hardware.usable_cores == len(os.sched_getaffinity(0))
    assert hardware.host == os.uname().nodename
    assert hardware.cpu_model


@pytest.mark.parametrize(
    ("found", "problems", "names"),
    [
        (Gpus((Gpu(0, "GB10", "GPU-1", None),), driver="580.1"), (), "GB10"),
        (Gpus(reason="no NVIDIA driver"), (), ""),
        (Gpus(reason="NVML: mismatch", failed=True), ("NVML: mismatch",), ""),
        (
            Gpus((Gpu(0, problem="GPU is lost"), Gpu(1, "A100", "GPU-1")), driver="580.1"),
            ("GPU 0 does not answer: GPU is lost",),
            "unknown, A100",
        ),
    ],
)
def test_what_does_not_answer_is_a_problem_and_what_is_absent_is_not(
    monkeypatch: pytest.MonkeyPatch, found: Gpus, problems: tuple[str, ...], names: str
) -> None:
    monkeypatch.setattr(Gpus, "read", lambda: found)

    hardware = radt_hardware.read_hardware()

    assert (hardware.gpus, hardware.driver) == (found.every, found.driver)
    assert hardware.problems == problems
    recorded = provenance.Provenance(hardware, radt_git.GitState(), ("python==3.12.1",))
    assert recorded.tags.get("radt.gpus", "") == names


def test_packages_are_those_of_the_other_interpreter(tmp_path: Path) -> None:
    environment = tmp_path / "an environment"
    venv.create(environment, with_pip=False)
    interpreter = environment / "bin" / "python"
    (site,) = environment.glob("lib/python*/site-packages")
    info = site / "only_there-3.2.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: only-there\nVersion: 3.2.1\n")

    command = [str(interpreter), "-c", LIST_PACKAGES]
    theirs = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    version = ".".join(map(str, sys.version_info[:3]))
    assert theirs.splitlines() == [f"python=={version}", "only-there==3.2.1"]
    assert any(line.startswith("mlflow==") for line in installed())


def test_packages_are_those_that_python_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path, text in {
        "first/Twice-2.dist-info/METADATA": "Name: Twice\r\nVersion: 2\r\n\r\nVersion: 9\n",
        "second/twice-1.dist-info/METADATA": "Name: twice\nVersion: 1\n",
        "second/developed.egg-info/PKG-INFO": "Name: developed\nVersion: 0.1\n",
        "second/old-3.egg-info": "Name: old\nVersion: 3\n",
        "second/removed-1.dist-info/RECORD": "",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "modules.zip").touch()
    folders = [str(tmp_path / name) for name in ("modules.zip", "nowhere", "first", "second")]
    monkeypatch.setattr(sys, "path", [*folders, *sys.path])

    known: dict[str, importlib.metadata.Distribution] = {}
    for package in importlib.metadata.distributions():
        # What an interrupted removal leaves has none of them.
        if any(package.read_text(name) for name in ("METADATA", "PKG-INFO", "")):
            known.setdefault(package.metadata["Name"].lower(), package)
    python, *lines = installed()
    assert python == f"python=={sys.version.split()[0]}"
    assert lines == [
        f"{known[name].metadata['Name']}=={known[name].version}" for name in sorted(known)
    ]
    assert {"Twice==2", "developed==0.1", "old==3"} <= set(lines)


def test_files_for_the_run(repository: Path, tmp_path: Path) -> None:
    artifacts = tmp_path / "artifacts"

    found = provenance.collect_provenance(repository, artifacts)

    hardware = json.loads((artifacts / "environment" / "hardware.json").read_text())
    assert hardware["memory_bytes"] == found.hardware.memory_bytes
    assert hardware["gpus"] == []
    packages = (artifacts / "environment" / "packages.txt").read_text().splitlines()
    assert tuple(packages) == found.packages
    assert found.tags["radt.git.commit"] == git(repository, "rev-parse", "HEAD")
    assert found.tags["radt.git.dirty"] == "false"
    assert found.tags["radt.python"] == sys.version.split()[0]


def test_unwritable_folder_is_a_problem_not_an_error(tmp_path: Path) -> None:
    blocked = tmp_path / "artifacts"
    blocked.write_text("a file where the folder should be")
    found = provenance.collect_provenance(tmp_path, blocked)
    assert any("hardware and packages were not written" in problem for problem in found.problems)
