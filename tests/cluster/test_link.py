"""Whatever a node sends, the first node's process goes on, in little memory; see `fuzzed_node`."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radt.cluster.link import Link, parsed
from radt.cluster.team import Hello, Kind
from radt.errors import ClusterError
from radt.parts import RunPart
from radt.peers import prove
from tests.cluster.fuzzed_node import SECRET
from tests.support.waiting import TIMEOUT_S

HELLO = asdict(Hello(1, "node2", ""))
PART = asdict(RunPart(1, "node2", "host", 5, 6, None))
#: All that a node sends once it was welcomed.
MESSAGES: tuple[dict[str, Any], ...] = (
    {"kind": Kind.READY, "round": 1, "part": PART},
    {"kind": Kind.RELEASED, "round": 1, "stamps_ns": {"a1b2": 17}},
    {"kind": Kind.ENDED, "round": 1, "letter": "a", "status": "FAILED", "reason": "exit code 5"},
    {"kind": Kind.OVER, "round": 1, "part": PART},
    {"kind": Kind.ARRIVED, "round": 1, "run": "a1b2"},
    {"kind": Kind.DONE, "round": 1, "reason": "", "unsent": ""},
    {"ask": 1},
    {"ask": 1, "now_ns": 17},
)
#: JSON, as text, that some reader or a later step would fail at.
HOSTILE = (
    *('"\\ud800"', '"\\u0000"', "NaN", "-Infinity", "1e999", "9" * 5000, "1" + "0" * 400),
    *(
        "null",
        "true",
        "{}",
        "[]",
        '""',
        "-1",
        "0.5",
        "[" * 2000 + "]" * 2000,
        "[" * 900 + "]" * 900,
    ),
    *('{"a":' * 900 + "1" + "}" * 900, "[" * 200_000, "\ud800", '"' + "x" * 300_000 + '"'),
)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.cluster.fuzzed_node"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.stdin.close()
        assert process.wait(TIMEOUT_S) == 0


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from paths(item, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], text: str) -> str:
    """Return JSON in which the text stands in the place of what is at the path."""
    if not path:
        return text
    items = {key: json.dumps(item) for key, item in value.items()}
    items[path[0]] = replaced(value[path[0]], path[1:], text)
    return "{" + ", ".join(f'"{key}": {item}' for key, item in items.items()) + "}"


@st.composite
def mutated(draw: st.DrawFn, messages: Sequence[dict[str, Any]]) -> bytes:
    """Return a real message with another value, without one, cut, doubled, or with other bytes."""
    message = draw(st.sampled_from(messages))
    line = json.dumps(message).encode()
    match draw(
        st.sampled_from(["value", "value", "value", "key", "cut", "bytes", "whole", "long"])
    ):
        case "value":
            path = draw(st.sampled_from(list(paths(message))))
            text = draw(
                st.sampled_from(HOSTILE) | st.integers().map(str) | st.text().map(json.dumps)
            )
            return replaced(message, path, text).encode(errors="surrogatepass")
        case "key":
            gone = draw(st.sampled_from(list(message)))
            return json.dumps({k: v for k, v in message.items() if k != gone}).encode()
        case "cut":
            return line[: draw(st.integers(0, len(line)))]
        case "bytes":
            place = draw(st.integers(0, len(line)))
            return line[:place] + draw(st.binary(min_size=1, max_size=4)) + line[place + 1 :]
        case "whole":
            return draw(st.sampled_from(HOSTILE)).encode(errors="surrogatepass")
    # Of what is this long, nothing takes more memory than empty lists and dictionaries.
    part = draw(st.sampled_from([b"[],", b"{},", b'"x",', b"[", b"x", b"1,"]))
    length = draw(st.sampled_from([3 << 20, 24 << 20])) // len(part)
    return b'{"kind": [' + part * length + b"0]}"


def test_a_parsed_line_can_be_sent_again() -> None:
    for text in HOSTILE:
        line = f'{{"a": {text}}}'.encode(errors="surrogatepass")
        with suppress(ClusterError):
            json.dumps(parsed(line), ensure_ascii=False).encode()
    for text in ('"\\ud800"', "NaN", "[" * 2000, "9" * 5000, "\ud800"):
        with pytest.raises(ClusterError, match="not a message of radt"):
            parsed(f'{{"a": {text}}}'.encode(errors="surrogatepass"))


def test_names_with_lone_surrogates_reach_the_other_side() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = Link(socket.create_connection(server.getsockname()))
        theirs = Link(server.accept()[0])
    with closing(ours), closing(theirs):
        ours.send({"reason": "cannot read b\udcff.txt: ü 😀"})
        assert theirs.receive() == {"reason": "cannot read b?.txt: ü 😀"}


@given(
    knows=st.sampled_from([True, True, True, False]),
    hello=st.one_of(*[st.just(json.dumps(HELLO).encode())] * 3, mutated([HELLO])),
    lines=st.lists(mutated(MESSAGES), min_size=1, max_size=3),
    has_end=st.booleans(),
)
def test_the_first_node_survives_all_that_is_sent(
    port: int, *, knows: bool, hello: bytes, lines: list[bytes], has_end: bool
) -> None:
    deliver(port, b"\n".join([hello, *lines]) + b"\n" * has_end, knows=knows)
    a_real_node_is_heard(port)


@pytest.mark.parametrize("message", [HELLO, *MESSAGES], ids=lambda each: each.get("kind"))
def test_each_value_of_a_message_may_be_anything(port: int, message: dict[str, Any]) -> None:
    hello = b"" if message is HELLO else json.dumps(HELLO).encode() + b"\n"
    for path in paths(message):
        for text in HOSTILE:
            line = replaced(message, path, text).encode(errors="surrogatepass")
            deliver(port, hello + line + b"\n")
    a_real_node_is_heard(port)


def deliver(port: int, sent: bytes, *, knows: bool = True) -> None:
    """Send this, once the secret is proved or without it, and wait until it was heard."""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
        if knows:
            prove(connection, SECRET, is_server=False, timeout_s=TIMEOUT_S)
        try:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass
        except TimeoutError:
            raise  # it is not read, and not closed
        except OSError:
            pass  # it was closed for an earlier line


def a_real_node_is_heard(port: int) -> None:
    connection = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
    prove(connection, SECRET, is_server=False, timeout_s=TIMEOUT_S)
    with closing(Link(connection)) as link:
        link.send(HELLO)
        assert link.receive(TIMEOUT_S)["rows"] == {}
        link.send({"ask": 3})
        assert link.receive(TIMEOUT_S)["ask"] == 3
