"""The deliverer's two threads: one creates MLflow runs, one brings their content.

They are apart so that a workload that is about to start never waits for the uploads of the one
before. Both try again after a failure, each at its own pace, for as long as the process lives.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from radt.errors import RadtError
from radt.store.reader import StoreReader
from radt.tracking.backoff import Backoff
from radt.tracking.courier import Courier
from radt.tracking.mlflow_target import DeliveryError, Trouble
from radt.tracking.registrar import Registrar

log = logging.getLogger(__name__)

#: How often the running runs' new points are sent; an end or a new run is acted on at once.
LIVE_INTERVAL_S = 10.0
#: How often a failing request is tried once more after the order to finish up.
LAST_TRIES = 5
#: A run that fails waits up to this long, while others go on.
_LONGEST_TASK_DELAY_S = 60.0


class Pace:
    """Wakes a thread early, and tells it to finish up."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._poked = False
        self.finishing = False

    def poke(self) -> None:
        """Something may be new."""
        with self._condition:
            self._poked = True
            self._condition.notify_all()

    def finish(self) -> None:
        """Do what is left and end."""
        with self._condition:
            self.finishing = True
            self._condition.notify_all()

    def wait(self, timeout_s: float | None, *, for_poke: bool = True) -> None:
        """Until poked (unless ``for_poke`` is false), told to finish, or the time is over."""
        with self._condition:
            self._condition.wait_for(
                lambda: self.finishing or (for_poke and self._poked), timeout_s
            )
            self._poked = False


class RegistrarThread(threading.Thread):
    """Creates MLflow runs as soon as it is poked.

    ``idle`` is cleared while it works: who else talks to MLflow then waits.
    """

    def __init__(self, registrar: Registrar, pace: Pace, on_created: Callable[[], None]) -> None:
        super().__init__(name="registrar", daemon=True)
        self._registrar = registrar
        self._pace = pace
        self._on_created = on_created
        self.idle = threading.Event()
        self.idle.set()

    def run(self) -> None:
        """Until told to finish and nothing is left to create, or `LAST_TRIES` are over."""
        backoff = Backoff()
        last_tries = LAST_TRIES
        while True:
            finishing = self._pace.finishing
            if self._register():
                backoff.reset()
                if finishing:
                    return
                self._pace.wait(None)
                continue
            if finishing:
                last_tries -= 1
                if not last_tries:
                    return
                time.sleep(min(backoff.next_s(), 1.0))
            else:
                # Pokes do not count: they come every second and would defeat the back-off.
                self._pace.wait(backoff.next_s(), for_poke=False)

    def _register(self) -> bool:
        try:
            self.idle.clear()
            if self._registrar.register_pending():
                self._on_created()
        except RadtError as error:
            log.warning("runs not registered with MLflow yet: %s", error)
            return False
        except Exception:
            log.exception("runs not registered with MLflow yet")
            return False
        finally:
            self.idle.set()
        return True


@dataclass(frozen=True, slots=True)
class _Task:
    """Something to deliver; what is still running is repeated."""

    key: str
    action: Callable[[], object]
    repeat_s: float | None = None


class CourierThread(threading.Thread):
    """Delivers ended runs at once and running ones every ``live_interval_s``."""

    def __init__(
        self,
        courier: Courier,
        reader: StoreReader,
        tracking_uri: str,
        pace: Pace,
        live_interval_s: float = LIVE_INTERVAL_S,
    ) -> None:
        super().__init__(name="courier", daemon=True)
        self._courier = courier
        self._reader = reader
        self._tracking_uri = tracking_uri
        self._pace = pace
        self._live_interval_s = live_interval_s
        self._due_s: dict[str, float] = {}
        self._backoffs: dict[str, Backoff] = {}

    def run(self) -> None:
        """Until told to finish and nothing is left, or `LAST_TRIES` are over."""
        backoff = Backoff()
        last_tries = LAST_TRIES
        while True:
            finishing = self._pace.finishing
            try:
                complete = self._deliver_due(everything=finishing)
            except RadtError as error:
                log.warning("delivery to MLflow waits: %s", error)
                if not finishing:
                    self._pace.wait(backoff.next_s(), for_poke=False)
                    continue
                complete = False
            except Exception:
                log.exception("delivery to MLflow waits")
                complete = False
            else:
                backoff.reset()
            if not finishing:
                self._pace.wait(self._seconds_to_next())
                continue
            last_tries -= 1
            if complete or not last_tries:
                return
            time.sleep(min(backoff.next_s(), 1.0))

    def _deliver_due(self, *, everything: bool) -> bool:
        """Do the tasks that are due, or all; whether nothing failed.

        Raises:
            DeliveryError: MLflow cannot be reached; the rest was not tried.
            StoreError: The store cannot be read or written.
        """
        tasks = self._tasks()
        keys = {task.key for task in tasks}
        self._due_s = {key: due for key, due in self._due_s.items() if key in keys}
        self._backoffs = {key: one for key, one in self._backoffs.items() if key in keys}
        complete = True
        for task in tasks:
            if everything or time.monotonic() >= self._due_s.get(task.key, 0.0):
                complete = self._attempt(task) and complete
        return complete

    def _tasks(self) -> list[_Task]:
        """Ended runs, which people wait for, then workloads that may be over, then running runs."""
        runs = [
            run for run in self._reader.runs_to_deliver(self._tracking_uri) if run.mlflow_run_id
        ]
        # A run that ends is another task than while it ran: it is due at once.
        ended = [
            _Task(f"{run.run_id} ended", partial(self._courier.deliver, run))
            for run in runs
            if run.status.ended
        ]
        workloads = [
            _Task(workload.workload_id, partial(self._courier.close_workload, workload.workload_id))
            for workload in self._reader.workloads_to_deliver(self._tracking_uri)
        ]
        running = [
            _Task(run.run_id, partial(self._courier.deliver, run), self._live_interval_s)
            for run in runs
            if not run.status.ended
        ]
        return [*ended, *workloads, *running]

    def _attempt(self, task: _Task) -> bool:
        """Do it; after a failure that concerns this one alone, put it off."""
        try:
            task.action()
        except DeliveryError as error:
            if error.trouble is Trouble.UNREACHABLE:
                raise
            log.warning("delivery of %s is put off: %s", task.key, error.message)
        except RadtError:
            raise
        except Exception:
            log.exception("delivery of %s is put off", task.key)
        else:
            self._backoffs.pop(task.key, None)
            self._due_s.pop(task.key, None)
            if task.repeat_s is not None:
                self._due_s[task.key] = time.monotonic() + task.repeat_s
            return True
        backoff = self._backoffs.setdefault(task.key, Backoff(longest_s=_LONGEST_TASK_DELAY_S))
        self._due_s[task.key] = time.monotonic() + backoff.next_s()
        return False

    def _seconds_to_next(self) -> float | None:
        """None if only a poke can bring work."""
        if not self._due_s:
            return None
        return max(0.0, min(self._due_s.values()) - time.monotonic())
