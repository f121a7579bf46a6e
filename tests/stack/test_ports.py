"""Ports that were asked for, and ports that are free."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from radt.errors import StackError
from radt.stack.daemon import chosen_port, free_port


def test_a_port_that_was_asked_for_is_taken_or_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        with pytest.raises(StackError, match=str(number)):
            chosen_port(number, 0)
        assert chosen_port(0, number) != number
    free = free_port()
    assert chosen_port(free, number) == free
    assert chosen_port(0, free) == free


def test_free_ports_are_none_that_outgoing_connections_get() -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not any(first <= free_port() <= last for _ in range(50))
