"""Schedule the uploader's tasks: when they are due, the workers that execute them, and retries.

One thread reads the tasks from the store and starts each of them on a worker once it is due and a
worker of its kind is free. A failed task is retried at its own intervals, as long as the process
lives. If MLflow cannot be reached at all, everything pauses.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from functools import partial

from radt.delivery.mlflow.errors import DeliveryError, ErrorKind
from radt.delivery.mlflow.runs import RunCreator, missing_runs
from radt.delivery.mlflow.uploader import Uploader
from radt.delivery.problems import EVERYTHING, STORE, ProblemLog, archive_of, workload
from radt.delivery.process import Retries, last_tries
from radt.errors import RadtError, StoreError
from radt.processes import Backoff
from radt.store.reader import StoreReader
from radt.store.records import RunRecord

#: Interval of sending new points of running runs; ended and new runs are handled at once.
LIVE_INTERVAL_S = 10.0
#: Longest wait before a failed task is retried, while others continue.
_LONGEST_DELAY_S = 60.0
#: Reading the store for new tasks may take one part in this many of the time.
_LOOK_SHARE = 5


class TaskKind(Enum):
    """Kind of a task, with its number of workers.

    Each kind has its own workers, so that a starting workload never waits for uploads, and the
    points of running runs never wait for the files of ended ones. Over a link with 0.15 s per round
    trip, ten ended runs of 2,000 points take 55 s with three workers and 94 s with one. Archives of
    running runs, which may be large, delay nothing but each other.
    """

    CREATE = "create", 1  # parents before their children
    ENDED = "ended", 3
    RUNNING = "running", 4
    ARCHIVE = "archive", 1

    def __init__(self, _: str, workers: int) -> None:
        self.workers = workers


@dataclass(frozen=True, slots=True)
class UploadTask:
    """A unit of work in MLflow.

    Two tasks with the same ``subject``, the id of a run or workload, never run at the same time.
    The ``key`` distinguishes an ended run's task from its earlier ones. A task that succeeded is
    repeated after ``repeat_s`` if it is still needed. ``name`` is the subject of its problems.
    """

    subject: str
    key: str
    kind: TaskKind
    action: Callable[[], object]
    repeat_s: float = 0.0
    name: str = ""

    @property
    def problem(self) -> str:
        """Return the subject of its problems."""
        return self.name or self.subject


class Delivery(threading.Thread):
    """Uploads all runs of a store to one MLflow: ended runs at once, running ones at intervals.

    ``answers`` returns how many requests MLflow has answered.
    """

    def __init__(
        self,
        creator: RunCreator,
        uploader: Uploader,
        reader: StoreReader,
        tracking_uri: str,
        problems: ProblemLog,
        answers: Callable[[], int],
        live_interval_s: float = LIVE_INTERVAL_S,
    ) -> None:
        super().__init__(name="delivery", daemon=True)
        self._creator = creator
        self._uploader = uploader
        self._reader = reader
        self._tracking_uri = tracking_uri
        self._problems = problems
        self._answers = answers
        self._answers_then = 0
        self._live_interval_s = live_interval_s
        self._pool = ThreadPoolExecutor(sum(kind.workers for kind in TaskKind), "uploader")
        self._wake = threading.Event()
        self._finishing = False
        self._done: deque[tuple[UploadTask, Exception | None]] = deque()
        self._busy: dict[str, UploadTask] = {}
        self._retries = Retries(_LONGEST_DELAY_S)
        self._next_look_s = 0.0
        #: Time at which all tasks may resume after a failure that affects them all.
        self._resume_s = 0.0
        self._backoff = Backoff()

    def notify(self) -> None:
        """Look for new data now, unless everything pauses."""
        self._wake.set()

    def finish(self) -> None:
        """Upload the remaining data, or end after `last_tries`."""
        self._finishing = True
        self._wake.set()

    def run(self) -> None:
        """Upload until `finish` is called, then finish."""
        while not self._finishing:
            try:
                self._settle()
                wait_s = self._start_due()
            except Exception as error:  # noqa: BLE001 - reported; this thread must never end
                self._pause(error)
                wait_s = 0.0
            self._wait(wait_s)
        for _ in last_tries():
            if self._do_all():
                break
        self._pool.shutdown()

    def _wait(self, timeout_s: float | None) -> None:
        self._wake.wait(timeout_s)
        self._wake.clear()

    # -- starting ---------------------------------------------------------------------------------

    def _start_due(self) -> float | None:
        """Start as many due tasks as there are free workers.

        Return the time until another task is due; None to wait for a notification or a finished
        task.
        """
        now_s = time.monotonic()
        if (wait_s := max(self._resume_s, self._next_look_s) - now_s) > 0:
            return wait_s
        later_s = []
        for task in self._look():
            # A due task that is not started waits for a worker, which wakes this thread when it is
            # free.
            if wait_s := self._retries.wait_s(task.key):
                later_s.append(wait_s)
            else:
                self._start(task)
        ended_s = time.monotonic()
        self._next_look_s = ended_s + (_LOOK_SHARE - 1) * (ended_s - now_s)
        return min(later_s, default=None)

    def _look(self) -> list[UploadTask]:
        """Read the tasks from the store."""
        tasks = self._tasks()
        self._retries.keep({task.key for task in [*tasks, *self._busy.values()]})
        self._problems.keep({task.problem for task in tasks})
        return tasks

    def _tasks(self) -> list[UploadTask]:
        """Return tasks in order: create, ended runs, workloads to close, running runs, archives.

        Users wait for ended runs.
        """
        due = self._reader.runs_to_deliver(self._tracking_uri)
        workloads = self._reader.workloads_to_deliver(self._tracking_uri)
        there = [run for run in due if run.mlflow_run_id]
        # These cannot be closed yet: an attempt would end at once and wake this thread in a loop.
        open_ids = {run.workload_id for run in due if not (run.mlflow_run_id and run.status.ended)}
        register, deliver = self._creator.register, self._uploader.deliver
        close, often_s = self._uploader.close_workload, self._live_interval_s
        create = [
            UploadTask(
                own.workload_id,
                f"{own.workload_id} new",
                TaskKind.CREATE,
                partial(register, own, new),
                name=workload(own.workload_id),
            )
            for own, new in missing_runs(due, workloads)
        ]
        # The end of a run makes it a different task, which is due at once.
        ended = [
            UploadTask(run.run_id, f"{run.run_id} ended", TaskKind.ENDED, partial(deliver, run))
            for run in there
            if run.status.ended
        ]
        closing = [
            UploadTask(
                own_id, own_id, TaskKind.ENDED, partial(close, own_id), often_s, workload(own_id)
            )
            for own_id in (record.workload_id for record in workloads)
            if own_id not in open_ids
        ]
        running = [
            UploadTask(run.run_id, run.run_id, TaskKind.RUNNING, partial(deliver, run), often_s)
            for run in there
            if not run.status.ended
        ]
        return [*create, *ended, *closing, *running, *self._archiving(there)]

    def _archiving(self, runs: Sequence[RunRecord]) -> Iterator[UploadTask]:
        """Yield the tasks that archive running runs and are due."""
        archives = self._uploader.archives
        if archives is None:
            return
        for run in runs:
            if run.spool and not run.status.ended and archives.is_due(run):
                name = archive_of(run.run_id)
                action = partial(archives.keep_up, run)
                yield UploadTask(
                    run.run_id, name, TaskKind.ARCHIVE, action, archives.interval_s, name
                )

    def _start(self, task: UploadTask) -> bool:
        """Start a task if a worker is free and no other task of its subject is running."""
        same_kind = sum(other.kind is task.kind for other in self._busy.values())
        if task.subject in self._busy or same_kind >= task.kind.workers:
            return False
        self._busy[task.subject] = task
        self._pool.submit(self._do, task)
        return True

    def _do(self, task: UploadTask) -> None:
        error: Exception | None = None
        try:
            task.action()
        except Exception as caught:  # noqa: BLE001 - an outcome that is reported
            error = caught
        self._done.append((task, error))
        self._wake.set()

    def _do_all(self) -> bool:
        """Do all tasks once, due or not, and those that follow from them.

        Return whether none failed.
        """
        complete = True
        started: set[str] = set()
        self._resume_s = 0.0
        while True:
            try:
                complete = self._settle() and complete
                if time.monotonic() >= self._resume_s:
                    for task in self._look():
                        if task.key not in started and self._start(task):
                            started.add(task.key)
            except Exception as error:  # noqa: BLE001 - reported
                self._pause(error)
                complete = False
            if not self._busy:
                return complete
            self._wait(None)

    # -- outcomes ---------------------------------------------------------------------------------

    def _settle(self) -> bool:
        """Handle the outcomes since the last call; return whether nothing failed."""
        complete = True
        while self._done:
            task, error = self._done.popleft()
            del self._busy[task.subject]
            if error is None:
                self._succeeded(task)
            else:
                self._failed(task, error)
                complete = False
        return complete

    def _succeeded(self, task: UploadTask) -> None:
        self._problems.solved(task.problem)
        self._problems.solved(STORE)
        if self._answers() > self._answers_then:  # the task has sent data to MLflow
            self._problems.solved(EVERYTHING)
        self._backoff.reset()
        self._retries.succeeded(task.key, task.repeat_s)

    def _failed(self, task: UploadTask, error: Exception) -> None:
        # Also if everything pauses, so that the next task is another run's: the server may be
        # unable to handle this one.
        self._retries.failed(task.key)
        if _concerns_all(error):
            self._pause(error)
        else:
            self._problems.failed(task.problem, error)

    def _pause(self, error: Exception) -> None:
        """Pause all tasks; those in progress may finish."""
        now_s = time.monotonic()
        pause_s = error.retry_after_s or 0.0 if isinstance(error, DeliveryError) else 0.0
        if now_s >= self._resume_s:  # otherwise it is another failure with the same cause
            pause_s = max(pause_s, self._backoff.next_s())
        self._resume_s = max(self._resume_s, now_s + pause_s)
        self._answers_then = self._answers()
        self._problems.failed(STORE if isinstance(error, StoreError) else EVERYTHING, error)


def _concerns_all(error: Exception) -> bool:
    """Return whether a failure affects MLflow or the store as a whole instead of one task."""
    if isinstance(error, DeliveryError):
        return error.kind is ErrorKind.UNREACHABLE
    return isinstance(error, RadtError)
