"""Several deliveries at a time: running runs never wait behind the uploads of ended ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum


class Lane(Enum):
    """What is delivered side by side."""

    ENDED = "ended"
    RUNNING = "running"


@dataclass(frozen=True, slots=True)
class Task:
    """Something to deliver.

    Attributes:
        subject: The id of the run or workload; two tasks of one are never done at a time.
        key: Tells what a run needs once it has ended from what it needed before.
        repeat_s: What is still running is repeated.
    """

    subject: str
    key: str
    action: Callable[[], object]
    lane: Lane
    repeat_s: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a task went."""

    task: Task
    error: Exception | None


#: A database has one writer at a time: all in turn.
IN_TURN: Mapping[Lane, int] = {Lane.ENDED: 1, Lane.RUNNING: 0}
#: A server takes several; on a link of 0.3 s a request these are 64 runs every 10 s.
SIDE_BY_SIDE: Mapping[Lane, int] = {Lane.ENDED: 3, Lane.RUNNING: 4}


class Lanes:
    """Workers that do tasks.

    Args:
        workers: How many a lane has; one without any has its tasks done by the other's.
        on_done: Called from a worker after each task.
    """

    def __init__(self, workers: Mapping[Lane, int], on_done: Callable[[], None]) -> None:
        self._on_done = on_done
        self._pools = {
            lane: ThreadPoolExecutor(count, f"courier-{lane.value}")
            for lane, count in workers.items()
            if count
        }
        self._free = {lane: workers[lane] for lane in self._pools}
        self._lock = threading.Lock()
        self._busy: set[str] = set()
        self._done: list[Outcome] = []

    @property
    def idle(self) -> bool:
        """Whether nothing is under way, and all outcomes were taken."""
        with self._lock:
            return not self._busy and not self._done

    def start(self, task: Task) -> bool:
        """Begin it, if there is a worker and nothing else of its subject is under way.

        Not before outcomes were taken, which may say that nothing works at present.
        """
        lane = task.lane if task.lane in self._pools else next(iter(self._pools))
        with self._lock:
            if self._done or not self._free[lane] or task.subject in self._busy:
                return False
            self._free[lane] -= 1
            self._busy.add(task.subject)
        self._pools[lane].submit(self._do, task, lane)
        return True

    def outcomes(self) -> list[Outcome]:
        """Those since the last call."""
        with self._lock:
            done, self._done = self._done, []
            return done

    def close(self) -> None:
        """Wait for what is under way."""
        for pool in self._pools.values():
            pool.shutdown()

    def _do(self, task: Task, lane: Lane) -> None:
        error: Exception | None = None
        try:
            task.action()
        except Exception as caught:  # noqa: BLE001 - an outcome, which is reported
            error = caught
        with self._lock:
            self._free[lane] += 1
            self._busy.discard(task.subject)
            self._done.append(Outcome(task, error))
        self._on_done()
