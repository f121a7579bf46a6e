"""Asking runs to stop: by signals, from another thread, while waiting, and more urgently."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from radt.runner.active import Escalation, StopRequest

TIMEOUT_S = 180.0


@pytest.mark.parametrize(
    ("first", "due"),
    [
        (signal.SIGINT, [(0.0, "SIGINT"), (10.0, "SIGTERM"), (15.0, "SIGKILL")]),
        (signal.SIGTERM, [(0.0, "SIGTERM"), (10.0, "SIGKILL")]),
        (signal.SIGHUP, [(0.0, "SIGHUP"), (10.0, "SIGKILL")]),
    ],
)
def test_escalation_insists_and_then_kills(
    monkeypatch: pytest.MonkeyPatch, first: signal.Signals, due: list[tuple[float, str]]
) -> None:
    now_s = 1000.0
    monkeypatch.setattr("radt.runner.active.time.monotonic", lambda: now_s)
    escalation = Escalation(first)
    sent = []
    for tenth in range(1000):
        now_s = 1000.0 + tenth / 10
        while (number := escalation.next_signal()) is not None:
            sent.append((tenth / 10, number.name))
    assert sent == due


def test_asking_twice_kills_at_once() -> None:
    stop = StopRequest()
    asked = []
    stop.on_request = lambda: asked.append(stop.number)
    assert (bool(stop), stop.number, stop.wait(0.0)) == (False, None, False)
    stop.request(signal.SIGTERM)
    assert (bool(stop), stop.number, stop.exit_code) == (True, signal.SIGTERM, 143)
    assert stop.escalation is not None
    assert stop.escalation.next_signal() is signal.SIGTERM
    stop.request()
    assert stop.escalation.next_signal() is signal.SIGKILL
    assert (stop.number, asked) == (signal.SIGTERM, [signal.SIGTERM] * 2)


def test_a_request_ends_every_wait() -> None:
    stop = StopRequest()
    answers: list[bool] = []
    waiting = [
        threading.Thread(target=lambda: answers.append(stop.wait(TIMEOUT_S))) for _ in range(3)
    ]
    for thread in waiting:
        thread.start()
    stop.request()
    for thread in waiting:
        thread.join(TIMEOUT_S)
    assert answers == [True] * 3
    assert stop.wait(TIMEOUT_S)


def test_signals_are_taken_while_listening_and_given_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    stop = StopRequest()
    with stop.listening():
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(TIMEOUT_S)
    assert stop.number is signal.SIGTERM
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_signal_that_was_switched_off_stays_off() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        stop = StopRequest()
        with stop.listening():
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert not stop
    finally:
        signal.signal(signal.SIGHUP, before)


def test_another_thread_listens_to_requests_only() -> None:
    """As in a notebook that runs experiments in the background."""
    before = signal.getsignal(signal.SIGINT)
    stop = StopRequest()
    seen: list[object] = []

    def work() -> None:
        with stop.listening():
            seen.append(signal.getsignal(signal.SIGINT))
            seen.append(stop.wait(TIMEOUT_S))

    thread = threading.Thread(target=work)
    thread.start()
    stop.request()
    thread.join(TIMEOUT_S)
    assert seen == [before, True]
