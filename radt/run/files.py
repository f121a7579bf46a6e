"""Puts files of a script into the run's spool folder, from where they are delivered."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from radt.errors import UsageError
from radt.home import RunDir
from radt.run.notices import warn_once


def add_file(run_dir: RunDir, source: Path, folder: str | None) -> None:
    """Copy a file or a folder, so that the script may change or delete it afterwards.

    Raises:
        FileNotFoundError: It is not there.
        UsageError: ``folder`` leads out of the run's artifacts.
    """
    target = _inside(run_dir, folder or "") / source.resolve().name
    source.stat()  # what the script gets wrong is raised, what the disk refuses is not

    def fill(partial: Path) -> None:
        if source.is_dir():
            shutil.copytree(source, partial)
        else:
            shutil.copyfile(source, partial)

    _place(run_dir, target, fill)


def add_text(run_dir: RunDir, text: str, file: str) -> None:
    """Write a text as a file in UTF-8.

    Raises:
        UsageError: ``file`` leads out of the run's artifacts.
    """
    data = text.encode("utf-8", errors="backslashreplace")  # lone surrogates
    _place(run_dir, _inside(run_dir, file), lambda partial: partial.write_bytes(data))


def _inside(run_dir: RunDir, path: str) -> Path:
    parts = PurePosixPath(path).parts
    if ".." in parts or path.startswith("/") or "\0" in path:
        raise UsageError(
            f"{path!r} is not a valid artifact path", "Give a relative path without '..'"
        )
    return run_dir.artifacts.joinpath(*parts)


def _place(run_dir: RunDir, target: Path, fill: Callable[[Path], object]) -> None:
    """Make a file under a temporary name, then move it: it is there as a whole or not at all."""
    partial = run_dir.path / f".incoming-{os.getpid()}-{threading.get_ident()}"
    try:
        fill(partial)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir() and partial.is_dir():
            shutil.copytree(partial, target, dirs_exist_ok=True)
            _remove(partial)
        else:
            partial.replace(target)
    except (OSError, shutil.Error) as error:
        _remove(partial)
        warn_once(f"the artifact {target.name!r} was not recorded: {error}")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
