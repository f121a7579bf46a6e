"""Apple silicon through macmon (https://github.com/vladkens/macmon), which needs no root.

``macmon pipe`` writes a JSON document a line, each a mean over macmon's own interval. Versions
before 0.8 name some fields differently; both are read.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import IO, Any, ClassVar

from radt.errors import ListenerError
from radt.listeners.api import Availability, Listener, Metric, Reading, Target
from radt.model import MissingReason, Scope

PROGRAM = "macmon"
#: macmon does not go below.
_MIN_INTERVAL_MS = 100
#: A document is too old to be an instant's after so many intervals, and at least this long.
_STALE_INTERVALS = 3
_MIN_STALE_S = 2.0
_END_TIMEOUT_S = 2.0
_READ_BYTES = 1 << 16
_MAX_ERROR = 200

_Document = Mapping[str, Any]


def _at(*names: str) -> Callable[[_Document], Any]:
    """The field that several keys, one in the other, lead to."""

    def read(document: _Document) -> Any:
        value: Any = document
        for name in names:
            value = value[name]
        return value

    return read


def _pair(name: str, index: int) -> Callable[[_Document], Any]:
    """Before 0.8: frequency and share in one list."""
    return lambda document: document[name][index]


@dataclass(frozen=True, slots=True)
class _Field:
    """A value of macmon's document: where it stands (newest version first), and its factor.

    ``zero_is_missing`` where macmon writes 0 for what the machine does not report.
    """

    metric: Metric
    places: tuple[Callable[[_Document], Any], ...]
    entity: str = ""
    factor: float = 1.0
    zero_is_missing: bool = False

    def read(self, document: _Document) -> float | MissingReason:
        for place in self.places:
            try:
                value = float(place(document)) * self.factor
            except (KeyError, IndexError, TypeError, ValueError):
                continue  # another version of macmon, or not on this machine
            if value == 0 and self.zero_is_missing:
                break
            return value
        return MissingReason.UNSUPPORTED


def _host(name: str, unit: str, description: str) -> Metric:
    return Metric(name, unit, Scope.HOST, description=description, method=_METHOD)


_METHOD = "macmon: mean over its interval, which is the listener's, at least 100 ms"
_CPU_CLOCK = _host("cpu.clock", "Hz", "mean of a cluster's cores")
_CPU_ACTIVE = _host("cpu.active", "1", "share of time that a cluster's cores work")
_CPU_SCALED = _host("cpu.scaled", "1", "likewise, times clock over highest clock")
_CLUSTERS = ("ecpu", "pcpu")

_FIELDS = (
    _Field(
        _host("gpu.utilization", "1", "share of time that the GPU works"),
        (_at("gpu_active_ratio"),),
    ),
    _Field(
        _host("gpu.scaled", "1", "likewise, times clock over highest clock"),
        (_at("gpu_scaled_ratio"), _pair("gpu_usage", 1)),
    ),
    _Field(
        _host("gpu.clock", "Hz", "of the GPU"),
        (_at("gpu_freq_mhz"), _pair("gpu_usage", 0)),
        factor=1e6,
    ),
    *(
        _Field(_CPU_CLOCK, (_at(f"{it}_freq_mhz"), _pair(f"{it}_usage", 0)), it, 1e6)
        for it in _CLUSTERS
    ),
    *(_Field(_CPU_ACTIVE, (_at(f"{it}_active_ratio"),), it) for it in _CLUSTERS),
    *(
        _Field(_CPU_SCALED, (_at(f"{it}_scaled_ratio"), _pair(f"{it}_usage", 1)), it)
        for it in _CLUSTERS
    ),
    _Field(_host("cpu.power", "W", "all clusters"), (_at("cpu_power"),)),
    _Field(_host("gpu.power", "W", "the GPU alone"), (_at("gpu_power"),)),
    _Field(_host("ane.power", "W", "the neural engine"), (_at("ane_power"),)),
    _Field(_host("soc.power", "W", "CPU, GPU and neural engine"), (_at("all_power"),)),
    _Field(_host("memory.power", "W", "DRAM"), (_at("ram_power"),)),
    _Field(
        _host("system.power", "W", "the whole machine, where it says so"),
        (_at("sys_power"),),
        zero_is_missing=True,
    ),
    _Field(
        _host("cpu.temperature", "Cel", "mean of its sensors"),
        (_at("temp", "cpu_temp_avg"),),
        zero_is_missing=True,
    ),
    _Field(
        _host("gpu.temperature", "Cel", "mean of its sensors"),
        (_at("temp", "gpu_temp_avg"),),
        zero_is_missing=True,
    ),
    _Field(_host("system.memory.used", "By", "as macOS counts"), (_at("memory", "ram_usage"),)),
    _Field(_host("system.swap.used", "By", "of what macOS set up"), (_at("memory", "swap_usage"),)),
)


class MacmonListener(Listener):
    """Power, clocks and load of a Mac with Apple silicon."""

    name: ClassVar[str] = "macmon"

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._complaints: IO[bytes] | None = None
        self._rest = b""
        self._since_ns = 0

    @classmethod
    def probe(cls) -> Availability:
        """Whether the program is there: it is for Macs with Apple silicon only."""
        if shutil.which(PROGRAM) is not None:
            return Availability(True)
        remedy = (
            "Install it: brew install macmon"
            if sys.platform == "darwin"
            else f"It reads Macs with Apple silicon; leave {cls.name} out of Listeners"
        )
        return Availability(False, f"there is no {PROGRAM} on PATH", remedy)

    @classmethod
    def metrics(cls) -> Sequence[Metric]:
        return tuple(dict.fromkeys(field.metric for field in _FIELDS))

    def open(self) -> None:
        interval_ms = max(_MIN_INTERVAL_MS, round(self.interval_s * 1e3))
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close
        self._process = subprocess.Popen(
            [PROGRAM, "pipe", "--interval", str(interval_ms)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._since_ns = time.monotonic_ns()

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()
        if self._complaints is not None:
            self._complaints.close()
            self._complaints = None

    def sample(self, targets: Sequence[Target]) -> Iterator[Reading]:  # noqa: ARG002
        """The newest document; nothing between two documents.

        Raises:
            ListenerError: macmon ended, or what it writes is no JSON.
        """
        stale_ns = round(max(_MIN_STALE_S, _STALE_INTERVALS * self.interval_s) * 1e9)
        document = self._newest()
        now_ns = time.monotonic_ns()
        at_ns = None if document is None else _monotonic(document, now_ns)
        if document is not None and at_ns is not None and now_ns - at_ns <= stale_ns:
            self._since_ns = now_ns
            for field in _FIELDS:
                value = field.read(document)
                yield Reading(field.metric.name, value, field.entity, at_ns=at_ns)
        elif now_ns - self._since_ns > stale_ns:
            for field in _FIELDS:
                yield Reading(field.metric.name, MissingReason.LOST, field.entity)

    def _newest(self) -> _Document | None:
        """The last document that arrived whole since the last time."""
        assert self._process is not None
        assert self._process.stdout is not None
        ended = False
        while (chunk := self._process.stdout.read(_READ_BYTES)) is not None:
            if not chunk:
                ended = True
                break
            self._rest += chunk
        *lines, self._rest = self._rest.split(b"\n")
        if lines:
            return _parsed(lines[-1])
        if ended:
            raise ListenerError(f"{PROGRAM} ended{self._last_words()}", f"Run {PROGRAM} pipe")
        return None

    def _last_words(self) -> str:
        assert self._process is not None
        assert self._complaints is not None
        code = self._process.wait()
        self._complaints.seek(0)
        said = self._complaints.read().decode(errors="replace").strip()[-_MAX_ERROR:]
        return f" with exit code {code}" + (f": {said}" if said else "")


def _parsed(line: bytes) -> _Document:
    try:
        document = json.loads(line)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        shown = line[:_MAX_ERROR].decode(errors="replace")
        raise ListenerError(f"{PROGRAM} wrote what is no JSON object: {shown!r}")
    return document


def _monotonic(document: _Document, now_ns: int) -> int:
    """When the document was written: it says so since 0.6, in wall time; else now."""
    try:
        written = datetime.fromisoformat(str(document["timestamp"])).timestamp()
    except (KeyError, ValueError):
        return now_ns
    return min(now_ns, now_ns - round((time.time() - written) * 1e9))
