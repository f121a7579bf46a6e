"""Builds environments: each content once on a machine, before the barrier."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from radt.environments.launch import BuiltEnvironment, Launch
from radt.environments.spec import EnvironmentSpec

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
        log: File to append the tool's whole output to.
        say: Called with a line of progress, from this thread.
        cancelled: Asked several times a second; if it says yes, the tool is ended.

    Raises:
        EnvironmentBuildError: It cannot be built, or building was cancelled; nothing half-built
            is left. The message ends with the tool's last lines, the remedy names the log.
    """
    raise NotImplementedError
