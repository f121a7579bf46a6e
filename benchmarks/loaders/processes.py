"""Processes that take batches, and what they and their children did in a window of time.

Each prints a line for a batch (`report`) and ends when its standard input is closed.
"""

from __future__ import annotations

import os
import select
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: By then loaders have filled their queues, and all processes run.
WARM_BATCHES = 12
#: A window has so many at least, however slow the machine is.
LEAST_BATCHES = 8
_TICKS = os.sysconf("SC_CLK_TCK")
_POLL_S = 0.02


def report(value: float) -> bool:
    """Print that a batch with this content has come; return whether to stop. For consumers."""
    sys.stdout.write(f"{time.monotonic()} {value}\n")
    sys.stdout.flush()
    return bool(select.select([sys.stdin], [], [], 0)[0])


@dataclass(frozen=True, slots=True)
class Window:
    """What happened between two instants.

    Attributes:
        rates: Batches per second of each process.
        cpu_s: CPU time of all processes and their children while one process gets a batch.
        same: Whether all processes got the same batches in the same order, as far as they got.
    """

    rates: tuple[float, ...]
    cpu_s: float
    same: bool

    @property
    def total(self) -> float:
        """Batches per second of all processes together."""
        return sum(self.rates)


class TooSlow(Exception):  # noqa: N818 - a result
    """A process has not got its first batches in time; the message says how many came."""


class _Taker:
    """A process, and the lines that it has printed."""

    def __init__(self, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.times: list[float] = []
        self.values: list[str] = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            moment, _, value = line.partition(" ")
            try:
                self.times.append(float(moment))
            except ValueError:  # a peer prints messages of its own
                continue
            self.values.append(value)

    def end(self, *, kill: bool) -> None:
        """Let it end; `wait` waits for that."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        if kill:
            self.process.kill()

    def wait(self) -> None:
        """Wait until it has ended, and a loader server that has its standard output."""
        self.process.wait()
        self._thread.join()

    def rate(self, began_s: float, ended_s: float) -> float:
        """Return the batches per second between two instants."""
        within = [moment for moment in self.times if began_s <= moment <= ended_s]
        return (len(within) - 1) / (within[-1] - within[0])


@contextmanager
def _started(commands: Sequence[Sequence[str]]) -> Iterator[list[_Taker]]:
    takers: list[_Taker] = []
    finished = False
    try:
        takers += [_Taker(command) for command in commands]
        yield takers
        finished = True
    finally:
        for taker in takers:
            taker.end(kill=not finished)
        for taker in takers:
            taker.wait()


@contextmanager
def _server(command: Sequence[str] | None) -> Iterator[list[int]]:
    if command is None:
        yield []
        return
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    try:
        yield [process.pid]
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # its workers, too
        process.wait()


def window(
    commands: Sequence[Sequence[str]],
    seconds: float,
    limit_s: float = 120,
    server: Sequence[str] | None = None,
) -> Window:
    """Start processes, let them get warm, and measure for some seconds.

    Args:
        commands: One for each process.
        seconds: Length of the window; it is longer where batches are few.
        limit_s: How long they may take until they are warm.
        server: Command of a process that takes no batches itself; its CPU time counts.

    Raises:
        TooSlow: They were not warm in time.
        RuntimeError: One of them failed.
    """
    with _server(server) as pids, _started(commands) as takers:
        deadline_s = time.monotonic() + limit_s
        while (least := min(len(taker.times) for taker in takers)) < WARM_BATCHES:
            if any(taker.process.poll() is not None for taker in takers):
                raise RuntimeError("a process has ended before it was to; see its output above")
            if time.monotonic() > deadline_s:
                raise TooSlow(f"{least} batches in {limit_s:.0f} s")
            time.sleep(_POLL_S)
        pids += [taker.process.pid for taker in takers]
        counts = [len(taker.times) for taker in takers]
        began_s, before_s = time.monotonic(), _cpu_s(pids)
        time.sleep(seconds)
        while any(
            len(taker.times) < count + LEAST_BATCHES
            for taker, count in zip(takers, counts, strict=True)
        ):
            time.sleep(_POLL_S)
        ended_s, after_s = time.monotonic(), _cpu_s(pids)
    rates = tuple(taker.rate(began_s, ended_s) for taker in takers)
    shortest = min(len(taker.values) for taker in takers)
    same = len({tuple(taker.values[:shortest]) for taker in takers}) == 1
    taken = statistics.fmean(rates) * (ended_s - began_s)
    return Window(rates, (after_s - before_s) / taken, same)


def _cpu_s(pids: Sequence[int]) -> float:
    """Return the CPU time of living processes and all below them."""
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            parents[int(entry.name)] = int(fields[1])
            used[int(entry.name)] = int(fields[11]) + int(fields[12])
    counted: set[int] = set()
    found = set(pids)
    while found:
        counted |= found
        found = {pid for pid, parent in parents.items() if parent in counted} - counted
    return sum(used.get(pid, 0) for pid in counted) / _TICKS
