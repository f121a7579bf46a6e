"""Pictures of figures, drawn by Kaleido in a browser on the server's machine.

One browser, one picture at a time: it takes a core, and some 300 MB that the dashboard itself must
not need. It is started with the first picture and ended when it has been idle for a while.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from radt.errors import RadtError
from radt.frontend.export.render_worker import RENDER_S, Answer, Failure, Order
from radt.frontend.export.request import BusyError

log = logging.getLogger(__name__)

#: The limit on pictures that wait for the one being drawn.
MAX_WAITING = 3
#: Seconds until an idle browser is ended.
IDLE_S = 60.0
#: Seconds until an unanswered order is abandoned and its browser ended.
_GIVE_UP_S = RENDER_S + 15.0
_DETAIL_CHARS = 300
_LAST_WRITES_S = 5.0


class PictureError(RadtError):
    """A picture failed; ``is_lasting`` if the next would fail too because something is missing."""

    def __init__(self, message: str, remedy: str, *, is_lasting: bool = False) -> None:
        super().__init__(message, remedy)
        self.is_lasting = is_lasting


@dataclass
class _Worker:
    """The rendering process, its temporary folder, and its output."""

    process: subprocess.Popen[bytes]
    folder: str
    stderr_file: IO[bytes]

    @property
    def last_words(self) -> str:
        self.stderr_file.seek(0, os.SEEK_END)
        self.stderr_file.seek(max(0, self.stderr_file.tell() - _DETAIL_CHARS))
        return self.stderr_file.read().decode("utf-8", "replace").strip()


def is_installed() -> bool:
    """Return whether Kaleido is installed."""
    return importlib.util.find_spec("kaleido") is not None


class Renderer:
    """Draws figures, one at a time. Thread-safe."""

    def __init__(self, idle_s: float = IDLE_S, give_up_s: float = _GIVE_UP_S) -> None:
        self._idle_s = idle_s
        self._give_up_s = give_up_s
        self._lock = threading.Lock()
        self._queue = threading.BoundedSemaphore(1 + MAX_WAITING)
        self._worker: _Worker | None = None
        self._timer: threading.Timer | None = None

    def draw(self, order: Order) -> bytes:
        """Draw a figure as PNG, SVG or PDF.

        Raises:
            BusyError: Too many are waiting already.
            PictureError: Kaleido or a browser is missing, or fails.
        """
        if not self._queue.acquire(blocking=False):
            raise BusyError(
                f"{1 + MAX_WAITING} pictures are already being drawn", "Try again in a minute"
            )
        try:
            with self._lock:
                return self._drawn(order)
        finally:
            self._queue.release()

    def close(self) -> None:
        """End the browser."""
        with self._lock:
            self._end()

    def _drawn(self, order: Order) -> bytes:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        worker = self._worker or self._start()
        # A blocked read cannot be cancelled from a thread; ending the process unblocks it.
        given_up = threading.Event()

        def give_up() -> None:
            given_up.set()
            _kill(worker.process)

        alarm = threading.Timer(self._give_up_s, give_up)
        alarm.daemon = True
        alarm.start()
        try:
            answer, picture = _exchange(worker, order)
        finally:
            alarm.cancel()
            alarm.join()
        if answer is None:
            code, words = worker.process.wait(), worker.last_words
            self._end()
            raise _took_too_long() if given_up.is_set() else _ended(code, words)
        if answer.failure:
            if answer.failure != Failure.FIGURE:
                self._end()
            raise _failed(answer)
        self._timer = threading.Timer(self._idle_s, self.close)
        self._timer.daemon = True
        self._timer.start()
        return picture

    def _start(self) -> _Worker:
        if not is_installed():
            raise PictureError(
                "drawing pictures needs Kaleido, which is not installed",
                'Run `pip install "radt[export]"` where radt runs; '
                "a chart's own menu still makes PNG and SVG in the browser",
                is_lasting=True,
            )
        folder = tempfile.mkdtemp(prefix="radt-picture-")
        stderr_file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "radt.frontend.export.render_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr_file,
            env={**os.environ, "TMPDIR": folder},
            start_new_session=True,  # Ctrl-C goes to the dashboard, which ends this process
        )
        self._worker = _Worker(process, folder, stderr_file)
        return self._worker

    def _end(self) -> None:
        """End the process; the caller holds the lock."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        worker, self._worker = self._worker, None
        if worker is None:
            return
        assert worker.process.stdin is not None and worker.process.stdout is not None
        with suppress(BrokenPipeError):
            worker.process.stdin.close()
        try:
            worker.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            _kill(worker.process)
            worker.process.wait()
        worker.process.stdout.close()
        worker.stderr_file.close()
        _remove(worker.folder)


def _exchange(worker: _Worker, order: Order) -> tuple[Answer | None, bytes]:
    """Return answer and picture; None if the process ended instead."""
    stdin, stdout = worker.process.stdin, worker.process.stdout
    assert stdin is not None and stdout is not None
    try:
        stdin.write(order.to_line())
        stdin.flush()
    except BrokenPipeError:
        return None, b""
    line = stdout.readline()
    if not line:
        return None, b""
    answer = Answer.from_line(line)
    picture = stdout.read(answer.length) if answer.length else b""
    return (answer, picture) if len(picture) == answer.length else (None, b"")


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and its children; the browser ends when its pipe closes."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _remove(folder: str) -> None:
    """Delete the folder; a browser whose process was killed writes to it a moment longer."""
    until_s = time.monotonic() + _LAST_WRITES_S
    while Path(folder).exists():
        shutil.rmtree(folder, ignore_errors=True)
        if time.monotonic() > until_s:
            log.warning("%s could not be removed", folder)
            return
        time.sleep(0.05)


def _failed(answer: Answer) -> PictureError:
    detail = " ".join(answer.detail.split())[:_DETAIL_CHARS]
    if answer.failure == Failure.NO_BROWSER:
        return PictureError(
            "drawing pictures needs Chrome or Chromium, which was not found",
            "Install one there (`apt install chromium`, or `kaleido_get_chrome`), or name it in "
            "BROWSER_PATH; a chart's own menu still makes PNG and SVG in the browser",
            is_lasting=True,
        )
    if answer.failure == Failure.BROWSER:
        return PictureError(
            f"the browser that draws pictures cannot be used ({detail})",
            "Check that Chrome starts, or set BROWSER_PATH",
            is_lasting=True,
        )
    return PictureError(
        f"the picture cannot be drawn ({detail})",
        "Try fewer charts; a chart's own menu makes PNG and SVG in the browser",
    )


def _took_too_long() -> PictureError:
    return PictureError(
        "drawing the picture took too long and was stopped", "Try fewer charts or fewer runs"
    )


def _ended(code: int, words: str) -> PictureError:
    detail = " ".join(words.split())[-_DETAIL_CHARS:]
    return PictureError(
        f"the process that draws pictures ended with code {code} ({detail})",
        "Try again; a chart's own menu makes PNG and SVG in the browser",
    )
