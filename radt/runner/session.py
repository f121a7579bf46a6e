"""What one call of the runner works with: data folder, store, collector, clock, console, reaper."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from radt.clock import Clock
from radt.collector.client import CollectorClient
from radt.experiment.devices import Machine
from radt.home import Home
from radt.runner import reaper
from radt.runner.console import RunConsole
from radt.store.reader import StoreReader
from radt.store.writer import StoreWriter


class Reaper:
    """The runner's end of `radt.runner.reaper`; a reaper that was killed is replaced."""

    def __init__(self) -> None:
        self._groups: dict[int, str] = {}
        self._popen = self._start()

    def watch(self, pgid: int, run_id: str) -> None:
        """End this group if the runner dies."""
        self._groups[pgid] = run_id
        self._send(f"+{pgid} {run_id}\n")

    def forget(self, pgid: int) -> None:
        """The group has ended."""
        del self._groups[pgid]
        self._send(f"-{pgid}\n")

    def close(self) -> None:
        """Say goodbye; the reaper ends whatever was not forgotten."""
        assert self._popen.stdin is not None
        self._popen.stdin.close()
        self._popen.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", reaper.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )

    def _send(self, line: str) -> None:
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.write(line.encode())
        except BrokenPipeError:
            self._popen.wait()
            self._popen = self._start()
            assert self._popen.stdin is not None
            for pgid, run_id in self._groups.items():
                self._popen.stdin.write(f"+{pgid} {run_id}\n".encode())


@dataclass(slots=True)
class MlflowPatience:
    """How long a workload waits for MLflow before it starts without; little after a vain wait."""

    timeout_s: float = 30.0

    def answered(self, *, in_time: bool) -> None:
        """What the wait came to."""
        self.timeout_s = 30.0 if in_time else 1.0


@dataclass(frozen=True, slots=True)
class Session:
    """See the module's text."""

    home: Home
    tracking_uri: str
    writer: StoreWriter
    reader: StoreReader
    client: CollectorClient
    clock: Clock
    console: RunConsole
    reaper: Reaper
    machine: Machine
    mlflow_patience: MlflowPatience = field(default_factory=MlflowPatience)


@contextmanager
def open_session(
    home: Home, machine: Machine, console: RunConsole, *, explicit_tracking_uri: str | None = None
) -> Iterator[Session]:
    """Everything open and running, closed again at the end.

    Raises:
        RadtError: The data folder, the store or the collector cannot be used.
    """
    home.create()
    writer = StoreWriter(home.store_path)
    try:
        client = CollectorClient.connect(start=True)
        reaper_process = Reaper()
        try:
            yield Session(
                home=home,
                tracking_uri=home.tracking_uri(explicit_tracking_uri),
                writer=writer,
                reader=StoreReader(home.store_path),
                client=client,
                clock=Clock.for_machine(),
                console=console,
                reaper=reaper_process,
                machine=machine,
            )
        finally:
            reaper_process.close()
            client.close()
    finally:
        writer.close()
