"""Environments that uv creates from requirements.txt, pyproject.toml or MLflow's python_env.yaml.

A lock file beside pyproject.toml (``uv.lock``) is used exactly, as by ``uv sync --frozen``. If the
file does not request a Python version, radt's own is used.
"""

from __future__ import annotations

import ast
import os
import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from radt.setting_values import SWITCHES

#: ``global.index-url='https://…'``; later entries override earlier ones.
_SCOPES = ("global", "install", ":env:")


@dataclass(frozen=True, slots=True)
class PipConfig:
    """pip's options by their long names; empty if pip is not installed."""

    options: Mapping[str, str]

    @property
    def no_index(self) -> bool:
        """Return whether indexes are disabled; uv has an option for that, but no variable."""
        return SWITCHES.get(self.options.get("no-index", "").lower(), False)

    def uv_variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return variables that make uv look for packages in pip's indexes.

        uv's own settings stay. If pip has extra indexes, the best version of all is used, as pip
        does: https://docs.astral.sh/uv/pip/compatibility/
        """
        variables: dict[str, str] = {}

        def carry(option: str, name: str, *others: str, separator: str = " ") -> bool:
            values = self.options.get(option, "").split()
            if option == "find-links":  # for uv, a missing folder is an error
                values = [place for place in values if "://" in place or os.access(place, os.X_OK)]
            if not values or not set(environ).isdisjoint((name, *others)):
                return False
            variables[name] = separator.join(values)
            return True

        carry("index-url", "UV_DEFAULT_INDEX", "UV_INDEX_URL")
        if carry("extra-index-url", "UV_EXTRA_INDEX_URL", "UV_INDEX", "UV_INDEX_STRATEGY"):
            variables["UV_INDEX_STRATEGY"] = "unsafe-best-match"
        carry("find-links", "UV_FIND_LINKS", separator=",")
        carry("trusted-host", "UV_INSECURE_HOST")
        carry("cert", "SSL_CERT_FILE")
        return variables


def read_pip_config(environ: Mapping[str, str], report: BuildReport) -> PipConfig:
    """Return pip's own options from its files and variables."""
    # Not logged: proxies and indexes may have passwords.
    command = [sys.executable, "-m", "pip", "config", "list"]
    answer = run_tool(command, report, env=environ, private=True)
    scopes: dict[str, dict[str, str]] = {scope: {} for scope in _SCOPES}
    for line in answer.output.splitlines() if answer.code == 0 else ():
        name, equals, value = line.partition("=")
        scope, _, option = name.rpartition(".")
        if equals and scope in scopes:
            try:
                scopes[scope][option] = str(ast.literal_eval(value))
            except (SyntaxError, ValueError):
                continue  # not a value quoted by pip
    return PipConfig(scopes["global"] | scopes["install"] | scopes[":env:"])


LOCK = "uv.lock"
#: Variables that would make uv use another environment.
_MISLEADING = (
    *("VIRTUAL_ENV", "CONDA_PREFIX", "UV_PROJECT_ENVIRONMENT", "UV_PYTHON", "UV_SYSTEM_PYTHON"),
    *("UV_PROJECT", "UV_WORKING_DIR", "PYTHONPATH", "PYTHONHOME"),
)


class UvEnvironment(PrefixEnvironment):
    """A virtual environment."""

    def variables(self, launch: Launch) -> dict[str, str]:
        return {**super().variables(launch), "VIRTUAL_ENV": str(self.prefix)}


def build_uv(spec: EnvironmentSpec, report: BuildReport) -> UvEnvironment:
    """Return the environment that ``spec.source`` describes, built if necessary.

    Raises:
        EnvironmentBuildError: uv is missing, or the build fails.
    """
    assert spec.source is not None
    recipe = _recipe(spec.source)
    prefix, packages = obtain_prefix(
        spec,
        recipe.content,
        lambda prefix, lock: _make(recipe, spec, prefix, lock, report),
        report,
    )
    return UvEnvironment(spec, prefix, packages, python_of(prefix))


@dataclass(frozen=True, slots=True)
class _Step:
    """One call of uv: its arguments and its input."""

    arguments: tuple[str, ...]
    stdin: str = ""


@dataclass(frozen=True, slots=True)
class _Recipe:
    """The steps to create an environment, after ``uv venv`` with the options ``venv``."""

    content: CachedContent
    folder: Path
    venv: tuple[str, ...] = ()
    steps: tuple[_Step, ...] = ()
    sync: bool = False


def _recipe(source: Path) -> _Recipe:
    match source.suffix.lower():
        case ".toml":
            return _pyproject(source)
        case ".yaml" | ".yml":
            return _python_env(source)
    content = CachedContent("uv requirements")
    content.add_own_python()
    content.add_requirements(source)
    return _Recipe(
        content,
        source.parent,
        venv=("--no-project", "--python", sys.executable),
        steps=(_Step(("--requirements", str(source))),),
    )


def _pyproject(source: Path) -> _Recipe:
    folder = source.parent
    locked = (folder / LOCK).is_file()
    content = CachedContent("uv locked project" if locked else "uv project")
    content.add_file(source)
    content.add_file(folder / ".python-version")
    content.add("folder", str(folder.resolve()))  # the project itself, and packages beside it
    if locked:
        content.add_file(folder / LOCK)
        return _Recipe(content, folder, sync=True)
    # Run in the project's folder, where uv selects a Python that requires-python allows.
    return _Recipe(content, folder, steps=(_Step(("--requirements", str(source))),))


def _python_env(source: Path) -> _Recipe:
    """Return the recipe of a python_env.yaml (https://mlflow.org/docs/latest/ml/projects/)."""
    import yaml  # takes 20 ms, and most experiments have no such file

    try:
        described = yaml.safe_load(source.read_text(encoding="utf-8")) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise EnvironmentBuildError(f"{source} cannot be read: {error}") from error
    if not isinstance(described, dict) or "channels" in described:
        raise EnvironmentBuildError(
            f"expected MLflow's python_env.yaml, got {source}",
            "Write python, build_dependencies and dependencies; for a file of conda, conda:FILE",
        )
    content = CachedContent("uv python_env")
    content.add("asked for", str(described.get("python")))
    python = _wanted_python(described.get("python"))
    if python == sys.executable:
        content.add_own_python()
    steps = []
    for key in ("build_dependencies", "dependencies"):
        lines = described.get(key) or []
        if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
            raise EnvironmentBuildError(f"expected a list of requirements in {key} of {source}")
        text = "\n".join(_from(source.parent, line) for line in lines)
        content.add_requirement_lines(text, source.parent)
        if text:
            # Through standard input: arguments are visible to other users, and URLs may hold
            # passwords.
            steps.append(_Step(("--requirements", "-"), text + "\n"))
    return _Recipe(content, source.parent, ("--no-project", "--python", python), tuple(steps))


def _wanted_python(version: object) -> str:
    """Return the Python for uv: a version, or radt's own interpreter if it has that version."""
    text = "" if version is None else str(version).strip()
    own = platform.python_version()
    return sys.executable if not text or f"{own}.".startswith(f"{text}.") else text


def _from(folder: Path, line: str) -> str:
    """Return a requirement line with the absolute path of its file."""
    option, _, value = line.strip().partition(" ")
    if option in ("-r", "-c", "--requirement", "--constraint") and value.strip():
        return f"{option} {folder / value.strip()}"
    return line.strip()


def _make(
    recipe: _Recipe, spec: EnvironmentSpec, prefix: Path, lock: int, report: BuildReport
) -> str:
    uv = find_uv(report)
    report.say(f"building {spec} with uv")
    environ = {name: text for name, text in os.environ.items() if name not in _MISLEADING}
    pip = read_pip_config(environ, report)
    environ |= pip.uv_variables(environ)
    environ["UV_PROJECT_ENVIRONMENT"] = str(prefix)
    no_index = ("--no-index",) if pip.no_index else ()

    def call(arguments: Sequence[str], stdin: str = "") -> None:
        answer = run_tool(
            [uv, *arguments],
            report,
            cwd=recipe.folder,
            env=environ,
            stdin=stdin,
            keep_fds=[lock],
        )
        if answer.code != 0:
            raise report.failed(
                f"uv could not build {spec} (exit code {answer.code}):\n{answer.complaint}",
                _remedy(answer.complaint),
            )

    if recipe.sync:
        call(["sync", "--frozen"])
    else:
        call(["venv", *recipe.venv, str(prefix)])
        for step in recipe.steps:
            install = ["pip", "install", *no_index, "--python", str(python_of(prefix))]
            call([*install, *step.arguments], step.stdin)
    return list_packages(python_of(prefix), report)


def _remedy(complaint: str) -> str:
    if "No space left" in complaint:
        return "Free space, or set RADT_ENVIRONMENTS and UV_CACHE_DIR to folders with some GB free"
    return ""


def find_uv(report: BuildReport) -> str:
    """Find uv on PATH, next to radt's interpreter, or where its installer puts it.

    Raises:
        EnvironmentBuildError: uv is in none of these places.
    """
    places = [Path(sys.executable).parent, Path.home() / ".local/bin", Path.home() / ".cargo/bin"]
    uv = shutil.which("uv") or next(
        (str(place / "uv") for place in places if os.access(place / "uv", os.X_OK)), None
    )
    if uv is None:
        raise EnvironmentBuildError(
            "uv is not installed",
            "Install it with `pip install uv`, or see https://docs.astral.sh/uv/",
            str(report.log),
        )
    return uv
