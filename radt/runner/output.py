"""Follows what a run prints: every byte goes to its log file, lines go to the console.

A script that prints faster than a terminal can show must not be slowed down. The console therefore
has a bounded buffer and counts the lines it drops; the file has all of them.
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
#: Longer lines are shown cut (progress bars that never end their line, binary data).
SHOWN_CHARACTERS = 400
#: Lines shown of one run per read of its pipe; the rest are counted.
SHOWN_LINES = 50
#: Lines kept of the end: enough for a traceback and torchrun's report on 8 ranks after it.
TAIL_LINES = 300
TAIL_BYTES = 65_536
# Escape sequences and control characters of a run must not repaint the user's terminal.
_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


def shown_line(line: str) -> str:
    """Return the line safe to display: a progress bar's last state, without control characters."""
    visible = line.rstrip("\r\n").rsplit("\r", 1)[-1]
    clean = _CONTROL.sub("", visible).replace("\t", "    ")
    return clean if len(clean) <= SHOWN_CHARACTERS else clean[:SHOWN_CHARACTERS] + " …"


def _kept(line: bytes) -> bytes:
    """Return the part of a line that `shown_line` needs, whatever its length."""
    return line.rstrip(b"\r").rsplit(b"\r", 1)[-1][: 4 * SHOWN_CHARACTERS + 1]


class OutputPump:
    """Copies a pipe to a file and shows its lines, in its own thread.

    If the file cannot be written any more (full disk), the pipe is still read so that training goes
    on, and `problem` describes the failure.
    """

    def __init__(self, pipe: IO[bytes], log_path: Path, show: Callable[[str], None]) -> None:
        self._pipe = pipe
        self._log_path = log_path
        self._show = show
        self._rest = b""
        self._cut = False  # True if the beginning of the current line was shown already
        self._tail: deque[bytes] = deque(maxlen=TAIL_LINES)
        self._tail_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)
        self.problem: str = ""

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def finish(self, timeout_s: float = 5.0) -> None:
        """Wait for the end of the output; a process that escaped may hold the pipe open."""
        self._thread.join(timeout_s)

    def tail(self) -> list[str]:
        """Return the last lines so far, safe to display; from any thread."""
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
            lines = lines if lines[0] else lines[1:]  # only the newline of a line shown before
        with self._tail_lock:
            self._rest = rest
            self._tail += [_kept(line) for line in lines[-TAIL_LINES:]]
        if len(lines) > SHOWN_LINES:
            self._show(f"… {len(lines) - SHOWN_LINES:,} more lines, see output.log")
        for line in lines[-SHOWN_LINES:]:  # the end of a burst is the most recent
            self._show(shown_line(line.decode("utf-8", errors="replace")))
        if len(self._rest) > READ_BYTES:  # a line that does not end
            self._show(shown_line(self._rest[:READ_BYTES].decode("utf-8", errors="replace")))
            with self._tail_lock:
                self._tail.append(_kept(self._rest))
                self._rest = b""
            self._cut = True


def last_lines(path: Path, most_bytes: int) -> list[str]:
    """Return the lines in the last bytes of a file, safe to display; none if it cannot be read."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - most_bytes))
            text = stream.read().decode(errors="replace")
    except OSError:
        return []
    lines = text.removesuffix("\n").split("\n") if text else []
    return [shown_line(line) for line in lines]


class LogTail:
    """The whole lines of a growing file.

    Args:
        path: The file.
        first_bytes: Maximum number of existing bytes to return at first.
    """

    def __init__(self, path: Path, first_bytes: int) -> None:
        self.path = path
        self._first_bytes = first_bytes
        self._read_bytes: int | None = None
        self._rest = b""

    def lines(self) -> list[str]:
        """Return the lines written since the last call.

        Raises:
            OSError: The file cannot be read.
        """
        with self.path.open("rb") as stream:
            start = self._read_bytes
            if start is None:
                start = max(0, stream.seek(0, os.SEEK_END) - self._first_bytes)
            stream.seek(start)
            new = stream.read()
        *lines, self._rest = (self._rest + new).split(b"\n")
        if self._read_bytes is None and start:
            lines = lines[1:]  # the first one is incomplete
        self._read_bytes = start + len(new)
        return [line.decode(errors="replace") for line in lines]
