"""State of a training from one replica to another: safetensors and JSON over TCP, without pickle.

torchft's HTTP transport unpickles what it receives.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import struct
import threading
from collections.abc import Mapping
from typing import Any

from safetensors.torch import load, save
from torch import Tensor
from torch.utils._pytree import (
    keystr,
    tree_flatten,
    tree_flatten_with_path,
    tree_unflatten,
    treespec_dumps,
    treespec_loads,
)

from radt.errors import TrainingError, described
from radt.files import create_whole
from radt.home import runtime_dir
from radt.peers import Reception, listening, prove
from radt.run.notices import warn_once

State = dict[str, Any]
_TREE = "tree"
_NUMBER = struct.Struct(">q")
_NOTHING = -1
_CHUNK_BYTES = 1 << 20


def packed(state: Mapping[str, Any]) -> bytes:
    """Return a state as a safetensors file: nested dicts, lists and tuples of tensors and values.

    Raises:
        TrainingError: A value is not a tensor, string, number, bool or None, or it is in a
            namedtuple.
    """
    check_sendable(state)
    leaves, spec = tree_flatten(state)
    values = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    # Clone: tied tensors share memory, which safetensors refuses.
    tensors = {
        str(number): leaf.detach().cpu().contiguous().clone()
        for number, leaf in enumerate(leaves)
        if isinstance(leaf, Tensor)
    }
    return save(tensors, {_TREE: json.dumps([treespec_dumps(spec), values])})


def check_sendable(state: Mapping[str, Any]) -> None:
    """Raise the errors of `packed`, without copying tensors.

    Raises:
        TrainingError: See `packed`.
    """
    leaves, spec = tree_flatten_with_path(state)
    try:
        treespec_dumps(spec)
    except NotImplementedError as error:
        raise TrainingError(
            f"a state cannot be sent to a replica that joins: {error}",
            "Expected dicts, lists and tuples in the states of model, optimiser and scheduler",
        ) from error
    for path, leaf in leaves:
        if leaf is not None and not isinstance(leaf, Tensor | str | int | float | bool):
            raise TrainingError(
                f"state{keystr(path)} is a {type(leaf).__name__}, which cannot be sent to a "
                "replica that joins",
                "Expected tensors, strings, numbers, bools and None in the states of model, "
                "optimiser and scheduler",
            )


def unpacked(data: bytes) -> State:
    """Return the state of bytes from `packed`.

    Raises:
        TrainingError: The bytes are not a packed state.
    """
    try:
        header_bytes = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + header_bytes])
        spec, leaves = json.loads(header["__metadata__"][_TREE])
        for number, tensor in load(data).items():
            leaves[int(number)] = tensor
        state = tree_unflatten(leaves, treespec_loads(spec))
        assert isinstance(state, dict)
    except Exception as error:  # safetensors, and errors due to the content
        raise TrainingError(f"a peer sent a state that cannot be read: {error}") from error
    return state


def own_secret() -> str:
    """Return a secret that only processes of this user on this machine can read."""
    path = runtime_dir() / "replicas-secret"
    if not path.exists():
        create_whole(path, secrets.token_hex(32))
    return path.read_text(encoding="ascii")


class StateServer:
    """Serves a replica's state to peers that join, with threads and a socket, until `close`.

    It listens on one address only, and serves peers that know the secret.

    Args:
        host: Address of this machine's interface by which peers reach this replica.
        secret: A secret that the replicas share; see `own_secret`.
        timeout_s: How long a peer waits for a state that is not ready, or may be silent.

    Attributes:
        address: Where peers fetch the state, for `fetch`.
    """

    def __init__(self, host: str, secret: str, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._round, self._data = "", b""
        self._closed = False
        self._connections: set[socket.socket] = set()
        listener = listening(host)
        self.address = f"{host}|{listener.getsockname()[1]}"
        self._reception = Reception(
            listener,
            secret,
            self._give,
            lambda error: warn_once(
                f"a replica that joins is not served for now: {described(error)}"
            ),
        )

    def offer(self, round_name: str, state: Mapping[str, Any]) -> None:
        """Let peers fetch a copy of the state, in place of the previous one."""
        data = packed(state)
        with self._changed:
            self._round, self._data = round_name, data
            self._changed.notify_all()

    def withdraw(self) -> None:
        """Free the offered state, which is as large as that of the training."""
        with self._changed:
            self._round, self._data = "", b""

    def close(self) -> None:
        """Stop. All threads end, even if their peers are silent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            for connection in self._connections:
                with contextlib.suppress(OSError):  # the peer is gone
                    connection.shutdown(socket.SHUT_RD)  # a state in transit still arrives
        self._reception.close()

    def _give(self, connection: socket.socket) -> None:
        """Send the state to a peer."""
        with connection:
            with self._changed:
                if self._closed:
                    return
                self._connections.add(connection)
            connection.settimeout(self._timeout_s)
            try:
                (length,) = _NUMBER.unpack(_received(connection, _NUMBER.size))
                wanted = _received(connection, min(length, _CHUNK_BYTES)).decode(errors="replace")
                with self._changed:
                    self._changed.wait_for(
                        lambda: self._round == wanted or self._closed, self._timeout_s
                    )
                    data = self._data if self._round == wanted else None
                connection.sendall(_NUMBER.pack(_NOTHING if data is None else len(data)))
                if data is not None:
                    connection.sendall(data)
            except OSError:
                pass  # the peer is gone, and will ask again
            finally:
                with self._changed:
                    self._connections.discard(connection)


def reachable(address: str, timeout_s: float) -> bool:
    """Return True if the state server of a replica accepts connections at this address."""
    host, _, port = address.rpartition("|")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout_s):
        return True
    return False


def fetch(address: str, round_name: str, secret: str, timeout_s: float) -> State:
    """Return the state that the peer at the address offers after a round.

    Raises:
        OSError: The peer is gone, silent for `timeout_s`, or has another secret.
        TrainingError: It has no state of this round, or sent something else.
    """
    host, _, port = address.rpartition("|")
    with socket.create_connection((host, int(port)), timeout_s) as connection:
        prove(connection, secret, is_server=False, timeout_s=timeout_s)
        name = round_name.encode()
        connection.sendall(_NUMBER.pack(len(name)) + name)
        connection.settimeout(2 * timeout_s)  # the peer itself waits for the end of the round
        (length,) = _NUMBER.unpack(_received(connection, _NUMBER.size))
        if length == _NOTHING:
            raise ConnectionError(f"the peer at {host} did not end round {round_name}")
        return unpacked(_received(connection, length))


def _received(connection: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        chunk = connection.recv(min(length - len(data), _CHUNK_BYTES))
        if not chunk:
            raise ConnectionError("a connection between replicas ended in the middle of a message")
        data += chunk
    return bytes(data)
