"""Built environments on this machine: one folder for each content, built by one builder at a time.

::

    environments/
    ├── HASH/
    │   ├── complete      written last: without it the folder is the rest of a killed build
    │   ├── env/          the environment itself (uv, conda)
    │   └── facts.json    what building has found out
    └── HASH.lock         held by whoever builds, and by the tools it has started

``complete`` is touched at each use, so its time of change is the last use.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from radt.environments.tool import Report
from radt.errors import EnvironmentBuildError

#: Another place for environments.
CACHE_VARIABLE = "RADT_ENVIRONMENTS"
_COMPLETE = "complete"
_POLL_S = 0.1


def cache_folder() -> Path:
    """``$RADT_ENVIRONMENTS``, else ``radt/environments`` in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    if explicit := os.environ.get(CACHE_VARIABLE):
        return Path(explicit).absolute()
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(xdg) if Path(xdg).is_absolute() else Path.home() / ".cache"
    return base / "radt" / "environments"


def obtain(
    key: str,
    make: Callable[[Path, int], None],
    report: Report,
    *,
    usable: Callable[[Path], bool] = lambda _: True,
) -> Path:
    """The folder of an environment, made if it is not there, or not usable any more.

    Args:
        key: Hash of what the environment holds.
        make: Called with the empty folder and the descriptor of the lock, which the tools that
            it starts must keep open (`radt.environments.tool.run_tool`).

    Raises:
        EnvironmentBuildError: ``make`` did, the folder cannot be written, or building was
            cancelled. Nothing half-made is left.
    """
    folder = cache_folder() / key
    try:
        if not _ready(folder, usable):
            folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _locked(folder, usable, report) as lock:
                if lock is not None:
                    _remove(folder)
                    _fill(folder, lock, make)
        (folder / _COMPLETE).touch()
    except OSError as error:
        raise EnvironmentBuildError(
            f"environments cannot be kept in {folder.parent}: {error.strerror}",
            f"Make room there, or set {CACHE_VARIABLE} to a folder of yours with some GB free",
            str(report.log),
        ) from error
    return folder


def _ready(folder: Path, usable: Callable[[Path], bool]) -> bool:
    return (folder / _COMPLETE).exists() and usable(folder)


def _fill(folder: Path, lock: int, make: Callable[[Path, int], None]) -> None:
    try:
        folder.mkdir()
        make(folder, lock)
        (folder / _COMPLETE).touch()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)  # what stays lacks its mark, and goes next time
        raise


def _remove(folder: Path) -> None:
    if folder.exists():
        (folder / _COMPLETE).unlink(missing_ok=True)  # first: what is being removed is not ready
        shutil.rmtree(folder)


@contextmanager
def _locked(folder: Path, usable: Callable[[Path], bool], report: Report) -> Iterator[int | None]:
    """Hold the right to build; None if somebody else has built it meanwhile.

    The lock is the kernel's and belongs to all processes that have the descriptor: it is free when
    the last of them has ended, so a killed builder's tool, which still writes, keeps others out.
    """
    fd = os.open(f"{folder}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        told = False
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if _ready(folder, usable):  # a daemon that a build has left may keep the lock
                    yield None
                    return
                if not told:
                    report.say("another radt builds this environment: waiting for it")
                    told = True
                report.check()
                time.sleep(_POLL_S)
            else:
                break
        yield None if _ready(folder, usable) else fd
    finally:
        os.close(fd)  # not unlocked: the tools' descriptors are the same lock
