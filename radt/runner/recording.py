"""Reports one workload to collector and store, from a thread of its own."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Self

from radt.collector.manifest import RunnersEnd, ask_for_collection, mark_ended
from radt.collector.protocol import CollectorStatus, LiveView
from radt.errors import CollectorError, RadtError
from radt.home import Home
from radt.model import RunStatus
from radt.runner.context import RunnerContext

#: Seconds that the end of a workload waits for pending reports.
FLUSH_TIMEOUT_S = 30.0
#: Seconds that the end of a run waits until it is fully stored; later values are not lost.
FINISH_TIMEOUT_S = 10.0
_BROKEN_TIMEOUT_S = 0.5
#: Seconds between questions to the collector whether it can write.
_PROBLEMS_EVERY_S = 2.0


def problem_of(status: CollectorStatus, home: Home) -> str:
    """Return the collector's current problem with the runs of a data folder; empty if none."""
    mine = (problem for problem in status.problems if str(home.store_path) in problem)
    return next(mine, "")


def _load_results() -> None:
    """Import the modules of the closing table while the rows run, so that it appears at once."""
    import_module("radt.analysis.report")
    import_module("radt.render.report")


class RecordingThread:
    """Reports one workload to collector and store. Use as a context manager.

    Args:
        in_store: True if the store has the rows; otherwise changes go to the runs' folders.
    """

    def __init__(
        self, context: RunnerContext, folders: Mapping[str, Path], *, in_store: bool
    ) -> None:
        self._context = context
        self._folders = folders
        self._in_store = in_store
        self._started: dict[str, tuple[int, int]] = {}
        self._tags: dict[str, dict[str, str]] = {}
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="recording", daemon=True)
        self._live: dict[str, LiveView] = {}
        self._asking = threading.Event()
        self._asked_s = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._tasks.put(self._look_a_last_time)
        self._tasks.put(None)
        self._thread.join(FLUSH_TIMEOUT_S)
        if self._thread.is_alive():
            self._context.console.say(
                "  the collector does not respond; it gets the ends of the runs later",
                style="red",
            )

    def barrier(self, workload_id: str, barrier_monotonic_ns: int, skew_ns: int | None) -> None:
        """Record that all rows of the workload were released."""
        self._tasks.put(_load_results)
        self._update_workload(
            workload_id,
            status=RunStatus.RUNNING,
            barrier_ns=self._context.clock.to_wall_ns(barrier_monotonic_ns),
            start_skew_ns=skew_ns,
        )

    def started(
        self, run_id: str, pid: int, monotonic_ns: int, devices: Sequence[str] | None
    ) -> None:
        """Record that a run has passed its barrier; ``devices`` are named as by the listeners."""
        self._started[run_id] = (pid, monotonic_ns)

        def tell() -> None:
            with suppress(CollectorError):  # it gets it when it is reachable again
                self._context.client.started(run_id, pid, monotonic_ns, devices)

        self._tasks.put(tell)

    def flush(self) -> None:
        """Upload everything now: all processes will soon be killed."""

        def ask() -> None:
            with suppress(CollectorError):  # the end of the workload asks again
                self._context.client.flush(self._context.home.store_path)

        self._tasks.put(ask)

    def tags(self, run_id: str, tags: dict[str, str]) -> None:
        """Record tags of a run that became known after it was recorded."""
        self._tags.setdefault(run_id, {}).update(tags)
        if tags and self._in_store:
            self._tasks.put(lambda: self._context.writer.put_tags(run_id, tags))

    def finished(
        self,
        run_id: str,
        status: RunStatus,
        exit_code: int | None,
        reason: str,
        ended_ns: int,
    ) -> None:
        """Record that a run ended at a monotonic time.

        If the collector does not accept it, it is kept in the run's folder and the store.
        """
        with suppress(OSError):  # a full disk; the collector marks the run once all is stored
            mark_ended(self._folders[run_id])

        def tell() -> None:
            context = self._context
            try:
                # The collector keeps trying; do not wait for a store that cannot be written.
                timeout_s = _BROKEN_TIMEOUT_S if context.notices.problem else FINISH_TIMEOUT_S
                context.client.finish(
                    run_id, status, exit_code, reason, timeout_s, ended_ns=ended_ns
                )
            except CollectorError as error:
                away = context.client.away is not None
                context.notices.note(error, refused=not away)
                pid, started_ns = self._started.get(run_id, (None, None))
                tags = self._tags.get(run_id, {})
                end = RunnersEnd(status, ended_ns, reason, exit_code, pid, started_ns, tags)
                self._keep(run_id, end, is_left=away)

        self._tasks.put(tell)

    def _keep(self, run_id: str, end: RunnersEnd, *, is_left: bool) -> None:
        """Record how a run ended; ``is_left`` if no collector will finish the run."""
        context = self._context
        if is_left:
            context.client.forget(run_id)
            with suppress(RadtError, OSError):  # a full disk; the store may accept it
                end.write(self._folders[run_id])
                ask_for_collection(self._folders[run_id])
        if not self._in_store:
            return
        with context.writer.transaction():
            if is_left and end.started_ns is not None:
                context.writer.update_run(
                    run_id,
                    pid=end.pid,
                    started_ns=context.clock.to_wall_ns(end.started_ns),
                )
            context.writer.end_run(
                run_id,
                end.status,
                context.clock.to_wall_ns(end.ended_ns),
                exit_code=end.exit_code,
                reason=end.reason,
            )

    def workload_ended(self, workload_id: str, status: RunStatus) -> None:
        """Record that all runs of the workload have ended."""
        self._update_workload(workload_id, status=status, ended_ns=self._context.clock.now_ns())

    def _update_workload(self, workload_id: str, **changes: Any) -> None:
        if self._in_store:
            self._tasks.put(lambda: self._context.writer.update_workload(workload_id, **changes))

    def live(self, run_ids: Sequence[str]) -> dict[str, LiveView]:
        """Return the collector's last answer about the runs, and request the next one."""
        if not self._asking.is_set():
            self._asking.set()
            self._tasks.put(lambda: self._ask(list(run_ids)))
        return self._live

    def _ask(self, run_ids: list[str]) -> None:
        try:
            self._live = dict(self._context.client.live(run_ids))
            self._context.notices.note(None)
            now_s = time.monotonic()
            if now_s - self._asked_s >= _PROBLEMS_EVERY_S:
                self._asked_s = now_s
                self._look_for_problems()
        except CollectorError:
            self._live = {}  # the client reconnects by itself, and records the gap
        finally:
            self._asking.clear()

    def _look_a_last_time(self) -> None:
        if self._context.notices.problem:
            with suppress(CollectorError):
                self._look_for_problems()

    def _look_for_problems(self) -> None:
        context = self._context
        context.notices.note_problem(problem_of(context.client.status(), context.home))

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except RadtError as error:
                self._context.console.say(f"  {error}", style="red")
            except Exception as error:  # noqa: BLE001 - the next tasks must still run
                self._context.console.say(f"  {type(error).__name__}: {error}", style="red")
