"""Follows what a run prints: every byte into its log file, lines to the console while it keeps up.

A script that prints faster than a terminal can show must not be slowed down by it, so the console
is served through a bounded buffer and shows how many lines it missed; the file misses none.
"""

from __future__ import annotations

import io
import os
import re
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO

READ_BYTES = 1 << 16
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
#: A line longer than this is shown cut (progress bars that never end their line, binary rubbish).
SHOWN_CHARACTERS = 400
#: Lines shown of one run from one read of its pipe; the rest is counted.
SHOWN_LINES = 50
#: What is kept of the end: enough for a traceback and all that torchrun says after it of 8 ranks.
TAIL_LINES = 300
TAIL_BYTES = 65_536
# Escape sequences and control characters of a run must not repaint the user's terminal.
_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


def shown_line(line: str) -> str:
    """The line as it may be shown: the last state of a progress bar, no control characters."""
    visible = line.rstrip("\r\n").rsplit("\r", 1)[-1]
    clean = _CONTROL.sub("", visible).replace("\t", "    ")
    return clean if len(clean) <= SHOWN_CHARACTERS else clean[:SHOWN_CHARACTERS] + " …"


def _kept(line: bytes) -> bytes:
    """What `shown_line` needs of a line, however long it is."""
    return line.rstrip(b"\r").rsplit(b"\r", 1)[-1][: 4 * SHOWN_CHARACTERS + 1]


class OutputPump:
    """Copies a pipe to a file and shows its lines, in a thread of its own.

    If the file cannot be written any more (full disk), reading goes on so that training does, and
    `problem` says so.
    """

    def __init__(self, pipe: IO[bytes], log_path: Path, show: Callable[[str], None]) -> None:
        self._pipe = pipe
        self._log_path = log_path
        self._show = show
        self._rest = b""
        self._cut = False  # whether the beginning of the present line was shown already
        self._tail: deque[bytes] = deque(maxlen=TAIL_LINES)
        self._tail_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)
        self.problem: str = ""

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def finish(self, timeout_s: float = 5.0) -> None:
        """Wait for the end of the output; a process that escaped may keep the pipe open."""
        self._thread.join(timeout_s)

    def tail(self) -> list[str]:
        """The last lines so far, as they may be shown; from any thread."""
        with self._tail_lock:
            lines = [*self._tail, *([_kept(self._rest)] if self._rest else [])]
        kept: list[str] = []
        size = 0
        for line in reversed(lines[-TAIL_LINES:]):
            size += len(line)
            if kept and size > TAIL_BYTES:
                break
            kept.append(shown_line(line.decode("utf-8", errors="replace")))
        return kept[::-1]

    def _run(self) -> None:
        raw = self._pipe
        assert isinstance(raw, io.BufferedReader)
        log: IO[bytes] | None = None
        with raw:
            try:
                log = os.fdopen(os.open(self._log_path, _APPEND, 0o600), "ab", buffering=0)
            except OSError as error:
                self._incomplete(error)
            while data := raw.read1(READ_BYTES):
                if log is not None and not self.problem:
                    try:
                        log.write(data)
                    except OSError as error:
                        self._incomplete(error)
                self._show_lines(data)
            if self._rest:
                self._show(shown_line(self._rest.decode("utf-8", errors="replace")))
        if log is not None:
            log.close()

    def _incomplete(self, error: OSError) -> None:
        self.problem = f"output.log is incomplete: {error.strerror}"
        self._show(f"radt: {self.problem}")

    def _show_lines(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        if self._cut and lines:
            self._cut = False
            lines = lines if lines[0] else lines[1:]  # just the end of a line shown before
        with self._tail_lock:
            self._rest = rest
            self._tail += [_kept(line) for line in lines[-TAIL_LINES:]]
        if len(lines) > SHOWN_LINES:
            self._show(f"… {len(lines) - SHOWN_LINES:,} more lines, see output.log")
        for line in lines[-SHOWN_LINES:]:  # of a burst, the end says how things stand
            self._show(shown_line(line.decode("utf-8", errors="replace")))
        if len(self._rest) > READ_BYTES:  # a "line" without end
            self._show(shown_line(self._rest[:READ_BYTES].decode("utf-8", errors="replace")))
            with self._tail_lock:
                self._tail.append(_kept(self._rest))
                self._rest = b""
            self._cut = True
