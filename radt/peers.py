"""TCP connections between processes of a run that authenticate with the run's secret.

Nothing that a peer sends is parsed before it has authenticated: it is 64 bytes, of which the last
32 are compared. What follows is neither encrypted nor protected against changes in transit.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

#: How long a server waits for a peer's proof.
GREETING_S = 5.0
#: Maximum number of peers that are authenticating; a further one replaces the oldest.
_MOST_NEWCOMERS = 64
_BYTES = 32
#: Delay before accepting again when descriptors or threads run out: other peers may end first.
_RETRY_S = 0.2


def prove(connection: socket.socket, secret: str, *, is_server: bool, timeout_s: float) -> None:
    """Authenticate both sides of a connection by the secret that they share.

    Args:
        connection: Connected; its timeout is changed.
        secret: The secret of both sides.
        is_server: True on the side that accepted the connection.
        timeout_s: Limit for the whole exchange.

    Raises:
        OSError: The other side does not know the secret, has disconnected, or takes too long.
    """
    until_s = time.monotonic() + timeout_s
    own, roles = secrets.token_bytes(_BYTES), (b"server", b"client")
    mine, theirs = roles if is_server else roles[::-1]
    connection.settimeout(timeout_s)
    connection.sendall(own)
    connection.sendall(_proof(secret, mine, _received(connection, until_s)))
    if not hmac.compare_digest(_received(connection, until_s), _proof(secret, theirs, own)):
        raise ConnectionRefusedError("the other side of a connection does not know the secret")


def _proof(secret: str, role: bytes, challenge: bytes) -> bytes:
    """Return the answer to a challenge. Without the role, a peer could reflect ours."""
    return hmac.digest(secret.encode(), role + challenge, "sha256")


def _received(connection: socket.socket, until_s: float) -> bytes:
    data = b""
    while len(data) < _BYTES:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the other side of a connection did not prove in time who it is")
        connection.settimeout(left_s)
        new = connection.recv(_BYTES - len(data))
        if not new:
            raise ConnectionResetError("the other side has closed the connection")
        data += new
    return data


def listening(host: str) -> socket.socket:
    """Return a socket that listens on a free port of one address of this machine.

    Raises:
        OSError: This machine does not have the address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, 0), family=family)


class Reception:
    """Admit peers that know a secret, each in a thread of its own, until `close`.

    Args:
        listener: Listening socket; it is closed with this object.
        secret: See `prove`.
        admit: Called in the peer's thread with its connection, which it has to close.
        on_problem: Called if a peer cannot be accepted for now, for example without a descriptor.
    """

    def __init__(
        self,
        listener: socket.socket,
        secret: str,
        admit: Callable[[socket.socket], None],
        on_problem: Callable[[Exception], None],
    ) -> None:
        self._listener, self._secret = listener, secret
        self._admit, self._on_problem = admit, on_problem
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._newcomers: dict[socket.socket, None] = {}  # the oldest first
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, name="radt-peers", daemon=True)
        self._accepting.start()

    def close(self) -> None:
        """Stop accepting, disconnect peers that are authenticating, and wait for admitted ones."""
        self._closed.set()
        with suppress(OSError):  # already closed
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._accepting.join()
        with self._lock:
            for newcomer in self._newcomers:
                _hang_up(newcomer)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._listener.accept()
                self._begin(connection)
            except (OSError, RuntimeError) as error:  # closed, or out of descriptors or threads
                if not self._closed.is_set():
                    self._on_problem(error)
                    self._closed.wait(_RETRY_S)

    def _begin(self, connection: socket.socket) -> None:
        """Authenticate a peer in a new thread.

        Raises:
            RuntimeError: No thread can be started.
        """
        thread = threading.Thread(
            target=self._greet, args=(connection,), name="radt-peer", daemon=True
        )
        with self._lock:
            if len(self._newcomers) >= _MOST_NEWCOMERS:
                oldest = next(iter(self._newcomers))
                del self._newcomers[oldest]
                _hang_up(oldest)
            self._newcomers[connection] = None
        try:
            thread.start()
        except RuntimeError:
            self._forget(connection)
            connection.close()
            raise
        self._threads = [*(known for known in self._threads if known.is_alive()), thread]

    def _greet(self, connection: socket.socket) -> None:
        try:
            prove(connection, self._secret, is_server=True, timeout_s=GREETING_S)
        except OSError:
            self._forget(connection)
            connection.close()  # a stranger, or a peer that has gone and will reconnect
            return
        self._forget(connection)
        self._admit(connection)

    def _forget(self, connection: socket.socket) -> None:
        with self._lock:
            self._newcomers.pop(connection, None)


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):  # its peer has gone
        connection.shutdown(socket.SHUT_RDWR)
