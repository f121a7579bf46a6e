"""Builds environments: each content once on a machine, before the barrier."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from radt.environments.conda import build_conda
from radt.environments.docker import build_docker
from radt.environments.launch import BuiltEnvironment, Launch
from radt.environments.local import LocalEnvironment
from radt.environments.spec import EnvironmentKind, EnvironmentSpec
from radt.environments.tool import Report
from radt.environments.uv import build_uv

__all__ = ["BuiltEnvironment", "Launch", "build"]


def build(
    spec: EnvironmentSpec,
    *,
    log: Path,
    say: Callable[[str], None],
    cancelled: Callable[[], bool] = lambda: False,
) -> BuiltEnvironment:
    """The environment, built if it is not there yet.

    Args:
        log: File to append the tool's whole output to; made when there is something to say.
        say: Called with a line of progress, from this thread.
        cancelled: Asked several times a second; if it says yes, the tool is ended.

    Raises:
        EnvironmentBuildError: It cannot be built, or building was cancelled; nothing half-built
            is left. The message ends with the tool's last lines, the remedy names the log.
    """
    report = Report(log, say, cancelled)
    match spec.kind:
        case EnvironmentKind.LOCAL:
            return LocalEnvironment(spec)
        case EnvironmentKind.UV:
            return build_uv(spec, report)
        case EnvironmentKind.CONDA:
            return build_conda(spec, report)
        case EnvironmentKind.DOCKER:
            return build_docker(spec, report)
