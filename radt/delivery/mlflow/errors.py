"""Classify failed requests to MLflow: wait, retry, leave out, or give up.

Imports MLflow: for the deliverer only.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

import requests
import urllib3.exceptions
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    ProgrammingError,
    SQLAlchemyError,
)

from radt.errors import TrackingError
from radt.masking import masked

_TEXT_LIMIT = 500


class ErrorKind(StrEnum):
    """What a failed request means for what comes next."""

    UNREACHABLE = "unreachable"  # nothing will work for now: wait, then try again
    BUSY = "busy"  # this request did not work for now: try again
    GONE = "gone"  # the run or experiment was deleted: give it up
    REFUSED = "refused"  # this content will never be accepted: leave it out


class DeliveryError(TrackingError):
    """A request to MLflow failed.

    Args:
        trouble: What to make of it.
        message: Why; the same text for the same cause, because problems are said once.
        retry_after_s: When the server asks to be left alone: for how long.
        too_large: It was refused for its size: less of the same may be accepted.
        slow: It took too long: less of the same may be in time.
    """

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        *,
        retry_after_s: float | None = None,
        too_large: bool = False,
        slow: bool = False,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.retry_after_s = retry_after_s
        self.too_large = too_large
        self.slow = slow


_BUSY_CODES = frozenset(
    {
        "ABORTED",
        "CANCELLED",
        "DEADLINE_EXCEEDED",
        "INTERNAL_ERROR",
        "PERMISSION_DENIED",  # of one experiment; somebody has to mend it, nothing is lost
        "REQUEST_LIMIT_EXCEEDED",
        "RESOURCE_EXHAUSTED",
        "TEMPORARILY_UNAVAILABLE",  # "database is locked" arrives as this
    }
)
#: Wrong credentials, or a server that is not MLflow: somebody has to mend it, nothing is lost.
_UNREACHABLE_CODES = frozenset({"CUSTOMER_UNAUTHORIZED", "ENDPOINT_NOT_FOUND", "UNAUTHENTICATED"})
#: MLflow says BAD_REQUEST for any error of its database but SQLAlchemy's OperationalError, also
#: when the connection broke; only these are about what was sent.
_OF_CONTENT = re.compile(r"\b(?:DataError|IntegrityError|ProgrammingError|StatementError)\b")
_OF_DATABASE = re.compile(
    r"\((?:psycopg2|sqlite3|pymysql|MySQLdb|pyodbc)\.|\bsqlalchemy\b|sqlalche\.me"
)
_OBJECT = re.compile(r"<[\w.]+ object at 0x[0-9a-f]+>:? ?")


@contextmanager
def translated_errors() -> Iterator[None]:
    """Turn what MLflow's client raises into `DeliveryError`."""
    try:
        yield
    except (MlflowException, SQLAlchemyError, requests.exceptions.RequestException) as error:
        raise delivery_error(error) from error


def delivery_error(error: BaseException) -> DeliveryError:
    """What an exception from MLflow's client, its database or its connection means."""
    for link in _chain(error):
        if isinstance(link, DeliveryError):  # of `radt.delivery.mlflow.http`, wrapped by MLflow
            return link
        if isinstance(link, requests.exceptions.RequestException):
            return connection_error(link)
    for link in _chain(error):
        if isinstance(link, SQLAlchemyError):
            return _database_error(link)
    return DeliveryError(_kind_of(error), _one_line(str(error)) or type(error).__name__)


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__


def _kind_of(error: BaseException) -> ErrorKind:
    if not isinstance(error, MlflowException):
        return ErrorKind.BUSY
    code = error.error_code
    if code == "RESOURCE_DOES_NOT_EXIST":
        return ErrorKind.GONE
    if code in _UNREACHABLE_CODES:
        return ErrorKind.UNREACHABLE
    text = str(error)
    if code == "BAD_REQUEST" and _OF_DATABASE.search(text) and not _OF_CONTENT.search(text):
        return ErrorKind.BUSY
    return ErrorKind.BUSY if code in _BUSY_CODES else ErrorKind.REFUSED


def _database_error(error: SQLAlchemyError) -> DeliveryError:
    """Of a tracking database that we write to ourselves."""
    if isinstance(error, DataError | IntegrityError | ProgrammingError):
        return DeliveryError(ErrorKind.REFUSED, _one_line(str(error)))
    if isinstance(error, DBAPIError) and error.orig is not None:
        return DeliveryError(ErrorKind.BUSY, f"its database: {_one_line(str(error.orig))}")
    return DeliveryError(ErrorKind.BUSY, f"its database: {_one_line(str(error))}")


# -- connections ----------------------------------------------------------------------------------


def connection_error(error: requests.exceptions.RequestException) -> DeliveryError:
    """No answer: nobody is there, or the connection broke in the middle.

    A connection that breaks or is silent in the middle concerns one request: perhaps it is this
    request that the server cannot bear.
    """
    if isinstance(error, requests.exceptions.ConnectTimeout):
        return DeliveryError(ErrorKind.UNREACHABLE, "no connection: it does not answer")
    if timed_out(error):
        return DeliveryError(ErrorKind.BUSY, "no answer in time", slow=True)
    if isinstance(error, requests.exceptions.SSLError):
        return DeliveryError(ErrorKind.UNREACHABLE, f"no secure connection: {_reason(error)}")
    if isinstance(error, requests.exceptions.ProxyError):
        return DeliveryError(ErrorKind.UNREACHABLE, f"the proxy on the way fails: {_reason(error)}")
    if not isinstance(
        error, requests.exceptions.ConnectionError | requests.exceptions.ChunkedEncodingError
    ):
        return DeliveryError(ErrorKind.UNREACHABLE, _one_line(str(error)) or type(error).__name__)
    if _never_connected(error):
        return DeliveryError(ErrorKind.UNREACHABLE, f"no connection: {_reason(error)}")
    return DeliveryError(ErrorKind.BUSY, "the connection broke", slow=True)


def timed_out(error: BaseException) -> bool:
    """Whether a connection was made, and silent then."""
    return any(
        isinstance(one, requests.exceptions.ReadTimeout | urllib3.exceptions.ReadTimeoutError)
        for one in _inside(error)
    )


def _never_connected(error: BaseException) -> bool:
    return any(
        isinstance(one, urllib3.exceptions.NewConnectionError | socket.gaierror)
        for one in _inside(error)
    )


def _reason(error: BaseException) -> str:
    """The operating system's words for the innermost cause."""
    causes = list(_inside(error))
    for one in reversed(causes):
        if isinstance(one, socket.gaierror):
            return "its name is not known"
        if isinstance(one, OSError) and one.strerror:
            return one.strerror.lower()
    return _one_line(str(causes[-1])) or type(causes[-1]).__name__


def _inside(error: BaseException) -> Iterator[BaseException]:
    """An exception, and those that it was made of: urllib3 keeps them in several places."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        candidates = (one.__cause__, one.__context__, getattr(one, "reason", None), *one.args)
        waiting += [inner for inner in candidates if isinstance(inner, BaseException)]


def _one_line(text: str) -> str:
    lines = _OBJECT.sub("", text).strip().splitlines()
    return masked(lines[0])[:_TEXT_LIMIT] if lines else ""
