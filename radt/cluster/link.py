"""Connections between the nodes of a job: lines of JSON over TCP, and clocks compared over them.

Both sides have proved that they know the attempt's secret (`radt.peers`) before the first line.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from radt.errors import ClusterError, described

Message = dict[str, Any]
#: How often a clock is asked; the shortest round trip counts.
ROUND_TRIPS = 40
_ANSWER_S = 30.0
#: The longest message has a status for each row of a job. JSON takes up to 22 times its length.
_MAX_LINE_BYTES = 4 << 20
_BUFFER_BYTES = 1 << 16
#: Characters of a wrong message in an error.
_SHOWN = 80
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


@contextmanager
def understanding(message: Message) -> Iterator[None]:
    """Use the content of a message of another node.

    Raises:
        ClusterError: It has not the shape that the block expects.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        names = ", ".join(message)[:_SHOWN]
        raise ClusterError(f"not a message of radt, with {names}: {described(error)}") from error


def parsed(line: bytes) -> Message:
    """Return the message of a line.

    Raises:
        ClusterError: It is anything but a JSON object in UTF-8, without NaN and lone surrogates.
    """
    try:
        text = line.decode()
        message = json.loads(text, parse_constant=_refuse)
        if "\\u" in text:
            json.dumps(message, ensure_ascii=False).encode()  # fails for a lone surrogate
    except (ValueError, RecursionError) as error:
        raise ClusterError(f"not a message of radt: {line[:_SHOWN]!r}") from error
    if not isinstance(message, dict):
        raise ClusterError(f"not a message of radt: {line[:_SHOWN]!r}")
    return message


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


class Link:
    """A connection to another node.

    Args:
        connection: Both sides have proved who they are; `close` closes it.

    Raises:
        OSError: The other side has gone.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._received = bytearray()
        self._sending = threading.Lock()
        self._asked = 0
        self._answers: queue.SimpleQueue[tuple[int, int, int]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            connection.setsockopt(socket.IPPROTO_TCP, option, value)

    def send(self, message: Message) -> None:
        """Send a message; `listen` finds out that the other side has gone."""
        # Names of files may have lone surrogates, which no reader takes.
        line = json.dumps(message, ensure_ascii=False).encode(errors="replace") + b"\n"
        with self._sending, suppress(OSError):
            self._socket.sendall(line)

    def receive(self, timeout_s: float = _ANSWER_S) -> Message:
        """Return the next message, before `listen`.

        Raises:
            ClusterError: It is not a message.
            OSError: The other side has gone, or sends none within the time.
        """
        return parsed(self._line(time.monotonic() + timeout_s))

    def listen(self, on_message: Callable[[Message], None], on_end: Callable[[str], None]) -> None:
        """Hand on messages, in a thread of its own, until the other side has gone.

        Args:
            on_message: Called with each; see `understanding`.
            on_end: Called at last, with what was wrong with a message; with "" after the last one.
        """
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
        with suppress(OSError):  # the other side has gone
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._sending:  # which has failed by now
            self._socket.close()

    def _line(self, until_s: float | None = None) -> bytes:
        while (length := self._received.find(b"\n")) < 0:
            if len(self._received) > _MAX_LINE_BYTES:
                raise ClusterError("a message of another node of the job has no end")
            if until_s is not None:
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError("another node of the job is silent")
                self._socket.settimeout(left_s)
            new = self._socket.recv(_BUFFER_BYTES)
            if not new:
                raise ConnectionResetError("the other node has closed the connection")
            self._received += new
        line = bytes(self._received[:length])
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

    def _listen(self, on_message: Callable[[Message], None], on_end: Callable[[str], None]) -> None:
        problem = ""
        try:
            while True:
                message = parsed(self._line())
                now_ns = time.monotonic_ns()
                with understanding(message):
                    if _NOW in message:
                        self._answers.put((int(message[_ASK]), int(message[_NOW]), now_ns))
                    elif _ASK in message:
                        self.send({_ASK: int(message[_ASK]), _NOW: time.monotonic_ns()})
                    else:
                        on_message(message)
        except OSError:
            pass  # it has gone
        except ClusterError as error:
            problem = error.message
        finally:
            self.close()  # else the other side, if it is sending, waits for a reader
            on_end(problem)
