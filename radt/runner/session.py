"""What one call of the runner works with: data folder, store, collector, clock, console."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from radt.clock import Clock
from radt.collector.client import CollectorClient
from radt.experiment.devices import Machine
from radt.home import Home
from radt.runner.console import RunConsole
from radt.store.reader import StoreReader
from radt.store.writer import StoreWriter


@dataclass(slots=True)
class MlflowPatience:
    """How long a workload waits for MLflow before it starts without; little after a vain wait."""

    timeout_s: float = 30.0

    def answered(self, *, in_time: bool) -> None:
        """What the wait came to."""
        self.timeout_s = 30.0 if in_time else 1.0


@dataclass(frozen=True, slots=True)
class Session:
    """See the module's text. ``said`` are warnings that need not be said again."""

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
    said: set[str] = field(default_factory=set)


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
