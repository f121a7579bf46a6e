"""Classify failed requests to MLflow (wait, retry, leave out, give up), and check its responses.

MLflow's own client sends the requests, and its ``MLFLOW_HTTP_REQUEST_*`` settings determine
timeouts and retries. But it treats an empty response as success, likewise a login page in response
to a file, and any 404 as a deleted run, and it loses ``Retry-After``. So each response is checked
before the client gets it: one that is not MLflow's becomes a `DeliveryError` with a remedy.

MLflow (3.17) has no public hook for this: its request plug-ins do not see responses. If a later
MLflow lacks the function that `check_responses` wraps, that is logged, and MLflow's own checks
apply.

Imports MLflow: for the uploader and importers only.
"""

from __future__ import annotations

import inspect
import json
import logging
import re
import sqlite3
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import wraps
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

log = logging.getLogger(__name__)

#: The function of `mlflow.utils.rest_utils` that sends all requests (MLflow 2 and 3).
HOOK = "_get_http_response_with_retries"
#: Longest wait that a server may request.
MAX_RETRY_AFTER_S = 900.0
_CONNECT_TIMEOUT_S = 10.0
_TEXT_LIMIT = 500


class ErrorKind(StrEnum):
    """Consequence of a failed request."""

    UNREACHABLE = "unreachable"  # nothing will work for now: wait, then retry
    BUSY = "busy"  # this request failed for now: retry it
    GONE = "gone"  # the run or experiment was deleted: give it up
    REFUSED = "refused"  # this content will never be accepted: leave it out


class DeliveryError(TrackingError):
    """A request to MLflow failed.

    The same cause always has the same message, because a problem is logged once. ``retry_after_s``
    is the wait that the server requests. With ``too_large``, a smaller request may be accepted;
    with ``slow``, a smaller one may finish in time.
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


#: Meaning of MLflow's error codes; with all others, the content was refused.
_KINDS = {
    "RESOURCE_DOES_NOT_EXIST": ErrorKind.GONE,
    # Wrong credentials, or a server that is not MLflow: the user must fix it; no data is lost.
    "CUSTOMER_UNAUTHORIZED": ErrorKind.UNREACHABLE,
    "ENDPOINT_NOT_FOUND": ErrorKind.UNREACHABLE,
    "UNAUTHENTICATED": ErrorKind.UNREACHABLE,
    "ABORTED": ErrorKind.BUSY,
    "CANCELLED": ErrorKind.BUSY,
    "DEADLINE_EXCEEDED": ErrorKind.BUSY,
    "INTERNAL_ERROR": ErrorKind.BUSY,
    "PERMISSION_DENIED": ErrorKind.BUSY,  # for one experiment; otherwise like wrong credentials
    "REQUEST_LIMIT_EXCEEDED": ErrorKind.BUSY,
    "RESOURCE_EXHAUSTED": ErrorKind.BUSY,
    "TEMPORARILY_UNAVAILABLE": ErrorKind.BUSY,  # "database is locked" arrives as this
}
#: MLflow returns BAD_REQUEST for any database error except SQLAlchemy's OperationalError, even if
#: the connection broke; only these errors concern the request's content.
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
        if isinstance(link, DeliveryError):  # raised by this module, wrapped by MLflow
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
    text = str(error)
    if error.error_code == "BAD_REQUEST" and _OF_DATABASE.search(text):
        return ErrorKind.REFUSED if _OF_CONTENT.search(text) else ErrorKind.BUSY
    return _KINDS.get(error.error_code, ErrorKind.REFUSED)


def _database_error(error: SQLAlchemyError) -> DeliveryError:
    """Classify an error of a tracking database that this process writes to directly."""
    if isinstance(error, DataError | IntegrityError | ProgrammingError):
        return DeliveryError(ErrorKind.REFUSED, _one_line(str(error)))
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return DeliveryError(ErrorKind.BUSY, f"its database: {_one_line(str(cause))}")


# -- connections ----------------------------------------------------------------------------------

#: Failures before the request was sent: the server is unreachable.
_NOT_CONNECTED = {
    requests.exceptions.ConnectTimeout: "no connection: it does not answer",
    requests.exceptions.SSLError: "no secure connection: {reason}",
    requests.exceptions.ProxyError: "the proxy on the way fails: {reason}",
    urllib3.exceptions.NameResolutionError: "no connection: its name is not known",
    urllib3.exceptions.NewConnectionError: "no connection: {reason}",
}
_TIMED_OUT = (requests.exceptions.ReadTimeout, urllib3.exceptions.ReadTimeoutError)
_BROKE = (requests.exceptions.ConnectionError, requests.exceptions.ChunkedEncodingError)
#: Part of a message that comes from the operating system or OpenSSL.
_REASON = re.compile(r"\[(?:Errno|SSL)[^]]*\] ([^'\"()]+)")


def connection_error(error: requests.exceptions.RequestException) -> DeliveryError:
    """Classify a missing response: the server is unreachable, or the connection broke.

    A connection that breaks or stalls after sending only concerns one request, which may be one
    that the server cannot handle.
    """
    text = str(error)
    # urllib3's own exception, which `requests` wraps after the last attempt.
    wrapped = error.args[0] if error.args else None
    causes = (error, getattr(wrapped, "reason", wrapped))
    for kind, words in _NOT_CONNECTED.items():
        if any(isinstance(cause, kind) for cause in causes):
            known = _REASON.search(text)
            reason = known[1].strip().lower() if known else _one_line(text)
            return DeliveryError(ErrorKind.UNREACHABLE, words.format(reason=reason))
    if any(isinstance(cause, _TIMED_OUT) for cause in causes):
        return DeliveryError(ErrorKind.BUSY, "no answer in time", slow=True)
    if isinstance(error, _BROKE):
        return DeliveryError(ErrorKind.BUSY, "the connection broke", slow=True)
    return DeliveryError(ErrorKind.UNREACHABLE, _one_line(text) or type(error).__name__)


def _one_line(text: str) -> str:
    lines = _OBJECT.sub("", text).strip().splitlines()
    return masked(lines[0])[:_TEXT_LIMIT] if lines else ""


# -- responses ------------------------------------------------------------------------------------

_FILES = "/mlflow-artifacts/artifacts"
_TOO_LARGE, _TOO_MANY, _UNAVAILABLE = 413, 429, 503
#: Meaning of responses that are not MLflow's own, by status; the first match counts.
_MEANINGS: Sequence[tuple[Container[int], ErrorKind, str]] = (
    ({_TOO_LARGE}, ErrorKind.REFUSED, "the request is too large for the server (413)"),
    ({_TOO_MANY}, ErrorKind.UNREACHABLE, "the server asks to retry later ({status})"),
    (
        {401},
        ErrorKind.UNREACHABLE,
        "the server refuses user and password (401); set MLFLOW_TRACKING_USERNAME and "
        "MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN",
    ),
    ({403}, ErrorKind.BUSY, "the server forbids this (403): {excerpt}"),
    # From a proxy in front of a server that is down or overloaded.
    (
        {408, 502, _UNAVAILABLE, 504, *range(520, 525)},
        ErrorKind.UNREACHABLE,
        "the server is not available ({status})",
    ),
    (
        range(500),
        ErrorKind.UNREACHABLE,
        "the address is not an MLflow server ({status}){redirection}",
    ),
)
_OTHERWISE = (ErrorKind.BUSY, "the server fails ({status}): {excerpt}")


def check_responses() -> None:
    """Check each response before MLflow's client gets it. Idempotent."""
    send: Callable[..., requests.Response] | None = getattr(rest_utils, HOOK, None)
    if send is None:
        log.warning("this MLflow has no %s; only its own checks of responses apply", HOOK)
    elif not hasattr(send, "__wrapped__"):
        setattr(rest_utils, HOOK, _checked(send))


def _checked(send: Callable[..., requests.Response]) -> Callable[..., requests.Response]:
    signature = inspect.signature(send)

    @wraps(send)
    def checked(*given: Any, **options: Any) -> requests.Response:
        call = signature.bind(*given, **options)
        # After the last retry, the response itself is more informative than an exception about it.
        call.arguments["raise_on_status"] = False
        timeout_s = options.get("timeout")
        if isinstance(timeout_s, int | float):  # limit connecting more strictly than answering
            call.arguments["kwargs"]["timeout"] = (min(_CONNECT_TIMEOUT_S, timeout_s), timeout_s)
        answer = send(*call.args, **call.kwargs)
        if (problem := problem_of(answer, streamed=bool(options.get("stream")))) is not None:
            raise problem
        return answer

    return checked


def problem_of(answer: requests.Response, *, streamed: bool = False) -> DeliveryError | None:
    """Return the error in a response; None if it is MLflow's, even if a refusal.

    The body of a `streamed` response is a file and is not read.
    """
    status = meant = answer.status_code
    if status < 300:
        return None if streamed or "/api/" not in _asked(answer) else _problem_of_success(answer)
    wait_s = retry_after(answer.headers.get("Retry-After"))
    if status == _UNAVAILABLE and wait_s is not None:
        meant = _TOO_MANY
    if meant not in (_TOO_LARGE, _TOO_MANY) and "error_code" in (_json_object(answer) or {}):
        return None  # MLflow's own message, which its client understands
    kind, words = next(
        ((kind, words) for some, kind, words in _MEANINGS if meant in some), _OTHERWISE
    )
    excerpt = _excerpt(answer) if "{excerpt}" in words else ""
    message = words.format(status=status, excerpt=excerpt, redirection=_redirection(answer))
    asked_s = wait_s if meant == _TOO_MANY else None
    return DeliveryError(kind, message, retry_after_s=asked_s, too_large=meant == _TOO_LARGE)


def _problem_of_success(answer: requests.Response) -> DeliveryError | None:
    if answer.status_code == 204 or _json_object(answer) is not None:
        return None  # responses to API calls are JSON
    if answer.content.strip():
        kind = answer.headers.get("Content-Type", "").partition(";")[0] or "no content type"
        message = f"the address is not an MLflow server ({kind}){_redirection(answer)}"
    elif _FILES in _asked(answer):
        return None  # MLflow's response to an accepted file is empty
    else:
        message = f"the server's answer is empty{_redirection(answer)}"
    return DeliveryError(ErrorKind.UNREACHABLE, message)


def retry_after(header: str | None) -> float | None:
    """Return the seconds in a ``Retry-After`` header; None if it has another form.

    >>> retry_after("7"), retry_after("100000"), retry_after("-5"), retry_after("soon")
    (7.0, 900.0, 0.0, None)
    """
    try:
        seconds = float(header or "")
    except ValueError:
        return None
    return min(max(0.0, seconds), MAX_RETRY_AFTER_S) if seconds == seconds else None


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


def _redirection(answer: requests.Response) -> str:
    if not answer.history:
        return ""
    return f", redirected to {masked(urlsplit(str(answer.url))._replace(query='').geturl())}"
