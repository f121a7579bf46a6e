"""Paths from users: resolve relative ones, report failed look-ups, convert from and to URIs."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from radt.errors import UsageError, cut

_SQLITE = "sqlite:///"
_DATABASES = ("sqlite:", "postgresql", "mysql", "mssql")


@contextmanager
def lookups() -> Iterator[None]:
    """Turn an OSError about a path that a user wrote into a `UsageError`.

    Examples: the name is too long, a folder on the way cannot be searched, or the disk fails.
    """
    try:
        yield
    except OSError as error:
        shown = "" if error.filename is None else f"{cut(str(error.filename), 80)!r}: "
        raise UsageError(
            f"a path in it cannot be looked up: {shown}{error.strerror or error}", "Check the path"
        ) from error


def expanded(text: str) -> Path:
    """Return the path with ``~`` expanded; the home of an unknown user is left unexpanded."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 - pathlib raises for unknown users


def may_exist(path: Path) -> bool:
    """Return True if the path exists, or if permissions prevent finding out."""
    try:
        return path.exists()
    except OSError as error:
        return error.errno in (errno.EACCES, errno.EPERM)


def start_folder() -> Path:
    """Return the folder that the program was started in, the base of relative data folders.

    Hydra runs jobs in folders of their own, and a script may change its working folder before it
    imports radt. The start folder is known from Hydra, or from Python if the script was given by a
    relative path (``python train.py``). Otherwise (a notebook, ``-m``, an absolute path), return
    the current folder. ``$PWD`` is not reliable: Jupyter and other programs that start a process in
    another folder leave it unchanged.
    """
    return _start_of_hydra() or _start_of_script() or Path.cwd()


def has_moved() -> bool:
    """Return True if the working folder has changed, so that relative paths may mislead.

    If the start folder is unknown, compare with ``$PWD``.
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
    except Exception:  # noqa: BLE001 - no Hydra, or no Hydra job is running
        return None
    return start if start.is_dir() else None


def _start_of_script() -> Path | None:
    file = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    folder = os.path.abspath(os.path.dirname(file))  # noqa: PTH100, PTH120 - keep links
    if folder == os.path.dirname(sys.executable) or file in sys.orig_argv:  # noqa: PTH120
        return None  # an installed command, such as pytest; or an absolute path
    # Python puts the working folder before a relative path and changes nothing else.
    endings = [f"/{word}" for word in sys.orig_argv[1:]]
    return next((Path(file.removesuffix(each)) for each in endings if file.endswith(each)), None)


def sqlite_uri(database: Path) -> str:
    """Return the URI of an SQLite database for SQLAlchemy and MLflow.

    >>> sqlite_uri(Path("/data/a b/100%?#.db"))
    'sqlite:////data/a b/100%25%3F%23.db'
    """
    return f"{_SQLITE}{uri_path(str(database))}"


def uri_path(path: str) -> str:
    """Quote the characters of a path that have a special meaning in a URI."""
    return path.replace("%", "%25").replace("?", "%3F").replace("#", "%23")


def sqlite_file(uri: str) -> Path | None:
    """Return the file of an SQLite URI, or None for other databases and servers.

    >>> sqlite_file("sqlite:////data/100%25.db?timeout=5"), sqlite_file("http://mlflow.org")
    (PosixPath('/data/100%.db'), None)
    """
    if not uri.startswith(_SQLITE):
        return None
    path = unquote(uri.removeprefix(_SQLITE).partition("?")[0])
    return None if path in ("", ":memory:") else Path(path)


def is_database(uri: str) -> bool:
    """Return True if an MLflow address is a database rather than a server or a folder."""
    return uri.startswith(_DATABASES)
