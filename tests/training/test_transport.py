"""States travel between replicas as they are, and never as pickles."""

from __future__ import annotations

import pickle
import resource
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from radt.errors import TrainingError
from radt.training import transport
from radt.training.transport import StateServer, check_sendable, fetch, own_secret, packed, unpacked
from tests.support.waiting import TIMEOUT_S, wait_until

SECRET = "of the workload"
_PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
_TENSORS = st.builds(
    lambda values, dtype: torch.tensor(values, dtype=dtype),
    st.lists(st.integers(0, 100)),
    st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.bool]),
)
_STATES = st.recursive(
    _PLAIN | _TENSORS,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner)
    ),
)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other)) and type(one) is type(other)
    return type(one) is type(other) and one == other


@given(st.dictionaries(st.text(), _STATES))
def test_states_come_back_as_they_were(state: dict[str, Any]) -> None:
    check_sendable(state)
    assert same(unpacked(packed(state)), state)


def test_tied_and_strided_tensors_are_sent_by_value() -> None:
    tied = torch.arange(12.0).view(3, 4)
    state = {"one": tied, "same": tied, "turned": tied.t(), "part": tied[1:, ::2]}
    assert same(unpacked(packed(state)), state)


class Pair(NamedTuple):
    one: int
    other: int


def test_what_cannot_be_sent_is_named_before_training() -> None:
    with pytest.raises(TrainingError, match=r"state\['scheduler'\]\['rule'\] is a function"):
        check_sendable({"scheduler": {"rule": same}})
    with pytest.raises(TrainingError, match="namedtuple class"):
        check_sendable({"optimiser": Pair(1, 2)})


@pytest.mark.parametrize("data", [b"", b"nothing", pickle.dumps({"a": 1}), packed({"a": 1})[:-1]])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(TrainingError, match="a peer sent a state that cannot be read"):
        unpacked(data)


def test_the_replicas_of_a_machine_have_one_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RADT_RUNTIME_DIR", str(tmp_path / "runtime"))
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: own_secret(), range(64)))
    assert [len(secret) for secret in found] == [64]
    (path,) = (tmp_path / "runtime").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_peer_waits_for_the_round_that_it_wants() -> None:
    server = StateServer("127.0.0.1", SECRET, 60.0)
    found: list[dict[str, Any]] = []
    peer = threading.Thread(
        target=lambda: found.append(fetch(server.address, "round 2", SECRET, 60.0))
    )
    try:
        server.offer("round 1", {"of": 1})
        peer.start()
        server.offer("round 2", {"of": 2})
        peer.join()
        assert found == [{"of": 2}]
    finally:
        server.close()
    assert not _state_threads()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_state_is_given_at_one_address_only(host: str) -> None:
    server = StateServer(host, SECRET, 60.0)
    try:
        server.offer("round 1", {"of": 1})
        assert fetch(server.address, "round 1", SECRET, 60.0) == {"of": 1}
        connections = psutil.Process().net_connections("tcp")
        port = int(server.address.rpartition("|")[2])
        listening = [
            each.laddr.ip
            for each in connections
            if each.status == psutil.CONN_LISTEN and each.laddr.port == port
        ]
        assert listening == [host]
    finally:
        server.close()


def test_who_does_not_know_the_secret_neither_gets_nor_gives_a_state() -> None:
    server = StateServer("127.0.0.1", SECRET, 60.0)
    try:
        server.offer("round 1", {"of": 1})
        with pytest.raises(OSError, match=r"closed the connection|does not know the secret"):
            fetch(server.address, "round 1", "another", 60.0)
    finally:
        server.close()


def test_a_peer_hears_that_a_round_will_not_end() -> None:
    server = StateServer("127.0.0.1", SECRET, 60.0)
    errors: list[Exception] = []

    def ask() -> None:
        try:
            fetch(server.address, "never", SECRET, 60.0)
        except OSError as error:
            errors.append(error)

    peer = threading.Thread(target=ask)
    peer.start()
    server.close()
    peer.join()
    assert len(errors) == 1


def test_a_silent_peer_does_not_keep_a_replica_from_leaving() -> None:
    server = StateServer("127.0.0.1", SECRET, 10 * TIMEOUT_S)
    host, _, port = server.address.rpartition("|")
    with socket.create_connection((host, int(port))):
        wait_until(lambda: len(_state_threads()) == 2, "the peer is served")
        closing = threading.Thread(target=server.close)
        closing.start()
        closing.join(TIMEOUT_S)
        assert not closing.is_alive()
    assert not _state_threads()


@pytest.mark.parametrize("lacking", ["descriptors", "threads"])
def test_a_peer_is_served_when_what_was_lacking_is_there_again(
    lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, told = StateServer("127.0.0.1", SECRET, 60.0), threading.Event()
    monkeypatch.setattr(transport, "warn_once", lambda _: told.set())
    server.offer("round 1", {"of": 1})
    host, _, port = server.address.rpartition("|")
    try:
        with socket.socket() as peer, monkeypatch.context() as meanwhile:
            if lacking == "threads":
                meanwhile.setattr(threading.Thread, "start", _fail_to_start)
                peer.connect((host, int(port)))
                assert told.wait(TIMEOUT_S)
            else:
                limits = resource.getrlimit(resource.RLIMIT_NOFILE)
                resource.setrlimit(resource.RLIMIT_NOFILE, (peer.fileno(), limits[1]))
                try:
                    peer.connect((host, int(port)))
                    assert told.wait(TIMEOUT_S)
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert fetch(server.address, "round 1", SECRET, 60.0) == {"of": 1}
    finally:
        server.close()
    assert not _state_threads()


def _fail_to_start(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_state_that_was_withdrawn_is_not_given() -> None:
    server = StateServer("127.0.0.1", SECRET, 0.1)
    try:
        server.offer("round 1", {"of": 1})
        server.withdraw()
        with pytest.raises(ConnectionError, match="did not end round"):
            fetch(server.address, "round 1", SECRET, 60.0)
    finally:
        server.close()


def _state_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("radt-peer")]
