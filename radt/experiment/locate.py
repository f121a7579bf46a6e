"""Finds the program that a File cell names: a script, an executable, a module, an MLproject."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path

from radt.errors import UsageError
from radt.experiment.cells import did_you_mean
from radt.experiment.program import Program, ProgramKind

#: The file that makes a folder one of MLflow's projects.
PROJECT_NAME = "MLproject"

_MODULE = re.compile(r"-m\s*(.*)", re.DOTALL)
_MODULE_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_PYTHON = re.compile(r"python[\d.]*\s+(.+)", re.DOTALL)


def find_program(text: str, folders: Sequence[Path], *, own_python: bool = True) -> Program:
    """What a File cell names, looked for in these folders one after the other.

    The folder is resolved, the program's own name is kept where it is a symbolic link.

    Args:
        text: A path, or ``-m`` and a module's name.
        folders: The experiment's comes first.
        own_python: Whether radt's own Python runs it; a module that it cannot import is then an
            error, while another environment may have it.

    Raises:
        UsageError: It is not there, or cannot be run.
    """
    if not text.strip():
        raise UsageError("it is empty", "Name the script to run")
    folders = list(dict.fromkeys(folders))
    module = _MODULE.fullmatch(text.strip())
    if module is not None:
        return _find_module(module[1].strip(), folders, own_python=own_python)
    given = Path(text).expanduser() if text.startswith("~/") else Path(text)
    places = [folder / given for folder in folders]
    found = next((place for place in places if place.exists()), None)
    if found is None:
        raise UsageError(f"there is no file {text!r}", _similar_file(text, places))
    if found.is_dir():
        return _project(text, found)
    if not found.is_file():
        raise UsageError(f"{text!r} is not a file", "Name the script to run")
    if not os.access(found, os.R_OK):
        raise UsageError(f"{text!r} may not be read", f"chmod +r {shlex.quote(text)}")
    if found.suffix != ".py" and not os.access(found, os.X_OK):
        raise UsageError(
            f"{text!r} is neither a Python script (.py) nor executable",
            f"chmod +x {shlex.quote(text)}",
        )
    kind = ProgramKind.SCRIPT if found.suffix == ".py" else ProgramKind.EXECUTABLE
    return Program(kind, found.parent.resolve() / found.name)


def _project(text: str, folder: Path) -> Program:
    if not (folder / PROJECT_NAME).is_file():
        raise UsageError(
            f"{text!r} is a folder without {PROJECT_NAME}",
            f"Name the script to run, or a folder with MLflow's {PROJECT_NAME} file",
        )
    return Program(ProgramKind.PROJECT, folder.resolve())


def _find_module(name: str, folders: Sequence[Path], *, own_python: bool) -> Program:
    if _MODULE_NAME.fullmatch(name) is None:
        if name.partition(" ")[0] != name:
            remedy = "Its arguments go into Params"
        else:
            remedy = "Write -m package.module, without .py"
        raise UsageError(
            f"{name!r} is not the name of a module" if name else "-m lacks a module", remedy
        )
    parts = name.split(".")
    package = ""
    for folder in folders:
        path = folder.joinpath(*parts)
        if path.with_name(f"{parts[-1]}.py").is_file() or (path / "__main__.py").is_file():
            return Program(ProgramKind.MODULE, folder.resolve(), name)
        if path.is_dir() and any(path.glob("*.py")):
            package = str(path)
    if own_python:
        spec = _spec(parts)
        if spec is not None and spec.submodule_search_locations is not None:
            package = name
            spec = _spec([*parts, "__main__"])
        if spec is None:
            if package:
                raise UsageError(f"the package {name} has no __main__.py", "Name a module in it")
            raise UsageError(f"there is no module {name!r}", _similar_module(parts, folders))
    return Program(ProgramKind.MODULE, folders[0].resolve(), name)


def _spec(parts: Sequence[str]) -> ModuleSpec | None:
    """Where an installed module is; unlike `importlib.util.find_spec` this imports no package."""
    path: Sequence[str] | None = None
    spec: ModuleSpec | None = None
    for end in range(1, len(parts) + 1):
        if end > 1 and path is None:
            return None  # a module has no modules
        spec = _asked(".".join(parts[:end]), path)
        if spec is None:
            return None
        locations = spec.submodule_search_locations
        path = None if locations is None else list(locations)
    return spec


def _asked(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec = find(name, path) if find is not None else None
        if spec is not None:
            assert isinstance(spec, ModuleSpec)
            return spec
    return None


def _similar_module(parts: Sequence[str], folders: Sequence[Path]) -> str:
    for folder in folders:
        place = folder.joinpath(*parts[:-1])
        try:
            names = [entry.stem for entry in place.iterdir() if entry.suffix == ".py"]
        except OSError:  # there is no such package: no hint from it
            continue
        if hint := did_you_mean(parts[-1], names):
            return hint
    return "It is sought in this file's folder, in the current one, and among what is installed"


def _similar_file(text: str, places: Sequence[Path]) -> str:
    if python := _PYTHON.fullmatch(text.strip()):
        return f"Write {python[1]} alone; radt starts Python"
    for place in places:
        try:
            names = [entry.name for entry in place.parent.iterdir() if entry.is_file()]
        except OSError:  # the folder is not there either, or not to be listed: no hint from it
            continue
        if hint := did_you_mean(place.name, names):
            return hint
    if "/" not in text and shutil.which(text):
        return "Commands on PATH are not looked up: name a script, or a module (-m package.module)"
    if len(places) > 1:
        return "Paths start at this file's folder, else at the current one"
    return "Check the path"
