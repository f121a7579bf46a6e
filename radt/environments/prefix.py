"""Environments that are a folder with an interpreter: what uv and conda make."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from radt.environments.cache import cache_folder
from radt.environments.launch import BuiltEnvironment, Launch
from radt.environments.shim import importable_folder, with_first
from radt.environments.spec import EnvironmentSpec
from radt.errors import EnvironmentBuildError

#: Its part of a folder of the cache, and what is written beside it.
PREFIX = "env"
PACKAGES = "packages.txt"


def python_of(prefix: Path) -> Path:
    """Where an environment's interpreter stands, if it has one."""
    return prefix / "bin" / "python"


def usable(folder: Path) -> bool:
    """Whether the interpreter is still there: the one it links to may have been removed.

    An environment without any Python is as usable as it was.
    """
    python = python_of(folder / PREFIX)
    return python.exists() or not python.is_symlink()


@dataclass(frozen=True, slots=True)
class PrefixEnvironment(BuiltEnvironment):
    """Its programs come first on ``PATH``, and radt can be imported."""

    spec: EnvironmentSpec
    prefix: Path
    packages: str
    interpreter: Path | None

    def command(self, launch: Launch) -> list[str]:
        if not launch.needs_python:
            return list(launch.arguments)
        if self.interpreter is None:
            raise EnvironmentBuildError(
                f"{self.spec} has no Python to run {launch.arguments[0]} with",
                f"Add python to the dependencies in {self.spec.source}",
            )
        return [str(self.interpreter), *launch.arguments]

    def variables(self, launch: Launch) -> dict[str, str]:
        return {
            "PATH": with_first(str(self.prefix / "bin"), launch.variables.get("PATH")),
            "PYTHONPATH": with_first(
                str(importable_folder(cache_folder())), launch.variables.get("PYTHONPATH")
            ),
            # Would make its Python take the standard library of another one; empty is unset.
            "PYTHONHOME": "",
        }
