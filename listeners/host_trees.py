"""Sums over things that come and go, which never go down: processes of a run, disks, interfaces."""

from __future__ import annotations

import time
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Generic, TypeVar

from radt.procfs import ProcessStat, boot_ticks

#: A process is looked up in a table of processes that may be this old.
_TABLE_AGE_NS = 100_000_000

_Key = TypeVar("_Key", bound=Hashable)


class Growing(Generic[_Key]):
    """Sums of counters of which each belongs to something that may appear, end or start again.

    ``start_raw`` begins with the sum of what is there first, as the counters say; otherwise the
    sums count from the first look.
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
        """The sums, given what each counter says now.

        Args:
            fresh: What is new since the last look and so counts in full. Anything else that was
                not there before counts from now on.
            passed_on: What ended and left its counts to another one that is still there, where
                they would be counted again.
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
                # A lower value than before: a new one of the same name has begun to count.
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
    """Who is new and who has ended in a process tree, from one look to the next.

    ``fresh`` were started since the last look. ``passed_on`` have ended, and their counts went to
    an ancestor that is still there: to their parent, which waited for them, or on through parents
    that have ended since. (An orphan's go to the process that adopts it. Where that is one of the
    tree, as radt's keepers are, it is an ancestor as well.)
    """

    def __init__(self) -> None:
        self._processes: Mapping[int, ProcessStat] = {}
        self._since_ns: int | None = None
        self.fresh: set[int] = set()
        self.passed_on: set[int] = set()

    def known(self, pid: int) -> ProcessStat | None:
        """What was read of a process at the last look."""
        return self._processes.get(pid)

    def look(self, now: Mapping[int, ProcessStat]) -> None:
        """Take notice of who is there now."""
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
