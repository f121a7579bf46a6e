"""Messages between a loader server and its consumers, over a Unix socket that keeps them apart.

A message is a JSON object, with a file descriptor beside it or not, or 16 bytes of a batch that
lies in a slot (`Slot`). The socket has an abstract name (unix(7)): the kernel gives it to one
process at a time and takes it back when that ends, so it is the lock as well, and no file is left.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
import threading
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any

from radt.errors import LoaderError

_SLOT = struct.Struct("<BBHHHII")
_SLOT_KIND = 1  # no JSON begins with it
_PEER = struct.Struct("3i")
MAX_BYTES = 60_000
_BACKLOG = 128

Json = dict[str, Any]

#: A forked process (a DataLoader's worker) must not keep the connections of its parent open: the
#: other side would not notice that the parent is gone.
_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
#: No thread forks while another has made a socket that is not among them yet, or is closing one.
_changing = threading.RLock()


def _close_in_child() -> None:
    _changing.release()
    for sock in list(_sockets):
        sock.close()


os.register_at_fork(
    before=_changing.acquire, after_in_parent=_changing.release, after_in_child=_close_in_child
)


@dataclass(frozen=True, slots=True)
class Slot:
    """A batch that is in a slot, or a slot that is free again.

    ``generation`` counts arenas, ``number`` the batches, ``json_bytes`` is the length of the
    layout's JSON at the end of the slot. ``in_use`` is how many slots have a batch, and ``lag``
    how many batches the slowest consumer is behind this one.
    """

    generation: int
    slot: int
    number: int
    json_bytes: int = 0
    in_use: int = 0
    lag: int = 0

    def packed(self) -> bytes:
        in_use, lag = min(self.in_use, 0xFF), min(self.lag, 0xFFFF)
        ids = (self.slot, self.generation, lag, self.number, self.json_bytes)
        return _SLOT.pack(_SLOT_KIND, in_use, *ids)


@dataclass(frozen=True, slots=True)
class Placed(Slot):
    """A batch that is in a slot and also in a ``place`` on the consumer's GPU; sent as JSON."""

    place: int = 0


@dataclass(frozen=True, slots=True)
class Message:
    """What was received: JSON with at most one descriptor, or a slot."""

    json: Json
    slot: Slot | None = None
    descriptor: int = -1


class Closed(Exception):  # noqa: N818 - an event, not an error
    """The other side is gone."""


class Connection:
    """One end of a connection between a server and a consumer."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        #: What the socket has no room for, of one that does not wait.
        self._unsent: deque[tuple[bytes, int]] = deque()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Json, descriptor: int = -1) -> None:
        """Send JSON, and a descriptor; what there is no room for is kept for `flush`.

        Raises:
            Closed: The other side is gone.
        """
        text = json.dumps(message, separators=(",", ":"), ensure_ascii=False)
        data = text.encode(errors="surrogatepass")  # names of files may have lone surrogates
        assert len(data) <= MAX_BYTES, "a message too long for a datagram"
        self._send(data, descriptor)

    def send_slot(self, slot: Slot) -> None:
        """As `send`, of a slot; one system call, which a finalizer may make in any thread."""
        self._send(slot.packed())

    def flush(self) -> None:
        """Send what there was no room for, as far as there is now.

        Raises:
            Closed: The other side is gone.
        """
        while self._unsent and self._sent(*self._unsent[0]):
            _, descriptor = self._unsent.popleft()
            if descriptor >= 0:
                os.close(descriptor)

    def _send(self, data: bytes, descriptor: int = -1) -> None:
        if self._unsent or not self._sent(data, descriptor):
            self._unsent.append((data, os.dup(descriptor) if descriptor >= 0 else -1))

    def _sent(self, data: bytes, descriptor: int) -> bool:
        """Send, unless there is no room."""
        try:
            socket.send_fds(self._socket, [data], [descriptor] if descriptor >= 0 else [])
        except BlockingIOError:
            return False
        except OSError as error:
            raise Closed from error
        return True

    def receive(self) -> Message | None:
        """Return the next message; None if there is none now and the socket does not wait.

        Raises:
            Closed: The other side is gone.
            ValueError: It is not a message.
        """
        try:
            data, descriptors, _, _ = socket.recv_fds(
                self._socket, MAX_BYTES, 1, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return None
        except ConnectionResetError:
            # The other side closed without reading all; its last messages come after this error.
            return self.receive()
        except OSError as error:
            raise Closed from error
        if not data:
            raise Closed
        try:
            if data[0] == _SLOT_KIND:
                _, in_use, slot, generation, lag, number, json_bytes = _SLOT.unpack(data)
                return Message({}, Slot(generation, slot, number, json_bytes, in_use, lag))
            return Message(_object(data), descriptor=descriptors[0] if descriptors else -1)
        except (ValueError, TypeError, RecursionError, struct.error) as error:
            for descriptor in descriptors:
                os.close(descriptor)
            raise ValueError(f"not a message of a shared loader: {data[:80]!r}") from error

    def close(self) -> None:
        for _, descriptor in self._unsent:
            if descriptor >= 0:
                os.close(descriptor)
        self._unsent.clear()
        with _changing:
            self._socket.close()


def _object(data: bytes) -> Json:
    message = json.loads(data)
    if not isinstance(message, dict):
        raise TypeError(f"expected a JSON object, found a {type(message).__name__}")
    return message


def address_of(name: str) -> str:
    """Return the abstract address of a name, which may hold 100 bytes."""
    return f"\0radt-loader-{name}"


def listener(name: str) -> socket.socket | None:
    """Return a listening socket of that name; None if another process has one."""
    sock = _socket()
    try:
        sock.bind(address_of(name))
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return sock


def inherited_listener(descriptor: int) -> socket.socket:
    """Return the listening socket that the process which started this one passed on."""
    sock = socket.socket(fileno=descriptor)
    sock.set_inheritable(False)
    _sockets.add(sock)
    return sock


def connect(name: str) -> Connection | None:
    """Return a connection to the listener of that name; None if there is none.

    A listener accepts it when it comes to that: messages may be sent at once.

    Raises:
        LoaderError: It is another user's.
    """
    sock = _socket()
    try:
        sock.connect(address_of(name))
    except OSError as error:
        sock.close()
        if error.errno in (errno.ECONNREFUSED, errno.EAGAIN):
            return None
        raise
    if _peer_uid(sock) != os.getuid():
        sock.close()
        raise LoaderError(
            "another user has taken the name of this shared loader",
            "Choose another name for SharedLoader, or set RADT_RUNTIME_DIR to a folder of yours",
        )
    return Connection(sock)


def accept(listening: socket.socket) -> Connection | None:
    """Return the next connection, which does not wait; None if it is gone or another user's."""
    with _changing:
        try:
            sock, _ = listening.accept()
        except (BlockingIOError, ConnectionError):
            return None
        _sockets.add(sock)
    if _peer_uid(sock) != os.getuid():
        sock.close()
        return None
    sock.setblocking(False)
    return Connection(sock)


def _socket() -> socket.socket:
    with _changing:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        _sockets.add(sock)
    return sock


def _peer_uid(sock: socket.socket) -> int:
    peer = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return int(_PEER.unpack(peer)[1])
