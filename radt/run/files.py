"""Put files of a script into the run's spool folder, from where they are uploaded."""

from __future__ import annotations

import os
import shutil
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from radt.errors import UsageError
from radt.home import RunDir
from radt.run.notices import warn_once
from radt.units import listed

#: Maximum number of skipped files that a warning names.
_NAMED = 5

_Identity = tuple[int, int]  # of a folder: device and inode


def add_file(run_dir: RunDir, source: Path, folder: str | None) -> None:
    """Copy a file or a folder, so that the script may change or delete it afterwards.

    A warning names the files of a folder that cannot be copied (a broken link, a pipe); the rest is
    recorded.

    Raises:
        FileNotFoundError: ``source`` does not exist.
        UsageError: ``folder`` leads out of the run's artifacts.
    """
    target = _inside(run_dir, folder or "") / source.resolve().name
    source.stat()  # raise the script's mistakes; a failing disk only causes a warning

    with _placed(run_dir, target) as (partial, left_out):
        if source.is_dir():
            left_out += _copy_folder(source, partial, (_identity(run_dir.path.stat()),))
        else:
            _copy_file(source, partial)


def add_content(run_dir: RunDir, content: bytes, file: str) -> None:
    """Write a file, and replace an earlier one.

    Raises:
        UsageError: ``file`` leads out of the run's artifacts.
    """
    with _placed(run_dir, _inside(run_dir, file)) as (partial, _):
        partial.write_bytes(content)


def _inside(run_dir: RunDir, path: str) -> Path:
    parts = PurePosixPath(path).parts
    if ".." in parts or path.startswith("/") or "\0" in path:
        raise UsageError(
            f"{path!r} is not a valid artifact path", "Give a relative path without '..'"
        )
    return run_dir.artifacts.joinpath(*parts)


@contextmanager
def _placed(run_dir: RunDir, target: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield a temporary name, then rename what was written there, so that it appears atomically.

    Yields:
        The temporary path of the file or folder, and a list for the files of a folder that are
            skipped.
    """
    partial = run_dir.path / f".incoming-{os.getpid()}-{threading.get_ident()}"
    left_out: list[str] = []
    try:
        yield partial, left_out
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir() and partial.is_dir():
            left_out += _copy_folder(partial, target, ())
            _remove(partial)
        else:
            partial.replace(target)
    except OSError as error:
        _remove(partial)
        warn_once(f"the artifact {target.name!r} was not recorded: {error}")
        return
    if left_out:
        named = listed(left_out, _NAMED)
        warn_once(f"the artifact {target.name!r} was recorded without {named}")


def _copy_folder(source: Path, target: Path, above: tuple[_Identity, ...]) -> Iterator[str]:
    """Copy the contents of a folder and follow links. Yield each skipped file with its reason.

    Args:
        source: The folder.
        target: Its copy; files already in it stay.
        above: Folders that must not be copied.

    Raises:
        OSError: The folder cannot be read, or its copy cannot be created.
    """
    waiting = [(source, target, above, "")]
    while waiting:
        folder, copy, above, inner = waiting.pop()
        try:
            above = (*above, _identity(folder.stat()))
            names = sorted(path.name for path in folder.iterdir())
            copy.mkdir(exist_ok=True)
        except OSError as error:
            if not inner:
                raise
            yield f"{inner!r} ({error.strerror})"
            continue
        for name in names:
            path, shown = folder / name, f"{inner}{name}"
            try:
                status = path.stat()
                if not stat.S_ISDIR(status.st_mode):
                    _copy_file(path, copy / name)
                elif _identity(status) in above:
                    yield f"{shown!r} (it leads back to what is being copied)"
                else:
                    waiting.append((path, copy / name, above, f"{shown}/"))
            except OSError as error:
                yield f"{shown!r} ({error.strerror or error})"


def _copy_file(source: Path, target: Path) -> None:
    """Copy a file with its modification time. Refuse pipes and the like, which have no end."""
    if not stat.S_ISREG(source.stat().st_mode):
        raise OSError("it is not a file")
    try:
        shutil.copy2(source, target)
    except OSError:
        if not target.is_dir():
            target.unlink(missing_ok=True)
        raise


def _identity(status: os.stat_result) -> _Identity:
    return status.st_dev, status.st_ino


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
