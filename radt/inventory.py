"""What a run ran on and with: host, GPUs, git state of the script, packages of its interpreter.

Taken before the start barrier, so it has to be quick: what cannot change while a process lives
(hardware, installed packages) is read once, the git state once for the rows of a workload.
Nothing here ever fails a run; what could not be read is named in `Inventory.problems`.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from radt.git import ask_git, repository_of
from radt.nvml import Gpu, list_gpus
from radt.packages import LIST_PACKAGES, installed
from radt.tags import (
    CPU,
    CPU_COUNT,
    DRIVER,
    GIT_COMMIT,
    GIT_DIRTY,
    GPUS,
    HOST,
    MLFLOW_GIT_COMMIT,
    PYTHON,
)

_PACKAGES_TIMEOUT_S = 60.0
#: Rows of one workload are prepared within this time and share one reading of git.
_GIT_FRESH_S = 2.0


@dataclass(frozen=True, slots=True)
class Hardware:
    """The machine. ``usable_cores`` are those this process may run on; ``driver`` is NVIDIA's."""

    host: str
    system: str
    cpu_model: str
    physical_cores: int | None
    logical_cores: int | None
    usable_cores: int
    memory_bytes: int
    driver: str | None = None
    gpus: tuple[Gpu, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The kind of machine: equal for machines whose runs may be compared.

        CPU model and number, memory in whole GB, GPU models, the driver's major version. The number
        of GPUs is of a job where it sees no others, and says nothing of the machine.
        """
        parts = [
            f"{self.cpu_model}, {self.logical_cores} CPUs, {round(self.memory_bytes / 1e9)} GB",
            *dict.fromkeys(gpu.name for gpu in self.gpus),
            *([f"driver {self.driver.partition('.')[0]}"] if self.driver else []),
        ]
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class GitState:
    """The repository a folder is in; ``commit`` is None outside of one and before the first commit.

    ``dirty`` counts changes of tracked files only, as ``git describe --dirty`` does.
    """

    commit: str | None = None
    dirty: bool = False
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Packages:
    """Packages of an interpreter as ``name==version`` lines, the interpreter itself first."""

    lines: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Inventory:
    """All of it; ``problems`` says in plain words what could not be found out."""

    hardware: Hardware
    git: GitState
    packages: Packages
    problems: tuple[str, ...] = ()

    @property
    def tags(self) -> dict[str, str]:
        """Tags of the run; what is unknown has none."""
        tags = {
            HOST: self.hardware.host,
            CPU: self.hardware.cpu_model,
            CPU_COUNT: str(self.hardware.usable_cores),
            DRIVER: self.hardware.driver or "",
            GPUS: ", ".join(gpu.name for gpu in self.hardware.gpus),
            PYTHON: self.packages.lines[0].removeprefix("python==") if self.packages.lines else "",
        }
        if self.git.commit:
            tags[GIT_COMMIT] = self.git.commit
            tags[GIT_DIRTY] = str(self.git.dirty).lower()
            tags[MLFLOW_GIT_COMMIT] = self.git.commit
        return {name: value for name, value in tags.items() if value}


def collect_inventory(
    folder: Path, artifacts: Path | None = None, *, interpreter: str = sys.executable
) -> Inventory:
    """Read everything for a script in ``folder`` that ``interpreter`` will run.

    With ``artifacts``, the run's artifact folder, also writes ``environment/packages.txt`` and
    ``environment/hardware.json`` there. A full disk is a problem of the result, not an error.
    """
    hardware, git, packages = read_hardware(), read_git(folder), list_packages(interpreter)
    problems = [*hardware.problems, *(text for text in (git.problem, packages.problem) if text)]
    if artifacts is not None:
        try:
            _write(artifacts / "environment", hardware, packages)
        except OSError as error:
            problems.append(f"the inventory was not written to {artifacts}: {error.strerror}")
    return Inventory(hardware, git, packages, tuple(problems))


def _write(folder: Path, hardware: Hardware, packages: Packages) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hardware.json").write_text(
        json.dumps(asdict(hardware), indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    if packages.lines:
        (folder / "packages.txt").write_text("\n".join(packages.lines) + "\n", encoding="utf-8")


@cache
def read_hardware() -> Hardware:
    """The machine's hardware, read once a process."""
    gpu_list = list_gpus()
    return Hardware(
        host=platform.node(),
        system=f"{platform.system()} {platform.release()}",
        cpu_model=_cpu_model(),
        physical_cores=_physical_cores(),
        logical_cores=os.cpu_count(),
        usable_cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        driver=gpu_list.driver,
        gpus=gpu_list.gpus,
        problems=(f"the GPUs could not be listed: {gpu_list.reason}",) if gpu_list.failed else (),
    )


def _physical_cores() -> int | None:
    """How many there are; None where the kernel does not say (some containers)."""
    lists = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology/core_cpus_list")
    try:
        return len({path.read_text(encoding="ascii") for path in lists}) or None
    except OSError:
        return None


def _cpu_model() -> str:
    """As the kernel names it; ARM kernels name none."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


_git_states: dict[Path, tuple[float, GitState]] = {}


def read_git(folder: Path) -> GitState:
    """Commit and dirtiness of the repository that holds ``folder``."""
    known = _git_states.get(folder)
    if known is not None and time.monotonic() - known[0] < _GIT_FRESH_S:
        return known[1]
    state = _ask_git(folder)
    _git_states[folder] = (time.monotonic(), state)
    return state


def _ask_git(folder: Path) -> GitState:
    if folder.is_dir() and repository_of(folder) is None:
        return GitState()
    try:
        answer = ask_git(folder, "status", "--porcelain=v2", "--branch", "--untracked-files=no")
    except FileNotFoundError as error:
        missing = "git is not installed" if error.filename == "git" else f"no folder {folder}"
        return GitState(problem=f"the git commit is unknown: {missing}")
    except (OSError, subprocess.TimeoutExpired) as error:
        return GitState(problem=f"the git commit is unknown: {error}")
    if answer.returncode != 0:
        complaint = " ".join(answer.stderr.decode(errors="replace").split())
        if "not a git repository" in complaint:
            return GitState()
        return GitState(problem=f"the git commit is unknown: {complaint}")
    lines = answer.stdout.decode(errors="replace").splitlines()
    commits = [line.split()[-1] for line in lines if line.startswith("# branch.oid ")]
    commit = commits[0] if commits and commits[0] != "(initial)" else None
    return GitState(commit, dirty=any(not line.startswith("#") for line in lines))


@cache
def list_packages(interpreter: str = sys.executable) -> Packages:
    """What is installed for that interpreter, asked once a process; this process knows its own.

    ``interpreter`` is not resolved: a virtual environment's is a link to one that has other
    packages.
    """
    if interpreter == sys.executable:
        try:
            return Packages(tuple(installed()))
        except (OSError, ValueError) as error:  # metadata that is damaged
            return Packages(problem=f"the packages of {interpreter} could not be listed: {error}")
    try:
        answer = subprocess.run(
            [interpreter, "-c", LIST_PACKAGES],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PACKAGES_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Packages(problem=f"the packages of {interpreter} could not be listed: {error}")
    if answer.returncode != 0:
        complaint = answer.stderr.decode(errors="replace").strip().splitlines()
        return Packages(
            problem=f"the packages of {interpreter} could not be listed: "
            f"{complaint[-1] if complaint else f'exit code {answer.returncode}'}"
        )
    return Packages(tuple(answer.stdout.decode("utf-8", errors="replace").splitlines()))
