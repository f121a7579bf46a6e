"""Reads an Environment cell."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

from radt.environments.spec import LOCAL, EnvironmentKind, EnvironmentSpec
from radt.errors import UsageError

UV_FILES = ("requirements.txt", "python_env.yaml", "pyproject.toml")
CONDA_FILES = ("conda.yaml", "conda.yml", "environment.yml", "environment.yaml")

#: What docker accepts, roughly: ``registry:5000/owner/name:tag@sha256:…``; no leading dash, which
#: docker would take for an option.
_IMAGE = re.compile(r"[A-Za-z0-9][\w.\-/:@]*")
_FORMS = "local, uv, uv:FILE, conda, conda:FILE, docker:IMAGE"


def parse_environment(
    text: str,
    folder: Path,
    named: Mapping[str, str],
    data: tuple[Path, ...] = (),
) -> EnvironmentSpec:
    """What an Environment cell asks for.

    Args:
        text: ``local`` or nothing; ``uv``, ``uv:FILE``; ``conda``, ``conda:FILE``;
            ``docker:IMAGE``; or one of ``named``.
        folder: Where files are looked up: the program's, absolute.
        named: Environments of ``radt.toml`` by name; their values are texts of the same kinds.
        data: Folders that a container must see, absolute.

    Raises:
        UsageError: It cannot be understood, or a file that it needs is not there.
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
            found = _file(rest, folder) if rest else _only(folder, UV_FILES, word, _counts)
            return EnvironmentSpec(EnvironmentKind.UV, found)
        case EnvironmentKind.CONDA:
            found = _file(rest, folder) if rest else _only(folder, CONDA_FILES, word)
            return EnvironmentSpec(EnvironmentKind.CONDA, found)
        case EnvironmentKind.DOCKER:
            return EnvironmentSpec(EnvironmentKind.DOCKER, image=_image(rest), data=data)
    raise UsageError(f"no environment is called {text!r}", _suggestion(text, names, folder))


def _file(name: str, folder: Path) -> Path:
    path = (folder / Path(name).expanduser()).absolute()
    if not path.exists():
        near = _near(path)
        raise UsageError(
            f"there is no file {path}",
            f"Did you mean {near}?"
            if near
            else "Check the name; it is looked up in the script's folder",
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
    """The one of the usual files that is there."""
    found = [name for name in names if (folder / name).is_file() and counts(folder / name)]
    if len(found) == 1:
        return (folder / found[0]).absolute()
    if found:
        raise UsageError(
            f"{folder} holds {' and '.join(found)}",
            f"Say which: {' or '.join(f'{word}:{name}' for name in found)}",
        )
    raise UsageError(
        f"there is no {', '.join(names[:-1])} or {names[-1]} in {folder}",
        f"Add one, or name another file: {word}:FILE",
    )


def _counts(path: Path) -> bool:
    """Whether it says what to install: a pyproject.toml may hold settings of tools only."""
    if path.name != "pyproject.toml":
        return True
    try:
        return "project" in tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return True  # its tool will say what is wrong with it


def _image(text: str) -> str:
    if not text:
        raise UsageError("docker needs an image", "Write docker:IMAGE, such as docker:python:3.12")
    if not _IMAGE.fullmatch(text):
        raise UsageError(
            f"{text!r} is no name of an image", "Write docker:IMAGE:TAG, without spaces"
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
