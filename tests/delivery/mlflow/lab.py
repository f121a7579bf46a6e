"""A laboratory: a real store and a real MLflow (SQLite), with runs that tests make up."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from radt.delivery.mlflow.runs import RunCreator, missing_runs
from radt.delivery.mlflow.target import MlflowTarget
from radt.delivery.mlflow.tasks import LIVE_INTERVAL_S, Delivery
from radt.delivery.mlflow.uploader import Uploader
from radt.delivery.problems import MLFLOW, ProblemLog
from radt.home import Home
from radt.masking import with_driver
from radt.model import SOFTWARE, RunStatus, Scope, SeriesKind
from radt.store.reader import StoreReader
from radt.store.records import (
    RunRecord,
    Samples,
    SeriesBatch,
    SeriesRecord,
    WorkloadRecord,
)
from radt.store.writer import StoreWriter
from tests.support.waiting import TIMEOUT_S as DEADLINE_S
from tests.support.waiting import wait_until

__all__ = ["wait_until"]

SECOND_NS = 1_000_000_000
START_NS = 1_750_000_000 * SECOND_NS


@dataclass
class Lab:
    """A data folder with a store, and what delivers it in this process."""

    home: Home
    tracking_uri: str
    writer: StoreWriter
    reader: StoreReader
    target: MlflowTarget
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @cached_property
    def client(self) -> MlflowClient:
        """Made when it is asked for: it would build the database."""
        return MlflowClient(with_driver(self.tracking_uri))

    def creator(self, since_ns: int = 0) -> Creator:
        return Creator(self, since_ns)

    def uploader(self) -> Uploader:
        return Uploader(self.target, self.reader, self.writer)

    def add_workload(
        self,
        runs: int = 1,
        *,
        experiment: str = "an experiment",
        label: str = "1",
        name: str = "net",
        created_ns: int = START_NS,
        tracking_uri: str | None = None,
    ) -> list[RunRecord]:
        """Rows as the runner writes them, before MLflow knows of them."""
        workload_id = uuid.uuid4().hex
        uri = self.tracking_uri if tracking_uri is None else tracking_uri
        records = []
        with self.writer.transaction():
            self.writer.put_workload(
                WorkloadRecord(workload_id, experiment, label, created_ns, tracking_uri=uri)
            )
            for index in range(runs):
                run_id = uuid.uuid4().hex
                spool = self.home.run_dir(run_id).create()
                record = RunRecord(
                    run_id=run_id,
                    workload_id=workload_id,
                    experiment=experiment,
                    workload=label,
                    letter="abcdefghijklmnop"[index],
                    name=name,
                    created_ns=created_ns,
                    command="python train.py",
                    spool=str(spool.path),
                    tracking_uri=uri,
                )
                self.writer.put_run(record)
                records.append(record)
        return records

    def start(self, run: RunRecord) -> None:
        self.writer.update_run(run.run_id, status=RunStatus.RUNNING, started_ns=START_NS)

    def end(self, run: RunRecord, status: RunStatus = RunStatus.FINISHED, reason: str = "") -> None:
        assert self.writer.end_run(run.run_id, status, START_NS + 100 * SECOND_NS, 0, reason)

    def log(
        self,
        run: RunRecord,
        metric: str,
        values: Sequence[float],
        *,
        series_no: int = 0,
        steps: Sequence[int] | None = None,
        listener: str = SOFTWARE,
        kind: SeriesKind = SeriesKind.GAUGE,
        entity: str = "",
        interval_ns: int = SECOND_NS,
        first_ns: int = START_NS,
    ) -> None:
        """Append points, one each ``interval_ns``."""
        scope = Scope.RUN if listener == SOFTWARE else Scope.HOST
        self.writer.add_series(
            [SeriesRecord(run.run_id, series_no, listener, metric, "1", scope, kind, entity)]
        )
        times = first_ns + np.arange(len(values), dtype=np.int64) * interval_ns
        samples = Samples(
            times,
            np.asarray(values, dtype=np.float64),
            None if steps is None else np.asarray(steps, dtype=np.int64),
        )
        self.writer.append(run.run_id, [SeriesBatch(series_no, samples)])

    def record(self, run: RunRecord) -> RunRecord:
        return self.reader.run(run.run_id)

    def mlflow_id(self, run: RunRecord) -> str:
        found = self.record(run).mlflow_run_id
        assert found is not None
        return found

    def mlflow_run(self, run: RunRecord) -> Run:
        return self.client.get_run(self.mlflow_id(run))

    def history(self, run: RunRecord, key: str) -> list[tuple[int, float, int]]:
        """Step, value and timestamp (ms) of each point in MLflow."""
        found = self.client.get_metric_history(self.mlflow_id(run), key)
        return [(point.step, point.value, point.timestamp) for point in found]

    def deliver_all(self) -> None:
        """What the deliverer does when it finishes up, once, in this process."""
        self.creator().register_pending()
        uploader = self.uploader()
        for run in self.reader.runs_to_deliver(self.tracking_uri):
            uploader.deliver(run)
        for workload in self.reader.workloads_to_deliver(self.tracking_uri):
            uploader.close_workload(workload.workload_id)

    def start_deliverer(self, *options: str) -> subprocess.Popen[bytes]:
        """The real process. What it says besides its log goes into ``process.stdout``.

        Its address is in the environment, as the collector has it: lists of processes show options.
        """
        command = [sys.executable, "-m", "radt.delivery.mlflow", *options]
        process = subprocess.Popen(
            [*command, "--store", str(self.home.store_path)],
            env=os.environ | {"RADT_TRACKING_URI": self.tracking_uri},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.processes.append(process)
        return process

    def log_text(self) -> str:
        """The logs of all deliverers."""
        folder = Path(os.environ["RADT_RUNTIME_DIR"])
        return "".join(path.read_text() for path in folder.glob("deliver-*.log"))


class Creator(RunCreator):
    """Creates all MLflow runs that are missing."""

    def __init__(self, lab: Lab, since_ns: int) -> None:
        super().__init__(lab.target, lab.reader, lab.writer, since_ns)
        self._lab = lab

    def register_pending(self) -> int:
        """Return how many there were."""
        reader, uri = self._lab.reader, self._lab.tracking_uri
        missing = missing_runs(reader.runs_to_deliver(uri), reader.workloads_to_deliver(uri))
        for workload, runs in missing:
            self.register(workload, runs)
        return sum(len(runs) for _, runs in missing)


class Threads(Delivery):
    """What the deliverer's threads do, in this process."""

    def __init__(self, lab: Lab, live_interval_s: float = LIVE_INTERVAL_S) -> None:
        super().__init__(
            lab.creator(),
            lab.uploader(),
            lab.reader,
            lab.tracking_uri,
            ProblemLog(lab.home.store_path, MLFLOW, lab.tracking_uri),
            lambda: lab.target.answers,
            live_interval_s,
        )
        self.start()

    def finish(self) -> None:
        super().finish()
        self.join(180)
        assert not self.is_alive()


def notify(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()


def finish(process: subprocess.Popen[bytes]) -> None:
    """Close its standard input; the deliverer must end well, and have kept off the console."""
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert output == b""


def make_lab(home: Home, tracking_uri: str) -> Lab:
    writer = StoreWriter(home.store_path)
    artifacts = home.artifacts if tracking_uri == home.default_tracking_uri else None
    return Lab(
        home=home,
        tracking_uri=tracking_uri,
        writer=writer,
        reader=StoreReader(home.store_path),
        target=MlflowTarget(tracking_uri, artifacts),
    )


@contextlib.contextmanager
def closing(lab: Lab) -> Iterator[Lab]:
    try:
        yield lab
    finally:
        for process in lab.processes:
            process.kill()
            process.wait()
        lab.writer.close()
        lab.reader.close()


def count_points(database: Path, mlflow_run_id: str, key: str) -> int:
    """Rows in MLflow's own table."""
    with contextlib.closing(sqlite3.connect(database, timeout=DEADLINE_S)) as connection:
        row = connection.execute(
            "SELECT COUNT(*) FROM metrics WHERE run_uuid = ? AND key = ?", (mlflow_run_id, key)
        ).fetchone()
    return int(row[0])
