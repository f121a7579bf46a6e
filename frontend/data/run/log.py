"""Read parts of a log by byte offset, so that a log of any length is never read as a whole.

Parts consist of whole lines; lines longer than a part are split.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import BinaryIO

from radt.frontend.data.run_files import shown_line

PART_BYTES = 64 * 1024
MAX_MATCHES = 200
#: Longer searches stop and can be resumed.
_SEARCH_S = 1.0
_BLOCK_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class LogPart:
    """Lines from ``start`` to ``end`` of a log of ``size`` bytes.

    ``rest`` is the log's last line while it is incomplete, such as a progress bar.
    """

    start: int
    end: int
    size: int
    lines: tuple[str, ...]
    rest: str = ""


def part_before(file: BinaryIO, end: int | None) -> LogPart:
    """Return the lines before an offset; the last lines for None."""
    size = os.fstat(file.fileno()).st_size
    end = size if end is None else min(end, size)
    start = max(0, end - PART_BYTES)
    data = _read(file, start, end)
    if start:
        first = data.find(b"\n") + 1
        if 0 < first < len(data):  # otherwise the part is within one line
            data, start = data[first:], start + first
    # Before an offset, the last line may be the beginning of a split one.
    return _part(data, start, size, keeps_last=end < size)


def part_after(file: BinaryIO, start: int) -> LogPart:
    """Return the lines after an offset, at which a line begins."""
    size = os.fstat(file.fileno()).st_size
    start = min(start, size)
    return _part(_read(file, start, start + PART_BYTES), start, size)


def _read(file: BinaryIO, start: int, end: int) -> bytes:
    file.seek(start)
    return file.read(max(0, end - start))


def _part(data: bytes, start: int, size: int, *, keeps_last: bool = False) -> LogPart:
    """Return the lines of data. The last one, if incomplete, is left out or ``keeps_last``."""
    length = len(data) if keeps_last else data.rfind(b"\n") + 1
    at_end = start + len(data) >= size
    rest = data[length:] if at_end else b""
    if not length and not at_end:
        length = len(data)  # a line longer than a part
    lines = data[:length].decode("utf-8", "replace").split("\n")
    if not lines[-1]:
        lines.pop()
    shown = tuple(map(shown_line, lines))
    return LogPart(start, start + length, size, shown, shown_line(rest.decode("utf-8", "replace")))


@dataclass(frozen=True, slots=True)
class Match:
    """A line with the text: its offset, its number (from 1), and its content."""

    start: int
    number: int
    line: str


@dataclass(frozen=True, slots=True)
class Found:
    """Lines with a text.

    ``scanned`` is the offset that the search reached, and ``lines`` the number of lines up to
    there. It stops before ``size`` after `MAX_MATCHES` or a second.
    """

    matches: tuple[Match, ...]
    scanned: int
    lines: int
    size: int


def search(file: BinaryIO, text: str, scanned: int = 0, lines: int = 0) -> Found:
    """Return lines that contain a text from an offset on, ignoring the case of ASCII letters."""
    size = os.fstat(file.fileno()).st_size
    wanted = text.encode("utf-8", "replace").lower()
    matches: list[Match] = []
    if not wanted:
        return Found((), size, lines, size)
    until = time.monotonic() + _SEARCH_S
    while scanned < size and len(matches) < MAX_MATCHES and time.monotonic() < until:
        data = _read(file, scanned, scanned + _BLOCK_BYTES)
        length = data.rfind(b"\n") + 1 or len(data)  # whole lines
        data = data[:length]
        lowered, at, counted, number = data.lower(), 0, 0, lines
        while (at := lowered.find(wanted, at)) >= 0:
            begin = data.rfind(b"\n", 0, at) + 1
            end = data.find(b"\n", at)
            end = len(data) if end < 0 else end
            number += data.count(b"\n", counted, begin)
            counted = begin
            line = shown_line(data[begin:end].decode("utf-8", "replace"))
            matches.append(Match(scanned + begin, number + 1, line))
            at = end + 1
            if len(matches) >= MAX_MATCHES:
                length = min(at, len(data))
                break
        lines += data.count(b"\n", 0, length)
        scanned += length
        if not data:
            break  # the file became shorter
    return Found(tuple(matches), scanned, lines, size)
