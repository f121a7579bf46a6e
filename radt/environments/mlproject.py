"""Reads MLflow's project folders: an ``MLproject`` file, its environment and entry points.

The format is MLflow's (https://mlflow.org/docs/latest/ml/projects/), but read without loading
MLflow, which takes seconds. Differences from MLflow: parameters of type ``path`` are not
downloaded, paths are relative to the project's folder, ``float`` parameters must be numbers, and
options without a value are allowed.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from radt.environments.spec import LOCAL, EnvironmentSpec, parse_environment
from radt.errors import UsageError
from radt.params import is_option
from radt.paths import lookups

PROJECT_FILE = "MLproject"
MAIN = "main"
_ENVIRONMENTS = ("python_env", "conda_env", "docker_env")
#: Files that MLflow looks for if MLproject names no environment.
_USUAL_FILES = {"python_env.yaml": "uv", "conda.yaml": "conda"}
_DOCUMENTATION = "See https://mlflow.org/docs/latest/ml/projects/"


class ParameterType(StrEnum):
    """MLflow's types of parameters; unknown types count as string."""

    STRING = "string"
    FLOAT = "float"
    PATH = "path"
    URI = "uri"


@dataclass(frozen=True, slots=True)
class ProjectParameter:
    """A declared parameter; it must be given if ``default`` is None."""

    name: str
    type: ParameterType = ParameterType.STRING
    default: str | None = None

    def checked(self, value: str, folder: Path) -> str:
        """Check a value and return it for the command.

        Raises:
            UsageError: The value does not have the parameter's type.
        """
        match self.type:
            case ParameterType.FLOAT:
                try:
                    float(value)
                except ValueError as error:
                    raise UsageError(
                        f"parameter {self.name} is {value!r}, not a number", "Give a number"
                    ) from error
            case ParameterType.URI:
                if not urlsplit(value).scheme:
                    raise UsageError(
                        f"parameter {self.name} is {value!r}, not a URI",
                        "Give one, such as file:///data or s3://bucket/data",
                    )
            case ParameterType.PATH:
                return str(self._path(value, folder))
        return value

    def _path(self, value: str, folder: Path) -> Path:
        parts = urlsplit(value)
        if parts.scheme not in ("", "file") or parts.netloc:
            raise UsageError(
                f"parameter {self.name} is {value!r}, which is not on this machine",
                "radt downloads nothing: fetch it and give its path, or declare it as uri",
            )
        path = folder / (unquote(parts.path) if parts.scheme else value)
        with lookups():
            is_there = path.exists()
        if not is_there:
            raise UsageError(
                f"parameter {self.name} is {value!r}, but there is no {path}", "Check the path"
            )
        return path.absolute()


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """A command with ``{parameters}`` to fill in."""

    name: str
    template: str
    parameters: Mapping[str, ProjectParameter]


@dataclass(frozen=True, slots=True)
class Project:
    """A project folder."""

    name: str
    folder: Path
    environment: EnvironmentSpec
    entry_points: Mapping[str, EntryPoint]

    def command(self, params: Sequence[str], entry_point: str = MAIN) -> list[str]:
        """Return the argument list of an entry point: a shell with its command, as in MLflow.

        Args:
            params: ``--name value``, ``--name=value`` or ``name=value``. Undeclared ones are added
                to the command.

        Raises:
            UsageError: The entry point does not exist, or parameters are missing or invalid.
        """
        point = self.entry_points.get(entry_point)
        if point is None:
            present = ", ".join(self.entry_points) or "none"
            raise UsageError(
                f"{self.folder / PROJECT_FILE} has no entry point {entry_point}",
                f"It has {present}; radt runs {MAIN}",
            )
        given = _given(params)
        declared, extra = self._values(point, given), ""
        for name, value in given.items():
            if name not in point.parameters:
                quoted = "" if value is None else f" {shlex.quote(value)}"
                extra += f" --{shlex.quote(name)}{quoted}"
        try:
            line = point.template.format(**declared)
        except (KeyError, IndexError, ValueError, AttributeError) as error:
            raise UsageError(
                f"the command of entry point {point.name} cannot be filled in: {error}",
                "Declare every {parameter} under parameters; write other braces twice: {{ }}",
            ) from error
        return ["bash", "-c", line + extra]

    def _values(self, point: EntryPoint, given: Mapping[str, str | None]) -> dict[str, str]:
        """Return the declared parameters, quoted for the shell."""
        empty = [name for name in point.parameters if name in given and given[name] is None]
        missing = [
            name
            for name, parameter in point.parameters.items()
            if name not in given and parameter.default is None
        ]
        if missing or empty:
            names = [*missing, *empty]
            undeclared = [name for name in given if name not in point.parameters]
            near = difflib.get_close_matches(names[0], undeclared, n=1)
            raise UsageError(
                f"no value is given for {', '.join(names)}",
                f"Did you mean --{names[0]} rather than --{near[0]}?"
                if near
                else f"Add {' '.join(f'--{name} VALUE' for name in names)} to Params",
            )
        values: dict[str, str] = {}
        for name, parameter in point.parameters.items():
            value = given.get(name)
            text = parameter.default if value is None else value
            assert text is not None  # otherwise it was reported as missing
            values[name] = shlex.quote(parameter.checked(text, self.folder))
        return values


def read_project(folder: Path, data: tuple[Path, ...] = ()) -> Project:
    """Read the project in a folder (absolute); ``data`` as for `parse_environment`.

    Raises:
        UsageError: The project is missing, unreadable or not in MLflow's format.
    """
    file = project_file(folder)
    if file is None:
        raise UsageError(f"there is no {PROJECT_FILE} in {folder}", _DOCUMENTATION)
    import yaml  # takes 20 ms, and most experiments have no such file

    try:
        described = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"{file} cannot be read: {error}", "Fix the YAML") from error
    described = {} if described is None else described
    if not isinstance(described, dict):
        raise _wrong(file, "it is not a mapping of names to values")
    if "databricks_spark_job" in described:
        raise _wrong(file, "Databricks jobs run on Databricks only")
    points = described.get("entry_points") or {}
    if not isinstance(points, dict):
        raise _wrong(file, "entry_points is not a mapping of names to commands")
    return Project(
        name=str(described.get("name") or folder.name),
        folder=folder,
        environment=_environment(file, described, data),
        entry_points={
            str(name): _entry_point(file, str(name), point) for name, point in points.items()
        },
    )


def project_file(folder: Path) -> Path | None:
    """Return the file that makes a folder a project; None if there is none.

    As in MLflow, its name may be in any case; ``MLproject`` is preferred.
    """
    try:
        files = [path for path in folder.iterdir() if path.name.lower() == PROJECT_FILE.lower()]
    except OSError:
        return None
    files = [path for path in files if path.is_file()]
    return min(files, key=lambda path: (path.name != PROJECT_FILE, path.name), default=None)


def _environment(
    file: Path, described: Mapping[str, Any], data: tuple[Path, ...]
) -> EnvironmentSpec:
    asked = {name: described[name] for name in _ENVIRONMENTS if described.get(name)}
    if len(asked) > 1:
        raise _wrong(file, f"it names several environments: {', '.join(asked)}")
    for name, value in asked.items():
        if name == "docker_env":
            return _docker(file, value, data)
        if not isinstance(value, str):
            raise _wrong(file, f"{name} is not the name of a file")
        kind = "uv" if name == "python_env" else "conda"
        return parse_environment(f"{kind}:{value}", file.parent, {})
    for usual, kind in _USUAL_FILES.items():
        if (file.parent / usual).exists():
            return parse_environment(f"{kind}:{usual}", file.parent, {})
    return LOCAL


def _docker(file: Path, value: object, data: tuple[Path, ...]) -> EnvironmentSpec:
    image = value.get("image") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(image, str):
        raise _wrong(file, "docker_env names no image")
    volumes, variables = value.get("volumes") or [], value.get("environment") or []
    if not isinstance(volumes, list) or not all(isinstance(volume, str) for volume in volumes):
        raise _wrong(file, 'volumes of docker_env are not texts such as "/data:/data"')
    if not isinstance(variables, list) or not all(map(_is_variable, variables)):
        raise _wrong(
            file, 'environment of docker_env is not a list of "NAME" and ["NAME", "value"]'
        )
    spec = parse_environment(f"docker:{image}", file.parent, {}, data)
    return replace(
        spec,
        volumes=tuple(volumes),
        variables=tuple(
            (item, None) if isinstance(item, str) else (str(item[0]), str(item[1]))
            for item in variables
        ),
    )


def _is_variable(item: object) -> bool:
    return isinstance(item, str) or (isinstance(item, list) and len(item) == 2)


def _entry_point(file: Path, name: str, described: object) -> EntryPoint:
    command = described.get("command") if isinstance(described, dict) else None
    if not isinstance(described, dict) or not isinstance(command, str):
        raise _wrong(file, f"entry point {name} has no command")
    parameters = described.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise _wrong(file, f"parameters of entry point {name} are not a mapping of names to types")
    return EntryPoint(
        name, command, {str(key): _parameter(str(key), value) for key, value in parameters.items()}
    )


def _parameter(name: str, described: object) -> ProjectParameter:
    """Parse ``float`` alone, or ``{type: float, default: 0.1}``."""
    fields = described if isinstance(described, dict) else {"type": described}
    default = fields.get("default")
    kind = str(fields.get("type") or ParameterType.STRING)
    return ProjectParameter(
        name,
        ParameterType(kind) if kind in set(ParameterType) else ParameterType.STRING,
        None if default is None else str(default),
    )


def _given(params: Sequence[str]) -> dict[str, str | None]:
    """Return parameters by name, None for an option without a value. The last occurrence wins."""
    given: dict[str, str | None] = {}
    waiting: str | None = None
    for word in params:
        if is_option(word):
            name, equals, value = word.lstrip("-").partition("=")
            given[name] = value if equals else None
            waiting = None if equals else name
        elif waiting is not None:
            given[waiting] = word
            waiting = None
        elif "=" in word and word.partition("=")[0]:
            name, _, value = word.partition("=")
            given[name] = value
        else:
            raise UsageError(
                f"expected --name value in Params, got {word!r}",
                "Give every parameter of an MLproject its name",
            )
    return given


def _wrong(file: Path, cause: str) -> UsageError:
    return UsageError(f"{file}: {cause}", _DOCUMENTATION)
