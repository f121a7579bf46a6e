"""Paths that users choose: where relative ones start, looked up with a report, and as URIs."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote

from radt.errors import UsageError, cut

_SQLITE = "sqlite:///"
_DATABASES = ("sqlite:", "postgresql", "mysql", "mssql")
_NO_FOLLOW = os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | _NO_FOLLOW
# Non-blocking: opening a named pipe would block for ever.
_FILE = os.O_RDONLY | os.O_NONBLOCK | _NO_FOLLOW


@contextmanager
def lookups() -> Iterator[None]:
    """Turn what the system answers to a path that a user wrote into a `UsageError`.

    A name may be longer than a name can be, lead through a folder that nobody may search, or stand
    on a disk that fails.
    """
    try:
        yield
    except OSError as error:
        shown = "" if error.filename is None else f"{cut(str(error.filename), 80)!r}: "
        raise UsageError(
            f"a path in it cannot be looked up: {shown}{error.strerror or error}", "Check the path"
        ) from error


def expanded(text: str) -> Path:
    """Return the path, with ``~`` as the user's folder; one of an unknown user stays as it is."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 - pathlib raises where there is no user


def start_folder() -> Path:
    """Return the folder that the program was started in, where relative data folders start.

    Jobs of Hydra run in folders of their own, and a script may change its working folder before it
    imports radt. Hydra knows where it was started, and so does Python for a script that was given
    by a relative path (``python train.py``). Otherwise (a notebook, ``-m``, an absolute path) this
    is the current folder. ``$PWD`` cannot replace it: Jupyter and others that start a process in
    another folder leave it as it was.
    """
    return _start_of_hydra() or _start_of_script() or Path.cwd()


def has_moved() -> bool:
    """Return whether the working folder has changed, so that relative paths may mislead.

    Where the start is not known, ``$PWD`` hints at it.
    """
    start = _start_of_hydra() or _start_of_script() or os.environ.get("PWD")
    try:
        return start is not None and not Path.cwd().samefile(start)
    except OSError:
        return True


def _start_of_hydra() -> Path | None:
    hydra: Any = sys.modules.get("hydra.core.hydra_config")
    try:
        start = Path(hydra.HydraConfig.get().runtime.cwd)
    except Exception:  # noqa: BLE001 - there is no Hydra, or no job of it that runs
        return None
    return start if start.is_dir() else None


def _start_of_script() -> Path | None:
    file = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    folder = os.path.abspath(os.path.dirname(file))  # noqa: PTH100, PTH120 - links stay
    if folder == os.path.dirname(sys.executable) or file in sys.orig_argv:  # noqa: PTH120
        return None  # an installed command, such as pytest; or an absolute path
    # Python puts the working folder before a relative path, and changes nothing else.
    endings = [f"/{word}" for word in sys.orig_argv[1:]]
    return next((Path(file.removesuffix(each)) for each in endings if file.endswith(each)), None)


def sqlite_uri(database: Path) -> str:
    """Return the URI of an SQLite database for SQLAlchemy and MLflow.

    >>> sqlite_uri(Path("/data/a b/100%?#.db"))
    'sqlite:////data/a b/100%25%3F%23.db'
    """
    return f"{_SQLITE}{uri_path(str(database))}"


def uri_path(path: str) -> str:
    """Return the path with what has a meaning of its own in a URI quoted."""
    return path.replace("%", "%25").replace("?", "%3F").replace("#", "%23")


def sqlite_file(uri: str) -> Path | None:
    """Return the file of an SQLite URI; None for other databases and for servers.

    >>> sqlite_file("sqlite:////data/100%25.db?timeout=5"), sqlite_file("http://mlflow.org")
    (PosixPath('/data/100%.db'), None)
    """
    if not uri.startswith(_SQLITE):
        return None
    path = unquote(uri.removeprefix(_SQLITE).partition("?")[0])
    return None if path in ("", ":memory:") else Path(path)


def is_database(uri: str) -> bool:
    """Return whether an address of MLflow is a database, rather than a server or a folder."""
    return uri.startswith(_DATABASES)


def open_below(root: Path, relative: str) -> BinaryIO:
    """Open a regular file below a folder for reading; no link below the folder is followed.

    Args:
        root: The folder; links in its own path are followed.
        relative: The path below it, which others may have written.

    Raises:
        OSError: There is no such file, or the path is absolute, has ``..`` or leads over a link.
    """
    parts = relative.split("/")
    if "\0" in relative or any(part in ("", ".", "..") for part in parts):
        raise OSError(errno.EINVAL, "the path leads out of its folder", relative)
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            below = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = below
        number = os.open(parts[-1], _FILE, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise OSError(errno.ELOOP, "links are not followed", relative) from error
        raise
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "it is not a regular file", relative)
    return os.fdopen(number, "rb")
