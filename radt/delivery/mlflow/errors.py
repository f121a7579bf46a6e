"""Classify failed requests to MLflow (wait, retry, leave out, give up), and check its answers.

MLflow's own client repeats requests for minutes, loses ``Retry-After``, takes an empty answer for
success and any 404 for a deleted run. So the one function that its requests go through is replaced
by one with one attempt, time limits and checked answers: whatever is not an answer of MLflow
becomes a `DeliveryError` that says what to do. Everything else (credentials, certificates,
plug-ins) stays MLflow's.

MLflow (3.17) has no public place for this. Its plug-ins for requests add headers or sign them, and
are the user's to choose. A plug-in for a tracking store sees the calls of the API, not those of
artifacts, and would have to override private methods as well. The settings
``MLFLOW_HTTP_REQUEST_*`` turn repetitions off, and leave answers unchecked. Where a later MLflow
has no such function, its own ways are in force and nothing is lost: `install_http` says so.

Imports MLflow: for the uploader and importers only.
"""

from __future__ import annotations

import inspect
import json
import logging
import re
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

import requests
import urllib3.exceptions
from mlflow.exceptions import MlflowException
from mlflow.utils import rest_utils
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

    The message is the same for the same cause, because a problem is logged once. ``retry_after_s``
    is how long the server asks to be left alone. With ``too_large`` less of the same may be
    accepted, with ``slow`` less of the same may be in time.
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
        "PERMISSION_DENIED",  # of one experiment; somebody has to fix it, nothing is lost
        "REQUEST_LIMIT_EXCEEDED",
        "RESOURCE_EXHAUSTED",
        "TEMPORARILY_UNAVAILABLE",  # "database is locked" arrives as this
    }
)
#: Wrong credentials, or a server that is not MLflow: somebody has to fix it, nothing is lost.
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
    except sqlite3.Error as error:
        raise DeliveryError(ErrorKind.BUSY, f"its database: {_one_line(str(error))}") from error


def delivery_error(error: BaseException) -> DeliveryError:
    """Return what an exception from MLflow's client, its database or its connection means."""
    for link in _chain(error):
        if isinstance(link, DeliveryError):  # of `radt.delivery.mlflow.errors`, wrapped by MLflow
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
    """Return the problem of a tracking database that this process writes to itself."""
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
    """Return whether a connection was made, and silent then."""
    return any(
        isinstance(cause, requests.exceptions.ReadTimeout | urllib3.exceptions.ReadTimeoutError)
        for cause in _inside(error)
    )


def _never_connected(error: BaseException) -> bool:
    return any(
        isinstance(cause, urllib3.exceptions.NewConnectionError | socket.gaierror)
        for cause in _inside(error)
    )


def _reason(error: BaseException) -> str:
    """Return the operating system's words for the innermost cause."""
    causes = list(_inside(error))
    for cause in reversed(causes):
        if isinstance(cause, socket.gaierror):
            return "its name is not known"
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror.lower()
    return _one_line(str(causes[-1])) or type(causes[-1]).__name__


def _inside(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, and those that it was made of: urllib3 keeps them in several places."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        link = waiting.pop(0)
        if id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        candidates = (link.__cause__, link.__context__, getattr(link, "reason", None), *link.args)
        waiting += [inner for inner in candidates if isinstance(inner, BaseException)]


def _one_line(text: str) -> str:
    lines = _OBJECT.sub("", text).strip().splitlines()
    return masked(lines[0])[:_TEXT_LIMIT] if lines else ""


log = logging.getLogger(__name__)

#: The function of `mlflow.utils.rest_utils` that all its requests go through (MLflow 2 and 3).
HOOK = "_get_http_response_with_retries"
#: Longest that a server may ask us to wait.
MAX_RETRY_AFTER_S = 900.0
_CONNECT_TIMEOUT_S = 10.0
_DEFAULT_TIMEOUT_S = 60.0
#: Of these, a second request would make a second thing.
_NOT_REPEATABLE = ("/runs/create", "/experiments/create")
_FILES = "/mlflow-artifacts/artifacts"
#: Answers of something in front of a server that is down or overwhelmed.
_IN_FRONT = frozenset({408, 502, 503, 504, 520, 521, 522, 523, 524})


def install_http() -> None:
    """Replace it; harmless if it has been."""
    original: Callable[..., requests.Response] | None = getattr(rest_utils, HOOK, None)
    if original is None:  # a later MLflow: its own ways are slower, yet nothing is lost
        log.warning("this MLflow has no %s; its own retries are in force", HOOK)
    elif not isinstance(original, _Requests):
        setattr(rest_utils, HOOK, _Requests(original))


class _Requests:
    """Stands in for MLflow's function.

    Raises:
        DeliveryError: No answer, or none of MLflow.
    """

    def __init__(self, original: Callable[..., requests.Response]) -> None:
        self._original = original
        self._signature = inspect.signature(original)

    def __call__(self, *given: Any, **options: Any) -> requests.Response:
        call = self._signature.bind(*given, **options)
        more = call.arguments.setdefault("kwargs", {})
        timeout_s = more.get("timeout") or _DEFAULT_TIMEOUT_S
        more["timeout"] = (min(_CONNECT_TIMEOUT_S, timeout_s), timeout_s)
        call.arguments |= {
            "max_retries": 0,
            "raise_on_status": False,
            "respect_retry_after_header": False,
        }
        answer = self._answer(call)
        if (problem := problem_of(answer, streamed=bool(more.get("stream")))) is not None:
            raise problem
        return answer

    def _answer(self, call: inspect.BoundArguments) -> requests.Response:
        repeatable = not str(call.arguments["url"]).endswith(_NOT_REPEATABLE)
        while True:
            try:
                return self._original(*call.args, **call.kwargs)
            except requests.exceptions.RequestException as error:
                problem = connection_error(error)
                broke = problem.kind is ErrorKind.BUSY and not timed_out(error)
                if not broke or not repeatable:
                    raise problem from error
            # One that was kept open may have been closed while the request was on its way.
            repeatable = False
            _rewind(call.arguments["kwargs"].get("data"))


def _rewind(data: Any) -> None:
    if hasattr(data, "seek"):
        data.seek(0)


def problem_of(answer: requests.Response, *, streamed: bool = False) -> DeliveryError | None:
    """Return what is wrong with an answer; None if it is one of MLflow, be it a refusal.

    The body of a `streamed` answer is a file and is not read.
    """
    status = answer.status_code
    if status == 413:
        return DeliveryError(
            ErrorKind.REFUSED, "the request is too large for the server (413)", too_large=True
        )
    if status == 429 or (status == 503 and "Retry-After" in answer.headers):
        retry_after_s = retry_after(answer.headers.get("Retry-After"), answer.headers.get("Date"))
        return DeliveryError(
            ErrorKind.UNREACHABLE,
            f"the server asks to retry later ({status})",
            retry_after_s=retry_after_s,
        )
    if status < 300:
        return None if streamed or not _is_api(answer) else _problem_of_success(answer)
    if "error_code" in (_json_object(answer) or {}):
        return None  # MLflow's own words, which its client understands
    if status == 401:
        return DeliveryError(
            ErrorKind.UNREACHABLE,
            "the server refuses user and password (401); set MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN",
        )
    if status == 403:
        return DeliveryError(ErrorKind.BUSY, f"the server forbids this (403): {_excerpt(answer)}")
    if status in _IN_FRONT:
        return DeliveryError(ErrorKind.UNREACHABLE, f"the server is not available ({status})")
    if status >= 500:
        return DeliveryError(ErrorKind.BUSY, f"the server fails ({status}): {_excerpt(answer)}")
    return DeliveryError(
        ErrorKind.UNREACHABLE, f"the address is not an MLflow server ({status}){_way(answer)}"
    )


def _problem_of_success(answer: requests.Response) -> DeliveryError | None:
    if answer.status_code == 204 or _json_object(answer) is not None:
        return None
    if not answer.content.strip():
        if _FILES in _asked(answer):
            return None  # where a file was taken, MLflow says nothing
        return DeliveryError(ErrorKind.UNREACHABLE, f"the server's answer is empty{_way(answer)}")
    kind = answer.headers.get("Content-Type", "").partition(";")[0] or "no content type"
    return DeliveryError(
        ErrorKind.UNREACHABLE, f"the address is not an MLflow server ({kind}){_way(answer)}"
    )


def retry_after(header: str | None, date: str | None = None) -> float | None:
    """Seconds that a ``Retry-After`` header asks for (RFC 9110, 10.2.3); None without a valid one.

    A time is by the server's clock: the header ``Date`` says what that shows now.

    >>> retry_after("7"), retry_after("Wed, 21 Oct 2015 07:28:00 GMT"), retry_after("soon")
    (7.0, 0.0, None)
    >>> retry_after("Wed, 21 Oct 2015 07:28:00 GMT", "Wed, 21 Oct 2015 07:27:30 GMT")
    30.0
    """
    if not header:
        return None
    try:
        seconds = float(header)
    except ValueError:
        until = _http_date(header)
        if until is None:
            return None
        seconds = (until - (_http_date(date or "") or datetime.now(UTC))).total_seconds()
    return min(max(0.0, seconds), MAX_RETRY_AFTER_S) if seconds == seconds else None


def _http_date(text: str) -> datetime | None:
    try:
        time = parsedate_to_datetime(text)
    except ValueError:
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _is_api(answer: requests.Response) -> bool:
    """Return whether it answers a call of MLflow's API, which is always answered in JSON."""
    return "/api/" in _asked(answer)


def _asked(answer: requests.Response) -> str:
    """Return the path that was asked for at first."""
    first = answer.history[0] if answer.history else answer
    return urlsplit(str(first.url)).path


def _json_object(answer: requests.Response) -> dict[str, Any] | None:
    try:
        value = json.loads(answer.content)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _excerpt(answer: requests.Response) -> str:
    text = (_json_object(answer) or {}).get("message") or answer.text
    return masked(" ".join(str(text).split()))[:120] or "without a reason"


def _way(answer: requests.Response) -> str:
    if not answer.history:
        return ""
    return f", redirected to {masked(urlsplit(str(answer.url))._replace(query='').geturl())}"
