"""The uploader's two threads: one creates MLflow runs, one uploads their content.

They are separate so that a starting workload never waits for the uploads of the previous one. Both
retry after a failure, each at its own pace, for as long as the process lives.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

from radt.backoff import Backoff
from radt.delivery.mlflow.errors import DeliveryError, ErrorKind
from radt.delivery.mlflow.runs import RunCreator
from radt.delivery.mlflow.uploader import Uploader
from radt.delivery.problems import Reports
from radt.delivery.process import IN_TURN, Outcome, Queue, Queues, Task, Wakeup, last_tries
from radt.errors import RadtError
from radt.store.reader import StoreReader

#: How often new points of running runs are sent; ended and new runs are handled at once.
LIVE_INTERVAL_S = 10.0
#: Longest wait before a failed run is retried, while others continue.
_LONGEST_TASK_DELAY_S = 60.0
#: Minimum interval between reads of the store for new tasks, however many are finished.
_LOOK_S = 0.2


class RunCreatorThread(threading.Thread):
    """Creates MLflow runs as soon as it is poked.

    ``idle`` is cleared while it works: other writers to the same database then wait.
    """

    def __init__(
        self,
        creator: RunCreator,
        wakeup: Wakeup,
        on_created: Callable[[], None],
        reports: Reports | None = None,
    ) -> None:
        super().__init__(name="creator", daemon=True)
        self._creator = creator
        self._wakeup = wakeup
        self._on_created = on_created
        self._reports = reports or Reports()
        self.idle = threading.Event()
        self.idle.set()

    def run(self) -> None:
        """Run until it is to finish and nothing is left to create, or `LAST_TRIES` are over."""
        backoff = Backoff()
        while not self._wakeup.finishing:
            problem = self._register(everything=False)
            if problem is None:
                backoff.reset()
            if problem is None or _of_a_workload(problem):
                # Failed workloads have their own wakeup; new ones do not wait for them.
                self._wakeup.wait(self._creator.seconds_to_next())
            else:
                # Pokes do not count: they arrive every second and would defeat the back-off.
                self._wakeup.wait(_pause_s(problem, backoff), for_poke=False)
        for _ in last_tries():
            if self._register(everything=True) is None:
                return

    def _register(self, *, everything: bool) -> Exception | None:
        try:
            self.idle.clear()
            if self._creator.register_pending(everything=everything):
                self._on_created()
        except Exception as error:  # noqa: BLE001 - reported, and tried again
            if not _of_a_workload(error):
                self._reports.everything_failed(error)
            return error
        finally:
            self.idle.set()
        return None


class UploaderThread(threading.Thread):
    """Delivers ended runs at once and running ones every ``live_interval_s``.

    ``workers`` is the maximum number of concurrent deliveries; see `radt.delivery.process`.
    """

    def __init__(
        self,
        uploader: Uploader,
        reader: StoreReader,
        tracking_uri: str,
        wakeup: Wakeup,
        live_interval_s: float = LIVE_INTERVAL_S,
        reports: Reports | None = None,
        workers: Mapping[Queue, int] = IN_TURN,
    ) -> None:
        super().__init__(name="uploader", daemon=True)
        self._uploader = uploader
        self._reader = reader
        self._tracking_uri = tracking_uri
        self._wakeup = wakeup
        self._live_interval_s = live_interval_s
        self._reports = reports or Reports()
        self._queues = Queues(workers, wakeup.nudge)
        self._queue: list[Task] = []
        self._looked_s = 0.0
        self._look_again = False
        self._due_s: dict[str, float] = {}
        self._backoffs: dict[str, Backoff] = {}
        #: The failure that all tasks wait for, None if there is none.
        self._blocked: Exception | None = None
        self._backoff = Backoff()

    def run(self) -> None:
        """Run until it is to finish and nothing is left, or `LAST_TRIES` are over."""
        while not self._wakeup.finishing:
            try:
                self._settle_all()
                if self._blocked is None:
                    self._start_due()
            except Exception as error:  # noqa: BLE001 - reported; this thread must never end
                self._block(error)
            if self._blocked is None:
                self._wakeup.wait(self._seconds_to_next())
            else:
                self._sit_out(_pause_s(self._blocked, self._backoff))
                self._blocked = None
        for _ in last_tries():
            if self._deliver_everything():
                break
        self._queues.close()

    def _sit_out(self, pause_s: float) -> None:
        """Pause all deliveries; those in progress may finish."""
        until_s = time.monotonic() + pause_s
        while not self._wakeup.finishing and (left_s := until_s - time.monotonic()) > 0:
            self._wakeup.wait(left_s, for_poke=False)

    # -- rounds -----------------------------------------------------------------------------------

    def _start_due(self) -> None:
        """Start as many of the due tasks as there are free workers."""
        now_s = time.monotonic()
        self._look_again = bool(self._queue) and now_s - self._looked_s < _LOOK_S
        if not self._look_again:
            self._looked_s = now_s
            self._look()
        self._queue = [task for task in self._queue if not self._start_if_due(task, now_s)]

    def _start_if_due(self, task: Task, now_s: float) -> bool:
        if now_s < self._due_s.get(task.key, 0.0) or not self._queues.start(task):
            return False
        self._due_s.pop(task.key, None)
        return True

    def _look(self) -> None:
        """Read the tasks from the store."""
        self._queue = self._tasks()
        keys = {task.key for task in self._queue}
        self._due_s = {key: due for key, due in self._due_s.items() if key in keys}
        self._backoffs = {key: backoff for key, backoff in self._backoffs.items() if key in keys}
        self._reports.keep({task.subject for task in self._queue})

    def _deliver_everything(self) -> bool:
        """Run all tasks, due or not, and wait for them; return whether none failed."""
        self._blocked = None
        while not self._queues.idle:  # those begun before the request to finish
            self._settle_all()
            self._wakeup.wait_for_nudge(_LOOK_S)
        try:
            self._look()
        except Exception as error:  # noqa: BLE001 - reported
            self._block(error)
        complete = self._blocked is None
        while (self._queue and self._blocked is None) or not self._queues.idle:
            if self._blocked is None:
                self._queue = [task for task in self._queue if not self._queues.start(task)]
            self._wakeup.wait_for_nudge(_LOOK_S)
            complete = self._settle_all() and complete
        return complete and self._blocked is None

    def _tasks(self) -> list[Task]:
        """Return ended runs (users wait for them), workloads that may be over, running runs."""
        due = self._reader.runs_to_deliver(self._tracking_uri)
        runs = [run for run in due if run.mlflow_run_id]
        # These cannot be closed yet: to try would end at once, wake this thread, and so on.
        open_ids = {run.workload_id for run in due if not (run.mlflow_run_id and run.status.ended)}
        deliver, close = self._uploader.deliver, self._uploader.close_workload
        # A run that ends becomes another task, which is due at once.
        ended = [
            Task(run.run_id, f"{run.run_id} ended", partial(deliver, run), Queue.ENDED)
            for run in runs
            if run.status.ended
        ]
        workloads = [
            Task(
                workload.workload_id,
                workload.workload_id,
                partial(close, workload.workload_id),
                Queue.ENDED,
                self._live_interval_s,
            )
            for workload in self._reader.workloads_to_deliver(self._tracking_uri)
            if workload.workload_id not in open_ids
        ]
        running = [
            Task(
                run.run_id, run.run_id, partial(deliver, run), Queue.RUNNING, self._live_interval_s
            )
            for run in runs
            if not run.status.ended
        ]
        return [*ended, *workloads, *running]

    # -- outcomes ---------------------------------------------------------------------------------

    def _settle_all(self) -> bool:
        """Handle the outcomes since the last call; return whether nothing failed."""
        outcomes = self._queues.outcomes()
        for outcome in outcomes:
            self._settle(outcome)
        return all(outcome.error is None for outcome in outcomes)

    def _settle(self, outcome: Outcome) -> None:
        task, error = outcome.task, outcome.error
        if error is None:
            self._reports.worked(task.subject)
            self._backoff.reset()
            self._backoffs.pop(task.key, None)
            if task.repeat_s is not None:
                self._due_s[task.key] = time.monotonic() + task.repeat_s
            return
        # Also if everything waits: the next round begins with another run, in case the server
        # cannot handle this one.
        backoff = self._backoffs.setdefault(task.key, Backoff(longest_s=_LONGEST_TASK_DELAY_S))
        self._due_s[task.key] = time.monotonic() + backoff.next_s()
        if _of_one(error):
            self._reports.failed(task.subject, error)
        else:
            self._block(error)

    def _block(self, error: Exception) -> None:
        self._blocked = error
        self._queue = []
        self._reports.everything_failed(error)

    def _seconds_to_next(self) -> float | None:
        """Return the time until a task is due; None if that needs a poke or a finished task."""
        now_s = time.monotonic()
        waiting = {task.key for task in self._queue}
        later = [_LOOK_S] if self._look_again else []
        for key, due_s in self._due_s.items():
            if due_s > now_s:
                later.append(due_s - now_s)
            elif key not in waiting:
                later.append(_LOOK_S)
        # A due task that was not started waits for a worker, whose end wakes this thread.
        return min(later, default=None)


def _of_a_workload(error: Exception) -> bool:
    """Return whether the creator's failure concerns one workload, and was already reported."""
    return isinstance(error, DeliveryError) and error.kind is not ErrorKind.UNREACHABLE


def _of_one(error: Exception) -> bool:
    """Return whether a failure concerns only one run or workload, not MLflow or the store."""
    if isinstance(error, DeliveryError):
        return error.kind is not ErrorKind.UNREACHABLE
    return not isinstance(error, RadtError)


def _pause_s(error: Exception, backoff: Backoff) -> float:
    asked_s = error.retry_after_s if isinstance(error, DeliveryError) else None
    return max(backoff.next_s(), asked_s or 0.0)
