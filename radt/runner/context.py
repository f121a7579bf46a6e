"""The context of one start of the runner: its options, the store and the collector."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Self

from radt.clock import Clock
from radt.collector.client import CollectorClient
from radt.devices.machine import Machine
from radt.errors import CollectorError
from radt.runner.console import RunConsole
from radt.store.peek import is_settled

if TYPE_CHECKING:
    from radt.runner.active import StopRequest
    from radt.runner.multinode import MultiNode
    from radt.runner.notify import Notifier
    from radt.runner.options import StartOptions
    from radt.store.reader import StoreReader
    from radt.store.writer import StoreWriter


class CollectorNotices:
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
            self._console.say("  the collector responds: hardware is sampled from now on", "dim")
            return
        remedy = f". {error.remedy}" if error.remedy else ""
        self._console.say(
            f"  {error.message}: runs continue without hardware samples, and their logged values "
            f"stay in their folders until a collector or `radt sync` stores them{remedy}",
            style="yellow",
            indent=2,
        )


class RunnerContext:
    """The context of one start. Use as a context manager.

    A collector that cannot be reached is used once it can. The store is opened on first use (see
    `radt.store.peek` for the reason).

    Args:
        client: A client created early (`CollectorClient.for_runner`); the context takes it over.

    Attributes:
        resume_options: The options to resume with (`radt.experiment.lock.start_options`).
        tags: Added to all runs.
        multi_node: The other nodes, if each run spans several.
        was_settled: True if all runs in the store had ended when the context was created.
        mlflow_timeout_s: How long a workload waits for MLflow before it starts without.
        shown_warnings: They are not shown a second time.

    Raises:
        RadtError: The data folder, the runtime folder or the store cannot be used.
    """

    def __init__(
        self,
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
    ) -> None:
        self.options, self.machine = options, machine
        self.console, self.notifier, self.stop = console, notifier, stop
        self.resume_options, self.tags, self.multi_node = resume_options, tags or {}, multi_node
        self.home = options.home.create()
        self.tracking_uri = self.home.tracking_uri(options.tracking_uri)
        self.store_uri = self.home.store_uri(options.store_uri, tracking_uri=self.tracking_uri)
        self.client = client or CollectorClient.for_runner()
        self.clock = Clock.at_hand()
        self.notices = CollectorNotices(console)
        self.was_settled = is_settled(self.home.store_path)
        self.mlflow_timeout_s = 60.0
        self.shown_warnings: set[str] = set()
        self._opening = threading.Lock()

    def __enter__(self) -> Self:
        try:
            if not self.was_settled:
                self.open()  # so that a store that cannot be opened is reported first
            try:
                self.client.reach()
            except CollectorError as error:
                self.notices.note(error)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        if "_reader" in vars(self):
            self._reader.close()
        if "_writer" in vars(self):
            self._writer.close()

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

    @cached_property
    def _writer(self) -> StoreWriter:
        from radt.store.writer import StoreWriter

        return StoreWriter(self.home.store_path)

    @cached_property
    def _reader(self) -> StoreReader:
        from radt.store.reader import StoreReader

        return StoreReader(self.home.store_path)
