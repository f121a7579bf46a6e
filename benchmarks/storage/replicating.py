"""Cost of replicating a store to Postgres while runs are recorded, and the bytes on the wire.

The replicator is the real process. A writer appends as the collector does; between the replicator
and Postgres a proxy counts bytes (of TCP's payload, both ways).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.results import Bar, Findings, Table
from benchmarks.storage.places import Kind, Places
from radt.home import RUNTIME_VARIABLE, STORE_VARIABLE
from radt.store.reader import StoreReader
from tests.support.links import Link

RUNS, SERIES, HERTZ = 8, 60, 10
MOST_CORE_SHARE = 0.05
MOST_BYTES_PER_S = 1000.0
#: How often the collector announces new hardware samples.
_NEWS_S = 10
#: By then Python and its packages are loaded and the runs exist.
_SETTLED_S = 20


@dataclass(frozen=True, slots=True)
class _Reading:
    """Use of resources up to an instant."""

    at_s: float
    cpu_s: float
    server_cpu_s: float
    wire_bytes: int


def measure(places: Places, seconds: int) -> Findings:
    """Measure ``seconds`` seconds of replication.

    The replicator uploads once a minute, so ``seconds`` should be a little over several minutes.
    """
    name = "replica"
    uri = places.new(Kind.POSTGRES, name)
    store = places.folder / "replicated.db"
    with Link(places.cluster.port) as link, _writer(store, seconds) as writer:
        _expect(writer, "ready")
        replicator = start(
            store, uri.replace(f":{places.cluster.port}/", f":{link.port}/"), places.folder
        )
        process = psutil.Process(replicator.pid)

        def reading() -> _Reading:
            times = process.cpu_times()
            return _Reading(
                time.monotonic(),
                times.user + times.system,
                _cpu_of_children(places.cluster.pid),
                link.traffic.bytes_up + link.traffic.bytes_down,
            )

        beginning = _Reading(time.monotonic(), 0.0, _cpu_of_children(places.cluster.pid), 0)
        readings = [beginning]
        for second in range(seconds):
            time.sleep(max(0.0, beginning.at_s + second + 1 - time.monotonic()))
            if second % _NEWS_S == 0:
                _poke(replicator)
            readings.append(reading())
        _expect(writer, "written")
        assert writer.stdin is not None
        writer.stdin.close()
        writer.wait()
        _poke(replicator)
        peak_mb = process.memory_info().rss / 1e6
        assert replicator.stdin is not None
        closing_s = time.monotonic()
        replicator.stdin.close()
        _, status, usage = os.wait4(replicator.pid, 0)
        assert status == 0, f"the replicator ended with {status}"
        ended = _Reading(
            time.monotonic(),
            usage.ru_utime + usage.ru_stime,
            _cpu_of_children(places.cluster.pid),
            link.traffic.bytes_up + link.traffic.bytes_down,
        )
    check(str(store), uri)
    # Whole minutes: a piece of every series is uploaded once in each.
    minutes = max(1, (seconds - _SETTLED_S) // 60)
    steady = readings[_SETTLED_S], readings[min(seconds, _SETTLED_S + 60 * minutes)]
    found = Findings(
        [
            Table(
                f"Replication of {RUNS} runs × {SERIES} series at {HERTZ} Hz",
                ("", "one core", "Postgres", "bytes/s a run", "bytes/point"),
                [
                    _row(f"{minutes} min in the middle", *steady, None),
                    _row("first line to last", beginning, ended, float(seconds)),
                ],
                f"TCP's payload, both ways. Memory {peak_mb:.0f} MB; done "
                f"{ended.at_s - closing_s:.1f} s after the end.",
            )
        ]
    )
    cpu = _share(*steady)
    wire = _wire(*steady)
    found.bars += [
        Bar("replication under 5 % of a core", f"{cpu:.1%}", cpu < MOST_CORE_SHARE),
        Bar("under 1 KB/s a run on the wire", f"{wire:,.0f} B/s", wire < MOST_BYTES_PER_S),
    ]
    places.drop(Kind.POSTGRES, name)
    return found


def _share(start: _Reading, end: _Reading, seconds: float | None = None) -> float:
    return (end.cpu_s - start.cpu_s) / (seconds or end.at_s - start.at_s)


def _wire(start: _Reading, end: _Reading, seconds: float | None = None) -> float:
    return (end.wire_bytes - start.wire_bytes) / (seconds or end.at_s - start.at_s) / RUNS


def _row(name: str, start: _Reading, end: _Reading, seconds: float | None) -> tuple[str, ...]:
    """Return a row; ``seconds`` is the time in which points arrived, if not the whole time."""
    duration_s = seconds or end.at_s - start.at_s
    server = (end.server_cpu_s - start.server_cpu_s) / duration_s
    wire = _wire(start, end, seconds)
    return (
        name,
        f"{_share(start, end, seconds):.1%}",
        f"{server:.1%}",
        f"{wire:,.0f}",
        f"{wire / SERIES / HERTZ:.2f}",
    )


@contextmanager
def _writer(store: Path, seconds: int) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "benchmarks.storage.writing", str(store)),
            *(f"--runs={RUNS}", f"--series={SERIES}", f"--hertz={HERTZ}", f"--seconds={seconds}"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _expect(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    said = process.stdout.readline().strip()
    assert said == line, f"{said!r} instead of {line}"


def start(store: Path, uri: str, folder: Path) -> subprocess.Popen[str]:
    runtime = folder / "runtime"
    runtime.mkdir(mode=0o700, exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", "radt.delivery.postgres", f"--store={store}"],
        stdin=subprocess.PIPE,
        text=True,
        env=os.environ | {STORE_VARIABLE: uri, RUNTIME_VARIABLE: str(runtime)},
    )


def _poke(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def _cpu_of_children(pid: int | None) -> float:
    """Return the CPU seconds of the cluster's live and ended processes."""
    head = psutil.Process(pid)
    times = head.cpu_times()
    total = times.user + times.system + times.children_user + times.children_system
    for child in head.children():
        try:
            used = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += used.user + used.system
    return float(total)


def check(here: str, there: str) -> None:
    """Assert that all points were replicated."""
    with StoreReader(here) as original, StoreReader(there) as copy:
        for run in original.runs():
            assert copy.point_counts(run.run_id) == original.point_counts(run.run_id)
