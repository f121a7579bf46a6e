"""Helper processes: work whose memory, time or crash must not be the dashboard's own.

A helper (``python -m MODULE``) answers one request at a time. It starts with the first one, is
ended when it is idle or takes too long, and starts again with the next one. It reads requests from
a socket, its standard input, and ends with it, so that it does not outlive the dashboard.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, BinaryIO

from radt.errors import RadtError

_LOG = logging.getLogger(__name__)

_END_S = 5.0
_LAST_WRITES_S = 5.0
_LAST_WORDS = 300


class BusyError(RadtError):
    """Others are being served; a later request may succeed."""


class EndedError(Exception):
    """A helper ended instead of answering.

    ``last_words`` is the end of what it printed; ``took_too_long`` says why it was ended.
    """

    def __init__(self, code: int, last_words: str, *, took_too_long: bool) -> None:
        super().__init__(f"the helper ended with code {code}")
        self.code, self.last_words, self.took_too_long = code, last_words, took_too_long


@dataclass(frozen=True, slots=True)
class HelperKind:
    """The program of a helper, and its limits.

    Args:
        module: The module to run. It reads a line for each request, and answers with a line of
            JSON: ``length`` is the number of bytes that follow it, ``is_last`` says that it ends.
        give_up_s: Seconds until it is ended if it does not answer.
        idle_s: Seconds without a request until it is ended.
        has_folder: It has a temporary folder of its own (TMPDIR), which is deleted with it.
        environ: Variables in addition to those of the dashboard.
    """

    module: str
    give_up_s: float
    idle_s: float = 60.0
    has_folder: bool = False
    environ: Mapping[str, str] = field(default_factory=dict)


@dataclass
class _Running:
    """A running helper."""

    process: subprocess.Popen[bytes]
    requests: socket.socket
    stderr_file: IO[bytes]
    folder: str

    @property
    def last_words(self) -> str:
        self.stderr_file.seek(0, os.SEEK_END)
        self.stderr_file.seek(max(0, self.stderr_file.tell() - _LAST_WORDS))
        return self.stderr_file.read().decode("utf-8", "replace").strip()

    def kill(self) -> None:
        """Kill the process and its children."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


class Helper:
    """One helper. Thread-safe; a request waits for the one before."""

    def __init__(self, kind: HelperKind) -> None:
        self.kind = kind
        self.running: _Running | None = None
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def ask(self, request: bytes, file: BinaryIO | None = None) -> tuple[bytes, bytes]:
        """Return the line of an answer, and what follows it.

        Args:
            request: One line.
            file: An open file that the helper gets with the request.

        Raises:
            EndedError: The helper ended or was ended instead.
        """
        with self._lock:
            self._cancel_timer()
            if self.running is not None and self.running.process.poll() is not None:
                self._end()  # somebody killed it
            running = self.running or self._start()
            # A blocked read cannot be cancelled from a thread; ending the process unblocks it.
            given_up = threading.Event()

            def give_up() -> None:
                given_up.set()
                running.kill()

            alarm = threading.Timer(self.kind.give_up_s, give_up)
            alarm.daemon = True
            alarm.start()
            try:
                answer = _exchange(running, request, file)
            finally:
                alarm.cancel()
                alarm.join()
            if answer is None:
                code, words = running.process.wait(), running.last_words
                self._end()
                raise EndedError(code, words, took_too_long=given_up.is_set())
            if json.loads(answer[0]).get("is_last"):
                self._end()
            else:
                self._timer = threading.Timer(self.kind.idle_s, self.close)
                self._timer.daemon = True
                self._timer.start()
            return answer

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _start(self) -> _Running:
        folder = tempfile.mkdtemp(prefix="radt-helper-") if self.kind.has_folder else ""
        stderr_file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        requests, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", self.kind.module],
                stdin=theirs.fileno(),
                stdout=subprocess.PIPE,
                stderr=stderr_file,
                env={**os.environ, **self.kind.environ, **({"TMPDIR": folder} if folder else {})},
                start_new_session=True,  # Ctrl-C goes to the dashboard, which ends this process
            )
        self.running = _Running(process, requests, stderr_file, folder)
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
            running.process.wait()
        assert running.process.stdout is not None
        running.process.stdout.close()
        running.stderr_file.close()
        if running.folder:
            _remove(running.folder)


class Helpers:
    """Several helpers of one kind. Thread-safe.

    Args:
        kind: The kind.
        count: How many work at once.
        waiting: How many requests may wait for one of them.
        busy: What `BusyError` says.
    """

    def __init__(self, kind: HelperKind, count: int, waiting: int, busy: str) -> None:
        self.all = [Helper(kind) for _ in range(count)]
        self._busy = busy
        self._places = threading.BoundedSemaphore(count + waiting)
        # The last one that worked comes first: the others are ended when idle.
        self._free: queue.LifoQueue[Helper] = queue.LifoQueue()
        for helper in self.all:
            self._free.put(helper)

    def ask(self, request: bytes, file: BinaryIO | None = None) -> tuple[bytes, bytes]:
        """Let one of them answer.

        Raises:
            BusyError: Too many are waiting already.
            EndedError: As `Helper.ask`.
        """
        if not self._places.acquire(blocking=False):
            raise BusyError(self._busy, "Try again in a moment")
        try:
            helper = self._free.get()
            try:
                return helper.ask(request, file)
            finally:
                self._free.put(helper)
        finally:
            self._places.release()

    def close(self) -> None:
        """End all of them."""
        for helper in self.all:
            helper.close()


def _exchange(
    running: _Running, request: bytes, file: BinaryIO | None
) -> tuple[bytes, bytes] | None:
    """Return the line of the answer and what follows; None if the process ended instead."""
    stdout = running.process.stdout
    assert stdout is not None
    try:
        sent = socket.send_fds(running.requests, [request], [] if file is None else [file.fileno()])
        running.requests.sendall(request[sent:])
    except (BrokenPipeError, ConnectionResetError):
        return None
    line = stdout.readline()
    if not line.endswith(b"\n"):
        return None
    length = json.loads(line)["length"]
    content = stdout.read(length) if length else b""
    return (line, content) if len(content) == length else None


def _remove(folder: str) -> None:
    """Delete the folder; a browser whose process was killed writes to it a moment longer."""
    until_s = time.monotonic() + _LAST_WRITES_S
    while Path(folder).exists():
        shutil.rmtree(folder, ignore_errors=True)
        if time.monotonic() > until_s:
            _LOG.warning("%s could not be removed", folder)
            return
        time.sleep(0.05)
