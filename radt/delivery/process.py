"""Common parts of delivery processes: one per store and destination, a log, workers, retries."""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from importlib.abc import MetaPathFinder
from pathlib import Path

from radt.backoff import Backoff
from radt.home import runtime_dir
from radt.parent_watch import take_lock

#: How often a failing delivery is retried once the process is to finish.
LAST_TRIES = 5
_LAST_PAUSE_S = 1.0
_LOG_LIMIT_BYTES = 5 * 2**20
_LOG_FORMAT = "%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"


def run_alone(name: str, deliver: Callable[[], int]) -> int:
    """Call `deliver` while no other process of this name does, and return its exit code.

    Returns 0 without delivering if standard input was closed before it was this process's turn.
    All output goes to ``NAME.log`` in the runtime folder.
    """
    _log_to_file(runtime_dir() / f"{name}.log")
    # Ctrl-C is for the runner; the end of standard input stops this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with (runtime_dir() / f"{name}.lock").open("a") as lock:
        return deliver() if take_lock(lock.fileno()) else 0


#: How nice a process is that gives way. No more, and no SCHED_IDLE: who starves while it holds the
#: write lock of a database holds up all that write there, the collector first. Beside eight busy
#: processes a core, this one has gaps of up to 2 s, SCHED_IDLE of 5 s, in every few milliseconds of
#: work.
_NICENESS = 10


def give_way() -> None:
    """Let others' programs go first, on processor and disk (whose priority follows niceness)."""
    os.setpriority(os.PRIO_PROCESS, 0, max(_NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))
    _give_way_as_a_session(_NICENESS)


def run_when_idle() -> None:
    """Run only when a CPU and the disk have nothing else to do: for who holds no lock of others.

    The kernel gives a process of SCHED_IDLE the lowest class of disk priority, too (ioprio_set(2)).
    """
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    _give_way_as_a_session(19)


def _give_way_as_a_session(niceness: int) -> None:
    """Lower the weight of this process's session, which Linux may weigh first (sched(7))."""
    try:
        Path("/proc/self/autogroup").write_text(str(niceness), encoding="ascii")
    except OSError:
        pass  # the kernel does not group processes by session


def _log_to_file(path: Path) -> None:
    """Send all output to a file: MLflow, Alembic and SQLAlchemy write to standard error too."""
    if path.exists() and path.stat().st_size > _LOG_LIMIT_BYTES:
        path.replace(path.with_suffix(".log.1"))
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    logging.basicConfig(level=logging.WARNING, format=_LOG_FORMAT)
    logging.getLogger("radt").setLevel(logging.INFO)


def last_tries() -> Iterator[None]:
    """Yield `LAST_TRIES` times, with pauses, for a process that is to finish."""
    backoff = Backoff()
    for left in reversed(range(LAST_TRIES)):
        yield
        if left:
            time.sleep(min(backoff.next_s(), _LAST_PAUSE_S))


class _NoPandas(MetaPathFinder):
    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("not needed in this process", name=name)


def block_pandas() -> None:
    """Keep this process from importing pandas.

    MLflow's clients and Arrow use pandas if it is installed; without it they need 45 MB less.
    """
    sys.meta_path.insert(0, _NoPandas())


class Queue(Enum):
    """Kind of delivery; the kinds are delivered concurrently."""

    ENDED = "ended"
    RUNNING = "running"


@dataclass(frozen=True, slots=True)
class Task:
    """A delivery to run.

    Two tasks of one ``subject``, the id of a run or workload, never run at the same time. The
    ``key`` distinguishes an ended run's task from its earlier ones. A task of a running run is
    repeated after ``repeat_s``.
    """

    subject: str
    key: str
    action: Callable[[], object]
    queue: Queue
    repeat_s: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a task."""

    task: Task
    error: Exception | None


#: A database has one writer at a time: all take turns.
IN_TURN: Mapping[Queue, int] = {Queue.ENDED: 1, Queue.RUNNING: 0}
#: A server accepts several; with 0.3 s per request, these are 64 runs every 10 s.
SIDE_BY_SIDE: Mapping[Queue, int] = {Queue.ENDED: 3, Queue.RUNNING: 4}


class Queues:
    """Workers that run tasks; a queue without workers uses those of the other queue.

    ``on_done`` is called from a worker after each task.
    """

    def __init__(self, workers: Mapping[Queue, int], on_done: Callable[[], None]) -> None:
        self._on_done = on_done
        self._pools = {
            queue: ThreadPoolExecutor(count, f"uploader-{queue.value}")
            for queue, count in workers.items()
            if count
        }
        self._free = {queue: workers[queue] for queue in self._pools}
        self._lock = threading.Lock()
        self._busy: set[str] = set()
        self._done: list[Outcome] = []

    @property
    def idle(self) -> bool:
        """Return whether no task is running and all outcomes were fetched."""
        with self._lock:
            return not self._busy and not self._done

    def start(self, task: Task) -> bool:
        """Start a task if a worker is free and no other task of its subject is running.

        Starts none before all outcomes were fetched, as they may show that all deliveries fail.
        """
        queue = task.queue if task.queue in self._pools else next(iter(self._pools))
        with self._lock:
            if self._done or not self._free[queue] or task.subject in self._busy:
                return False
            self._free[queue] -= 1
            self._busy.add(task.subject)
        self._pools[queue].submit(self._do, task, queue)
        return True

    def outcomes(self) -> list[Outcome]:
        """Return the outcomes since the last call."""
        with self._lock:
            done, self._done = self._done, []
            return done

    def close(self) -> None:
        """Wait for the running tasks."""
        for pool in self._pools.values():
            pool.shutdown()

    def _do(self, task: Task, queue: Queue) -> None:
        error: Exception | None = None
        try:
            task.action()
        except Exception as caught:  # noqa: BLE001 - an outcome, which is reported
            error = caught
        with self._lock:
            self._free[queue] += 1
            self._busy.discard(task.subject)
            self._done.append(Outcome(task, error))
        self._on_done()


class Wakeup:
    """Wakes a thread early, or makes it finish."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._poked = False
        self._nudged = False
        self.finishing = False

    def poke(self) -> None:
        """Wake the thread: there may be new data."""
        with self._condition:
            self._poked = True
            self._condition.notify_all()

    def nudge(self) -> None:
        """Wake the thread regardless of what it waits for: a task that it started is done."""
        with self._condition:
            self._nudged = True
            self._condition.notify_all()

    def finish(self) -> None:
        """Make the thread finish the remaining work and exit."""
        with self._condition:
            self.finishing = True
            self._condition.notify_all()

    def wait(self, timeout_s: float | None, *, for_poke: bool = True) -> None:
        """Wait until poked (unless ``for_poke`` is false), nudged, or finished, or the timeout.

        Ignored pokes are kept.
        """
        with self._condition:
            self._condition.wait_for(
                lambda: self.finishing or self._nudged or (for_poke and self._poked), timeout_s
            )
            self._nudged = False
            if for_poke:
                self._poked = False

    def wait_for_nudge(self, timeout_s: float | None = None) -> None:
        """Wait until nudged or the timeout, even when finishing."""
        with self._condition:
            self._condition.wait_for(lambda: self._nudged, timeout_s)
            self._nudged = False


@dataclass(slots=True)
class _Reason:
    why: str
    until_s: float
    backoff: Backoff


class Deferred:
    """Failed runs or workloads, when to retry them (monotonic time), and why they failed.

    ``longest_s`` is the longest wait before a retry.
    """

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._reasons: dict[str, _Reason] = {}

    def put(self, run_id: str, why: str) -> None:
        """Defer a run after a failure."""
        known = self._reasons.get(run_id)
        backoff = Backoff(longest_s=self._longest_s) if known is None else known.backoff
        until_s = time.monotonic() + backoff.next_s()
        self._reasons[run_id] = _Reason(why, until_s, backoff)

    def drop(self, run_id: str) -> None:
        """Remove a run that succeeded."""
        self._reasons.pop(run_id, None)

    def keep(self, run_ids: Container[str]) -> None:
        """Remove all others: nothing of them is left to deliver."""
        self._reasons = {key: reason for key, reason in self._reasons.items() if key in run_ids}

    def hurry(self) -> None:
        """Retry all now."""
        for reason in self._reasons.values():
            reason.until_s = 0.0

    def waits(self, run_id: str) -> bool:
        """Return whether it is too early to retry a run."""
        known = self._reasons.get(run_id)
        return known is not None and time.monotonic() < known.until_s

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._reasons

    @property
    def next_s(self) -> float:
        """Return the time of the first retry; infinity without one."""
        return min((reason.until_s for reason in self._reasons.values()), default=math.inf)

    @property
    def problem(self) -> str:
        """Return a description of one of the failures; empty without one."""
        for run_id, reason in self._reasons.items():
            return f"run {run_id}: {reason.why}"
        return ""
