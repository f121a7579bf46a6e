"""Database addresses: hide passwords in what is shown or logged, and select the driver."""

from __future__ import annotations

import re
from collections.abc import Iterable

HIDDEN = "***"
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
    return _IN_QUERY.sub(rf"\1{HIDDEN}", _CREDENTIALS.sub(f"://{HIDDEN}@", text))


#: Addresses of notifications carry secrets in user, path and query; those of chat services also in
#: the host.
_SHOWN_HOSTS = ("http://", "https://", "json://", "jsons://")
_ADDRESS = re.compile(
    r"([a-z][a-z0-9+.-]*://)(?:\S*@)?([^\s/?#'\"]+)[^\s'\"]*?(?=[:,.;)]*(?:[\s'\"]|$))",
    re.IGNORECASE,
)


def masked_addresses(text: str) -> str:
    """Reduce each address in a text to its scheme and, for web servers, its host.

    >>> masked_addresses("curl https://me:pw@hooks.example.org/T0/secret?a=b failed")
    'curl https://hooks.example.org/*** failed'
    >>> masked_addresses("slack://token/token2/token3")
    'slack://***'
    """

    def shown(match: re.Match[str]) -> str:
        is_web = match[1].lower() in _SHOWN_HOSTS
        return f"{match[1]}{match[2]}/{HIDDEN}" if is_web else f"{match[1]}{HIDDEN}"

    return masked(_ADDRESS.sub(shown, text))


def is_masked(uri: str) -> bool:
    """Return True if parts of a URI are hidden, so that it cannot be used to connect."""
    return HIDDEN in uri


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
