"""Builds environments before the barrier, each content once per machine."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from radt.environments.conda import build_conda
from radt.environments.docker import build_docker
from radt.environments.spec import BuiltEnvironment, EnvironmentKind, EnvironmentSpec, Launch
from radt.environments.tool import BuildReport
from radt.environments.uv import build_uv


@dataclass(frozen=True, slots=True)
class LocalEnvironment(BuiltEnvironment):
    """radt's own interpreter, which needs no build."""

    spec: EnvironmentSpec
    interpreter: Path | None = Path(sys.executable)
    packages: str = ""

    def command(self, launch: Launch) -> list[str]:
        return [*([sys.executable] if launch.needs_python else []), *launch.arguments]

    def variables(self, launch: Launch) -> dict[str, str]:
        """Return a PATH with radt's Python, if a program might not find a Python otherwise."""
        path = launch.variables.get("PATH", os.defpath)
        if launch.needs_python or shutil.which("python", path=path):
            return {}
        return {"PATH": f"{path}{os.pathsep}{Path(sys.executable).parent}"}


__all__ = ["BuiltEnvironment", "Launch", "build"]


def build(
    spec: EnvironmentSpec,
    *,
    log: Path,
    say: Callable[[str], None],
    cancelled: Callable[[], bool] = lambda: False,
) -> BuiltEnvironment:
    """Return the environment, building it first if necessary.

    Args:
        log: File to append the tool's whole output to; created when needed.
        say: Called with each line of progress, from this thread.
        cancelled: Checked several times a second; if it returns True, the tool is stopped.

    Raises:
        EnvironmentBuildError: The environment cannot be built, or building was cancelled; nothing
            half-built remains. The message ends with the tool's last lines, and the remedy names
            the log.
    """
    report = BuildReport(log, say, cancelled)
    match spec.kind:
        case EnvironmentKind.LOCAL:
            return LocalEnvironment(spec)
        case EnvironmentKind.UV:
            return build_uv(spec, report)
        case EnvironmentKind.CONDA:
            return build_conda(spec, report)
        case EnvironmentKind.DOCKER:
            return build_docker(spec, report)
