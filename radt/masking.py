"""Addresses of databases: passwords hidden in what is shown or logged, and the driver named."""

from __future__ import annotations

import re
from collections.abc import Iterable

_HIDDEN = "***"
#: None without a host, as in sqlite:///me@work.db. A password may hold a raw blank; a port with
#: something else behind it is none, and the next URI of a text does not belong to it.
_CREDENTIALS = re.compile(
    r"://(?!/)(?:[^\s:/@\[]*:(?!\d{1,5}(?:[/?#:,;.)]|\s*$))(?:(?!://).)*|\S*)@"
)
#: Of libpq, which takes them there, too; of ODBC; and of S3's presigned addresses.
_IN_QUERY = re.compile(
    r"(?i)([?&](?:password|sslpassword|user|odbc_connect|x-amz-[a-z-]*)=)[^&\s]+"
)


def masked(text: str) -> str:
    """The text with user and password of each URI in it replaced; rather too much than too little.

    >>> masked("radt a.csv --tracking-uri https://me:p@ss/word@mlflow.org/x"), masked("sqlite:///a")
    ('radt a.csv --tracking-uri https://***@mlflow.org/x', 'sqlite:///a')
    """
    return _IN_QUERY.sub(rf"\1{_HIDDEN}", _CREDENTIALS.sub(f"://{_HIDDEN}@", text))


def is_masked(uri: str) -> bool:
    """Return whether something of a URI is hidden, so that nothing can be reached by it."""
    return _HIDDEN in uri


def unmasked(uri: str, known: Iterable[str]) -> str:
    """Return which of the known URIs the masked one stands for; itself if it is none of them.

    >>> unmasked("https://***@mlflow.org", ["http://other", "https://me:pw@mlflow.org"])
    'https://me:pw@mlflow.org'
    """
    return next((candidate for candidate in known if masked(candidate) == uri), uri)


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
