"""Paths that users choose: looked up with a report instead of a traceback, and as URIs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

from radt.errors import UsageError, cut

_SQLITE = "sqlite:///"
_DATABASES = ("sqlite:", "postgresql", "mysql", "mssql")


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
