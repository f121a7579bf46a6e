"""Messages between nodes: what arrives, and what is said of what does not."""

from __future__ import annotations

import queue
import socket
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from radt.cluster import link as link_module
from radt.cluster.link import NodeLink
from radt.errors import ClusterError
from tests.support.waiting import TIMEOUT_S


@pytest.fixture
def links() -> Iterator[tuple[NodeLink, NodeLink]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = NodeLink(socket.create_connection(server.getsockname()))
        theirs = NodeLink(server.accept()[0])
    with closing(ours), closing(theirs):
        yield ours, theirs


def test_names_with_lone_surrogates_reach_the_other_side(links: tuple[NodeLink, NodeLink]) -> None:
    ours, theirs = links
    ours.send({"reason": "cannot read b\udcff.txt: ü 😀"})
    assert theirs.receive(TIMEOUT_S) == {"reason": "cannot read b?.txt: ü 😀"}


def test_who_is_silent_or_gone_is_said(links: tuple[NodeLink, NodeLink]) -> None:
    ours, theirs = links
    with pytest.raises(TimeoutError, match="is silent"):
        theirs.receive(0.0)
    ours.close()
    with pytest.raises(ConnectionResetError):
        theirs.receive(TIMEOUT_S)


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        (b"[1, 2]", "not a message of radt"),
        (b"\xff", "not a message of radt"),
        (b"NaN", "not a message of radt"),
        (b"[" * 200_000, "recursion"),
        (b"x" * (5 << 20), ""),
    ],
)
def test_what_is_not_a_message_ends_the_connection(
    sent: bytes, problem: str, links: tuple[NodeLink, NodeLink]
) -> None:
    ours, theirs = links
    ends: queue.SimpleQueue[str] = queue.SimpleQueue()
    theirs.listen(lambda message: None, ends.put)
    with suppress(OSError):  # it was too long, and the other side has hung up
        ours._frames.send_bytes(sent)
    assert problem in ends.get(timeout=TIMEOUT_S)
    with pytest.raises(ConnectionResetError):
        ours.receive(TIMEOUT_S)


def test_a_greeting_without_end_is_no_message(links: tuple[NodeLink, NodeLink]) -> None:
    ours, theirs = links
    ours._frames.send_bytes(b"[" * 200_000)
    with pytest.raises(ClusterError, match="not a message"):
        theirs.receive(TIMEOUT_S)


def test_a_message_that_its_reader_fails_at_ends_the_connection(
    links: tuple[NodeLink, NodeLink],
) -> None:
    ours, theirs = links
    ends: queue.SimpleQueue[str] = queue.SimpleQueue()
    theirs.listen(lambda message: message["kind"], ends.put)
    ours.send({})
    assert "kind" in ends.get(timeout=TIMEOUT_S)


def test_clocks_are_compared(
    links: tuple[NodeLink, NodeLink], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = links
    ends: queue.SimpleQueue[str] = queue.SimpleQueue()
    for link in links:
        link.listen(lambda message: None, ends.put)
    reading = ours.read_clock()
    assert abs(reading.offset_ns) <= reading.error_ns
    theirs.close()
    monkeypatch.setattr(link_module, "_ANSWER_S", 0.1)
    with pytest.raises(ClusterError, match="does not answer"):
        ours.read_clock()
