"""Read and write the trace event format of ui.perfetto.dev and chrome://tracing.

The standard library's decoder is fast but needs a whole value: it gets a sliding window of the text
that grows while a value does not fit.

The output is JSON rather than Perfetto's protobuf, because PyTorch's traces are JSON and stay
complete this way. The format is Chrome's "Trace Event Format". How Perfetto reads it (its
`json_trace_parser`, and perfetto.dev/docs/getting-started/other-formats): slices of one thread must
nest; thread ids should be unique in the whole file; the name of a counter's argument becomes part
of the track's name; a counter keeps its value until the next one, and only finite numbers are
values.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO, Any

from radt.store.whole_file import whole_file

# Reading: one event after the other, in bounded memory --------------------------------------------


EVENTS_KEY = "traceEvents"
_WINDOW = 1 << 20
#: A longer value is not an event.
_MAX_VALUE = 1 << 26
_SPACE = " \t\r\n"


class BrokenTraceError(Exception):
    """The file is not a JSON trace, or ends too early."""


def trace_parts(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the top-level keys of a plain or gzip trace with their values, each event by itself.

    Raises:
        BrokenTraceError: The file is not a JSON trace, or ends too early.
        OSError: The file cannot be read.
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
            raise BrokenTraceError(f"{EVENTS_KEY} is not a list")


def _items(window: _Window) -> Iterator[Any]:
    while (symbol := window.symbol()) != "]":
        if symbol != ",":
            window.back()
        yield window.value()


class _Window:
    """A part of the text, which moves on and grows for values that do not fit."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._decode = json.JSONDecoder().raw_decode
        self._text = ""
        self._at = 0
        self._ended = False

    def symbol(self) -> str:
        """Skip spaces, consume the next character and return it."""
        while True:
            while self._at < len(self._text):
                symbol = self._text[self._at]
                self._at += 1
                if symbol not in _SPACE:
                    return symbol
            if not self._more():
                raise BrokenTraceError("it ends too early")

    def back(self) -> None:
        """Put the last symbol back: it belongs to the value that follows."""
        self._at -= 1

    def value(self) -> Any:
        """Return the next value."""
        self.symbol()
        self.back()
        while True:
            try:
                value, end = self._decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if self._more():
                    continue
                raise BrokenTraceError(error.msg) from error
            # A number may continue in the next part.
            if end < len(self._text) or not self._more():
                self._at = end
                return value

    def _more(self) -> bool:
        """Read the next part; return False at the end, or if the value is too long."""
        if self._ended or len(self._text) - self._at > _MAX_VALUE:
            return False
        # Doubled for a value that did not fit, so that the total time stays linear in its length.
        part = self._file.read(max(_WINDOW, len(self._text) - self._at))
        self._text = self._text[self._at :] + part
        self._at = 0
        self._ended = not part
        return bool(part)


# Writing ------------------------------------------------------------------------------------------


#: Takes a quarter of the default level's time, for a file that is a fifth larger.
_COMPRESSION = 3
_EVENTS_A_WRITE = 2000

Event = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Track:
    """A row of a process, for slices and instants."""

    pid: int
    tid: int


class TraceFile:
    """Writes events one after the other and keeps none in memory.

    Times are wall-clock nanoseconds of radt's clock. The file has microseconds since ``base_ns``,
    because microseconds since 1970 would lose their last digits in a JSON number.
    """

    def __init__(self, file: IO[str], base_ns: int) -> None:
        self.base_ns = base_ns
        self.events = 0
        self._file = file
        self._numbers = count(1)
        self._pending: list[str] = []
        self._encode = json.JSONEncoder(
            ensure_ascii=False, allow_nan=False, separators=(",", ":")
        ).encode
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n')

    def number(self) -> int:
        """Return a number that no other process or thread of this file has."""
        return next(self._numbers)

    def process(self, name: str, order: int) -> int:
        """Return a new process with a name; ``order`` is its position among the others."""
        pid = self.number()
        self.metadata("process_name", {"name": name}, pid)
        self.metadata("process_sort_index", {"sort_index": order}, pid)
        return pid

    def track(self, pid: int, name: str) -> Track:
        """Return a new row of a process."""
        track = Track(pid, self.number())
        self.metadata("thread_name", {"name": name}, pid, track.tid)
        self.metadata("thread_sort_index", {"sort_index": track.tid}, pid, track.tid)
        return track

    def metadata(self, name: str, args: Event, pid: int, tid: int | None = None) -> None:
        """Write the name or position of a process, or of one of its threads."""
        thread = {} if tid is None else {"tid": tid}
        self.event({"ph": "M", "name": name, "pid": pid, **thread, "args": args})

    def slice(
        self, track: Track, name: str, start_ns: int, end_ns: int, category: str, args: Event
    ) -> None:
        """Write a stretch of time; those of one track must nest."""
        place = {"pid": track.pid, "tid": track.tid, "ts": self.us(start_ns)}
        length = {"dur": (end_ns - start_ns) / 1000}
        self.event({"ph": "X", "name": name, "cat": category, **place, **length, "args": args})

    def instant(self, track: Track, name: str, at_ns: int, category: str, args: Event) -> None:
        """Write an event without duration."""
        place = {"pid": track.pid, "tid": track.tid, "ts": self.us(at_ns)}
        self.event({"ph": "i", "s": "t", "name": name, "cat": category, **place, "args": args})

    def counter(self, pid: int, name: str, unit: str, points: Iterable[tuple[int, float]]) -> None:
        """Write a counter track from times in ns and finite values in ``unit``."""
        head = self._encode({"ph": "C", "name": name, "pid": pid})[:-1]
        label = self._encode(unit)
        for at_ns, value in points:
            self._put(f'{head},"ts":{self.us(at_ns)!r},"args":{{{label}:{value!r}}}}}')

    def event(self, event: Event) -> None:
        """Write an event whose ids and times are already those of this file."""
        try:
            text = self._encode(event)
        except ValueError:  # NaN and infinity are not valid JSON
            text = self._encode(_finite(event))
        self._put(text)

    def us(self, at_ns: int) -> float:
        """Return the time in the file's unit."""
        return (at_ns - self.base_ns) / 1000

    def close(self, other: Mapping[str, object]) -> None:
        """Write the pending events and the metadata of the trace."""
        self._flush()
        self._file.write('\n],"otherData":' + self._encode(_finite(other)) + "}\n")

    def _put(self, text: str) -> None:
        self.events += 1
        self._pending.append(text)
        if len(self._pending) >= _EVENTS_A_WRITE:
            self._flush()

    def _flush(self) -> None:
        if not self._pending:
            return
        first = self.events == len(self._pending)
        self._file.write(("" if first else ",\n") + ",\n".join(self._pending))
        self._pending.clear()


def _finite(value: object) -> Any:
    """Return the value with NaN and infinity as text, as JSON has no such numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


@contextmanager
def written(path: Path) -> Iterator[IO[str]]:
    """Yield a text file that replaces ``path`` when it is complete; gzip if so named.

    Raises:
        UsageError: The file cannot be written.
    """
    with (
        whole_file(path) as temporary,
        temporary.open("wb") as raw,
        _text(raw, compressed=path.suffix == ".gz") as text,
    ):
        yield text


@contextmanager
def _text(raw: IO[bytes], *, compressed: bool) -> Iterator[IO[str]]:
    """Yield a text file on a binary file; unpaired surrogates become question marks."""
    with (
        gzip.GzipFile("", "wb", _COMPRESSION, raw, mtime=0) if compressed else raw as binary,
        io.TextIOWrapper(binary, "utf-8", "replace", newline="\n") as text,
    ):
        yield text
