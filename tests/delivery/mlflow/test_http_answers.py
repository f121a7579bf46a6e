"""What servers, and what stands before them, answer: told apart before anything is given up."""

from __future__ import annotations

import doctest
from collections.abc import Iterator

import pytest

from radt.delivery.mlflow import errors
from radt.delivery.mlflow.errors import MAX_RETRY_AFTER_S, DeliveryError, ErrorKind, retry_after
from radt.delivery.mlflow.target import MlflowTarget
from tests.support import http_links
from tests.support.http_links import Answer, HttpLink
from tests.support.links import Link

NOWHERE = 9


@pytest.fixture
def link() -> Iterator[HttpLink]:
    """Answers by itself: nobody is behind it."""
    with HttpLink(NOWHERE) as made:
        yield made


def problem(uri: str) -> DeliveryError:
    """What becomes of the first request."""
    with pytest.raises(DeliveryError) as caught:
        MlflowTarget(uri).connect()
    return caught.value


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (http_links.SERVER_ERROR, ErrorKind.BUSY, "it fell over"),
        (Answer(500, b"<html>oh no</html>"), ErrorKind.BUSY, "the server fails (500)"),
        (http_links.UNAVAILABLE, ErrorKind.UNREACHABLE, "not available (503)"),
        (http_links.BAD_GATEWAY, ErrorKind.UNREACHABLE, "not available (502)"),
        (Answer(504), ErrorKind.UNREACHABLE, "not available (504)"),
        (http_links.GARBAGE, ErrorKind.UNREACHABLE, "is not an MLflow server (application/json)"),
        (http_links.WELCOME, ErrorKind.UNREACHABLE, "is not an MLflow server (text/html)"),
        (http_links.EMPTY, ErrorKind.UNREACHABLE, "answer is empty"),
        (http_links.UNAUTHORISED, ErrorKind.UNREACHABLE, "MLFLOW_TRACKING_USERNAME"),
        (http_links.FORBIDDEN, ErrorKind.BUSY, "forbids this (403): Permission denied"),
        # Neither is about a run of ours: a proxy says so while the server is replaced.
        (
            Answer(404, b"<html>Not Found</html>"),
            ErrorKind.UNREACHABLE,
            "is not an MLflow server (404)",
        ),
        (
            Answer(404, b'{"detail": "Not Found"}'),
            ErrorKind.UNREACHABLE,
            "is not an MLflow server (404)",
        ),
        (
            Answer(400, b"plain HTTP to an HTTPS port"),
            ErrorKind.UNREACHABLE,
            "not an MLflow server (400)",
        ),
        (Answer(302, b"", {"Location": "/login"}), ErrorKind.UNREACHABLE, "/login"),
        (http_links.TOO_LARGE, ErrorKind.REFUSED, "too large"),
    ],
)
def test_an_answer_says_what_to_do(
    link: HttpLink, answer: Answer, kind: ErrorKind, words: str
) -> None:
    link.answer(answer, path="experiments/search")
    link.answer(http_links.WELCOME, times=None, path="login")
    found = problem(link.uri)
    assert found.kind is kind
    assert words in found.message
    assert len(link.requests("experiments/search")) == 1, "who waits when is for us to say"
    assert found.too_large == (answer is http_links.TOO_LARGE)


def test_mlflows_own_refusals_stay_mlflows(link: HttpLink) -> None:
    body = b'{"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "no run"}'
    link.answer(Answer(404, body))
    assert problem(link.uri).kind is ErrorKind.GONE
    body = b'{"error_code": "INVALID_PARAMETER_VALUE", "message": "no such key"}'
    link.answer(Answer(400, body))
    assert problem(link.uri).kind is ErrorKind.REFUSED
    # MLflow's words for whatever its database says; a connection that broke is no refusal.
    text = "(psycopg2.InterfaceError) connection already closed"
    link.answer(Answer(400, b'{"error_code": "BAD_REQUEST", "message": "%s"}' % text.encode()))
    assert problem(link.uri).kind is ErrorKind.BUSY
    text = "(psycopg2.errors.DataError) value out of range"
    link.answer(Answer(400, b'{"error_code": "BAD_REQUEST", "message": "%s"}' % text.encode()))
    assert problem(link.uri).kind is ErrorKind.REFUSED


def test_a_server_may_ask_for_time(link: HttpLink) -> None:
    link.answer(http_links.too_many(7))
    found = problem(link.uri)
    assert found.kind is ErrorKind.UNREACHABLE
    assert found.retry_after_s == 7.0
    link.answer(Answer(503, b"", {"Retry-After": "100000"}))
    assert problem(link.uri).retry_after_s == MAX_RETRY_AFTER_S
    assert retry_after("nan") is None
    # Its clock may differ from ours.
    assert doctest.testmod(errors).failed == 0
    assert retry_after("-5") == 0.0


def test_connections_that_fail_or_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with Link(NOWHERE, refusing=True) as refusing:
        found = problem(refusing.uri)
        assert (found.kind, found.slow) == (ErrorKind.UNREACHABLE, False)
        assert found.message == "no connection: connection refused"
    with HttpLink(NOWHERE) as server, Link(server.port) as stalled:
        stalled.stall()
        found = problem(stalled.uri)
        assert (found.kind, found.slow) == (ErrorKind.BUSY, True)
        assert found.message == "no answer in time"
        stalled.pass_through()
        stalled.cut_after(10)
        before = stalled.traffic.connections
        found = problem(stalled.uri)
        assert (found.kind, found.slow) == (ErrorKind.BUSY, True)
        assert stalled.traffic.connections == before + 2, (
            "once more: it may have been closed in between"
        )
    assert "name is not known" in problem("http://no-such-host.invalid:5000").message
