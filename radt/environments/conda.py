"""Environments that conda, mamba or micromamba create from conda.yaml.

A run starts the environment's own Python, with ``PATH`` and the variables that activation would
set. ``conda run`` does the same, but first starts another Python, which takes about a second per
run and sits between the runner's signals and the script.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from radt.environments.cache import (
    CachedContent,
    PrefixEnvironment,
    list_packages,
    obtain_prefix,
    python_of,
)
from radt.environments.spec import EnvironmentSpec, Launch
from radt.environments.tool import BuildReport, run_tool
from radt.errors import EnvironmentBuildError
from radt.processes import run_command

#: In order of preference: micromamba needs nothing else and is fastest.
TOOLS = ("micromamba", "mamba", "conda")
#: Variables that contain the tool of an activated shell.
_TOOL_VARIABLES = ("MAMBA_EXE", "CONDA_EXE")
#: Some versions of `env create` do not know --yes; all of them read these variables.
_ALWAYS_YES = {"CONDA_ALWAYS_YES": "true", "MAMBA_ALWAYS_YES": "true"}
_ACTIVATE_TIMEOUT_S = 30.0
#: Sources each script as activation does, then prints all variables, NUL-separated.
_ACTIVATE = 'for script in "$@"; do . "$script" >&2; done; env -0'
#: Variables of bash itself.
_OF_THE_SHELL = frozenset({"_", "SHLVL", "PWD", "OLDPWD"})


class CondaEnvironment(PrefixEnvironment):
    """A conda prefix."""

    def variables(self, launch: Launch) -> dict[str, str]:
        own = {
            **super().variables(launch),
            "CONDA_PREFIX": str(self.prefix),
            "CONDA_DEFAULT_ENV": str(self.prefix),
            "CONDA_SHLVL": "1",
            **_declared_variables(self.prefix),
        }
        scripts = sorted((self.prefix / "etc/conda/activate.d").glob("*.sh"))
        return own | (_activated(scripts, {**launch.variables, **own}) if scripts else {})


def build_conda(spec: EnvironmentSpec, report: BuildReport) -> CondaEnvironment:
    """Return the environment that ``spec.source`` describes, built if necessary.

    Raises:
        EnvironmentBuildError: No tool is installed, or the build fails.
    """
    assert spec.source is not None
    prefix, packages = obtain_prefix(
        spec,
        _content(spec.source),
        lambda prefix, lock: _make(spec, prefix, lock, report),
        report,
    )
    python = python_of(prefix)
    return CondaEnvironment(spec, prefix, packages, python if python.exists() else None)


def find_tool(report: BuildReport, environ: Mapping[str, str] = os.environ) -> Path:
    """Find micromamba, mamba or conda, in this order.

    Raises:
        EnvironmentBuildError: None of them is installed.
    """
    given = [Path(text) for name in _TOOL_VARIABLES if (text := environ.get(name))]
    for name in TOOLS:
        for tool in given:
            if tool.name == name and os.access(tool, os.X_OK):
                return tool
        if on_path := shutil.which(name, path=environ.get("PATH")):
            return Path(on_path)
    raise EnvironmentBuildError(
        "none of micromamba, mamba and conda is installed",
        "Install micromamba: "
        "https://mamba.readthedocs.io/en/latest/installation/micromamba-installation.html",
        str(report.log),
    )


def creation(tool: Path, prefix: Path, file: Path) -> list[str]:
    """Return the command that creates an environment; old micromambas have no ``env create``."""
    verb = ["create", "--yes"] if tool.name == "micromamba" else ["env", "create"]
    return [str(tool), *verb, "--prefix", str(prefix), "--file", str(file)]


def _content(source: Path) -> CachedContent:
    """Hash the file and the files of its pip part, but not the tool, which does not matter."""
    content = CachedContent("conda")
    content.add_file(source)
    import yaml  # takes 20 ms, and most experiments have no such file

    try:
        described = yaml.safe_load(source.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise EnvironmentBuildError(f"{source} cannot be read: {error}") from error
    dependencies = described.get("dependencies") if isinstance(described, dict) else None
    if not isinstance(dependencies, list):
        raise EnvironmentBuildError(
            f"{source} has no list of dependencies",
            "See https://docs.conda.io/projects/conda/en/latest/user-guide/tasks/"
            "manage-environments.html",
        )
    for dependency in dependencies:
        lines = dependency.get("pip") if isinstance(dependency, dict) else None
        if isinstance(lines, list):
            content.add_requirement_lines("\n".join(map(str, lines)), source.parent)
    return content


def _make(spec: EnvironmentSpec, prefix: Path, lock: int, report: BuildReport) -> str:
    assert spec.source is not None
    tool = find_tool(report)
    report.say(f"building {spec} with {tool.name}")
    answer = run_tool(
        creation(tool, prefix, spec.source),
        report,
        cwd=spec.source.parent,
        env={**os.environ, **_ALWAYS_YES},
        keep_fds=[lock],
    )
    if answer.code != 0:
        full = "No space left" in answer.complaint
        raise report.failed(
            f"{tool.name} could not build {spec} (exit code {answer.code}):\n{answer.complaint}",
            "Free space, or set RADT_ENVIRONMENTS to a folder with some GB free" if full else "",
        )
    if not prefix.is_dir():
        raise report.failed(f"{tool.name} reported success for {spec}, but {prefix} is missing")
    python = python_of(prefix)
    installed = list_packages(python, report) if python.exists() else ""
    return installed + _conda_packages(prefix)


def _conda_packages(prefix: Path) -> str:
    """Return the packages installed by conda, of any kind, as ``name=version=build``."""
    names = sorted(path.stem.rsplit("-", 2) for path in (prefix / "conda-meta").glob("*-*-*.json"))
    return "".join(["# conda\n", *("=".join(parts) + "\n" for parts in names)]) if names else ""


def _declared_variables(prefix: Path) -> dict[str, str]:
    """Return the variables of conda.yaml and of ``conda env config vars``."""
    try:
        state = json.loads((prefix / "conda-meta/state").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # most environments have none
    return {str(name): str(text) for name, text in (state.get("env_vars") or {}).items()}


def _activated(scripts: list[Path], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the packages' activation scripts set."""
    try:
        answer = run_command(
            ["bash", "-c", _ACTIVATE, "activate", *map(str, scripts)],
            _ACTIVATE_TIMEOUT_S,
            env=environ,
            errors="surrogateescape",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentBuildError(
            f"the activation scripts in {scripts[0].parent} do not run: {error}",
            "Try them with `conda activate`",
        ) from error
    after = dict(entry.split("=", 1) for entry in answer.stdout.split("\0") if "=" in entry)
    return {
        name: text
        for name, text in after.items()
        if environ.get(name) != text and name not in _OF_THE_SHELL
    }
