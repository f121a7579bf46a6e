"""The context of one start of the runner, and its thread that reports to collector and store."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Self

from radt.clock import Clock
from radt.collector.client import CollectorClient
from radt.collector.manifest import RunnersEnd, ask_for_collection, mark_ended
from radt.collector.protocol import CollectorStatus, LiveView
from radt.devices.machine import Machine
from radt.errors import CollectorError, RadtError
from radt.home import Home
from radt.model import RunStatus
from radt.runner.console import RunConsole
from radt.store.peek import is_settled

if TYPE_CHECKING:
    from radt.runner.active import StopRequest
    from radt.runner.multinode import MultiNode
    from radt.runner.notify import Notifier
    from radt.runner.options import StartOptions
    from radt.store.reader import StoreReader
    from radt.store.writer import StoreWriter


@dataclass(slots=True)
class MlflowPatience:
    """The time that a workload waits for MLflow before it starts without; short after a failure."""

    timeout_s: float = 60.0

    def answered(self, *, in_time: bool) -> None:
        """Adapt the time to the result of a wait."""
        self.timeout_s = 60.0 if in_time else 1.0


class Presence:
    """Tells the user once that the collector is unreachable or cannot write, and once it recovers.

    ``problem`` says why the store cannot be written; empty if it can.
    """

    def __init__(self, console: RunConsole) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._is_away = False
        self._refusals: set[str] = set()
        self.problem = ""

    def note_problem(self, problem: str) -> None:
        """Note why the store cannot be written, such as a full disk; empty if it can."""
        if problem and not self.problem:
            self._console.say(f"  training continues, but {problem}", style="red")
        elif self.problem and not problem:
            self._console.say("  recording continues; `radt report` counts lost samples")
        self.problem = problem

    def note(self, error: CollectorError | None, *, refused: bool = False) -> None:
        """Note how a request went; ``refused`` by a collector that is running."""
        with self._lock:
            if error is not None and refused:
                if error.message not in self._refusals and not self.problem:
                    self._refusals.add(error.message)
                    self._console.say(f"  {error}", style="red")
                return
            if (error is not None) is self._is_away:
                return
            self._is_away = error is not None
        if error is None:
            self._console.say("  the collector answers: hardware is sampled from here on", "dim")
            return
        remedy = f". {error.remedy}" if error.remedy else ""
        self._console.say(
            f"  {error.message}: runs go on without hardware samples, and what they log is kept in "
            f"their folders until a collector or `radt sync` records it{remedy}",
            style="yellow",
            indent=2,
        )


@dataclass(frozen=True)
class Session:
    """The context of one start. ``shown_warnings`` are not shown a second time.

    ``resume_options`` are the options to resume with (`radt.experiment.lock.start_options`).
    ``tags`` are added to all runs. ``multi_node`` represents the other nodes if runs span several.
    ``was_settled`` says that all runs in the store had ended when the session began. The store is
    opened on first use (see `radt.store.peek` for the reason).
    """

    options: StartOptions
    tracking_uri: str
    store_uri: str
    client: CollectorClient
    clock: Clock
    console: RunConsole
    notifier: Notifier
    stop: StopRequest
    machine: Machine
    resume_options: str
    presence: Presence
    was_settled: bool
    tags: Mapping[str, str] = field(default_factory=dict)
    multi_node: MultiNode | None = None
    mlflow_patience: MlflowPatience = field(default_factory=MlflowPatience)
    shown_warnings: set[str] = field(default_factory=set)
    _opening: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def home(self) -> Home:
        """The data folder."""
        return self.options.home

    def open(self) -> StoreWriter:
        """Open the store unless it is open.

        Raises:
            StoreError: It cannot be opened.
        """
        with self._opening:
            return self._writer

    @property
    def writer(self) -> StoreWriter:
        """Return the store for writing."""
        return self.open()

    @property
    def reader(self) -> StoreReader:
        """Return the store for reading."""
        with self._opening:
            return self._reader

    def close(self) -> None:
        """Close the store and the connection to the collector."""
        self.client.close()
        if "_writer" in vars(self):
            self._writer.close()

    @cached_property
    def _writer(self) -> StoreWriter:
        from radt.store.writer import StoreWriter

        return StoreWriter(self.home.store_path)

    @cached_property
    def _reader(self) -> StoreReader:
        from radt.store.reader import StoreReader

        return StoreReader(self.home.store_path)


@contextmanager
def open_session(
    options: StartOptions,
    machine: Machine,
    console: RunConsole,
    notifier: Notifier,
    stop: StopRequest,
    *,
    resume_options: str = "",
    tags: Mapping[str, str] | None = None,
    multi_node: MultiNode | None = None,
    client: CollectorClient | None = None,
) -> Iterator[Session]:
    """Open the store, the collector's connection and all else; close them at the end.

    A collector that cannot be reached is used once it can.

    Args:
        tags: Added to all runs of the session.
        multi_node: The other nodes, if each run spans several.
        client: A client created early (`CollectorClient.for_runner`); the session takes it over.

    Raises:
        RadtError: The data folder, the runtime folder or the store cannot be used.
    """
    home = options.home.create()
    tracking_uri = home.tracking_uri(options.tracking_uri)
    presence = Presence(console)
    session = Session(
        options=options,
        tracking_uri=tracking_uri,
        store_uri=home.store_uri(options.store_uri, tracking_uri=tracking_uri),
        client=client or CollectorClient.for_runner(),
        clock=Clock.at_hand(),
        console=console,
        notifier=notifier,
        stop=stop,
        machine=machine,
        resume_options=resume_options,
        presence=presence,
        was_settled=is_settled(home.store_path),
        tags=tags or {},
        multi_node=multi_node,
    )
    with closing(session):
        if not session.was_settled:
            session.open()  # so that a store that cannot be opened is reported first
        try:
            session.client.reach()
        except CollectorError as error:
            presence.note(error)
        yield session


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


class Recording:
    """Reports one workload to collector and store. Use as a context manager.

    Args:
        in_store: True if the store has the rows; otherwise changes go to the runs' folders.
    """

    def __init__(self, session: Session, folders: Mapping[str, Path], *, in_store: bool) -> None:
        self._session = session
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
            self._session.console.say(
                "  the collector does not answer; it gets the ends of the runs later",
                style="red",
            )

    def barrier(self, workload_id: str, barrier_monotonic_ns: int, skew_ns: int | None) -> None:
        """Record that all rows of the workload were released."""
        session = self._session
        self._tasks.put(_load_results)
        if self._in_store:
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
        """Record that a run has passed its barrier; ``devices`` are named as by the listeners."""
        self._started[run_id] = (pid, monotonic_ns)

        def tell() -> None:
            with suppress(CollectorError):  # it gets it when it is reachable again
                self._session.client.started(run_id, pid, monotonic_ns, devices)

        self._tasks.put(tell)

    def hurry(self) -> None:
        """Upload everything now: all processes will soon be killed."""

        def ask() -> None:
            with suppress(CollectorError):  # the end of the workload asks again
                self._session.client.flush(self._session.home.store_path)

        self._tasks.put(ask)

    def tags(self, run_id: str, tags: dict[str, str]) -> None:
        """Record tags of a run that became known after it was recorded."""
        self._tags.setdefault(run_id, {}).update(tags)
        if tags and self._in_store:
            self._tasks.put(lambda: self._session.writer.put_tags(run_id, tags))

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
            session = self._session
            try:
                # The collector keeps trying; do not wait for a store that cannot be written.
                timeout_s = _BROKEN_TIMEOUT_S if session.presence.problem else FINISH_TIMEOUT_S
                session.client.finish(
                    run_id, status, exit_code, reason, timeout_s, ended_ns=ended_ns
                )
            except CollectorError as error:
                away = session.client.away is not None
                session.presence.note(error, refused=not away)
                pid, started_ns = self._started.get(run_id, (None, None))
                tags = self._tags.get(run_id, {})
                end = RunnersEnd(status, ended_ns, reason, exit_code, pid, started_ns, tags)
                self._keep(run_id, end, is_left=away)

        self._tasks.put(tell)

    def _keep(self, run_id: str, end: RunnersEnd, *, is_left: bool) -> None:
        """Record how a run ended; ``is_left`` if no collector will finish the run."""
        session = self._session
        if is_left:
            session.client.forget(run_id)
            with suppress(RadtError, OSError):  # a full disk; the store may accept it
                end.write(self._folders[run_id])
                ask_for_collection(self._folders[run_id])
        if not self._in_store:
            return
        with session.writer.transaction():
            if is_left and end.started_ns is not None:
                session.writer.update_run(
                    run_id,
                    pid=end.pid,
                    started_ns=session.clock.to_wall_ns(end.started_ns),
                )
            session.writer.end_run(
                run_id,
                end.status,
                session.clock.to_wall_ns(end.ended_ns),
                exit_code=end.exit_code,
                reason=end.reason,
            )

    def workload_ended(self, workload_id: str, status: RunStatus) -> None:
        """Record that all runs of the workload have ended."""
        ended_ns = self._session.clock.now_ns()
        if self._in_store:
            self._tasks.put(
                lambda: self._session.writer.update_workload(
                    workload_id, status=status, ended_ns=ended_ns
                )
            )

    def live(self, run_ids: Sequence[str]) -> dict[str, LiveView]:
        """Return the collector's last answer about the runs, and request the next one."""
        if not self._asking.is_set():
            self._asking.set()
            self._tasks.put(lambda: self._ask(list(run_ids)))
        return self._live

    def _ask(self, run_ids: list[str]) -> None:
        try:
            self._live = dict(self._session.client.live(run_ids))
            self._session.presence.note(None)
            self._look_for_problems_now_and_then()
        except CollectorError:
            self._live = {}  # the client reconnects by itself, and records the gap
        finally:
            self._asking.clear()

    def _look_a_last_time(self) -> None:
        if self._session.presence.problem:
            with suppress(CollectorError):
                self._look_for_problems()

    def _look_for_problems_now_and_then(self) -> None:
        now_s = time.monotonic()
        if now_s - self._asked_s >= _PROBLEMS_EVERY_S:
            self._asked_s = now_s
            self._look_for_problems()

    def _look_for_problems(self) -> None:
        session = self._session
        session.presence.note_problem(problem_of(session.client.status(), session.home))

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except RadtError as error:
                self._session.console.say(f"  {error}", style="red")
            except Exception as error:  # noqa: BLE001 - the next tasks must still run
                self._session.console.say(f"  {type(error).__name__}: {error}", style="red")
