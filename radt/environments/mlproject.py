"""Reads MLflow's project folders: an ``MLproject`` file, its environment and entry points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from radt.environments.spec import EnvironmentSpec

#: The file that makes a folder a project.
FILE = "MLproject"
MAIN = "main"


class ParameterType(StrEnum):
    """What MLflow lets a parameter be."""

    STRING = "string"
    FLOAT = "float"
    PATH = "path"
    URI = "uri"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A declared parameter; it must be given if ``default`` is None."""

    name: str
    type: ParameterType = ParameterType.STRING
    default: str | None = None


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """A command with ``{parameters}`` to fill in."""

    name: str
    template: str
    parameters: Mapping[str, Parameter]


@dataclass(frozen=True, slots=True)
class Project:
    """A project folder."""

    name: str
    folder: Path
    environment: EnvironmentSpec
    entry_points: Mapping[str, EntryPoint]

    def command(self, params: Sequence[str], entry_point: str = MAIN) -> list[str]:
        """The argument list of an entry point.

        Raises:
            UsageError: There is no such entry point, or parameters are missing or wrong.
        """
        raise NotImplementedError


def read_project(folder: Path, data: tuple[Path, ...] = ()) -> Project:
    """Read the project in a folder (absolute); ``data`` as for `parse_environment`.

    Raises:
        UsageError: It is not there, cannot be read or is not as MLflow has it.
    """
    raise NotImplementedError


def check_project(folder: Path, params: Sequence[str]) -> None:
    """Say whether the main entry point could be started with these parameters.

    Raises:
        UsageError: It could not.
    """
    read_project(folder).command(params)
