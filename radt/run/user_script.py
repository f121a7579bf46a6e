"""Find the user's script, whatever runs it: Python itself, a launcher, pytest, a worker process.

A launcher (cProfile, a console script, workers of joblib and submitit) is the main module of its
process, but its name and repository say nothing about the experiment. Imports the standard library
only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType

from radt.run_name import script_name

#: Name for code typed into an interpreter or notebook.
INTERACTIVE = "interactive"
_LIBRARIES = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True, slots=True)
class UserScript:
    """Script that gives a standalone run its name.

    ``file`` is as in the parameter File, empty for code that was typed in. ``folder`` is in the
    script's repository. ``arguments`` are its own, not a launcher's. ``function`` is the function
    that a worker or test runner called, else empty.
    """

    name: str
    file: str
    folder: Path
    arguments: tuple[str, ...] = ()
    function: str = ""

    @property
    def run_name(self) -> str:
        """Return the name of its runs, without a number."""
        if self.function:
            return f"{self.name} {self.function}"
        return script_name(self.name, self.arguments)


def user_script() -> UserScript:
    """Return the script that the calling code belongs to.

    It is the main module, unless that is a launcher: then it is the outermost frame of the stack
    that is in neither the standard library nor an installed package. A console script keeps its
    name.
    """
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    path = Path(file).resolve() if file else None
    arguments = tuple(sys.argv[1:])
    if path is not None and not _is_installed(path):
        return _named_after(path, path.parent, arguments)
    frame = _outermost_frame()
    folder = Path.cwd() if frame is None else _file_of(frame).parent
    if "_pytest" in sys.modules and (test := os.environ.get("PYTEST_CURRENT_TEST")):
        module, _, function = test.rpartition(" ")[0].partition("::")
        return UserScript(Path(module).stem, Path(module).name, folder, (), function)
    if path is None:
        return UserScript(INTERACTIVE, "", Path.cwd(), arguments)
    is_program = path.parent in _program_folders()
    if frame is None:
        if not is_program and any(map(_is_typed, _stack())):  # a notebook's function in a worker
            return UserScript(INTERACTIVE, "", folder)
        return _named_after(path, folder, arguments)
    caller = frame.f_back
    if is_program and caller is not None and caller.f_globals is vars(main):
        return _named_after(path, folder, arguments)
    script = _file_of(frame)
    if sys.argv and Path(sys.argv[0]).resolve() == script:  # the launcher passed it its arguments
        return _named_after(script, folder, arguments)
    function = frame.f_code.co_name
    function = function if function.isidentifier() else ""  # <module>, <lambda>
    return UserScript(script.stem, script.name, folder, (), function)


def _named_after(path: Path, folder: Path, arguments: tuple[str, ...]) -> UserScript:
    if path.name == "__main__.py":  # python -m package
        return UserScript(path.parent.name, path.parent.name, folder, arguments)
    return UserScript(path.stem, path.name, folder, arguments)


def _stack() -> Iterator[FrameType]:
    """Yield the calling thread's frames, innermost first."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - inspect.stack reads the sources
    while frame is not None:
        yield frame
        frame = frame.f_back


def _outermost_frame() -> FrameType | None:
    """Return the outermost frame in one of the user's files."""
    for frame in reversed([*_stack()]):
        path = _file_of(frame)
        if path.is_file() and not _is_installed(path):
            return frame
    return None


def _file_of(frame: FrameType) -> Path:
    return Path(frame.f_code.co_filename).resolve()


def _is_typed(frame: FrameType) -> bool:
    """Return True if the code was typed into a notebook or an interpreter."""
    return not (frame.f_code.co_filename.startswith("<frozen") or _file_of(frame).is_file())


def _is_installed(path: Path) -> bool:
    """Return True if a file belongs to Python, an installed package, a console script or radt."""
    python, radt = Path(os.__file__).resolve().parent, Path(__file__).resolve().parents[1]
    return (
        not _LIBRARIES.isdisjoint(path.parts)
        or path.is_relative_to(python)
        or path.is_relative_to(radt)
        or path.parent in _program_folders()
    )


@cache
def _program_folders() -> frozenset[Path]:
    """Return the folders that installers write console scripts into."""
    own = os.path.expanduser("~/.local")  # noqa: PTH111 - the user may have no home
    prefixes = (sys.prefix, sys.base_prefix, "/usr", "/usr/local", own)
    folders = [Path(sys.executable).parent, *(Path(prefix) / "bin" for prefix in prefixes)]
    return frozenset(folder.resolve() for folder in folders)
