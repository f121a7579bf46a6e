"""What servers, and what stands before them, answer: told apart before anything is given up."""

from __future__ import annotations

import doctest
import json
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from radt.delivery.mlflow import __main__ as uploading
from radt.delivery.mlflow import errors
from radt.delivery.mlflow.errors import MAX_RETRY_AFTER_S, DeliveryError, ErrorKind
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
        (Answer(999, b"go away"), ErrorKind.BUSY, "the server fails (999): go away"),
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


def own(status: int, code: str, message: str) -> Answer:
    """An error in MLflow's own form."""
    return Answer(status, json.dumps({"error_code": code, "message": message}).encode())


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (own(404, "RESOURCE_DOES_NOT_EXIST", "no run"), ErrorKind.GONE),
        (own(400, "INVALID_PARAMETER_VALUE", "no such key"), ErrorKind.REFUSED),
        (own(503, "TEMPORARILY_UNAVAILABLE", "database is locked"), ErrorKind.BUSY),
        # MLflow's words for whatever its database says; a connection that broke is no refusal.
        (own(400, "BAD_REQUEST", "(psycopg2.InterfaceError) already closed"), ErrorKind.BUSY),
        (own(400, "BAD_REQUEST", "(psycopg2.errors.DataError) out of range"), ErrorKind.REFUSED),
    ],
)
def test_mlflows_own_refusals_stay_mlflows(link: HttpLink, answer: Answer, kind: ErrorKind) -> None:
    link.answer(answer)
    assert problem(link.uri).kind is kind


def test_a_server_may_ask_for_time(link: HttpLink) -> None:
    link.answer(http_links.too_many(7))
    found = problem(link.uri)
    assert found.kind is ErrorKind.UNREACHABLE
    assert found.retry_after_s == 7.0
    link.answer(Answer(503, b"", {"Retry-After": "100000"}))
    found = problem(link.uri)
    assert found.retry_after_s == MAX_RETRY_AFTER_S
    assert found.message == "the server asks to retry later (503)"
    assert doctest.testmod(errors).failed == 0


@pytest.mark.parametrize("status", [413, 429])
def test_a_body_that_says_nothing_is_not_read(status: int) -> None:
    answer = requests.Response()
    answer.status_code = status
    answer.raw = BytesIO(b"x")
    found = errors.problem_of(answer)
    assert found is not None
    assert f"({status})" in found.message
    assert answer.raw.tell() == 0


def test_retries_are_mlflows_own(link: HttpLink, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a script, whose calls take the same way once radt has connected to the server."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    link.answer(http_links.SERVER_ERROR, times=2, path="experiments/search")
    link.answer(Answer(200, b"{}"), path="experiments/search")
    MlflowTarget(link.uri).connect()
    assert len(link.requests("experiments/search")) == 3


def test_a_connection_takes_less_time_than_an_answer(
    link: HttpLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[object] = []
    send = requests.Session.request

    def noted(*arguments: Any, **options: Any) -> requests.Response:
        given.append(options["timeout"])
        return send(*arguments, **options)

    monkeypatch.setattr(requests.Session, "request", noted)
    link.answer(Answer(200, b"{}"), path="experiments/search")
    MlflowTarget(link.uri).connect()
    assert given == [(10, 60)]


@pytest.mark.parametrize(("retries", "longest_s"), [("0", 600.0), ("7", 2 * (8 * 60 + 7 * 120))])
def test_a_request_with_the_retries_that_the_user_wants_is_not_stuck(
    monkeypatch: pytest.MonkeyPatch, retries: str, longest_s: float
) -> None:
    """The process would be restarted in the middle of each."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", retries)
    monkeypatch.setattr(uploading.os, "_exit", sys.exit)
    monkeypatch.setattr(uploading.logging, "shutdown", lambda: None)
    target: Any = SimpleNamespace(longest_request_s=lambda: longest_s)
    problems: Any = SimpleNamespace(note=lambda *_: None)
    uploading._check_not_stuck(target, problems)
    target.longest_request_s = lambda: longest_s + 60
    with pytest.raises(SystemExit):
        uploading._check_not_stuck(target, problems)


def test_a_login_page_is_no_receipt_for_a_file(link: HttpLink, tmp_path: Path) -> None:
    link.answer(Answer(200, b"{}"), path="experiments/search")
    target = MlflowTarget(link.uri)
    run = {"info": {"run_id": "r", "artifact_uri": "mlflow-artifacts:/0/r/artifacts"}}
    link.answer(Answer(200, json.dumps({"run": run}).encode()), times=None, path="runs/get")
    file = tmp_path / "model.bin"
    file.write_bytes(b"weights")
    link.answer(http_links.WELCOME, path="artifacts", method="PUT")
    with pytest.raises(DeliveryError, match="not an MLflow server"):
        target.log_artifact("r", file, None)
    link.answer(http_links.EMPTY, path="artifacts", method="PUT")  # MLflow's own
    target.log_artifact("r", file, None)


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
        found = problem(stalled.uri)
        assert (found.kind, found.slow) == (ErrorKind.BUSY, True)
        assert found.message == "the connection broke"
    assert "name is not known" in problem("http://no-such-host.invalid:5000").message
