"""Environments that are a folder with an interpreter: what uv and conda make."""

from __future__ import annotations

import hashlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

import radt
from radt.environments.cache import cache_folder
from radt.environments.spec import BuiltEnvironment, EnvironmentSpec, Launch
from radt.environments.tool import Report, run_tool
from radt.errors import EnvironmentBuildError
from radt.packages import LIST_PACKAGES

#: What radt itself needs, and with it scripts that import it.
OLDEST_PYTHON = (3, 11)


def list_packages(interpreter: Path, report: Report) -> str:
    """Return ``name==version`` lines, the interpreter first.

    Raises:
        EnvironmentBuildError: The interpreter does not run.
    """
    env = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    answer = run_tool([str(interpreter), "-c", LIST_PACKAGES], report, env=env, private=True)
    if answer.code != 0:
        raise report.failed(f"the environment's Python does not run: {answer.complaint}")
    return answer.output.strip() + "\n"


def python_version(packages: str) -> tuple[int, int] | None:
    """Return the major and minor version of the interpreter in a list of packages."""
    first = packages.partition("\n")[0]
    parts = first.removeprefix("python==").split(".")
    if (
        first.startswith("python==")
        and len(parts) > 1
        and parts[0].isdigit()
        and parts[1].isdigit()
    ):
        return int(parts[0]), int(parts[1])
    return None


def warn_if_old(packages: str, report: Report) -> None:
    """Report an interpreter that is too old for scripts to import radt."""
    version = python_version(packages)
    if version is not None and version < OLDEST_PYTHON:
        report.say(
            f"its Python {version[0]}.{version[1]} is older than {OLDEST_PYTHON[0]}."
            f"{OLDEST_PYTHON[1]}: scripts in it cannot import radt"
        )


def package_folder() -> Path:
    """Return the folder of this radt's package."""
    return Path(radt.__file__).resolve().parent


def outside_links(package: Path) -> dict[str, Path]:
    """Return the parts of the package that are links to folders outside of it, by name.

    There are some in an editable install, for parts that stand at the top of the repository.
    """
    return {
        entry.name: entry.resolve()
        for entry in sorted(package.iterdir())
        if entry.is_symlink() and not entry.resolve().is_relative_to(package)
    }


def importable_folder(base: Path) -> Path:
    """Return the folder for ``PYTHONPATH`` in ``base``, which is made if it is missing.

    Raises:
        EnvironmentBuildError: It cannot be made.
    """
    package = package_folder()
    digest = hashlib.sha256(os.fsencode(package)).hexdigest()[:16]
    folder = base / f"import-{digest}"
    link = folder / "radt"
    try:
        if not link.exists():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh = folder / f".{secrets.token_hex(4)}"
            fresh.symlink_to(package)
            fresh.replace(link)  # whole or not there: other radts do the same
    except OSError as error:
        raise EnvironmentBuildError(
            f"{folder} cannot be made: {error.strerror}",
            "Free space there, or check its permissions",
        ) from error
    return folder


def with_first(first: str, rest: str | None) -> str:
    """Return a search path with a first entry; an empty rest adds nothing (it would mean '.')."""
    return f"{first}{os.pathsep}{rest}" if rest else first


#: Its part of a folder of the cache, and what is written beside it.
PREFIX = "env"
PACKAGES = "packages.txt"


def python_of(prefix: Path) -> Path:
    """Return the path of an environment's interpreter, if it has one."""
    return prefix / "bin" / "python"


def usable(folder: Path) -> bool:
    """Return whether the interpreter still exists: the target of its link may be gone.

    An environment without any Python is as usable as it was.
    """
    python = python_of(folder / PREFIX)
    return python.exists() or not python.is_symlink()


@dataclass(frozen=True, slots=True)
class PrefixEnvironment(BuiltEnvironment):
    """An environment in a folder: its programs come first on ``PATH``, and it can import radt."""

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
