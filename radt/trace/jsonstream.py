"""Reads a trace in JSON of any size, one event after the other, in bounded memory.

The standard library's decoder is fast but wants a whole value: it gets a window of the text that
moves, and grows while a value does not fit in.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

EVENTS_KEY = "traceEvents"
_WINDOW = 1 << 20
#: An event longer than this is none.
_MAX_VALUE = 1 << 26
_SPACE = " \t\r\n"


class BrokenTraceError(Exception):
    """The file is no trace in JSON, or ends too early."""


def trace_parts(path: Path) -> Iterator[tuple[str, Any]]:
    """The top-level keys of a trace with their values; `EVENTS_KEY` comes once for each event.

    Args:
        path: The file, plain or gzip.

    Raises:
        BrokenTraceError: See there.
        OSError: It cannot be read.
    """
    try:
        with _opened(path) as file:
            yield from _parts(_Window(file))
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError) as error:
        raise BrokenTraceError(str(error)) from error


def _opened(path: Path) -> IO[str]:
    with path.open("rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
    if compressed:
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def _parts(window: _Window) -> Iterator[tuple[str, Any]]:
    start = window.symbol()
    if start == "[":  # the short form: events only
        yield from ((EVENTS_KEY, event) for event in _items(window))
        return
    if start != "{":
        raise BrokenTraceError("it does not begin with { or [")
    while (symbol := window.symbol()) != "}":
        if symbol != ",":
            window.back()
        key = window.value()
        if not isinstance(key, str) or window.symbol() != ":":
            raise BrokenTraceError("a key is missing")
        if key != EVENTS_KEY:
            yield key, window.value()
        elif window.symbol() == "[":
            yield from ((EVENTS_KEY, event) for event in _items(window))
        else:
            raise BrokenTraceError(f"{EVENTS_KEY} is no list")


def _items(window: _Window) -> Iterator[Any]:
    while (symbol := window.symbol()) != "]":
        if symbol != ",":
            window.back()
        yield window.value()


class _Window:
    """The part of the text that is looked at."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._decode = json.JSONDecoder().raw_decode
        self._text = ""
        self._at = 0
        self._ended = False

    def symbol(self) -> str:
        """The next character that is no space, which is then behind."""
        while True:
            while self._at < len(self._text):
                symbol = self._text[self._at]
                self._at += 1
                if symbol not in _SPACE:
                    return symbol
            if not self._more():
                raise BrokenTraceError("it ends too early")

    def back(self) -> None:
        """The last symbol belongs to the value that follows."""
        self._at -= 1

    def value(self) -> Any:
        """The next value."""
        self.symbol()
        self.back()
        while True:
            try:
                value, end = self._decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if self._more():
                    continue
                raise BrokenTraceError(error.msg) from error
            # A number may go on in the next part.
            if end < len(self._text) or not self._more():
                self._at = end
                return value

    def _more(self) -> bool:
        """Read on; False if there is no more, or the value is too long."""
        if self._ended or len(self._text) - self._at > _MAX_VALUE:
            return False
        # Twice as much for what did not fit in, so that long values cost no square of their length.
        part = self._file.read(max(_WINDOW, len(self._text) - self._at))
        self._text = self._text[self._at :] + part
        self._at = 0
        self._ended = not part
        return bool(part)
