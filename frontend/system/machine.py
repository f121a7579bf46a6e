"""This machine: its collector, its devices, what can be measured on it, versions."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from radt.collector.client import CollectorClient
from radt.collector.protocol import CollectorStatus, LiveView
from radt.collocation.overview import Overview
from radt.errors import CollectorError, RadtError

_CONNECT_S = 2.0
_LISTENERS_S = 60.0
#: The first time there is no look before to compare with.
_FIRST_LOOK_S = 0.2
#: Distributions whose version matters when something is asked or reported.
_PACKAGES = ("radt", "dash", "plotly", "dash-mantine-components", "numpy", "SQLAlchemy", "mlflow")


@dataclass(frozen=True, slots=True)
class Collector:
    """The collector about itself, and what it knows of its runs right now.

    ``cores`` is what it used of a core since the look before, and over its life at the first.
    """

    status: CollectorStatus
    cores: float | None = None
    live: Mapping[str, LiveView] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NoCollector:
    """None runs, which is how it is while nothing is recorded."""


class CollectorWatch:
    """Asks the collector, and compares with what it said before."""

    def __init__(self) -> None:
        self._before: tuple[int, float, float] | None = None

    def read(self) -> Collector | NoCollector:
        """
        Raises:
            CollectorError: It runs and does not answer.
            RadtError: There is no runtime folder.
        """
        try:
            client = CollectorClient.connect(start=False, timeout_s=_CONNECT_S)
        except CollectorError as error:
            self._before = None
            if _holder() is None:
                return NoCollector()
            raise CollectorError(
                f"the collector runs and does not answer: {error.message}", error.remedy
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
    from radt.collector.lock import worker_lock

    lock = worker_lock()
    try:
        return lock.holder()
    finally:
        lock.close()


@dataclass(frozen=True, slots=True)
class Devices:
    """The machine and its GPUs; ``cpu_busy`` is the part of all CPUs' time since the look before.

    ``load`` is the number of threads that run or want to, over a minute.
    """

    overview: Overview
    cpu_busy: float | None
    load: float


class DevicesWatch:
    """Looks at CPUs, memory and GPUs."""

    def __init__(self) -> None:
        self._before: tuple[int, int] | None = None

    def read(self) -> Devices:
        """Never raises: a driver that does not work is part of the overview."""
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


def _cpu_ticks() -> tuple[int, int]:
    """Ticks that the CPUs worked, and all; https://docs.kernel.org/filesystems/proc.html."""
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


def read_listeners() -> Sequence[ListenerFacts]:
    """Ask ``radt listeners``: in a process of its own, as plug-ins are anybody's code.

    Raises:
        RadtError: It does not answer, or not in time.
    """
    command = [sys.executable, "-P", "-m", "radt", "listeners", "--json"]
    remedy = "Run `radt listeners` to see why"
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LISTENERS_S,
            check=False,
        )
        entries = json.loads(done.stdout)
    except subprocess.TimeoutExpired as error:
        raise RadtError(f"`radt listeners` takes over {_LISTENERS_S:.0f} s", remedy) from error
    except (OSError, ValueError) as error:
        raise RadtError("`radt listeners` says nothing", remedy) from error
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
    """Names and versions; packages that are not installed are left out."""
    found = [("Python", platform.python_version()), ("Linux", platform.release())]
    for name in _PACKAGES:
        try:
            found.append((name, version(name)))
        except PackageNotFoundError:  # a source tree on PYTHONPATH, or an extra
            continue
    return found
