"""Classify failed requests to MLflow (wait, retry, leave out, give up), and check its responses.

MLflow's own client repeats requests for minutes, loses ``Retry-After``, treats an empty response as
success and any 404 as a deleted run. So the function that sends all its requests is replaced by one
with a single attempt, timeouts and checked responses: any response that is not MLflow's becomes a
`DeliveryError` with a remedy. Everything else (credentials, certificates, plug-ins) remains
MLflow's.

MLflow (3.17) has no public hook for this. Its request plug-ins add headers or sign them, and belong
to the user. A plug-in for a tracking store sees API calls but not those for artifacts, and would
have to override private methods as well. The settings ``MLFLOW_HTTP_REQUEST_*`` turn repetitions
off but leave responses unchecked. If a later MLflow lacks the function, `install_http` reports it;
MLflow's own handling applies and no data is lost.

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
    """Consequence of a failed request."""

    UNREACHABLE = "unreachable"  # nothing will work for now: wait, then retry
    BUSY = "busy"  # this request failed for now: retry it
    GONE = "gone"  # the run or experiment was deleted: give it up
    REFUSED = "refused"  # this content will never be accepted: leave it out


class DeliveryError(TrackingError):
    """A request to MLflow failed.

    The message is the same for the same cause, because a problem is logged once. ``retry_after_s``
    is the wait that the server requests. With ``too_large``, a smaller request may be accepted;
    with ``slow``, a smaller one may be in time.
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
        "PERMISSION_DENIED",  # for one experiment; needs a fix by the user, loses no data
        "REQUEST_LIMIT_EXCEEDED",
        "RESOURCE_EXHAUSTED",
        "TEMPORARILY_UNAVAILABLE",  # "database is locked" arrives as this
    }
)
#: Wrong credentials, or a server that is not MLflow: the user must fix it; no data is lost.
_UNREACHABLE_CODES = frozenset({"CUSTOMER_UNAUTHORIZED", "ENDPOINT_NOT_FOUND", "UNAUTHENTICATED"})
#: MLflow returns BAD_REQUEST for any database error except SQLAlchemy's OperationalError, also when
#: the connection broke; only these concern the request's content.
_OF_CONTENT = re.compile(r"\b(?:DataError|IntegrityError|ProgrammingError|StatementError)\b")
_OF_DATABASE = re.compile(
    r"\((?:psycopg2|sqlite3|pymysql|MySQLdb|pyodbc)\.|\bsqlalchemy\b|sqlalche\.me"
)
_OBJECT = re.compile(r"<[\w.]+ object at 0x[0-9a-f]+>:? ?")


@contextmanager
def translated_errors() -> Iterator[None]:
    """Turn exceptions of MLflow's client into `DeliveryError`."""
    try:
        yield
    except (MlflowException, SQLAlchemyError, requests.exceptions.RequestException) as error:
        raise delivery_error(error) from error
    except sqlite3.Error as error:
        raise DeliveryError(ErrorKind.BUSY, f"its database: {_one_line(str(error))}") from error


def delivery_error(error: BaseException) -> DeliveryError:
    """Classify an exception of MLflow's client, its database or its connection."""
    for link in _chain(error):
        if isinstance(link, DeliveryError):  # from `radt.delivery.mlflow.errors`, wrapped by MLflow
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
    """Classify an error of a tracking database that this process writes to directly."""
    if isinstance(error, DataError | IntegrityError | ProgrammingError):
        return DeliveryError(ErrorKind.REFUSED, _one_line(str(error)))
    if isinstance(error, DBAPIError) and error.orig is not None:
        return DeliveryError(ErrorKind.BUSY, f"its database: {_one_line(str(error.orig))}")
    return DeliveryError(ErrorKind.BUSY, f"its database: {_one_line(str(error))}")


# -- connections ----------------------------------------------------------------------------------


def connection_error(error: requests.exceptions.RequestException) -> DeliveryError:
    """Classify a missing response: the server is unreachable, or the connection broke.

    A connection that breaks or stalls after sending only concerns one request, which may be the one
    that the server cannot handle.
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
    """Return whether a connection was made, but then timed out."""
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
    """Return the operating system's message for the innermost cause."""
    causes = list(_inside(error))
    for cause in reversed(causes):
        if isinstance(cause, socket.gaierror):
            return "its name is not known"
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror.lower()
    return _one_line(str(causes[-1])) or type(causes[-1]).__name__


def _inside(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and its causes, which urllib3 keeps in several places."""
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

#: The function of `mlflow.utils.rest_utils` that sends all requests (MLflow 2 and 3).
HOOK = "_get_http_response_with_retries"
#: Longest wait that a server may request.
MAX_RETRY_AFTER_S = 900.0
_CONNECT_TIMEOUT_S = 10.0
_DEFAULT_TIMEOUT_S = 60.0
#: Requests that are not idempotent.
_NOT_REPEATABLE = ("/runs/create", "/experiments/create")
_FILES = "/mlflow-artifacts/artifacts"
#: Responses of a proxy in front of a server that is down or overloaded.
_IN_FRONT = frozenset({408, 502, 503, 504, 520, 521, 522, 523, 524})


def install_http() -> None:
    """Replace the function. Idempotent."""
    original: Callable[..., requests.Response] | None = getattr(rest_utils, HOOK, None)
    if original is None:  # a later MLflow: its own handling is slower, but no data is lost
        log.warning("this MLflow has no %s; its own retries are in force", HOOK)
    elif not isinstance(original, _Requests):
        setattr(rest_utils, HOOK, _Requests(original))


class _Requests:
    """Replaces MLflow's function.

    Raises:
        DeliveryError: There is no response, or none from MLflow.
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
            # A kept-alive connection may have been closed while the request was on its way.
            repeatable = False
            _rewind(call.arguments["kwargs"].get("data"))


def _rewind(data: Any) -> None:
    if hasattr(data, "seek"):
        data.seek(0)


def problem_of(answer: requests.Response, *, streamed: bool = False) -> DeliveryError | None:
    """Return the error in a response; None if it is MLflow's, even if a refusal.

    The body of a `streamed` response is a file and is not read.
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
        return None  # MLflow's own message, which its client understands
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
            return None  # MLflow's response to an accepted file is empty
        return DeliveryError(ErrorKind.UNREACHABLE, f"the server's answer is empty{_way(answer)}")
    kind = answer.headers.get("Content-Type", "").partition(";")[0] or "no content type"
    return DeliveryError(
        ErrorKind.UNREACHABLE, f"the address is not an MLflow server ({kind}){_way(answer)}"
    )


def retry_after(header: str | None, date: str | None = None) -> float | None:
    """Return the seconds in a ``Retry-After`` header (RFC 9110, 10.2.3); None if invalid.

    A time refers to the server's clock, whose current time is in the header ``Date``.

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
    """Return whether this is the response to an API call of MLflow, which is always JSON."""
    return "/api/" in _asked(answer)


def _asked(answer: requests.Response) -> str:
    """Return the path of the original request."""
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
