"""Connections between the nodes of a job: JSON over TCP, and clock comparison.

Before the first message, both sides prove that they know the attempt's secret (`radt.peers`).
"""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from radt.errors import ClusterError, described

Message = dict[str, Any]
#: Number of clock queries; the one with the shortest round trip counts.
ROUND_TRIPS = 40
_ANSWER_S = 30.0
#: The longest message has a status for each row of a job.
_MAX_BYTES = 4 << 20
#: The kernel detects a node without power or network after 10 + 4 * 5 s. There is no heartbeat
#: beyond that: Slurm may suspend a job, and its nodes must still be connected when it resumes.
_KEEPALIVE = {
    socket.TCP_KEEPIDLE: 10,
    socket.TCP_KEEPINTVL: 5,
    socket.TCP_KEEPCNT: 4,
    socket.TCP_USER_TIMEOUT: 30_000,
}
_ASK, _NOW = "ask", "now_ns"


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The offset to add to this node's monotonic clock to get the other's, and its error bound."""

    offset_ns: int
    error_ns: int


class NodeLink:
    """A connection to another node.

    Args:
        connection: An authenticated connection; `close` closes it.

    Raises:
        OSError: The other side has disconnected.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._sending = threading.Lock()
        self._asked = 0
        self._answers: queue.SimpleQueue[tuple[int, int, int]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        self._frames = Connection(os.dup(connection.fileno()))

    def send(self, message: Message) -> None:
        """Send a message; a lost connection is reported by `listen`."""
        # File names may have lone surrogates, which JSON readers reject.
        data = json.dumps(message, ensure_ascii=False).encode(errors="replace")
        with self._sending, suppress(OSError):
            self._frames.send_bytes(data)

    def receive(self, timeout_s: float = _ANSWER_S) -> Message:
        """Receive the next message; only before `listen`.

        Raises:
            ClusterError: It is not a message.
            OSError: The other side has disconnected, or sent nothing in time.
        """
        if not self._frames.poll(timeout_s):
            raise TimeoutError("another node of the job is silent")
        return self._next()

    def listen(self, on_message: Callable[[Message], None], on_end: Callable[[str], None]) -> None:
        """Pass messages to `on_message`, from a new thread, until the other side disconnects.

        Args:
            on_message: Called with each message.
            on_end: Called at the end with the error of an invalid message; "" if there was none.
        """
        self._thread = threading.Thread(
            target=self._listen, args=(on_message, on_end), name="link", daemon=True
        )
        self._thread.start()

    def read_clock(self) -> ClockReading:
        """Compare the clocks; only after `listen`, and from one thread.

        Raises:
            ClusterError: The other side does not answer.
        """
        best: ClockReading | None = None
        for _ in range(ROUND_TRIPS):
            self._asked += 1
            asked_ns = time.monotonic_ns()
            self.send({_ASK: self._asked})
            remote_ns, answered_ns = self._answer()
            error_ns = (answered_ns - asked_ns + 1) // 2
            if best is None or error_ns < best.error_ns:
                best = ClockReading(remote_ns - (asked_ns + answered_ns) // 2, error_ns)
        assert best is not None
        return best

    def close(self) -> None:
        """Disconnect. Harmless when done already."""
        with suppress(OSError):  # the other side has disconnected
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._sending:  # a blocked `send` has failed by now
            self._socket.close()
            self._frames.close()

    def _next(self) -> Message:
        try:
            return dict(json.loads(self._frames.recv_bytes(_MAX_BYTES)))
        except EOFError:
            raise ConnectionResetError("the other node has closed the connection") from None
        except (ValueError, TypeError, RecursionError) as error:
            raise ClusterError(f"not a message of radt: {described(error)}") from error

    def _answer(self) -> tuple[int, int]:
        """Return the other clock's answer to the newest query, and when it arrived."""
        while True:
            try:
                number, remote_ns, answered_ns = self._answers.get(timeout=_ANSWER_S)
            except queue.Empty:
                raise ClusterError("another node of the job does not answer") from None
            if number == self._asked:
                return remote_ns, answered_ns

    def _listen(self, on_message: Callable[[Message], None], on_end: Callable[[str], None]) -> None:
        problem = ""
        try:
            while True:
                message = self._next()
                now_ns = time.monotonic_ns()
                if _NOW in message:
                    self._answers.put((message[_ASK], message[_NOW], now_ns))
                elif _ASK in message:
                    self.send({_ASK: message[_ASK], _NOW: time.monotonic_ns()})
                else:
                    on_message(message)
        except OSError:
            pass  # disconnected
        except Exception as error:  # noqa: BLE001 - any invalid message ends the connection
            problem = described(error)
        finally:
            self.close()  # otherwise the other side could block while sending
            on_end(problem)
