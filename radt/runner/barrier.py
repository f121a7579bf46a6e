"""The barrier of ``--sync context``: rows wait for each other as they enter ``with radt.Run()``.

The runner listens on a Unix socket. A training process (`radt.run.target`) connects and sends
``RUN_ID PID``; it gets the reading end of a pipe in return, and waits for its end. Closing that one
pipe lets all go at one instant; each then sends the monotonic time at which it went on, in ns, and
closes. If the runner dies, the kernel closes the pipe, and nobody waits for the dead.
"""

from __future__ import annotations

import os
import secrets
import selectors
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from radt.errors import LaunchError
from radt.home import RUNTIME_VARIABLE, runtime_dir
from radt.procfs import start_ticks

#: Path of the socket, for training processes; `radt.run.target` reads it.
BARRIER_VARIABLE = "RADT_BARRIER"
#: More than anybody sends in a line; what is longer is not from radt.
MAX_LINE_BYTES = 256
_BACKLOG = 128
_SOCKET = "s"  # the path of a socket may have 107 characters only


class Barrier:
    """Releases all rows of a workload at one instant: they wait for the end of one pipe."""

    def __init__(self) -> None:
        self.read_fd, self._write_fd = os.pipe()

    def release(self) -> None:
        """Let all go. Harmless when done already."""
        if self._write_fd >= 0:
            os.write(self._write_fd, b"g")  # without it, the end would be that of a killed runner
            os.close(self._write_fd)
            self._write_fd = -1

    def close(self) -> None:
        """Release, and give back the pipe."""
        self.release()
        if self.read_fd >= 0:
            os.close(self.read_fd)
            self.read_fd = -1


@dataclass(slots=True)
class _Visitor:
    """A connection: first it says who it is, after the release when it went on."""

    connection: socket.socket
    received: bytes = b""
    run_id: str = ""


class ContextBarrier:
    """Holds the rows of one workload at the entrance of their blocks until all have come.

    All processes of a row wait, the first of each counts. Rows that have ended are not waited for.
    Whoever comes after the release passes at once.

    Args:
        run_ids: The rows that wait for each other.
        on_release: Called once, from the barrier's thread or that of `gone`, when the barrier
            opens.

    Raises:
        LaunchError: The socket cannot be made.
    """

    def __init__(
        self, run_ids: Iterable[str], on_release: Callable[[], None] = lambda: None
    ) -> None:
        self._expected = frozenset(run_ids)
        self._on_release = on_release
        self._lock = threading.Lock()
        self._arrived: set[str] = set()
        self._gone: set[str] = set()
        self._released_ns: dict[str, int] = {}
        self._read_fd, self._write_fd = os.pipe()
        self._wake_read, self._wake_write = os.pipe()
        self._closed = False
        # A folder of its own, so that it can be shown to a container without its neighbours.
        self._folder = _new_folder_name()
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _remove_leftovers()
            self._folder.mkdir(mode=0o700)
            self._listening.bind(str(self.path))
            self._listening.listen(_BACKLOG)
        except OSError as error:
            self._give_back()
            raise LaunchError(
                f"cannot create the barrier's socket {self.path}: {error.strerror or error}",
                f"Set {RUNTIME_VARIABLE} to a folder with a short path, on a local disk",
            ) from error
        self._listening.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="context barrier", daemon=True)
        self._thread.start()

    def variables(self, run_id: str) -> dict[str, str]:
        """Environment variables for the processes of a row; none for a row that does not wait."""
        return {BARRIER_VARIABLE: str(self.path)} if run_id in self._expected else {}

    @property
    def path(self) -> Path:
        """The socket, in a folder of its own."""
        return self._folder / _SOCKET

    @property
    def arrived(self) -> frozenset[str]:
        """Rows of which a process has come to the entrance."""
        with self._lock:
            return frozenset(self._arrived)

    @property
    def awaited(self) -> frozenset[str]:
        """Rows that have neither come nor ended."""
        with self._lock:
            return self._missing()

    @property
    def released(self) -> bool:
        """Whether the barrier is open."""
        with self._lock:
            return self._write_fd < 0

    @property
    def released_ns(self) -> Mapping[str, int]:
        """When the first process of each row went on, `time.monotonic_ns`, as far as known."""
        with self._lock:
            return MappingProxyType(dict(self._released_ns))

    def gone(self, run_id: str) -> None:
        """The row has ended, or could not be started: nobody waits for it any more."""
        with self._lock:
            self._gone.add(run_id)
        self._release_if_complete()

    def close(self) -> None:
        """Let everybody go and take the socket away. Harmless when done already."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._open_barrier()
        os.write(self._wake_write, b"x")
        self._thread.join()
        self._give_back()

    def _missing(self) -> frozenset[str]:
        return self._expected - self._arrived - self._gone

    def _release_if_complete(self) -> None:
        with self._lock:
            complete = not self._missing()
        if complete and self._open_barrier():
            self._on_release()

    def _open_barrier(self) -> bool:
        """Let all go; False if that was done already."""
        with self._lock:
            fd, self._write_fd = self._write_fd, -1
        if fd < 0:
            return False
        os.close(fd)
        return True

    # The thread ------------------------------------------------------------------------------

    def _serve(self) -> None:
        with self._selector:
            while True:
                for key, _ in self._selector.select():
                    if key.fileobj == self._wake_read:
                        self._hang_up()
                        return
                    if isinstance(key.data, _Visitor):
                        self._hear(key.data)
                    else:
                        self._accept()

    def _hang_up(self) -> None:
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, _Visitor):
                key.data.connection.close()

    def _accept(self) -> None:
        with suppress(OSError):  # it went away again, or there are too many open files
            connection, _ = self._listening.accept()
            connection.setblocking(False)
            self._selector.register(connection, selectors.EVENT_READ, _Visitor(connection))

    def _hear(self, visitor: _Visitor) -> None:
        try:
            data = visitor.connection.recv(MAX_LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        visitor.received += data
        *lines, visitor.received = visitor.received.split(b"\n")
        try:
            for line in lines:
                self._understand(visitor, line.decode("ascii"))
            done = not data or len(visitor.received) > MAX_LINE_BYTES
        except (OSError, ValueError):  # it went away, or is not from radt
            done = True
        if done:
            self._selector.unregister(visitor.connection)
            visitor.connection.close()

    def _understand(self, visitor: _Visitor, line: str) -> None:
        """Take in a line.

        Raises:
            ValueError: It makes no sense.
            OSError: The process has gone.
        """
        if visitor.run_id:
            released_ns = int(line)
            if not 0 <= released_ns <= time.monotonic_ns():
                raise ValueError(line)
            with self._lock:
                self._released_ns.setdefault(visitor.run_id, released_ns)
            return
        run_id, _, pid = line.partition(" ")
        if run_id not in self._expected or not pid.isdigit():
            raise ValueError(line)
        socket.send_fds(visitor.connection, [b"w"], [self._read_fd])
        visitor.run_id = run_id
        with self._lock:
            self._arrived.add(run_id)
        self._release_if_complete()

    def _give_back(self) -> None:
        self._open_barrier()
        self._listening.close()
        self.path.unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            self._folder.rmdir()
        for fd in (self._read_fd, self._wake_read, self._wake_write):
            os.close(fd)


def _new_folder_name() -> Path:
    """Says whose it is: the process id and, as ids are used again, when it was started."""
    pid = os.getpid()
    return runtime_dir() / f"barrier-{pid}-{start_ticks(pid)}-{secrets.token_hex(2)}"


def _remove_leftovers() -> None:
    """Folders of runners that were killed."""
    for folder in runtime_dir().glob("barrier-*-*-*"):
        _, pid, ticks, _ = folder.name.split("-", 3)
        if pid.isdigit() and str(start_ticks(int(pid))) != ticks:
            shutil.rmtree(folder, ignore_errors=True)
