"""Messages between a loader server and its consumers, over a Unix socket.

A message is a datagram with a JSON object, optionally with a file descriptor. The socket has an
abstract name (unix(7)), which the kernel gives to one process at a time and takes back when that
process ends. So the name is also the lock, and no file remains.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
import weakref
from collections import deque
from dataclasses import astuple, dataclass
from typing import Any

from radt.errors import LoaderError
from radt.processes import peer_of

MAX_BYTES = 60_000
_BACKLOG = 128

Json = dict[str, Any]

#: Closed after a fork: a forked process (a DataLoader's worker) that kept its parent's connections
#: open would hide the parent's end from the other side.
_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
#: Held during forks, so that no socket is missing from `_sockets` or half closed then.
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
    """The values of a message's ``slot``: a slot that holds a batch, or one that is free again.

    ``generation`` counts arenas, ``number`` counts batches. ``description_bytes`` is the length of
    the batch's description at the end of the slot. ``in_use`` is the number of slots with a batch,
    and ``lag`` is the number of batches by which the slowest consumer is behind this one. ``place``
    is the batch's place on the consumer's GPU; None in host memory.
    """

    generation: int
    slot: int
    number: int
    description_bytes: int = 0
    in_use: int = 0
    lag: int = 0
    place: int | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """A received message."""

    json: Json
    descriptor: int = -1


class Closed(Exception):  # noqa: N818 - an event, not an error
    """The other side is gone."""


class LoaderConnection:
    """One end of a connection between a server and a consumer."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        #: Messages that a full non-blocking socket has not taken yet.
        self._unsent: deque[tuple[bytes, int]] = deque()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Json, descriptor: int = -1) -> None:
        """Send JSON, and optionally a descriptor. A full socket keeps the message for `flush`.

        Raises:
            Closed: The other side is gone.
        """
        text = json.dumps(message, separators=(",", ":"), ensure_ascii=False)
        data = text.encode(errors="surrogatepass")  # file names may have lone surrogates
        assert len(data) <= MAX_BYTES, "a message too long for a datagram"
        if self._unsent or not self._sent(data, descriptor):
            self._unsent.append((data, os.dup(descriptor) if descriptor >= 0 else -1))

    def send_slot(self, slot: Slot) -> None:
        """Send a slot in one system call. A finalizer may call this in any thread."""
        self.send({"slot": astuple(slot)})

    def flush(self) -> None:
        """Send kept messages, as far as the socket takes them.

        Raises:
            Closed: The other side is gone.
        """
        while self._unsent and self._sent(*self._unsent[0]):
            _, descriptor = self._unsent.popleft()
            if descriptor >= 0:
                os.close(descriptor)

    def _sent(self, data: bytes, descriptor: int) -> bool:
        """Send. Return False if the socket is full."""
        try:
            socket.send_fds(self._socket, [data], [descriptor] if descriptor >= 0 else [])
        except BlockingIOError:
            return False
        except OSError as error:
            raise Closed from error
        return True

    def receive(self) -> Message | None:
        """Return the next message; None if a non-blocking socket has none.

        Raises:
            Closed: The other side is gone.
            ValueError: The data is not a message.
        """
        try:
            data, descriptors, _, _ = socket.recv_fds(
                self._socket, MAX_BYTES, 1, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return None
        except ConnectionResetError:
            # The other side closed with unread data; its last messages follow this error.
            return self.receive()
        except OSError as error:
            raise Closed from error
        if not data:
            raise Closed
        try:
            return Message(_object(data), descriptors[0] if descriptors else -1)
        except (ValueError, TypeError, RecursionError) as error:
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
    """Return the abstract address of a name of at most 100 bytes."""
    return f"\0radt-loader-{name}"


def listener(name: str) -> socket.socket | None:
    """Return a listening socket of this name; None if another process has one."""
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
    """Return the listening socket that the parent process passed on."""
    sock = socket.socket(fileno=descriptor)
    sock.set_inheritable(False)
    _sockets.add(sock)
    return sock


def connect(name: str) -> LoaderConnection | None:
    """Return a connection to the listener of this name; None if there is none.

    Messages may be sent at once, before the listener accepts the connection.

    Raises:
        LoaderError: The listener belongs to another user.
    """
    sock = _socket()
    try:
        sock.connect(address_of(name))
    except OSError as error:
        sock.close()
        if error.errno in (errno.ECONNREFUSED, errno.EAGAIN):
            return None
        raise
    if peer_of(sock)[1] != os.getuid():
        sock.close()
        raise LoaderError(
            "another user has taken the name of this shared loader",
            "Choose another name for SharedLoader, or set RADT_RUNTIME_DIR to a folder of yours",
        )
    return LoaderConnection(sock)


def accept(listening: socket.socket) -> LoaderConnection | None:
    """Return the next connection, non-blocking; None if it is gone or from another user."""
    with _changing:
        try:
            sock, _ = listening.accept()
        except (BlockingIOError, ConnectionError):
            return None
        _sockets.add(sock)
    if peer_of(sock)[1] != os.getuid():
        sock.close()
        return None
    sock.setblocking(False)
    return LoaderConnection(sock)


def _socket() -> socket.socket:
    with _changing:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        _sockets.add(sock)
    return sock
