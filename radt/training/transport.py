"""State of a training from one replica to another: safetensors and JSON over TCP, no pickle.

torchft's own HTTP transport unpickles what it receives.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Mapping
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from radt.errors import TrainingError, described
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
        TrainingError: A value in it is neither a tensor nor a string, a number, a bool, None.
    """
    tensors: dict[str, Tensor] = {}
    tree = _described(state, tensors, "state")
    # Clones: tied tensors share memory, which safetensors refuses.
    copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    return save(copies, {_TREE: json.dumps(tree)})


def check_sendable(state: Mapping[str, Any]) -> None:
    """Raise what `packed` would raise, without copying tensors.

    Raises:
        TrainingError: See `packed`.
    """
    _described(state, {}, "state")


def unpacked(data: bytes) -> State:
    """Return the state that `packed` gave.

    Raises:
        TrainingError: The bytes are something else.
    """
    try:
        header_bytes = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + header_bytes])
        state = _restored(json.loads(header["__metadata__"][_TREE]), load(data))
        assert isinstance(state, dict)
    except Exception as error:  # safetensors and what the bytes lead to
        raise TrainingError(f"a peer sent a state that cannot be read: {error}") from error
    return state


def _described(value: Any, tensors: dict[str, Tensor], place: str) -> Any:
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, Mapping):
        items = [
            [_described(key, tensors, place), _described(item, tensors, f"{place}[{key!r}]")]
            for key, item in value.items()
        ]
        return {"dict": items}
    if isinstance(value, list | tuple):
        parts = [_described(item, tensors, f"{place}[{index}]") for index, item in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": parts}
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise TrainingError(
        f"{place} is a {type(value).__name__}, which cannot be sent to a replica that joins",
        "Expected tensors, strings, numbers, bools and None in the states of model, optimiser "
        "and scheduler",
    )


def _restored(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {_restored(key, tensors): _restored(item, tensors) for key, item in content}
    items = [_restored(item, tensors) for item in content]
    return tuple(items) if kind == "tuple" else items


class StateServer:
    """Give a replica's state to peers that join: threads and a socket, until `close`.

    It listens at one address only, and hears peers that know the secret.

    Args:
        host: Address of this machine's interface by which peers reach this replica.
        secret: What the replicas have in common; see `FoundLighthouse`.
        timeout_s: How long a peer waits for a state that is on its way, or may be silent.

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
        """Let peers fetch a copy of the state, in place of the one before."""
        data = packed(state)
        with self._changed:
            self._round, self._data = round_name, data
            self._changed.notify_all()

    def withdraw(self) -> None:
        """Free the state that was offered, which is as large as the training's."""
        with self._changed:
            self._round, self._data = "", b""

    def close(self) -> None:
        """Stop; all threads end, also those whose peers are silent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            for connection in self._connections:
                with contextlib.suppress(OSError):  # its peer is gone
                    connection.shutdown(socket.SHUT_RD)  # a state that is on its way arrives
        self._reception.close()

    def _give(self, connection: socket.socket) -> None:
        """Give a peer the state."""
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
                pass  # that peer is gone, and asks again
            finally:
                with self._changed:
                    self._connections.discard(connection)


def reachable(address: str, timeout_s: float) -> bool:
    """Return whether the replica that gives its state at the address is there."""
    host, _, port = address.rpartition("|")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout_s):
        return True
    return False


def fetch(address: str, round_name: str, secret: str, timeout_s: float) -> State:
    """Return the state that the peer at the address offers after a round.

    Raises:
        OSError: The peer is gone, silent for `timeout_s`, or does not know the secret.
        TrainingError: It has no state of this round, or what it sent is not one.
    """
    host, _, port = address.rpartition("|")
    with socket.create_connection((host, int(port)), timeout_s) as connection:
        prove(connection, secret, is_server=False, timeout_s=timeout_s)
        name = round_name.encode()
        connection.sendall(_NUMBER.pack(len(name)) + name)
        connection.settimeout(2 * timeout_s)  # the peer itself waits for the round's end
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
