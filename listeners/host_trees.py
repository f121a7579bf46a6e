"""Sums over processes, disks and interfaces that come and go; expensive readings in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from radt.procfs import ProcessStat, boot_ticks

#: Maximum age of the table in which processes are looked up.
_TABLE_AGE_NS = 100_000_000

_Key = TypeVar("_Key", bound=Hashable)


class Growing(Generic[_Key]):
    """Sums of counters whose owners may appear, end or restart.

    With ``start_raw`` the sums start from the counters' first values, otherwise from 0.
    """

    def __init__(self, columns: int, *, start_raw: bool = False) -> None:
        self._totals = [0] * columns
        self._last: dict[_Key, Sequence[int]] | None = None
        self._start_raw = start_raw

    def update(
        self,
        now: Mapping[_Key, Sequence[int]],
        fresh: Collection[_Key],
        passed_on: Collection[_Key] = (),
    ) -> tuple[int, ...]:
        """Return the sums, given the current value of each counter.

        Args:
            fresh: Owners that started since the last update: their counters are added in full.
                Other new owners are counted from now on.
            passed_on: Ended owners whose counts were added to another counter that still exists,
                where they must not be counted again.
        """
        if self._last is None:
            if self._start_raw:
                for values in now.values():
                    self._add(values)
            self._last = dict(now)
            return tuple(self._totals)
        used = [0] * len(self._totals)
        for key, values in now.items():
            before = self._last.get(key)
            if before is None and key not in fresh:
                continue
            for column, value in enumerate(values):
                earlier = 0 if before is None else before[column]
                # Lower than before: a new counter with the same name.
                used[column] += value - earlier if value >= earlier else value
        for key in passed_on:
            for column, value in enumerate(self._last.get(key, ())):
                used[column] -= value
        self._add([max(0, amount) for amount in used])
        self._last = dict(now)
        return tuple(self._totals)

    def _add(self, values: Sequence[int]) -> None:
        for column, value in enumerate(values):
            self._totals[column] += value


class Lineage:
    """New and ended processes of a tree between two updates.

    ``fresh`` were started since the last update. ``passed_on`` have ended, and their counts went to
    an ancestor that still exists: to their parent, which waited for them, or further up if that has
    ended since. (The counts of an orphan go to the process that adopts it. If that belongs to the
    tree, as radt's keepers do, it is an ancestor, too.)
    """

    def __init__(self) -> None:
        self._processes: Mapping[int, ProcessStat] = {}
        self._since_ns: int | None = None
        self.fresh: set[int] = set()
        self.passed_on: set[int] = set()

    def known(self, pid: int) -> ProcessStat | None:
        """Return a process as of the last update."""
        return self._processes.get(pid)

    def look(self, now: Mapping[int, ProcessStat]) -> None:
        """Update with the processes that are present now."""
        before, now_ns = self._processes, time.monotonic_ns()
        since_ticks = 0 if self._since_ns is None else boot_ticks(self._since_ns - _TABLE_AGE_NS)
        self.fresh = {
            pid
            for pid, stat in now.items()
            if (earlier := before.get(pid)) is None or earlier.started_ticks != stat.started_ticks
            if stat.started_ticks >= since_ticks
        }
        gone = before.keys() - now.keys()
        self.passed_on = {pid for pid in gone if _has_heir(pid, before, now)}
        self._processes, self._since_ns = dict(now), now_ns


def _has_heir(pid: int, before: Mapping[int, ProcessStat], now: Mapping[int, ProcessStat]) -> bool:
    for _ in range(len(before)):
        parent = before[pid].parent
        if parent in now:
            return True
        if parent not in before:
            return False
        pid = parent
    return False


_Value = TypeVar("_Value")

#: Enough for small processes, whose values are then in the same sample.
_PATIENCE_S = 0.01


@dataclass(frozen=True, slots=True)
class TimedValue(Generic[_Value]):
    """A value of a run and its time."""

    value: _Value
    at_ns: int


class Deferred(Generic[_Value]):
    """Reads a value of each run in its own thread, so that it does not delay samples.

    A run is read again after ``min_s`` at the earliest, and rarely enough that all runs together
    use at most ``share`` of one core.
    """

    def __init__(
        self, read: Callable[[str, Sequence[int]], _Value], *, min_s: float, share: float
    ) -> None:
        self._read = read
        self._min_ns = round(min_s * 1e9)
        self._share = share
        self._due_ns: dict[str, int] = {}
        self._ready: dict[str, TimedValue[_Value]] = {}
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    def take(self, trees: Mapping[str, Sequence[int]]) -> dict[str, TimedValue[_Value]]:
        """Return the values read since the last call, and start reading runs whose time has come.

        ``trees`` has the processes of each run. Raises the errors of the readings.
        """
        if self._busy:
            return {}
        ready = self._collect()
        self._due_ns = {run_id: at_ns for run_id, at_ns in self._due_ns.items() if run_id in trees}
        now_ns = time.monotonic_ns()
        due = {run: pids for run, pids in trees.items() if self._due_ns.get(run, 0) <= now_ns}
        if due:
            self._thread = threading.Thread(
                target=self._work, args=(due, len(trees)), name="listener-deferred", daemon=True
            )
            self._thread.start()
            self._thread.join(_PATIENCE_S)
            if not self._busy:
                ready |= self._collect()
        return ready

    @property
    def _busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _collect(self) -> dict[str, TimedValue[_Value]]:
        if self._error is not None:
            raise self._error
        ready, self._ready = self._ready, {}
        return ready

    def wait(self) -> None:
        """Wait until the current reading is finished."""
        if self._thread is not None:
            self._thread.join()

    def _work(self, due: Mapping[str, Sequence[int]], runs: int) -> None:
        try:
            for run_id, pids in due.items():
                at_ns, begun_ns = time.monotonic_ns(), time.thread_time_ns()
                self._ready[run_id] = TimedValue(self._read(run_id, pids), at_ns)
                took_ns = time.thread_time_ns() - begun_ns
                pause_ns = max(self._min_ns, int(took_ns * runs / self._share))
                self._due_ns[run_id] = at_ns + pause_ns
        except Exception as error:  # noqa: BLE001 - raised again by `take`
            self._error = error
