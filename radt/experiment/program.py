"""Programs: Python scripts, modules, executables and MLproject folders, and how to find them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.machinery import ModuleSpec
from pathlib import Path

from radt.errors import UsageError
from radt.experiment.columns import did_you_mean
from radt.paths import expanded


class ProgramKind(StrEnum):
    """The way a program is started."""

    SCRIPT = "script"  # python FILE
    MODULE = "module"  # python -m MODULE
    EXECUTABLE = "executable"  # FILE
    COMMAND = "command"  # an executable on PATH, such as torchrun
    PROJECT = "project"  # the main entry point of MLflow's MLproject file in FOLDER


@dataclass(frozen=True, slots=True)
class Program:
    """The program of a run, and where it runs.

    ``path`` is absolute: the script, the executable, the project's folder; for a module the folder
    that it is imported from, for a command on PATH the folder of the experiment. ``module`` is
    empty unless ``kind`` is MODULE. ``command`` is empty unless it is COMMAND: a name to be
    resolved by the PATH of the run's environment.
    """

    kind: ProgramKind
    path: Path
    module: str = ""
    command: str = ""

    @property
    def folder(self) -> Path:
        """Return the working directory."""
        in_it = self.kind in (ProgramKind.MODULE, ProgramKind.PROJECT, ProgramKind.COMMAND)
        return self.path if in_it else self.path.parent

    @property
    def is_python(self) -> bool:
        """Return True if it needs the environment's Python interpreter."""
        return self.kind in (ProgramKind.SCRIPT, ProgramKind.MODULE)

    @property
    def recorded(self) -> str:
        """Return its name in the run's parameter File."""
        return self.module or self.command or self.path.name

    @property
    def label(self) -> str:
        """Return its name in messages."""
        if self.kind is ProgramKind.PROJECT:
            return self.path.name
        return self.module or self.command or self.path.stem


_MODULE = re.compile(r"-m\s*(.*)", re.DOTALL)
_MODULE_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_PYTHON = re.compile(r"python[\d.]*\s+(.+)", re.DOTALL)


def find_program(text: str, folders: Sequence[Path], *, own_python: bool = True) -> Program:
    """Find the program that a File cell names, searching the folders in order.

    The folder is resolved; the program's own name is kept even if it is a symbolic link.

    Args:
        text: A path, or ``-m`` and a module's name.
        folders: The folders to search, the experiment's first.
        own_python: True if radt's own Python runs it. Then a module that cannot be imported is an
            error; another environment may have it.

    Raises:
        UsageError: It does not exist, or cannot be run.
    """
    if not text.strip():
        raise UsageError("the cell is empty", "Name the script to run")
    folders = list(dict.fromkeys(folders))
    module = _MODULE.fullmatch(text.strip())
    if module is not None:
        return _find_module(module[1].strip(), folders, own_python=own_python)
    given = expanded(text) if text.startswith("~/") else Path(text)
    places = [folder / given for folder in folders]
    path = next((place for place in places if place.exists()), None)
    if path is None:
        word = text.strip()
        if "/" not in word and shutil.which(word):
            return Program(ProgramKind.COMMAND, folders[0].resolve(), command=word)
        raise UsageError(f"there is no file {text!r}", _similar_file(text, places))
    if path.is_dir():
        return _project(text, path)
    if not path.is_file():
        raise UsageError(f"{text!r} is not a file", "Name the script to run")
    if not os.access(path, os.R_OK):
        raise UsageError(f"{text!r} is not readable", f"chmod +r {shlex.quote(text)}")
    if path.suffix != ".py" and not os.access(path, os.X_OK):
        raise UsageError(
            f"{text!r} is neither a Python script (.py) nor executable",
            f"chmod +x {shlex.quote(text)}",
        )
    kind = ProgramKind.SCRIPT if path.suffix == ".py" else ProgramKind.EXECUTABLE
    return Program(kind, path.parent.resolve() / path.name)


def launched_script(arguments: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    """Return the name and the arguments of the script or module that a launcher starts, if any.

    >>> launched_script(["--nproc-per-node", "2", "train.py", "--lr", "0.1"])
    ('train', ('--lr', '0.1'))
    """
    for position, argument in enumerate(arguments):
        is_module = position > 0 and arguments[position - 1] in ("-m", "--module")
        if is_module or argument.endswith(".py"):
            name = argument if is_module else Path(argument).stem
            return name, tuple(arguments[position + 1 :])
    return None


def _project(text: str, folder: Path) -> Program:
    # Imported here: few programs are projects, and only they need the YAML parser.
    from radt.environments.mlproject import PROJECT_FILE, project_file

    if project_file(folder) is None:
        raise UsageError(
            f"expected a script or a folder with MLflow's {PROJECT_FILE} file, got the folder "
            f"{text!r} without one",
            "Name the script to run",
        )
    return Program(ProgramKind.PROJECT, folder.resolve())


def _find_module(name: str, folders: Sequence[Path], *, own_python: bool) -> Program:
    if _MODULE_NAME.fullmatch(name) is None:
        if name.partition(" ")[0] != name:
            remedy = "Its arguments go into Params"
        else:
            remedy = "Write -m package.module, without .py"
        raise UsageError(
            f"{name!r} is not the name of a module" if name else "-m needs a module", remedy
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
    """Find an installed module; unlike `importlib.util.find_spec`, import no package."""
    path: Sequence[str] | None = None
    spec: ModuleSpec | None = None
    for end in range(1, len(parts) + 1):
        if end > 1 and path is None:
            return None  # a plain module has no submodules
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
    if hint := _similar(parts[-1], [folder.joinpath(*parts[:-1]) for folder in folders], ".py"):
        return hint
    return "radt looks in this file's folder, in the current one, and at installed packages"


def _similar_file(text: str, places: Sequence[Path]) -> str:
    if python := _PYTHON.fullmatch(text.strip()):
        return f"Write {python[1]} alone; radt starts Python"
    if hint := _similar(places[0].name, [place.parent for place in places]):
        return hint
    if len(places) > 1:
        return "radt looks in this file's folder, then in the current one"
    return "Check the path"


def _similar(name: str, folders: Sequence[Path], suffix: str = "") -> str:
    """Return a question for the most similar file with this suffix; "" if none is near."""
    for folder in folders:
        try:
            files = [entry.name for entry in folder.iterdir() if entry.is_file()]
        except OSError:  # the folder is missing or unreadable, so no hint
            continue
        known = [file.removesuffix(suffix) for file in files if file.endswith(suffix)]
        if hint := did_you_mean(name, known):
            return hint
    return ""
