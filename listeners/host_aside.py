"""Readings that are too dear for every sample."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

_Value = TypeVar("_Value")

#: What small processes need; so their values come with the sample that asked for them.
_PATIENCE_S = 0.01


@dataclass(frozen=True, slots=True)
class Taken(Generic[_Value]):
    """What was read of a run, and when."""

    value: _Value
    at_ns: int


class Aside(Generic[_Value]):
    """Reads something of each run in a thread of its own, so that no sample is late for it.

    A run is read again after ``min_s`` at the earliest, and so seldom that all of them together
    take at most ``share`` of one core.
    """

    def __init__(
        self, read: Callable[[str, Sequence[int]], _Value], *, min_s: float, share: float
    ) -> None:
        self._read = read
        self._min_ns = round(min_s * 1e9)
        self._share = share
        self._due_ns: dict[str, int] = {}
        self._ready: dict[str, Taken[_Value]] = {}
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    def take(self, trees: Mapping[str, Sequence[int]]) -> dict[str, Taken[_Value]]:
        """What was read since the last call; and begin to read the runs that are due.

        ``trees`` has the processes of each run.

        Raises:
            Exception: What reading has raised.
        """
        if self._busy:
            return {}
        ready = self._collect()
        self._due_ns = {run_id: at_ns for run_id, at_ns in self._due_ns.items() if run_id in trees}
        now_ns = time.monotonic_ns()
        due = {run: pids for run, pids in trees.items() if self._due_ns.get(run, 0) <= now_ns}
        if due:
            self._thread = threading.Thread(
                target=self._work, args=(due, len(trees)), name="listener-aside", daemon=True
            )
            self._thread.start()
            self._thread.join(_PATIENCE_S)
            if not self._busy:
                ready |= self._collect()
        return ready

    @property
    def _busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _collect(self) -> dict[str, Taken[_Value]]:
        if self._error is not None:
            raise self._error
        ready, self._ready = self._ready, {}
        return ready

    def wait(self) -> None:
        """Until what was begun is read."""
        if self._thread is not None:
            self._thread.join()

    def _work(self, due: Mapping[str, Sequence[int]], runs: int) -> None:
        try:
            for run_id, pids in due.items():
                at_ns, begun_ns = time.monotonic_ns(), time.thread_time_ns()
                self._ready[run_id] = Taken(self._read(run_id, pids), at_ns)
                took_ns = time.thread_time_ns() - begun_ns
                pause_ns = max(self._min_ns, int(took_ns * runs / self._share))
                self._due_ns[run_id] = at_ns + pause_ns
        except Exception as error:  # noqa: BLE001 - it is raised where readings are taken
            self._error = error
