"""What a built environment is asked: how to start a run in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from radt.environments.spec import EnvironmentSpec


@dataclass(frozen=True, slots=True)
class Launch:
    """A run that is to be started in an environment. All paths are absolute.

    ``arguments`` are the program and what follows it, without an interpreter; with
    ``needs_python`` the environment's interpreter comes before them. ``run_dir`` is the run's
    spool folder and must be writable inside. ``variables`` is the training process's environment
    as the runner computed it. ``gpu_uuids`` are UUIDs of GPUs or MIG instances (where they are
    unknown, indices of GPUs); ``cpus`` are None for all.
    """

    arguments: tuple[str, ...]
    needs_python: bool
    folder: Path
    run_id: str
    run_dir: Path
    home: Path
    variables: Mapping[str, str] = field(repr=False)  # secrets are among them
    gpu_uuids: tuple[str, ...] = ()
    cpus: frozenset[int] | None = None


class BuiltEnvironment(ABC):
    """An environment that stands. Ask `prepare`, then `command` and `variables`, for each run.

    Attributes:
        spec: What was asked for.
        packages: Its packages as ``name==version`` lines, the interpreter first; empty if they are
            those of radt's own interpreter, or unknown.
        interpreter: Its Python on this machine; None where there is none (docker).
    """

    spec: EnvironmentSpec
    packages: str
    interpreter: Path | None

    def prepare(self, launch: Launch) -> None:  # noqa: B027 - most have nothing to do
        """Do what must be done once for a run, before its command starts.

        Raises:
            EnvironmentBuildError: It cannot be done.
        """

    @abstractmethod
    def command(self, launch: Launch) -> list[str]:
        """The argument list to execute; no secrets in it, others can read it.

        Raises:
            EnvironmentBuildError: The environment has no interpreter, and one is needed.
        """

    @abstractmethod
    def variables(self, launch: Launch) -> dict[str, str]:
        """Environment variables to set over ``launch.variables``."""

    def kill_command(self, launch: Launch) -> list[str] | None:  # noqa: ARG002 - for those that need it
        """What ends the run if its process tree was killed but it runs elsewhere; else None."""
        return None

    def container(self, launch: Launch) -> str:  # noqa: ARG002 - for those that make one
        """The name of the container that the run will be in; empty if it is in none."""
        return ""

    def exit_code(self, code: int) -> int:
        """What the program ended with, from what `command` did: negative for a signal."""
        return code
