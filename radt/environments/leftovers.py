"""Containers that outlive their runs: docker's daemon goes on when all of radt is killed."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from radt.environments.docker import LABEL_HOME, LABEL_RUN

_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class LeftoverContainer:
    """A container that radt has started. ``home`` is the data folder of its run."""

    name: str
    run_id: str
    home: Path


def leftover_containers() -> list[LeftoverContainer]:
    """Containers of runs that are on this machine, whoever started them; none without docker."""
    docker = shutil.which("docker")
    if docker is None:
        return []
    form = f'{{{{.Names}}}}\t{{{{.Label "{LABEL_RUN}"}}}}\t{{{{.Label "{LABEL_HOME}"}}}}'
    answer = _ask([docker, "ps", "--all", "--filter", f"label={LABEL_RUN}", "--format", form])
    rows = [line.split("\t") for line in answer.splitlines()]
    return [LeftoverContainer(row[0], row[1], Path(row[2])) for row in rows if len(row) == 3]


def remove_container(name: str) -> None:
    """End a container and remove it; harmless when it is gone."""
    _ask(["docker", "rm", "--force", name])


def _ask(command: list[str]) -> str:
    """What docker answers, nothing if it does not."""
    try:
        answer = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.decode("utf-8", "replace") if answer.returncode == 0 else ""
