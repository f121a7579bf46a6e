"""Connections between the nodes of a job: lines of JSON over TCP, and clocks compared over them.

Both sides prove that they know a secret of the submission's folder, by HMAC-SHA256 of what the
other one has chosen, before anything they say counts.
"""

from __future__ import annotations

import hmac
import json
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from radt.errors import ClusterError

Message = dict[str, Any]
#: How often a clock is asked; the shortest round trip counts.
ROUND_TRIPS = 40
#: For all that is said before `Link.listen`.
_GREETING_S = 30.0
_ANSWER_S = 30.0
_MAX_LINE_BYTES = 16 << 20
_BUFFER_BYTES = 1 << 16
#: A node without power or network is noticed after 10 + 4 * 5 s, by the kernel. Nobody is asked for
#: signs of life beyond that: Slurm may suspend a job, and its nodes must find each other again.
_KEEPALIVE = {
    socket.TCP_KEEPIDLE: 10,
    socket.TCP_KEEPINTVL: 5,
    socket.TCP_KEEPCNT: 4,
    socket.TCP_USER_TIMEOUT: 30_000,
}
_ASK, _NOW = "ask", "now_ns"


@dataclass(frozen=True, slots=True)
class ClockReading:
    """What is added to this node's monotonic clock to have the other's, off by at most so much."""

    offset_ns: int
    error_ns: int


class Link:
    """A connection to another node.

    Args:
        connection: Connected; it is this object's from now on.
        secret: Both sides have it.
        is_first: Whether this is the first node's end.

    Raises:
        ClusterError: The other side does not know the secret.
        OSError: It went away, or says nothing.
    """

    def __init__(self, connection: socket.socket, secret: str, *, is_first: bool) -> None:
        self._socket = connection
        self._received = bytearray()
        self._greeted_by_s: float | None = time.monotonic() + _GREETING_S
        self._sending = threading.Lock()
        self._asked = 0
        self._answers: queue.SimpleQueue[tuple[int, int, int]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        try:
            connection.settimeout(_GREETING_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE.items():
                connection.setsockopt(socket.IPPROTO_TCP, option, value)
            self._prove(secret, is_first=is_first)
        except BaseException:
            self.close()
            raise

    def send(self, message: Message) -> None:
        """Send a message; that the other side is gone is found out by `listen`."""
        with self._sending, suppress(OSError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> Message:
        """Return the next message, before `listen`.

        Raises:
            ClusterError: It is none.
            OSError: The other side is gone, or says nothing.
        """
        line = self._line()
        try:
            message = json.loads(line)
        except ValueError as error:
            raise ClusterError(f"not a message of radt: {bytes(line[:80])!r}") from error
        if not isinstance(message, dict):
            raise ClusterError(f"not a message of radt: {bytes(line[:80])!r}")
        return message

    def listen(self, on_message: Callable[[Message], None], on_end: Callable[[], None]) -> None:
        """Hand on what comes, in a thread of its own, until the other side is gone."""
        self._greeted_by_s = None
        self._socket.settimeout(None)
        self._thread = threading.Thread(
            target=self._listen, args=(on_message, on_end), name="link", daemon=True
        )
        self._thread.start()

    def read_clock(self) -> ClockReading:
        """Compare the clocks, after `listen`; for one thread.

        Raises:
            ClusterError: The other side does not answer.
        """
        best: ClockReading | None = None
        for _ in range(ROUND_TRIPS):
            self._asked += 1
            asked_ns = time.monotonic_ns()
            self.send({_ASK: self._asked})
            there_ns, answered_ns = self._answer()
            error_ns = (answered_ns - asked_ns + 1) // 2
            if best is None or error_ns < best.error_ns:
                best = ClockReading(there_ns - (asked_ns + answered_ns) // 2, error_ns)
        assert best is not None
        return best

    def close(self) -> None:
        """Hang up. Harmless when done already."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._socket.close()

    def _line(self) -> bytearray:
        while (length := self._received.find(b"\n")) < 0:
            if len(self._received) > _MAX_LINE_BYTES:
                raise ClusterError("a message of another node of the job has no end")
            if self._greeted_by_s is not None:
                left_s = self._greeted_by_s - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError("the other node has not said who it is")
                self._socket.settimeout(left_s)
            new = self._socket.recv(_BUFFER_BYTES)
            if not new:
                raise ConnectionResetError("the other node has closed the connection")
            self._received += new
        line = self._received[:length]
        del self._received[: length + 1]
        return line

    def _answer(self) -> tuple[int, int]:
        """Return what the other clock says and when that came, for the newest question."""
        while True:
            try:
                number, there_ns, answered_ns = self._answers.get(timeout=_ANSWER_S)
            except queue.Empty:
                raise ClusterError("another node of the job does not answer") from None
            if number == self._asked:
                return there_ns, answered_ns

    def _listen(self, on_message: Callable[[Message], None], on_end: Callable[[], None]) -> None:
        try:
            while True:
                message = self.receive()
                now_ns = time.monotonic_ns()
                if _NOW in message:
                    self._answers.put((message[_ASK], message[_NOW], now_ns))
                elif _ASK in message:
                    self.send({_ASK: message[_ASK], _NOW: time.monotonic_ns()})
                else:
                    on_message(message)
        except (OSError, ClusterError):
            pass  # it is gone, or what it says makes no sense
        finally:
            on_end()

    def _prove(self, secret: str, *, is_first: bool) -> None:
        own, roles = secrets.token_hex(32), ("first", "other")
        mine, theirs = roles if is_first else roles[::-1]
        self.send({"challenge": own})
        challenge = str(self.receive().get("challenge"))
        self.send({"proof": _proof(secret, mine, challenge)})
        proof = str(self.receive().get("proof"))
        if not hmac.compare_digest(proof.encode(), _proof(secret, theirs, own).encode()):
            raise ClusterError("somebody who does not know the submission's secret has connected")


def _proof(secret: str, role: str, challenge: str) -> str:
    """Say it with one's role: else a challenge could be answered by handing it back."""
    return hmac.new(secret.encode(), f"{role} {challenge}".encode(), "sha256").hexdigest()
