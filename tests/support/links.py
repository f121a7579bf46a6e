"""A bad network: a TCP link in front of a real server, which fails as told.

It knows bytes only: it drops connections, cuts them, stalls, refuses and comes back on the same
port. `tests.support.http_links.HttpLink` knows requests. Both are context managers, run in threads
of the test, and may stand behind one another::

    with Link(server_port) as link:
        link.drop_every(3)
        ...                             # talk to link.port instead of server_port
        link.refuse()
        link.pass_through()
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Self

HOST = "127.0.0.1"
_BLOCK = 65536
#: How often a thread that waits for bytes looks whether the link was closed.
_LOOK_S = 0.2


class Way(Enum):
    """Which way bytes go."""

    UP = "to the server"
    DOWN = "to the client"


@dataclass
class Traffic:
    """What went through a link since it was opened."""

    connections: int = 0
    dropped: int = 0
    bytes_up: int = 0
    bytes_down: int = 0


@dataclass(eq=False)
class _Pair:
    """One connection: the client's socket and ours to the server."""

    client: socket.socket
    server: socket.socket
    left: int | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def allowed(self, count: int) -> int:
        """How many of these bytes may still pass."""
        with self.lock:
            if self.left is None:
                return count
            passing = min(count, self.left)
            self.left -= passing
            return passing

    def reset(self) -> None:
        """End both with RST, as a router that forgot the connection does."""
        for one in (self.client, self.server):
            reset(one)


def reset(one: socket.socket) -> None:
    """Close a connection with RST."""
    with contextlib.suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


def _bound(port: int) -> socket.socket:
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind((HOST, port))
    return one


class Link:
    """A TCP proxy on a port of its own in front of ``host:port``.

    Args:
        port: The server's.
        host: The server's.
        refusing: Begin with the port closed, yet taken: nobody else gets it meanwhile.
    """

    def __init__(self, port: int, host: str = HOST, *, refusing: bool = False) -> None:
        self.traffic = Traffic()
        self._server = (host, port)
        self._lock = threading.Lock()
        self._flowing = threading.Event()
        self._flowing.set()
        self._closed = threading.Event()
        self._drop_every = 0
        self._cut_after: int | None = None
        self._pairs: set[_Pair] = set()
        self._threads: list[threading.Thread] = []
        #: Bound and never listening: keeps the port ours while it is closed.
        self._holder = _bound(0)
        self.port: int = self._holder.getsockname()[1]
        self._listener: socket.socket | None = None
        if not refusing:
            self._listen()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        """``127.0.0.1:PORT``."""
        return f"{HOST}:{self.port}"

    @property
    def uri(self) -> str:
        """``http://127.0.0.1:PORT``."""
        return f"http://{self.address}"

    # -- what it shall do -------------------------------------------------------------------------

    def pass_through(self) -> None:
        """Work from now on, on the same port; what was stalled goes on where it was."""
        self._drop_every = 0
        self._cut_after = None
        self._listen()
        self._flowing.set()

    def drop_every(self, number: int) -> None:
        """Reset every ``number``-th connection as soon as it is made; 1 is each, 0 none."""
        self._drop_every = number

    def cut_after(self, count: int | None) -> None:
        """Reset each new connection when ``count`` bytes went through it, both ways together."""
        self._cut_after = count

    def cut_now(self) -> None:
        """Reset the connections that are there; new ones are served."""
        with self._lock:
            pairs, self._pairs = self._pairs, set()
        for pair in pairs:
            pair.reset()

    def stall(self) -> None:
        """Accept, and let nothing through, also in mid-stream, until `pass_through`."""
        self._flowing.clear()

    def refuse(self) -> None:
        """Close the port, which stays ours, and reset what is connected."""
        if self._listener is not None:
            listener, self._listener = self._listener, None
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            listener.close()
        self.cut_now()

    def close(self) -> None:
        """End all threads and connections."""
        self._closed.set()
        self._flowing.set()
        self.refuse()
        for thread in list(self._threads):
            thread.join(10)
        self._holder.close()
        self.cut_now()

    # -- threads ----------------------------------------------------------------------------------

    def _listen(self) -> None:
        if self._listener is None:
            self._listener = _bound(self.port)
            self._listener.listen(128)
            self._spawn(self._accept, self._listener)

    def _spawn(self, work: Callable[..., None], *arguments: object) -> None:
        self._threads = [one for one in self._threads if one.is_alive()]
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return  # the port was closed
            self.traffic.connections += 1
            if self._drop_every and self.traffic.connections % self._drop_every == 0:
                self.traffic.dropped += 1
                reset(client)
                continue
            self._spawn(self._connect, client)

    def _connect(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._server, timeout=10)
        except OSError:
            reset(client)  # the server is down: what is behind the link looks down, too
            return
        pair = _Pair(client, server, self._cut_after)
        with self._lock:
            self._pairs.add(pair)
        for one in (client, server):
            one.settimeout(_LOOK_S)
        self._spawn(self._pump, pair, Way.UP)
        self._spawn(self._pump, pair, Way.DOWN)

    def _pump(self, pair: _Pair, way: Way) -> None:
        source, sink = (pair.client, pair.server) if way is Way.UP else (pair.server, pair.client)
        try:
            while block := self._receive(source):
                self._flowing.wait()
                passing = pair.allowed(len(block))
                self._send(sink, block[:passing])
                self._count(way, passing)
                if passing < len(block) or pair.left == 0:
                    self._forget(pair)
                    pair.reset()
                    return
            self._flowing.wait()
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            self._forget(pair)
            pair.reset()

    def _receive(self, source: socket.socket) -> bytes:
        while not self._closed.is_set():
            # While stalled nothing is read, so that the sender fills its buffers and waits.
            self._flowing.wait()
            with contextlib.suppress(TimeoutError):
                return source.recv(_BLOCK)
        return b""

    def _send(self, sink: socket.socket, block: bytes) -> None:
        view = memoryview(block)
        while view and not self._closed.is_set():
            with contextlib.suppress(TimeoutError):
                view = view[sink.send(view) :]

    def _count(self, way: Way, count: int) -> None:
        with self._lock:
            if way is Way.UP:
                self.traffic.bytes_up += count
            else:
                self.traffic.bytes_down += count

    def _forget(self, pair: _Pair) -> None:
        with self._lock:
            self._pairs.discard(pair)
