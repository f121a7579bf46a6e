"""Replace the HTTP retries of MLflow's client: one attempt, time limits, and checked answers.

MLflow's own client repeats requests for minutes, loses ``Retry-After``, takes an empty answer for
success and any 404 for a deleted run. So the one function that its requests go through is replaced:
whatever is not an answer of MLflow becomes a `DeliveryError` that says what to do. Everything else
(credentials, certificates, plug-ins) stays MLflow's.

MLflow (3.17) has no public place for this. Its plug-ins for requests add headers or sign them, and
are the user's to choose. A plug-in for a tracking store sees the calls of the API, not those of
artifacts, and would have to override private methods as well. The settings
``MLFLOW_HTTP_REQUEST_*`` turn repetitions off, and leave answers unchecked. Where a later MLflow
has no such function, its own ways are in force and nothing is lost: `install` says so.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import requests
from mlflow.utils import rest_utils

from radt.delivery.mlflow.errors import DeliveryError, ErrorKind, connection_error, timed_out
from radt.masking import masked

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


def install() -> None:
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
        if (found := problem_of(answer, streamed=bool(more.get("stream")))) is not None:
            raise found
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
    """What is wrong with an answer; None if it is one of MLflow, be it a refusal.

    Args:
        streamed: Its body is a file, which is not looked at.
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

    Args:
        header: A number, or a time by the server's clock.
        date: The header ``Date``: what that clock says now.

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
        found = parsedate_to_datetime(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _is_api(answer: requests.Response) -> bool:
    """Whether it answers a call of MLflow's API, which is always answered in JSON."""
    return "/api/" in _asked(answer)


def _asked(answer: requests.Response) -> str:
    """The path that was asked for at first."""
    first = answer.history[0] if answer.history else answer
    return urlsplit(str(first.url)).path


def _json_object(answer: requests.Response) -> dict[str, Any] | None:
    try:
        found = json.loads(answer.content)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _excerpt(answer: requests.Response) -> str:
    text = (_json_object(answer) or {}).get("message") or answer.text
    return masked(" ".join(str(text).split()))[:120] or "without a reason"


def _way(answer: requests.Response) -> str:
    if not answer.history:
        return ""
    return f", redirected to {masked(urlsplit(str(answer.url))._replace(query='').geturl())}"
