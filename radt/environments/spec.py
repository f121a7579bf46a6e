"""Environments: the Environment cell, and the interface of a built environment."""

from __future__ import annotations

import difflib
import re
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from radt.errors import UsageError
from radt.paths import expanded


class EnvironmentKind(StrEnum):
    """The tool that provides an environment."""

    LOCAL = "local"
    UV = "uv"
    CONDA = "conda"
    DOCKER = "docker"


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """An environment requested by a run; equal ones are built once.

    ``source`` is the absolute path of the file that describes it (uv, conda); ``image`` is
    docker's; ``data`` are folders that a container must see (absolute). ``volumes`` (as for
    ``docker run --volume``) and ``variables`` (None copies the value from outside) come from
    MLproject files.
    """

    kind: EnvironmentKind = EnvironmentKind.LOCAL
    source: Path | None = None
    image: str = ""
    data: tuple[Path, ...] = ()
    volumes: tuple[str, ...] = ()
    variables: tuple[tuple[str, str | None], ...] = ()

    def __str__(self) -> str:
        match self.kind:
            case EnvironmentKind.DOCKER:
                return f"docker:{self.image}"
            case EnvironmentKind.UV | EnvironmentKind.CONDA:
                return f"{self.kind}:{self.source.name}" if self.source else str(self.kind)
        return str(self.kind)


LOCAL = EnvironmentSpec()


UV_FILES = ("requirements.txt", "python_env.yaml", "pyproject.toml")
CONDA_FILES = ("conda.yaml", "conda.yml", "environment.yml", "environment.yaml")

#: Names that docker accepts, roughly: ``registry:5000/owner/name:tag@sha256:…``; no leading dash,
#: which docker would parse as an option.
_IMAGE = re.compile(r"[A-Za-z0-9][\w.\-/:@]*")
_FORMS = "local, uv, uv:FILE, conda, conda:FILE, docker:IMAGE"


def parse_environment(
    text: str,
    folder: Path,
    named: Mapping[str, str],
    data: tuple[Path, ...] = (),
) -> EnvironmentSpec:
    """Parse an Environment cell.

    Args:
        text: ``local`` or nothing; ``uv``, ``uv:FILE``; ``conda``, ``conda:FILE``;
            ``docker:IMAGE``; or one of ``named``.
        folder: Folder in which to look for files: the program's, absolute.
        named: Environments of ``radt.toml``: texts like those above, by name.
        data: Folders that a container must see, absolute.

    Raises:
        UsageError: The text is invalid, or a required file does not exist.
    """
    name = text.strip()
    if name in named:
        try:
            return _parse(named[name].strip(), folder, (), data)
        except UsageError as error:
            raise UsageError(f"environment {name}: {error.message}", error.remedy) from error
    return _parse(name, folder, tuple(named), data)


def _parse(
    text: str, folder: Path, names: tuple[str, ...], data: tuple[Path, ...]
) -> EnvironmentSpec:
    word, colon, rest = (part.strip() for part in text.partition(":"))
    match word.lower():
        case "" | EnvironmentKind.LOCAL if not colon:
            return LOCAL
        case EnvironmentKind.UV:
            source = _file(rest, folder) if rest else _only(folder, UV_FILES, word, _counts)
            return EnvironmentSpec(EnvironmentKind.UV, source)
        case EnvironmentKind.CONDA:
            source = _file(rest, folder) if rest else _only(folder, CONDA_FILES, word)
            return EnvironmentSpec(EnvironmentKind.CONDA, source)
        case EnvironmentKind.DOCKER:
            return EnvironmentSpec(EnvironmentKind.DOCKER, image=_image(rest), data=data)
    raise UsageError(f"unknown environment {text!r}", _suggestion(text, names, folder))


def _file(name: str, folder: Path) -> Path:
    path = (folder / expanded(name)).absolute()
    if not path.exists():
        near = _near(path)
        raise UsageError(
            f"there is no file {path}",
            f"Did you mean {near}?"
            if near
            else "Check the name: radt looks in the script's folder",
        )
    if not path.is_file():
        raise UsageError(f"{path} is a folder", "Name the file in it that lists the packages")
    return path


def _near(path: Path) -> str:
    try:
        present = [entry.name for entry in path.parent.iterdir() if entry.is_file()]
    except OSError:
        return ""
    return next(iter(difflib.get_close_matches(path.name, present, n=1)), "")


def _only(
    folder: Path,
    names: tuple[str, ...],
    word: str,
    counts: Callable[[Path], bool] = lambda _: True,
) -> Path:
    """Return the only one of the usual files that exists."""
    present = [name for name in names if (folder / name).is_file() and counts(folder / name)]
    if len(present) == 1:
        return (folder / present[0]).absolute()
    if present:
        raise UsageError(
            f"{folder} holds {' and '.join(present)}",
            f"Say which: {' or '.join(f'{word}:{name}' for name in present)}",
        )
    raise UsageError(
        f"expected {', '.join(names[:-1])} or {names[-1]} in {folder}, got none of them",
        f"Add one, or name another file: {word}:FILE",
    )


def _counts(path: Path) -> bool:
    """Return whether a file lists packages: a pyproject.toml may hold only settings of tools."""
    if path.name != "pyproject.toml":
        return True
    try:
        return "project" in tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return True  # its tool will report the error


def _image(text: str) -> str:
    if not text:
        raise UsageError("docker needs an image", "Write docker:IMAGE, such as docker:python:3.12")
    if not _IMAGE.fullmatch(text):
        raise UsageError(
            f"expected the name of an image, got {text!r}", "Write docker:IMAGE:TAG, without spaces"
        )
    return text


def _suggestion(text: str, names: tuple[str, ...], folder: Path) -> str:
    usual = f"Write {_FORMS}, or a name of [environments] in radt.toml"
    path = folder / text
    if text and path.is_file():
        kind = EnvironmentKind.CONDA if path.name in CONDA_FILES else EnvironmentKind.UV
        return f"For a file, write {kind}:{text}"
    words = [*names, *EnvironmentKind]
    near = difflib.get_close_matches(text.lower(), words, n=1) or difflib.get_close_matches(
        text.partition(":")[0].lower(), words, n=1
    )
    return f"Did you mean {near[0]}? {usual}" if near else usual


@dataclass(frozen=True, slots=True)
class Launch:
    """A run to start in an environment. All paths are absolute.

    ``arguments`` are the program and its arguments, without an interpreter; with ``needs_python``,
    the environment's interpreter precedes them. ``run_dir`` is the run's spool folder and must be
    writable inside. ``variables`` is the training process's environment as the runner computed it.
    ``gpu_uuids`` are UUIDs of GPUs or MIG instances (or indices of GPUs if unknown); ``cpus`` are
    None for all, ``memory_bytes`` None for no limit.
    """

    arguments: tuple[str, ...]
    needs_python: bool
    folder: Path
    run_id: str
    run_dir: Path
    home: Path
    variables: Mapping[str, str] = field(repr=False)  # may contain secrets
    gpu_uuids: tuple[str, ...] = ()
    cpus: frozenset[int] | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """How a program ended.

    ``code`` is negative for a signal; ``container`` is the id of the container it was in, if any.
    """

    code: int
    container: str = ""


class BuiltEnvironment(ABC):
    """A built environment. Call `prepare`, then `command` and `variables`, for each run.

    Attributes:
        spec: The requested environment.
        packages: Its packages as ``name==version`` lines, the interpreter first; empty for radt's
            own interpreter, or if unknown.
        interpreter: Its Python on this machine; None without one (docker).
    """

    spec: EnvironmentSpec
    packages: str
    interpreter: Path | None

    def prepare(self, launch: Launch, say: Callable[[str], None]) -> None:  # noqa: B027 - optional
        """Prepare a run, once, before its command starts.

        Args:
            say: Called with a sentence about each thing that the run may need but not find.

        Raises:
            EnvironmentBuildError: The run cannot be prepared.
        """

    @abstractmethod
    def command(self, launch: Launch) -> list[str]:
        """Return the argument list to execute, without secrets: other users can read it.

        Raises:
            EnvironmentBuildError: The environment lacks a required interpreter.
        """

    @abstractmethod
    def variables(self, launch: Launch) -> dict[str, str]:
        """Return the environment variables to add to ``launch.variables``."""

    def kill_command(self, launch: Launch) -> list[str] | None:  # noqa: ARG002 - for overrides
        """Return the command that ends a run outside its process tree; None if there is none."""
        return None

    def container(self, launch: Launch) -> str:  # noqa: ARG002 - for overrides
        """Return the name of the run's container; "" without one."""
        return ""

    def ended(self, launch: Launch, code: int) -> ProgramEnd:  # noqa: ARG002 - for overrides
        """Return how the program ended, given the exit code of `command`."""
        return ProgramEnd(code)
