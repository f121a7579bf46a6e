"""Asks an environment's interpreter what is installed."""

from __future__ import annotations

import os
from pathlib import Path

from radt.environments.tool import Report, run_tool
from radt.packages import LIST_PACKAGES

#: What radt itself needs, and with it scripts that import it.
OLDEST_PYTHON = (3, 11)


def list_packages(interpreter: Path, report: Report) -> str:
    """``name==version`` lines, the interpreter first.

    Raises:
        EnvironmentBuildError: The interpreter does not run.
    """
    env = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    answer = run_tool([str(interpreter), "-c", LIST_PACKAGES], report, env=env, private=True)
    if answer.code != 0:
        raise report.failed(f"the environment's Python does not run: {answer.complaint}")
    return answer.output.strip() + "\n"


def python_version(packages: str) -> tuple[int, int] | None:
    """Major and minor version of the interpreter whose packages these are."""
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
    """Say so if scripts in the environment will not be able to import radt."""
    version = python_version(packages)
    if version is not None and version < OLDEST_PYTHON:
        report.say(
            f"its Python {version[0]}.{version[1]} is older than {OLDEST_PYTHON[0]}."
            f"{OLDEST_PYTHON[1]}: scripts in it cannot import radt"
        )
