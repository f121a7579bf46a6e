"""Addresses of databases as people write them, made such as our driver takes."""

from __future__ import annotations

import re

#: psycopg2 is this project's driver; without one named, SQLAlchemy 2.1 takes psycopg 3.
_POSTGRES = re.compile(r"^\s*(?:postgres|postgresql)(?:\+(?:psycopg2|psycopg))?://", re.IGNORECASE)
_DRIVEN = "postgresql+psycopg2://"


def is_postgres(uri: str) -> bool:
    """Whether a URI names a Postgres database, with whichever driver.

    >>> is_postgres("postgres://me@db/radt"), is_postgres("sqlite:///a.db")
    (True, False)
    """
    return _POSTGRES.match(uri) is not None


def with_driver(uri: str) -> str:
    """The URI with psycopg2 as the driver if it is one of Postgres, else as it is.

    >>> with_driver("postgres://me@db/radt"), with_driver("http://mlflow:5000")
    ('postgresql+psycopg2://me@db/radt', 'http://mlflow:5000')
    """
    return _POSTGRES.sub(_DRIVEN, uri)
