"""Nobody is heard who does not know the secret, and nobody can keep others from being heard."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from radt import peers
from radt.peers import Reception, listening, prove
from tests.support.waiting import TIMEOUT_S

SECRET = "of the workload"


class Door:
    """A reception, and those whom it has admitted."""

    def __init__(self) -> None:
        listener = listening("127.0.0.1")
        self.address = listener.getsockname()
        self.admitted: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
        self.problems: list[Exception] = []
        self.reception = Reception(listener, SECRET, self.admitted.put, self.problems.append)

    def knock(self) -> socket.socket:
        return socket.create_connection(self.address, TIMEOUT_S)


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    monkeypatch.setattr(peers, "GREETING_S", 10 * TIMEOUT_S)
    made = Door()
    yield made
    made.reception.close()
    assert not [each for each in threading.enumerate() if each.name.startswith("radt-peer")]
    assert made.problems == []


def test_who_knows_the_secret_is_admitted(door: Door) -> None:
    with door.knock() as client:
        prove(client, SECRET, is_server=False, timeout_s=TIMEOUT_S)
        with door.admitted.get(timeout=TIMEOUT_S) as admitted:
            client.sendall(b"x")
            assert admitted.recv(1) == b"x"


def test_both_sides_refuse_who_has_another_secret(door: Door) -> None:
    with door.knock() as client, pytest.raises(OSError, match=r"does not know|closed"):
        prove(client, "another", is_server=False, timeout_s=TIMEOUT_S)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"0" * 64)  # such a server has nothing better to send
        with pytest.raises(ConnectionRefusedError, match="does not know the secret"):
            prove(ours, SECRET, is_server=False, timeout_s=TIMEOUT_S)
    assert door.admitted.empty()


def test_handing_back_what_the_server_says_proves_nothing(door: Door) -> None:
    with door.knock() as mirror:
        for _ in range(2):
            mirror.sendall(mirror.recv(32, socket.MSG_WAITALL))
        assert mirror.recv(1) == b""
    assert door.admitted.empty()


def test_silent_strangers_take_nobodys_place(door: Door) -> None:
    strangers = [door.knock() for _ in range(200)]
    try:
        with door.knock() as client:
            prove(client, SECRET, is_server=False, timeout_s=TIMEOUT_S)
            door.admitted.get(timeout=TIMEOUT_S).close()
        challenge = strangers[0].recv(32, socket.MSG_WAITALL)
        assert len(challenge) == 32
        assert strangers[0].recv(1) == b"", "the oldest had to make room"
    finally:
        for stranger in strangers:
            stranger.close()


def test_a_proof_that_comes_byte_by_byte_comes_too_late() -> None:
    ours, theirs = socket.socketpair()
    ended = threading.Event()

    def drip() -> None:
        while not ended.wait(0.02):
            theirs.sendall(b"x")

    dripping = threading.Thread(target=drip)
    with ours, theirs:
        dripping.start()
        try:
            with pytest.raises(TimeoutError):
                prove(ours, SECRET, is_server=True, timeout_s=0.2)
        finally:
            ended.set()
            dripping.join()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_listener_has_one_address(host: str) -> None:
    with closing(listening(host)) as listener:
        assert listener.getsockname()[0] == host
