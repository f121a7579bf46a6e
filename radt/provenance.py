"""Provenance of a run: hardware, Git state of the script, packages of its interpreter.

It is collected before the start barrier, so it has to be quick: hardware and installed packages
cannot change while a process lives and are read once, the Git state once for the rows of a
workload. Nothing here ever fails a run; `Provenance.problems` lists what could not be read.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from radt.devices.hardware import Hardware, read_hardware
from radt.git import GitState, read_git
from radt.packages import LIST_PACKAGES, installed
from radt.processes import run_command
from radt.tags import (
    CPU,
    CPU_COUNT,
    DRIVER,
    GIT_COMMIT,
    GIT_DIRTY,
    GPUS,
    HOST,
    MEMORY_LIMIT,
    MLFLOW_GIT_COMMIT,
    PYTHON,
)

_PACKAGES_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Packages:
    """Packages of an interpreter as ``name==version`` lines, the interpreter itself first."""

    lines: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Provenance:
    """Hardware, Git state and packages; ``problems`` describes what could not be determined."""

    hardware: Hardware
    git: GitState
    packages: Packages
    problems: tuple[str, ...] = ()

    @property
    def tags(self) -> dict[str, str]:
        """Return the run's tags, without unknown values."""
        tags = {
            HOST: self.hardware.host,
            CPU: self.hardware.cpu_model,
            CPU_COUNT: str(self.hardware.usable_cores),
            MEMORY_LIMIT: str(self.hardware.memory_limit_bytes or ""),
            DRIVER: self.hardware.driver or "",
            GPUS: ", ".join(gpu.name or "unknown" for gpu in self.hardware.gpus),
            PYTHON: self.packages.lines[0].removeprefix("python==") if self.packages.lines else "",
        }
        if self.git.commit:
            tags[GIT_COMMIT] = self.git.commit
            tags[GIT_DIRTY] = str(self.git.dirty).lower()
            tags[MLFLOW_GIT_COMMIT] = self.git.commit
        return {name: value for name, value in tags.items() if value}


def collect_provenance(
    folder: Path, artifacts: Path | None = None, *, interpreter: str = sys.executable
) -> Provenance:
    """Collect the provenance of a script in ``folder`` that ``interpreter`` will run.

    With ``artifacts``, the run's artifact folder, also write ``environment/packages.txt`` and
    ``environment/hardware.json`` there. A full disk is a problem of the result, not an error.
    """
    hardware, git, packages = read_hardware(), read_git(folder), list_packages(interpreter)
    problems = [*hardware.problems, *(text for text in (git.problem, packages.problem) if text)]
    if artifacts is not None:
        try:
            _write(artifacts / "environment", hardware, packages)
        except OSError as error:
            problems.append(
                f"hardware and packages were not written to {artifacts}: {error.strerror}"
            )
    return Provenance(hardware, git, packages, tuple(problems))


def _write(folder: Path, hardware: Hardware, packages: Packages) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hardware.json").write_text(
        json.dumps(asdict(hardware), indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    if packages.lines:
        (folder / "packages.txt").write_text("\n".join(packages.lines) + "\n", encoding="utf-8")


@cache
def list_packages(interpreter: str = sys.executable) -> Packages:
    """Return the packages of an interpreter, queried once per process.

    ``interpreter`` is not resolved: that of a virtual environment is a link to one that has other
    packages.
    """
    try:
        own = interpreter == sys.executable
        return Packages(tuple(installed() if own else _packages_of(interpreter)))
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:  # ValueError: bad metadata
        return Packages(problem=f"the packages of {interpreter} could not be listed: {error}")


def _packages_of(interpreter: str) -> list[str]:
    answer = run_command([interpreter, "-c", LIST_PACKAGES], _PACKAGES_TIMEOUT_S)
    if answer.returncode != 0:
        complaint = answer.stderr.strip().splitlines()
        raise OSError(complaint[-1] if complaint else f"exit code {answer.returncode}")
    return answer.stdout.splitlines()
