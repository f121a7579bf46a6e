"""Previews of files, read by at most two helper processes at once, with limits.

A file can make a library decode far more than its size. Exceeding a limit ends the helper, not the
dashboard, and the page names the limit. A helper reads one file at a time. It is started for the
first file, ended when it is idle or takes too long, and started again for the next one. It reads
requests from a socket, its standard input, and ends when that closes, so that it does not outlive
the dashboard.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import threading
from dataclasses import asdict, dataclass
from typing import BinaryIO

from radt import units
from radt.errors import RadtError
from radt.frontend.data.run.preview import Preview
from radt.processes import command, stop_child

#: Maximum memory of a helper for data; its libraries take 110 MB of it.
MEMORY_BYTES = 400 * 2**20
#: Exit code of a helper that needs more.
OUT_OF_MEMORY = 3
#: Timeout of one preview in seconds. A helper that nobody ended ends itself a little later.
LIMIT_S = 20
_COUNT = 2
_IDLE_S = 60.0
_END_S = 5.0
_COMMAND = command("radt.frontend.preview_worker")
#: Otherwise threads and their arenas would count as its memory.
_ENVIRON = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}


class BusyError(RadtError):
    """All helpers are busy; a later request may succeed."""


class _EndedError(Exception):
    """A helper ended without an answer, by itself or because it ``took_too_long``.

    ``exit_code`` is negative for a signal.
    """

    def __init__(self, *, took_too_long: bool, exit_code: int | None) -> None:
        super().__init__()
        self.took_too_long, self.exit_code = took_too_long, exit_code

    @property
    def reason(self) -> str:
        if self.took_too_long:
            return f"reading it takes longer than {LIMIT_S} s"
        if self.exit_code == OUT_OF_MEMORY:
            return f"reading it takes more than {units.size(MEMORY_BYTES)} of memory"
        return f"the process that reads it ended (exit code {self.exit_code})"


@dataclass
class _Running:
    """A running helper."""

    process: subprocess.Popen[bytes]
    requests: socket.socket

    def kill(self) -> None:
        stop_child(self.process, 0.0, group=True)


class Helper:
    """One helper. Thread-safe; requests wait for the previous one."""

    def __init__(self, limit_s: float = LIMIT_S, idle_s: float = _IDLE_S) -> None:
        self.limit_s, self.idle_s = limit_s, idle_s
        self.running: _Running | None = None
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def ask(self, path: str, file: BinaryIO) -> bytes:
        """Return the `Preview` of an open file in JSON.

        Raises:
            _EndedError: The helper ended or was ended instead.
        """
        with self._lock:
            self._cancel_timer()
            if self.running is not None and self.running.process.poll() is not None:
                self._end()  # it was killed
            running = self.running or self._start()
            # A blocked read cannot be cancelled from a thread; ending the process unblocks it.
            given_up = threading.Event()

            def give_up() -> None:
                given_up.set()
                running.kill()

            alarm = threading.Timer(self.limit_s, give_up)
            alarm.daemon = True
            alarm.start()
            try:
                content = _exchange(running, path, file)
            finally:
                alarm.cancel()
                alarm.join()
            if content is None:
                self._end()
                exit_code = running.process.returncode
                raise _EndedError(took_too_long=given_up.is_set(), exit_code=exit_code)
            self._timer = threading.Timer(self.idle_s, self.close)
            self._timer.daemon = True
            self._timer.start()
            return content

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _start(self) -> _Running:
        requests, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                _COMMAND,
                stdin=theirs.fileno(),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **_ENVIRON},
                start_new_session=True,  # Ctrl-C reaches only the dashboard, which ends this one
            )
        self.running = _Running(process, requests)
        return self.running

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        """End the process; the caller holds the lock."""
        self._cancel_timer()
        running, self.running = self.running, None
        if running is None:
            return
        running.requests.close()
        try:
            running.process.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            running.kill()
        assert running.process.stdout is not None
        running.process.stdout.close()


def _exchange(running: _Running, path: str, file: BinaryIO) -> bytes | None:
    """Return the answer to a request; None if the process ended instead."""
    request = json.dumps({"path": path}).encode() + b"\n"
    stdout = running.process.stdout
    assert stdout is not None
    try:
        sent = socket.send_fds(running.requests, [request], [file.fileno()])
        running.requests.sendall(request[sent:])
    except (BrokenPipeError, ConnectionResetError):
        return None
    line = stdout.readline()
    if not line.endswith(b"\n"):
        return None
    length = json.loads(line)["length"]
    content = stdout.read(length)
    return content if len(content) == length else None


class Previews:
    """Reads previews. Thread-safe."""

    def __init__(self, **limits: float) -> None:
        self.helpers = [Helper(**limits) for _ in range(_COUNT)]
        # Last in, first out, so that idle helpers can be ended.
        self._free: queue.LifoQueue[Helper] = queue.LifoQueue()
        for helper in self.helpers:
            self._free.put(helper)

    def read(self, file: BinaryIO, path: str) -> bytes:
        """Return a `Preview` in JSON.

        Raises:
            BusyError: All helpers are busy.
        """
        try:
            helper = self._free.get_nowait()
        except queue.Empty:
            raise BusyError("Other files are being read", "Try again in a moment") from None
        try:
            return helper.ask(path, file)
        except _EndedError as error:
            return json.dumps(asdict(Preview(None, note=f"Not shown: {error.reason}"))).encode()
        finally:
            self._free.put(helper)

    def close(self) -> None:
        """End the helpers."""
        for helper in self.helpers:
            helper.close()
