"""State of this machine's collector and devices, read in the background."""

from __future__ import annotations

import json
import logging
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from radt.errors import CollectorError, RadtError

if TYPE_CHECKING:  # these need Linux; the rest of the dashboard does not
    from radt.collector.protocol import CollectorStatus, LiveView
    from radt.collocation.overview import Overview

ValueT = TypeVar("ValueT")

#: Probing may take at most one part in this many of the time.
_SHARE = 20
#: A probe that takes longer counts as not answering.
LATE_S = 5.0

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reading(Generic[ValueT]):
    """Result of a probe; ``value`` and ``error`` are both None before the first one.

    ``waited_s`` is how long the next result has been pending; 0 if none is.
    """

    value: ValueT | None = None
    error: RadtError | None = None
    waited_s: float = 0.0

    @property
    def is_late(self) -> bool:
        """Whether the probe is overdue."""
        return self.waited_s >= LATE_S


class Probe(Generic[ValueT]):
    """Reads one thing in the background. Thread-safe.

    Args:
        name: The name in the log.
        read: Returns a value; may raise `RadtError`.
        interval_s: The minimum interval; longer if reading is slow.
    """

    def __init__(self, name: str, read: Callable[[], ValueT], interval_s: float) -> None:
        self._name = name
        self._read = read
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._value: ValueT | None = None
        self._error: RadtError | None = None
        self._due_s = 0.0
        self._began_s: float | None = None

    def look(self, wait_s: float = 0.0) -> Reading[ValueT]:
        """Return the newest result; start another read if it is due.

        Args:
            wait_s: How long to wait for the first result.
        """
        with self._lock:
            if self._began_s is None and time.monotonic() >= self._due_s:
                self._begin()
            known = self._value is not None or self._error is not None
        if not known:
            self._done.wait(wait_s)
        with self._lock:
            waited_s = 0.0 if self._began_s is None else time.monotonic() - self._began_s
            return Reading(self._value, self._error, waited_s)

    def _begin(self) -> None:
        self._began_s = time.monotonic()
        threading.Thread(target=self._run, name=f"system-{self._name}", daemon=True).start()

    def _run(self) -> None:
        value: ValueT | None = None
        error: RadtError | None = None
        began_s = time.monotonic()
        try:
            value = self._read()
        except RadtError as known:
            error = known
        except Exception as unknown:  # noqa: BLE001 - logged; a page of many parts shows the others
            _LOG.exception("looking at %s failed", self._name)
            error = RadtError(
                f"reading this failed: {type(unknown).__name__}",
                "See the terminal of `radt dashboard`",
            )
        ended_s = time.monotonic()
        with self._lock:
            self._value, self._error, self._began_s = value, error, None
            self._due_s = ended_s + max(self._interval_s, (ended_s - began_s) * _SHARE)
        self._done.set()


_CONNECT_S = 2.0
_COMMAND_S = 60.0
#: The interval of the first CPU measurement, which has no previous one to compare with.
_FIRST_LOOK_S = 0.2
#: Distributions whose versions matter in questions and bug reports.
_PACKAGES = ("radt", "dash", "plotly", "numpy", "SQLAlchemy", "mlflow")


@dataclass(frozen=True, slots=True)
class Collector:
    """The collector's own figures, and its current runs.

    ``cores`` is its CPU use in cores since the previous read; at the first read, over its lifetime.
    """

    status: CollectorStatus
    cores: float | None = None
    live: Mapping[str, LiveView] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NoCollector:
    """No collector runs, because nothing is recorded."""


class CollectorWatch:
    """Asks the collector, and computes rates since the previous answer."""

    def __init__(self) -> None:
        self._before: tuple[int, float, float] | None = None

    def read(self) -> Collector | NoCollector:
        """Return the collector's figures.

        Raises:
            CollectorError: The collector runs but does not answer.
            RadtError: There is no runtime folder.
        """
        _require_linux()
        from radt.collector.client import CollectorClient

        try:
            client = CollectorClient.connect(
                start=False, timeout_s=_CONNECT_S, patience_s=_CONNECT_S
            )
        except CollectorError as error:
            self._before = None
            if _holder() is None:
                return NoCollector()
            raise CollectorError(
                f"the collector is running but does not answer: {error.message}", error.remedy
            ) from error
        with client:
            status = client.status()
            live = client.live(status.runs) if status.runs else {}
        now_s, before = time.monotonic(), self._before
        self._before = status.pid, now_s, status.cpu_s
        cores = status.cpu_s / status.uptime_s if status.uptime_s else None
        if before is not None and before[0] == status.pid and now_s > before[1]:
            cores = max(0.0, (status.cpu_s - before[2]) / (now_s - before[1]))
        return Collector(status, cores, live)


def _holder() -> int | None:
    from radt.collector.start import worker_lock

    lock = worker_lock()
    try:
        return lock.holder()
    finally:
        lock.close()


@dataclass(frozen=True, slots=True)
class Devices:
    """The machine and its GPUs; ``cpu_busy`` is the CPUs' busy share since the previous read.

    ``load`` is the mean number of running or runnable threads over the last minute.
    """

    overview: Overview
    cpu_busy: float | None
    load: float


class DevicesWatch:
    """Reads CPUs, memory and GPUs."""

    def __init__(self) -> None:
        self._before: tuple[int, int] | None = None

    def read(self) -> Devices:
        """Read the devices; a driver that fails is part of the result.

        Raises:
            RadtError: This is not Linux.
        """
        _require_linux()
        from radt.collocation.overview import Overview

        before = self._before
        if before is None:
            before = _cpu_ticks()
            time.sleep(_FIRST_LOOK_S)
        overview = Overview.read()
        now, busy = _cpu_ticks(), None
        self._before = now
        if now[1] > before[1]:
            busy = (now[0] - before[0]) / (now[1] - before[1])
        return Devices(overview, busy, os.getloadavg()[0])


def _require_linux() -> None:
    if sys.platform != "linux":
        raise RadtError(
            "Only available on Linux", "Open the dashboard on the machine with the GPUs"
        )


def _cpu_ticks() -> tuple[int, int]:
    """Return busy and total ticks of the CPUs; https://docs.kernel.org/filesystems/proc.html."""
    line = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0]
    ticks = [int(word) for word in line.split()[1:9]]  # guests are part of user and nice
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, sum(ticks)


@dataclass(frozen=True, slots=True)
class ListenerFacts:
    """A listener or profiler on this machine; ``failure`` says why it cannot be loaded."""

    name: str
    summary: str
    works: bool
    reason: str
    remedy: str
    by_default: bool
    is_profiler: bool
    interval_s: float | None
    series: int
    failure: str


def ask_radt(command: str, *options: str) -> Any:
    """Return what a command of radt prints as JSON; it runs in a process of its own.

    Raises:
        RadtError: It fails or times out, or this is not Linux.
    """
    _require_linux()
    remedy = f"Run `radt {command}` to see why"
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "radt", command, "--json", *options],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_COMMAND_S,
            check=False,
        )
        return json.loads(done.stdout)
    except subprocess.TimeoutExpired as error:
        raise RadtError(f"`radt {command}` took longer than {_COMMAND_S:.0f} s", remedy) from error
    except (OSError, ValueError) as error:
        raise RadtError(f"`radt {command}` printed no JSON", remedy) from error


def read_listeners() -> Sequence[ListenerFacts]:
    """Run ``radt listeners``; plug-ins may contain any code.

    Raises:
        RadtError: It fails or times out, or this is not Linux.
    """
    entries = ask_radt("listeners")
    return [
        ListenerFacts(
            name=str(entry["name"]),
            summary=str(entry["summary"]).rstrip(".").replace("``", ""),
            works=bool(entry["available"]) and not entry["failure"],
            reason=str(entry["reason"]),
            remedy=str(entry["remedy"]),
            by_default=bool(entry["by_default"]),
            is_profiler=entry["kind"] == "profiler",
            interval_s=entry["interval_s"],
            series=len(entry["series"]),
            failure=str(entry["failure"]),
        )
        for entry in entries
    ]


def read_versions() -> Sequence[tuple[str, str]]:
    """Return names and versions; packages that are not installed are left out."""
    versions = [("Python", platform.python_version()), (platform.system(), platform.release())]
    for name in _PACKAGES:
        try:
            versions.append((name, version(name)))
        except PackageNotFoundError:  # a source tree on PYTHONPATH, or an extra
            continue
    return versions
