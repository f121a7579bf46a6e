"""Runs to record with a real collector, and how to wait for what it does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

from radt.clock import Clock
from radt.collector.client import CollectorClient
from radt.collector.protocol import Registration
from radt.files import PidLock
from radt.home import Home, RunDir, runtime_dir
from radt.model import ListenerChoice, RunStatus
from radt.store.reader import StoreReader
from radt.store.records import LedgerRecord, RunRecord
from radt.store.writer import StoreWriter
from tests.support.waiting import TIMEOUT_S as DEADLINE_S
from tests.support.waiting import alive
from tests.support.waiting import wait_until as wait_for

__all__ = ["DEADLINE_S", "alive", "wait_for"]

#: A training process that does nothing until its input ends.
IDLE = "import sys; print('up', flush=True); sys.stdin.read()"


class Run:
    """A run with a real process."""

    def __init__(self, project: Project, registration: Registration) -> None:
        self._project = project
        self.registration = registration
        self.run_id = registration.run_id
        self.process: subprocess.Popen[str] | None = None

    @property
    def row(self) -> RunRecord:
        return self._project.reader.run(self.run_id)

    @property
    def ledger(self) -> dict[str, LedgerRecord]:
        rows = {row.listener: row for row in self._project.reader.ledger([self.run_id])}
        return defaultdict(lambda: LedgerRecord(self.run_id, "", 0, 0, 0, 0, 0, state=""), rows)

    @property
    def counts(self) -> Counter[str]:
        """Points in the store by metric."""
        summaries = self._project.reader.summary([self.run_id])
        return Counter({summary.series.metric: summary.count for summary in summaries})

    def times_ns(self, metric: str) -> list[int]:
        for series in self._project.reader.series([self.run_id]):
            if series.metric == metric:
                samples = self._project.reader.samples(self.run_id, series.series_no)
                return [int(time_ns) for time_ns in samples.times_ns]
        return []

    def has(self, metric: str, more_than: int = 0) -> bool:
        return self.counts.get(metric, 0) > more_than

    def start(
        self, code: str = IDLE, *arguments: str, devices: tuple[str, ...] | None = None
    ) -> None:
        """Start a process as the runner does, and say so."""
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            env=os.environ | {"RADT_RUN_ID": self.run_id, "RADT_RUN_DIR": self.registration.spool},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "up\n"
        self._project.client.started(self.run_id, self.process.pid, time.monotonic_ns(), devices)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def finish(
        self,
        status: RunStatus | None = RunStatus.FINISHED,
        timeout_s: float = DEADLINE_S,
        **more: object,
    ) -> None:
        self.stop()
        self._project.client.finish(self.run_id, status, timeout_s=timeout_s, **more)


class Project:
    """A data folder with its store, and a client."""

    def __init__(self, folder: Path, client: CollectorClient) -> None:
        self.home = Home(folder).create()
        self.writer = StoreWriter(self.home.store_path)
        self.reader = StoreReader(self.home.store_path)
        self.client = client
        self.runs: list[Run] = []

    def row(self, run_id: str) -> RunRecord:
        spool: RunDir = self.home.run_dir(run_id).create()
        return RunRecord(
            run_id=run_id,
            workload_id=uuid.uuid4().hex,
            experiment="e",
            workload="1",
            letter="a",
            name="n",
            created_ns=Clock.for_machine().now_ns(),
            spool=str(spool.path),
        )

    def register(
        self,
        *listeners: str,
        interval_s: float | None = 0.05,
        devices: tuple[str, ...] = (),
        profiler: str = "",
    ) -> tuple[Run, list[str]]:
        """A run with its row in the store; and the collector's warnings."""
        row = self.row(uuid.uuid4().hex)
        self.writer.put_run(row)
        registration = Registration(
            run_id=row.run_id,
            store_path=str(self.home.store_path),
            spool=row.spool,
            listeners=tuple(
                replace(ListenerChoice.parse(text), interval_s=interval_s) for text in listeners
            ),
            devices=devices,
            profiler=profiler,
        )
        # A busy machine may take long to open them.
        warnings = [text for text in self.client.register(registration) if "join later" not in text]
        self.runs.append(Run(self, registration))
        return self.runs[-1], warnings

    def run(self, *listeners: str, **more: object) -> Run:
        """A run that is running."""
        run, _ = self.register(*(listeners or ("top",)), **more)
        run.start()
        return run

    def end_runs(self) -> None:
        """End the runs that the test has not ended: their owner, the tests' process, lives on."""
        for run in self.runs:
            if not run.row.status.ended:
                run.finish(RunStatus.KILLED)

    def close(self) -> None:
        for run in self.runs:
            run.stop()
        self.reader.close()
        self.writer.close()


def holder(name: str) -> int | None:
    """Who holds a lock of the runtime folder: the guardian or the worker."""
    path = runtime_dir() / f"{name}.lock"
    if not path.exists():
        return None
    lock = PidLock(path)
    try:
        return lock.holder()
    finally:
        lock.close()
