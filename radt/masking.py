"""Database addresses: hide passwords in what is shown or logged, and select the driver."""

from __future__ import annotations

import re
from collections.abc import Iterable

_HIDDEN = "***"
#: Matches nothing without a host, as in sqlite:///me@work.db. A password may contain a literal
#: space. A number after the colon that ends the address is a port, not a password. The match does
#: not extend into the next URI of a text.
_CREDENTIALS = re.compile(
    r"://(?!/)(?:[^\s:/@\[]*:(?!\d{1,5}(?:[/?#:,;.)]|\s*$))(?:(?!://).)*|\S*)@"
)
#: Credentials in query parameters: of libpq, of ODBC and of S3's presigned URLs.
_IN_QUERY = re.compile(
    r"(?i)([?&](?:password|sslpassword|user|odbc_connect|x-amz-[a-z-]*)=)[^&\s]+"
)


def masked(text: str) -> str:
    """Replace user and password of each URI in a text; when in doubt, hide more.

    >>> masked("radt a.csv --tracking-uri https://me:p@ss/word@mlflow.org/x"), masked("sqlite:///a")
    ('radt a.csv --tracking-uri https://***@mlflow.org/x', 'sqlite:///a')
    """
    return _IN_QUERY.sub(rf"\1{_HIDDEN}", _CREDENTIALS.sub(f"://{_HIDDEN}@", text))


def is_masked(uri: str) -> bool:
    """Return True if parts of a URI are hidden, so that it cannot be used to connect."""
    return _HIDDEN in uri


def unmasked(uri: str, known: Iterable[str]) -> str:
    """Return the known URI that a masked one stands for, or the URI itself if it is not known.

    >>> unmasked("https://***@mlflow.org", ["http://other", "https://me:pw@mlflow.org"])
    'https://me:pw@mlflow.org'
    """
    return next((candidate for candidate in known if masked(candidate) == uri), uri)


#: psycopg2 is this project's driver. SQLAlchemy 2.1 defaults to psycopg 3.
_POSTGRES = re.compile(r"^\s*(?:postgres|postgresql)(?:\+(?:psycopg2|psycopg))?://", re.IGNORECASE)
_DRIVEN = "postgresql+psycopg2://"


def is_postgres(uri: str) -> bool:
    """Return True if a URI names a Postgres database, with any driver.

    >>> is_postgres("postgres://me@db/radt"), is_postgres("sqlite:///a.db")
    (True, False)
    """
    return _POSTGRES.match(uri) is not None


def with_driver(uri: str) -> str:
    """Set psycopg2 as the driver of a Postgres URI; return any other URI unchanged.

    >>> with_driver("postgres://me@db/radt"), with_driver("http://mlflow:5000")
    ('postgresql+psycopg2://me@db/radt', 'http://mlflow:5000')
    """
    return _POSTGRES.sub(_DRIVEN, uri)
