"""Writes the trace event format that ui.perfetto.dev and chrome://tracing read.

JSON rather than Perfetto's protobuf, because PyTorch's traces are JSON and stay whole this way.
The format is Chrome's "Trace Event Format". How Perfetto reads it (its `json_trace_parser`, and
perfetto.dev/docs/getting-started/other-formats): slices of one thread must nest; numbers of
threads are best unique in the whole file; the name of a counter's argument becomes part of the
track's name; a counter keeps its value until the next one, and only finite numbers are values.
"""

from __future__ import annotations

import gzip
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO, Any

from radt.store.whole_file import whole_file

#: A quarter of the default level's time for a file that is a fifth larger.
_COMPRESSION = 3
_EVENTS_A_WRITE = 2000

Event = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Track:
    """A row of a process: where slices and instants go."""

    pid: int
    tid: int


class TraceFile:
    """Takes events one after the other; nothing is kept in memory.

    Times are wall-clock nanoseconds of radt's clock. The file has microseconds since ``base_ns``:
    as microseconds since 1970 they would lose their last digits in a JSON number.
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
        """A number that no process and no thread of this file has."""
        return next(self._numbers)

    def process(self, name: str, order: int) -> int:
        """A new process with a name; ``order`` is its place among the others."""
        pid = self.number()
        self.event({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}})
        order_args = {"sort_index": order}
        self.event({"ph": "M", "name": "process_sort_index", "pid": pid, "args": order_args})
        return pid

    def track(self, pid: int, name: str) -> Track:
        """A new row of a process."""
        track = Track(pid, self.number())
        thread = {"ph": "M", "pid": pid, "tid": track.tid}
        self.event({**thread, "name": "thread_name", "args": {"name": name}})
        self.event({**thread, "name": "thread_sort_index", "args": {"sort_index": track.tid}})
        return track

    def slice(
        self, track: Track, name: str, start_ns: int, end_ns: int, category: str, args: Event
    ) -> None:
        """A stretch of time; those of one track must nest."""
        place = {"pid": track.pid, "tid": track.tid, "ts": self.us(start_ns)}
        length = {"dur": (end_ns - start_ns) / 1000}
        self.event({"ph": "X", "name": name, "cat": category, **place, **length, "args": args})

    def instant(self, track: Track, name: str, at_ns: int, category: str, args: Event) -> None:
        """Something without duration."""
        place = {"pid": track.pid, "tid": track.tid, "ts": self.us(at_ns)}
        self.event({"ph": "i", "s": "t", "name": name, "cat": category, **place, "args": args})

    def counter(self, pid: int, name: str, unit: str, points: Iterable[tuple[int, float]]) -> None:
        """Values of a counter track, finite ones: times in ns and values in ``unit``."""
        head = self._encode({"ph": "C", "name": name, "pid": pid})[:-1]
        label = self._encode(unit)
        for at_ns, value in points:
            self._put(f'{head},"ts":{self.us(at_ns)!r},"args":{{{label}:{value!r}}}}}')

    def event(self, event: Event) -> None:
        """Any event as it is; its numbers and times are those of this file."""
        try:
            text = self._encode(event)
        except ValueError:  # NaN and infinity are no JSON
            text = self._encode(_finite(event))
        self._put(text)

    def us(self, at_ns: int) -> float:
        """The time as the file has it."""
        return (at_ns - self.base_ns) / 1000

    def close(self, other: Mapping[str, object]) -> None:
        """Write what is left, and what is said of the whole trace."""
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
    """The value with words in place of numbers that JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


@contextmanager
def written(path: Path) -> Iterator[IO[str]]:
    """A text file that takes the place of ``path`` when it is complete; gzip, if so named.

    Raises:
        UsageError: It cannot be written.
    """
    with (
        whole_file(path) as temporary,
        temporary.open("wb") as raw,
        _text(raw, compressed=path.suffix == ".gz") as text,
    ):
        yield text


@contextmanager
def _text(raw: IO[bytes], *, compressed: bool) -> Iterator[IO[str]]:
    """Text on top of a binary file; broken halves of characters become question marks."""
    with (
        gzip.GzipFile("", "wb", _COMPRESSION, raw, mtime=0) if compressed else raw as binary,
        io.TextIOWrapper(binary, "utf-8", "replace", newline="\n") as text,
    ):
        yield text
