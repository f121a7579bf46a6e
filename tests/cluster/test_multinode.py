"""The first node of a job and what others send it."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import closing
from typing import Any, cast

import pytest

from radt.cluster.first_node import FirstNode
from radt.cluster.link import NodeLink
from radt.cluster.multinode import MessageKind
from radt.runner.active import StopRequest
from tests.support.waiting import wait_until


@pytest.mark.parametrize(
    "message",
    [
        {"kind": "no such kind"},
        {"kind": MessageKind.READY, "part": {"no": "such field"}},
        {"kind": MessageKind.OVER, "part": 1},
        {"kind": MessageKind.ENDED, "reason": "", "letter": "a", "status": "no status"},
    ],
)
def test_a_malformed_message_loses_only_its_node(message: Mapping[str, Any]) -> None:
    stop = StopRequest()
    first = FirstNode(cast(Any, None), {}, 3, cast(Any, stop), str)
    others = []
    for number in (1, 2):
        with socket.create_server(("127.0.0.1", 0)) as server:
            others.append(NodeLink(socket.create_connection(server.getsockname())))
            ours, _ = server.accept()
        others[-1].send({"node": number, "name": f"n{number}", "problem": ""})
        first._take(ours)
    bad, good = others
    with closing(bad), closing(good):
        bad.send({**message, "round": first._current})
        wait_until(lambda: bool(first._gone), "the node is lost")
        assert first._gone.keys() == {1} and "n1" in first._gone[1]
        good.send({"kind": MessageKind.OVER, "round": first._current, "part": None})
        wait_until(lambda: first._round.over == {2}, "the other one is heard")
    wait_until(lambda: first._gone.keys() == {1, 2}, "the links have ended")
