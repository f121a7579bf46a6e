"""What one call of the runner works with, and its thread that reports to collector and store."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self

from radt.clock import Clock
from radt.collector.client import CollectorClient
from radt.collector.protocol import CollectorStatus, LiveView
from radt.errors import CollectorError, RadtError
from radt.experiment.devices import Machine
from radt.home import Home
from radt.model import RunStatus
from radt.runner.console import RunConsole
from radt.store.reader import StoreReader
from radt.store.writer import StoreWriter


@dataclass(slots=True)
class MlflowPatience:
    """How long a workload waits for MLflow before it starts without; little after a vain wait."""

    timeout_s: float = 60.0

    def answered(self, *, in_time: bool) -> None:
        """What the wait came to."""
        self.timeout_s = 60.0 if in_time else 1.0


@dataclass(frozen=True, slots=True)
class Session:
    """See the module's text. ``shown_warnings`` are not shown a second time."""

    home: Home
    tracking_uri: str
    store_uri: str
    writer: StoreWriter
    reader: StoreReader
    client: CollectorClient
    clock: Clock
    console: RunConsole
    machine: Machine
    mlflow_patience: MlflowPatience = field(default_factory=MlflowPatience)
    shown_warnings: set[str] = field(default_factory=set)


@contextmanager
def open_session(
    home: Home,
    machine: Machine,
    console: RunConsole,
    *,
    explicit_tracking_uri: str | None = None,
    explicit_store_uri: str | None = None,
) -> Iterator[Session]:
    """Everything open and running, closed again at the end.

    Raises:
        RadtError: The data folder, the store or the collector cannot be used.
    """
    home.create()
    tracking_uri = home.tracking_uri(explicit_tracking_uri)
    writer = StoreWriter(home.store_path)
    try:
        client = CollectorClient.connect(start=True)
        try:
            yield Session(
                home=home,
                tracking_uri=tracking_uri,
                store_uri=home.store_uri(explicit_store_uri, tracking_uri=tracking_uri),
                writer=writer,
                reader=StoreReader(home.store_path),
                client=client,
                clock=Clock.for_machine(),
                console=console,
                machine=machine,
            )
        finally:
            client.close()
    finally:
        writer.close()


#: How long the end of a workload waits for what is still to be reported.
FLUSH_TIMEOUT_S = 30.0
#: How often the collector is asked whether it can write.
_PROBLEMS_EVERY_S = 2.0


def problem_of(status: CollectorStatus, home: Home) -> str:
    """What the collector cannot do at present for the runs of a data folder; empty if nothing."""
    mine = (problem for problem in status.problems if str(home.store_path) in problem)
    return next(mine, "")


class Recording:
    """The runner's side of what is recorded of one workload. Use as a context manager."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="recording", daemon=True)
        self._live: dict[str, LiveView] = {}
        self._asking = threading.Event()
        self._problem = ""
        self._asked_s = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._tasks.put(self._look_a_last_time)
        self._tasks.put(None)
        self._thread.join(FLUSH_TIMEOUT_S)
        if self._thread.is_alive():
            self._session.console.say(
                "  the collector does not answer; it gets the ends of the runs later",
                style="red",
            )

    def barrier(self, workload_id: str, barrier_monotonic_ns: int, skew_ns: int | None) -> None:
        """All rows of the workload were released."""
        session = self._session
        self._tasks.put(
            lambda: session.writer.update_workload(
                workload_id,
                status=RunStatus.RUNNING,
                barrier_ns=session.clock.to_wall_ns(barrier_monotonic_ns),
                start_skew_ns=skew_ns,
            )
        )

    def started(
        self, run_id: str, pid: int, monotonic_ns: int, devices: Sequence[str] | None
    ) -> None:
        """A run has passed its barrier; ``devices`` as the collector's listeners name them."""
        self._tasks.put(lambda: self._session.client.started(run_id, pid, monotonic_ns, devices))

    def tags(self, run_id: str, tags: dict[str, str]) -> None:
        """Tags of a run that became known after it was recorded."""
        if tags:
            self._tasks.put(lambda: self._session.writer.put_tags(run_id, tags))

    def finished(self, run_id: str, status: RunStatus, exit_code: int | None, reason: str) -> None:
        """A run has ended; if the collector cannot be reached, the store hears of it."""
        ended_ns = self._session.clock.now_ns()

        def tell() -> None:
            session = self._session
            try:
                session.client.finish(run_id, status, exit_code, reason)
            except CollectorError as error:
                session.console.say(f"  {error}", style="red")
                session.writer.end_run(run_id, status, ended_ns, exit_code=exit_code, reason=reason)

        self._tasks.put(tell)

    def workload_ended(self, workload_id: str, status: RunStatus) -> None:
        """All runs of the workload have ended."""
        ended_ns = self._session.clock.now_ns()
        self._tasks.put(
            lambda: self._session.writer.update_workload(
                workload_id, status=status, ended_ns=ended_ns
            )
        )

    def live(self, run_ids: Sequence[str]) -> dict[str, LiveView]:
        """What the last answer said of the runs; the next one is asked for."""
        if not self._asking.is_set():
            self._asking.set()
            self._tasks.put(lambda: self._ask(list(run_ids)))
        return self._live

    def _ask(self, run_ids: list[str]) -> None:
        try:
            self._live = dict(self._session.client.live(run_ids))
            self._look_for_problems_now_and_then()
        except CollectorError:
            self._live = {}  # it comes back by itself, and says so in its ledger
        finally:
            self._asking.clear()

    def _look_a_last_time(self) -> None:
        if self._problem:
            self._look_for_problems()

    def _look_for_problems_now_and_then(self) -> None:
        now_s = time.monotonic()
        if now_s - self._asked_s >= _PROBLEMS_EVERY_S:
            self._asked_s = now_s
            self._look_for_problems()

    def _look_for_problems(self) -> None:
        """Say that the store cannot be written, a full disk say, and when it can be again."""
        session = self._session
        problem = problem_of(session.client.status(), session.home)
        if problem and not self._problem:
            session.console.say(f"  training continues, but {problem}", style="red")
        elif self._problem and not problem:
            session.console.say("  recording continues; `radt report` counts lost samples")
        self._problem = problem

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except RadtError as error:
                self._session.console.say(f"  {error}", style="red")
            except Exception as error:  # noqa: BLE001 - the next task runs all the same
                self._session.console.say(f"  {type(error).__name__}: {error}", style="red")
