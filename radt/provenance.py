"""Provenance of a run: hardware, Git state of the script, packages of its interpreter.

It is collected before the start barrier, so it has to be quick: hardware and installed packages
cannot change while a process lives and are read once, the Git state once for the rows of a
workload. Nothing here ever fails a run; `Provenance.problems` lists what could not be read.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from radt.devices.hardware import Hardware, read_hardware
from radt.git import GitState, read_git
from radt.packages import installed
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


@dataclass(frozen=True, slots=True)
class Provenance:
    """Hardware, Git state and packages; ``problems`` describes what could not be determined.

    ``packages`` are ``name==version`` lines, the interpreter itself first.
    """

    hardware: Hardware
    git: GitState
    packages: tuple[str, ...]
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
            PYTHON: self.packages[0].removeprefix("python=="),
        }
        if self.git.commit:
            tags[GIT_COMMIT] = self.git.commit
            tags[GIT_DIRTY] = str(self.git.dirty).lower()
            tags[MLFLOW_GIT_COMMIT] = self.git.commit
        return {name: value for name, value in tags.items() if value}


def collect_provenance(folder: Path, artifacts: Path | None = None) -> Provenance:
    """Collect the provenance of a script in ``folder`` that this interpreter will run.

    With ``artifacts``, the run's artifact folder, also write ``environment/packages.txt`` and
    ``environment/hardware.json`` there. A full disk is a problem of the result, not an error.
    """
    hardware, git, packages = read_hardware(), read_git(folder), _packages()
    problems = [*hardware.problems, *([git.problem] if git.problem else [])]
    if artifacts is not None:
        try:
            _write(artifacts / "environment", hardware, packages)
        except OSError as error:
            problems.append(
                f"hardware and packages were not written to {artifacts}: {error.strerror}"
            )
    return Provenance(hardware, git, packages, tuple(problems))


@cache
def _packages() -> tuple[str, ...]:
    return tuple(installed())


def _write(folder: Path, hardware: Hardware, packages: tuple[str, ...]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hardware.json").write_text(
        json.dumps(asdict(hardware), indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    (folder / "packages.txt").write_text("\n".join(packages) + "\n", encoding="utf-8")
