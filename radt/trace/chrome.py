"""Read and write the trace event format of ui.perfetto.dev and chrome://tracing.

The standard library's decoder is fast but needs a complete value. It gets a sliding window of the
text that grows while a value does not fit.

The output is JSON instead of Perfetto's protobuf: PyTorch's traces are JSON and stay complete this
way. The format is Chrome's "Trace Event Format". How Perfetto reads it (its `json_trace_parser`,
and perfetto.dev/docs/getting-started/other-formats): slices of one thread must nest; thread ids
should be unique in the whole file; the name of a counter's argument becomes part of the track's
name; a counter keeps its value until the next one, and only finite numbers are values.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO, Any

import numpy as np

from radt.files import output_file
from radt.store.records import Samples
from radt.units import in_json

# Reading: one event after the other, in bounded memory --------------------------------------------


EVENTS_KEY = "traceEvents"
_WINDOW = 1 << 20
#: A longer value is not an event.
_MAX_VALUE = 1 << 26
_SPACE = " \t\r\n"


class BrokenTraceError(Exception):
    """The file is not a JSON trace, or ends too early."""


def trace_parts(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the top-level keys of a plain or gzip trace with their values, each event separately.

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
    if window.symbol() != "{":
        raise BrokenTraceError("it does not begin with {")
    while (symbol := window.symbol()) != "}":
        if symbol != ",":
            window.back()
        key = window.value()
        if not isinstance(key, str) or window.symbol() != ":":
            raise BrokenTraceError("a key is missing")
        if key != EVENTS_KEY:
            yield key, window.value()
            continue
        if window.symbol() != "[":
            raise BrokenTraceError(f"{EVENTS_KEY} is not a list")
        while (symbol := window.symbol()) != "]":
            if symbol != ",":
                window.back()
            yield key, window.value()


class _Window:
    """A sliding window of the text, which grows for values that do not fit."""

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
        # Doubled for a value that did not fit, so that the total time is linear in its length.
        part = self._file.read(max(_WINDOW, len(self._text) - self._at))
        self._text = self._text[self._at :] + part
        self._at = 0
        self._ended = not part
        return bool(part)


# Writing ------------------------------------------------------------------------------------------


#: Takes a quarter of the default level's time and makes the file a fifth larger.
_COMPRESSION = 3

Event = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """A named stretch of time, or an instant (``end_ns`` None), in nanoseconds."""

    name: str
    start_ns: int
    end_ns: int | None
    category: str
    args: Event

    @property
    def stop_ns(self) -> int:
        return self.start_ns if self.end_ns is None else self.end_ns


class TraceFile:
    """Writes events one after the other without keeping them in memory.

    Times are wall-clock nanoseconds of radt's clock. The file has microseconds since ``base_ns``,
    because microseconds since 1970 would lose their last digits in a JSON number.
    """

    def __init__(self, file: IO[str], base_ns: int) -> None:
        self.base_ns = base_ns
        self.events = 0
        self._file = file
        self._numbers = count(1)
        self._encode = json.JSONEncoder(
            ensure_ascii=False, allow_nan=False, separators=(",", ":")
        ).encode
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n')

    def number(self) -> int:
        """Return a number that no other process or thread of this file has."""
        return next(self._numbers)

    def process(self, name: str, order: int) -> int:
        """Create a process with a name; ``order`` is its position among the others."""
        pid = self.number()
        self.metadata("process_name", {"name": name}, pid)
        self.metadata("process_sort_index", {"sort_index": order}, pid)
        return pid

    def track(self, pid: int, name: str) -> int:
        """Create a row of a process, for spans; return its number."""
        tid = self.number()
        self.metadata("thread_name", {"name": name}, pid, tid)
        self.metadata("thread_sort_index", {"sort_index": tid}, pid, tid)
        return tid

    def metadata(self, name: str, args: Event, pid: int, tid: int | None = None) -> None:
        """Write the name or position of a process, or of one of its threads."""
        thread = {} if tid is None else {"tid": tid}
        self.event({"ph": "M", "name": name, "pid": pid, **thread, "args": args})

    def slice(self, pid: int, tid: int, span: TraceSpan) -> None:
        """Write a span into a row; the spans of a row must nest."""
        how: Event = {"ph": "i", "s": "t"}
        if span.end_ns is not None:
            how = {"ph": "X", "dur": (span.end_ns - span.start_ns) / 1000}
        place = {"pid": pid, "tid": tid, "ts": self.us(span.start_ns)}
        self.event({"name": span.name, "cat": span.category, **how, **place, "args": span.args})

    def counter(self, pid: int, name: str, unit: str, steps: Samples) -> None:
        """Write a counter track of values in ``unit``; unknown values become 0."""
        head = self._encode({"ph": "C", "name": name, "pid": pid})[:-1]
        label = self._encode(unit)
        values = np.where(np.isfinite(steps.values), steps.values, 0.0)
        for at_ns, value in zip(steps.times_ns.tolist(), values.tolist(), strict=True):
            self._put(f'{head},"ts":{self.us(at_ns)!r},"args":{{{label}:{value!r}}}}}')

    def event(self, event: Event) -> None:
        """Write an event whose ids and times are already those of this file."""
        try:
            text = self._encode(event)
        except ValueError:  # NaN and infinity are not valid JSON
            text = self._encode(in_json(event))
        self._put(text)

    def us(self, at_ns: int) -> float:
        """Convert a time to the file's unit."""
        return (at_ns - self.base_ns) / 1000

    def close(self, other: Mapping[str, object]) -> None:
        """Write the metadata of the trace."""
        self._file.write('\n],"otherData":' + self._encode(in_json(other)) + "}\n")

    def _put(self, text: str) -> None:
        self._file.write(f",\n{text}" if self.events else text)
        self.events += 1


@contextmanager
def written(path: Path) -> Iterator[IO[str]]:
    """Yield a text file that replaces ``path`` when it is complete; gzip if the name ends in .gz.

    Raises:
        UsageError: The file cannot be written.
    """
    with (
        output_file(path) as temporary,
        temporary.open("wb") as raw,
        gzip.GzipFile("", "wb", _COMPRESSION, raw, mtime=0)
        if path.suffix == ".gz"
        else raw as file,
        # Unpaired surrogates become question marks.
        io.TextIOWrapper(file, "utf-8", "replace", newline="\n") as text,
    ):
        yield text
