"""The barrier of ``--sync context``: rows wait for each other as they enter ``with radt.Run()``.

The runner listens on a Unix socket. A training process (`radt.run.target`) connects and sends
``RUN_ID PID``; it receives the reading end of a pipe and waits for its EOF. Closing that one pipe
releases all processes at one instant; each then sends the monotonic time at which it continued, in
ns, and closes. If the runner dies, the kernel closes the pipe, so no process waits for a dead one.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from radt.errors import LaunchError
from radt.home import BARRIER_VARIABLE, RUNTIME_VARIABLE, runtime_dir
from radt.procfs import start_ticks

#: Longer than any line of the protocol; a longer line does not come from radt.
MAX_LINE_BYTES = 256
_BACKLOG = 128
#: Seconds until the next attempt when no file descriptor is free.
_RETRY_S = 0.2
_SOCKET = "s"  # short, because the path of a socket is limited to 107 characters


class Barrier:
    """Releases all rows of a workload at one instant: they wait for the end of one pipe."""

    def __init__(self) -> None:
        self.read_fd, self._write_fd = os.pipe()

    def release(self) -> None:
        """Release all processes. Harmless when done already."""
        if self._write_fd >= 0:
            os.write(self._write_fd, b"g")  # distinguishes a release from a killed runner's EOF
            os.close(self._write_fd)
            self._write_fd = -1

    def close(self) -> None:
        """Release, and close the pipe."""
        self.release()
        if self.read_fd >= 0:
            os.close(self.read_fd)
            self.read_fd = -1


class ContextBarrier:
    """Holds the rows of one workload at the entrance of their blocks until all have arrived.

    All processes of a row wait; the row has arrived with its first. Rows that have ended are not
    waited for. A process that arrives after the release passes at once.

    Args:
        run_ids: The rows that wait for each other.
        on_release: Called once, from any thread, when the barrier opens.

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
        self._closed = False
        # In its own folder, so that it can be mounted into a container without other files.
        pid = os.getpid()  # identifies the owner with its start time, because pids are reused
        name = f"barrier-{pid}-{start_ticks(pid)}-{secrets.token_hex(2)}"
        self._folder = runtime_dir() / name
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
        self._thread = threading.Thread(target=self._serve, name="context barrier", daemon=True)
        self._thread.start()

    def variables(self, run_id: str) -> dict[str, str]:
        """Return environment variables for the processes of a row; none if it does not wait."""
        return {BARRIER_VARIABLE: str(self.path)} if run_id in self._expected else {}

    @property
    def path(self) -> Path:
        """Path of the socket."""
        return self._folder / _SOCKET

    @property
    def arrived(self) -> frozenset[str]:
        """Return the rows of which a process has arrived."""
        with self._lock:
            return frozenset(self._arrived)

    @property
    def awaited(self) -> frozenset[str]:
        """Return the rows that have neither arrived nor ended."""
        with self._lock:
            return self._missing()

    @property
    def released_ns(self) -> Mapping[str, int]:
        """Return when the first process of each row continued, in monotonic ns, as far as known."""
        with self._lock:
            return MappingProxyType(dict(self._released_ns))

    def gone(self, run_id: str) -> None:
        """Stop waiting for a row that has ended or could not be started."""
        with self._lock:
            self._gone.add(run_id)
        self._release_if_complete()

    def close(self) -> None:
        """Release all processes and remove the socket. Harmless when done already."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._listening.shutdown(socket.SHUT_RDWR)  # wakes accept()
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
        """Open the barrier; return False if it was open."""
        with self._lock:
            fd, self._write_fd = self._write_fd, -1
        if fd < 0:
            return False
        os.close(fd)
        return True

    # Threads ---------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Accept processes, each in a thread of its own, until `close`."""
        while not self._closed:
            try:
                connection, _ = self._listening.accept()
            except OSError:  # the peer is gone, too many files are open, or `close` was called
                time.sleep(0 if self._closed else _RETRY_S)
            else:
                threading.Thread(target=self._visit, args=(connection,), daemon=True).start()

    def _visit(self, connection: socket.socket) -> None:
        """Read which run a process belongs to and, after the release, when it continued."""
        # The process may go away, or not be one of radt's.
        with suppress(OSError, ValueError), connection, connection.makefile("rb") as lines:
            run_id, _, pid = lines.readline(MAX_LINE_BYTES).decode("ascii").partition(" ")
            if run_id not in self._expected or not pid.strip().isdigit():
                return
            with self._lock:
                if self._closed:
                    return
                socket.send_fds(connection, [b"w"], [self._read_fd])
                self._arrived.add(run_id)
            self._release_if_complete()
            released_ns = int(lines.readline(MAX_LINE_BYTES))
            if 0 <= released_ns <= time.monotonic_ns():
                with self._lock:
                    self._released_ns.setdefault(run_id, released_ns)

    def _give_back(self) -> None:
        self._open_barrier()
        self._listening.close()
        self.path.unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            self._folder.rmdir()
        os.close(self._read_fd)


def _remove_leftovers() -> None:
    """Remove the folders of runners that were killed."""
    for folder in runtime_dir().glob("barrier-*-*-*"):
        _, pid, ticks, _ = folder.name.split("-", 3)
        if pid.isdigit() and str(start_ticks(int(pid))) != ticks:
            shutil.rmtree(folder, ignore_errors=True)
