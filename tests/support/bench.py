"""Whole runs of radt as a user makes them: the ``radt`` command in a folder with scripts."""

from __future__ import annotations

import atexit
import csv
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from radt.delivery.mlflow.database import prepare
from radt.errors import StoreError
from radt.files import PidLock
from radt.paths import sqlite_uri
from radt.store.reader import StoreReader
from tests.support.command import called
from tests.support.waiting import TIMEOUT_S, alive, wait_until

RADT = str(Path(sys.executable).with_name("radt"))


def has_store(home: Path) -> bool:
    """Whether the store of a data folder can be read."""
    try:
        with StoreReader(home / "radt.db") as reader:
            return reader.workloads() is not None
    except StoreError:
        return False


@dataclass
class Bench:
    """A user's folder: scripts, experiment files, and what radt made of them."""

    folder: Path
    env: dict[str, str]
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def home(self) -> Path:
        return self.folder / "radt-data"

    @property
    def reader(self) -> StoreReader:
        return StoreReader(self.home / "radt.db")

    @property
    def with_mlflow(self) -> bool:
        return self.env.get("RADT_TRACKING_URI") != "none"

    @property
    def mlflow(self) -> MlflowClient:
        assert self.with_mlflow, "mark the test `mlflow`"
        return MlflowClient(sqlite_uri(self.home / "mlflow.db"))

    def script(self, name: str, source: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
        return path

    def experiment(self, text: str, name: str = "experiment.csv") -> Path:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def radt(self, *arguments: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run to the end; ``code`` is the exit code it must have."""
        done = subprocess.run(
            [RADT, *arguments],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert code is None or done.returncode == code, done.stdout + done.stderr
        return done

    def shown(self, *arguments: str) -> str:
        """What a command that only reads prints; in this process, which takes less time."""
        done = called(self.folder, self.env, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start and leave running; killed at the end of the test if it still is."""
        process = subprocess.Popen(
            [RADT, *arguments],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(process)
        return process

    def rows(self, path: Path) -> list[dict[str, str]]:
        """The rows of an experiment file."""
        with path.open(encoding="utf-8", newline="") as file:
            lines = [line for line in file if not line.startswith("#")]
        return [
            {key.strip(): (value or "").strip() for key, value in row.items()}
            for row in csv.DictReader(lines)
        ]

    def mlflow_runs(self, experiment: str) -> Mapping[str, Run]:
        """MLflow's runs of an experiment by name."""
        client = self.mlflow
        found = client.get_experiment_by_name(experiment)
        assert found is not None
        return {
            str(run.info.run_name): run
            for run in client.search_runs([found.experiment_id], max_results=1000)
        }

    def wait_delivered(self) -> None:
        """Return when MLflow has everything that the store has."""
        assert self.with_mlflow, "mark the test `mlflow`"

        def delivered(reader: StoreReader) -> bool:
            rows = [*reader.runs(), *(w for w in reader.workloads() if w.label)]
            # A script that uses MLflow itself ends its run there before we have brought the rest.
            waiting = any(reader.runs_to_deliver(uri) for uri in {row.tracking_uri for row in rows})
            return not waiting and all(
                row.mlflow_run_id is not None
                and self.mlflow.get_run(row.mlflow_run_id).info.status == row.status.mlflow
                for row in rows
            )

        # Closed now: whenever the last reader is closed, SQLite changes the file.
        with self.reader as reader:
            wait_until(lambda: delivered(reader), "MLflow has all runs")

    def signal_ready(self, name: str) -> Path:
        """A named pipe that a script blocks on until the test writes to it."""
        path = self.folder / name
        os.mkfifo(path)
        return path


def let_go(gate: Path) -> None:
    """Whoever waits at a pipe goes on, and who comes later does not wait; all may have ended."""
    writer = os.open(gate, os.O_RDWR)  # does not wait for a reader
    gate.unlink()
    gate.touch()
    os.close(writer)


@cache
def mlflow_database() -> Path:
    """Return MLflow's database with nothing in it, as MLflow makes it: that takes it seconds."""
    path = Path(tempfile.mkdtemp(prefix="radt-mlflow-")) / "mlflow.db"
    prepare(path)
    atexit.register(shutil.rmtree, path.parent, ignore_errors=True)
    return path


@contextmanager
def bench_in(
    tmp_path: Path,
    *,
    columns: int,
    with_mlflow: bool = True,
    shares_collector: bool = False,
    **env: str,
) -> Iterator[Bench]:
    """A folder as a user has it; what was started in it is gone afterwards.

    Args:
        tmp_path: Where the folder is made.
        columns: Width of the terminal.
        with_mlflow: Without it the process that uploads to MLflow, which takes half of a short
            run's CPU time, is not started.
        shares_collector: The collector goes on afterwards: it is that of a `shared_runtime`.
        env: More variables.
    """
    folder = tmp_path / "user's folder"
    (folder / "radt-data").mkdir(parents=True)
    variables = {**os.environ, "NO_COLOR": "1", "COLUMNS": str(columns), **env}
    if with_mlflow:
        shutil.copy(mlflow_database(), folder / "radt-data")
    else:
        variables["RADT_TRACKING_URI"] = "none"
    variables.pop("RADT_HOME", None)
    made = Bench(folder, variables)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
        process.communicate()
    stop = stop_but_collector if shares_collector else stop_collectors
    stop(Path(variables["RADT_RUNTIME_DIR"]))


@contextmanager
def shared_runtime() -> Iterator[Path]:
    """A runtime folder for several tests: one collector serves the stores of all of them.

    Starting a collector takes more CPU time than many a test.
    """
    with tempfile.TemporaryDirectory(prefix="radt-", ignore_cleanup_errors=True) as runtime:
        yield Path(runtime)
        stop_collectors(Path(runtime))


def stop_but_collector(runtime_dir: Path) -> None:
    """End what was started with a runtime folder, except for its collector, and see it gone."""
    _stop(runtime_dir, collector_of)


def collector_of(runtime_dir: Path) -> list[int]:
    """The guardian and the worker of a runtime folder, as far as they run."""
    found = []
    for name in ("guardian.lock", "worker.lock"):
        with closing(PidLock(runtime_dir / name)) as lock:
            if pid := lock.holder():
                found.append(pid)
    return found


def stop_collectors(runtime_dir: Path) -> None:
    """End what was started with a runtime folder, and see it gone: collectors, deliverers, runs."""
    _stop(runtime_dir, lambda _: [])


def _stop(runtime_dir: Path, spared: Callable[[Path], list[int]]) -> None:
    mine = f"RADT_RUNTIME_DIR={runtime_dir}".encode()
    for _ in range(3):  # a guardian may start a worker while we look
        found, others = [], {os.getpid(), *spared(runtime_dir)}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) not in others:
                try:
                    if mine in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
                except OSError:
                    continue
        # All stand still before the first is killed: none may see another one die, and act on it.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
        wait_until(lambda: not any(alive(pid) for pid in found), "collectors gone")  # noqa: B023
        if not found:
            return
