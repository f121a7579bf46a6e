"""Observers for `benchmarks.listeners`, and their CPU time and memory.

An observer is a context in which `Observed.start` starts scripts. The use of radt and its original
is that of their processes; MLflow's monitor is a thread of the run's own process, so the whole
process of an idle run counts as its use.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

import psutil

from benchmarks.peers import peer_python
from radt.clock import Clock
from radt.collector.client import CollectorClient
from radt.collector.protocol import Registration
from radt.home import RUN_ID_VARIABLE, RUNTIME_VARIABLE, Home
from radt.model import ListenerChoice, RunStatus
from radt.store.reader import StoreReader
from radt.store.records import RunRecord
from radt.store.writer import StoreWriter

SCRIPT = Path(__file__).with_name("observed_script.py")
ORIGINAL = ("radt==0.2.30", "pandas<3")
_UP_S = 300.0


@dataclass(frozen=True, slots=True)
class Use:
    """CPU time so far, current memory, and number of values recorded so far."""

    cpu_s: float
    memory_bytes: int
    values: int


@dataclass
class Observed:
    """Scripts under an observer."""

    observer: str = "none"
    python: Path = Path(sys.executable)
    env: dict[str, str] = field(default_factory=dict)
    folder: Path = Path()
    scripts: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, kind: str, count: int) -> None:
        """Start ``count`` scripts of a kind at once, and wait until they are running."""
        environments = [{**os.environ, **self.env, **self._of_run(n)} for n in range(count)]
        self.scripts = [
            subprocess.Popen(
                [self.python, SCRIPT, self.observer, kind, self.folder],
                env=env,
                cwd=self.folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for env in environments
        ]
        for number, script in enumerate(self.scripts):
            while (line := _output(script).readline()) != "up\n":  # the original prints too
                if not line:
                    raise SystemExit(f"a script under {type(self).__name__} did not start")
            self._started(number, script.pid)

    def work(self) -> list[float]:
        """Let all scripts do their work; return the seconds that each took."""
        for script in self.scripts:
            _input(script).write("\n")
            _input(script).flush()
        return [float(_output(script).readline()) for script in self.scripts]

    def stop(self) -> None:
        """Wait for the scripts to end."""
        for script in self.scripts:
            script.communicate()
        self.scripts.clear()

    def use(self) -> Use:
        """Return the observer's use so far: all processes below the scripts except their own
        children.
        """
        return Use(*_tree_use(script.pid for script in self.scripts), self._values())

    def _of_run(self, number: int) -> Mapping[str, str]:  # noqa: ARG002
        return {}

    def _started(self, number: int, pid: int) -> None:
        """Handle the start of a script."""

    def _values(self) -> int:
        return 0


@dataclass
class Radt(Observed):
    """This radt: the collector, its guardian, and the uploader if MLflow gets all values."""

    listeners: tuple[ListenerChoice, ...] = ()
    devices: tuple[str, ...] = ()
    delivers: bool = False
    _client: CollectorClient | None = None
    _registered: list[str] = field(default_factory=list)

    def start(self, kind: str, count: int) -> None:
        home = Home(self.folder).create()
        uri = home.default_tracking_uri if self.delivers else ""
        self._client = CollectorClient().reach()
        self._registered = [uuid.uuid4().hex for _ in range(count)]
        workload = uuid.uuid4().hex
        with StoreWriter(home.store_path) as writer:
            for run_id in self._registered:
                spool = str(home.run_dir(run_id).create().path)
                now_ns = Clock.for_machine().now_ns()
                run = RunRecord(run_id, workload, "e", "1", "a", "", now_ns, tracking_uri=uri)
                writer.put_run(run)
                warnings = self._client.register(
                    Registration(
                        run_id,
                        str(home.store_path),
                        spool,
                        tracking_uri=uri,
                        listeners=self.listeners,
                        devices=self.devices,
                    )
                )
        for warning in warnings:
            print(f"  {warning}")
        super().start(kind, count)

    def _of_run(self, number: int) -> Mapping[str, str]:
        return {RUN_ID_VARIABLE: self._registered[number]}

    def _started(self, number: int, pid: int) -> None:
        assert self._client is not None
        self._client.started(self._registered[number], pid, time.monotonic_ns())

    def stop(self) -> None:
        super().stop()
        assert self._client is not None
        for run_id in self._registered:
            self._client.finish(run_id, RunStatus.FINISHED)
        self._client.close()

    def use(self) -> Use:
        assert self._client is not None
        status = self._client.status()
        return Use(status.cpu_s, status.rss_bytes, self._values())

    def _values(self) -> int:
        with StoreReader(Home(self.folder).store_path) as reader:
            return sum(one.count for one in reader.summary(self._registered))

    def missed(self) -> tuple[int, int]:
        """Return the number of missed and of expected readings."""
        with StoreReader(Home(self.folder).store_path) as reader:
            rows = reader.ledger(self._registered)
        return sum(row.missed for row in rows), sum(row.expected for row in rows)


@dataclass
class Mlflow(Observed):
    """MLflow's system metrics, in the process of each run, every second instead of every ten."""

    def __post_init__(self) -> None:
        self.observer = "mlflow"
        self.env |= {
            "MLFLOW_TRACKING_URI": f"sqlite:///{self.folder / 'mlflow.db'}",
            "MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL": "1",
        }
        _make_database(self.python, self.env, self.folder)

    def _values(self) -> int:
        return _rows(self.folder / "mlflow.db")


@dataclass
class Original(Observed):
    """radt 0.2.30 from PyPI: processes of its own for each listener of each run."""

    def __post_init__(self) -> None:
        self.observer = "original"
        self.python = peer_python("radt-0.2.30", ORIGINAL)
        self.env |= {
            "MLFLOW_TRACKING_URI": f"sqlite:///{self.folder / 'mlflow.db'}",
            "RADT_PRESENT": "True",
            **{f"RADT_LISTENER_{name.upper()}": "True" for name in original_listeners()},
        }
        _make_database(self.python, self.env, self.folder)

    def _values(self) -> int:
        return _rows(self.folder / "mlflow.db")


def original_listeners() -> Sequence[str]:
    """Return the original's listeners that read every second and whose programs are installed."""
    return [name for name in ("top", "free", "iostat") if shutil.which(name)]


@contextmanager
def private_folders() -> Iterator[Path]:
    """Provide a temporary data folder, and a collector of its own that ends soon after use."""
    with TemporaryDirectory(prefix="radt-bench-") as folder, TemporaryDirectory() as runtime:
        before = dict(os.environ)
        os.environ |= {RUNTIME_VARIABLE: runtime, "RADT_COLLECTOR_IDLE_S": "1"}
        try:
            yield Path(folder)
        finally:
            os.environ.clear()
            os.environ.update(before)
            _wait_for_collector(runtime)


def _wait_for_collector(runtime: str) -> None:
    """Wait until no process uses the folders, so that they can be deleted."""
    deadline = time.monotonic() + _UP_S
    while time.monotonic() < deadline:
        if not any(
            RUNTIME_VARIABLE in env and env[RUNTIME_VARIABLE] == runtime for env in _environments()
        ):
            return
        time.sleep(0.2)


def _environments() -> Iterator[Mapping[str, str]]:
    for process in psutil.process_iter():
        try:
            yield process.environ()
        except psutil.Error:
            continue


def _tree_use(roots: Iterable[int]) -> tuple[float, int]:
    """Return CPU time of processes and descendants, ended ones too, and memory of live ones."""
    cpu_s, memory = 0.0, 0
    for root in roots:
        process = psutil.Process(root)
        for one in (process, *process.children(recursive=True)):
            try:
                times = one.cpu_times()
                memory += one.memory_full_info().uss
            except psutil.Error:
                continue
            cpu_s += times.user + times.system + times.children_user + times.children_system
    return cpu_s, memory


def _make_database(python: Path, env: Mapping[str, str], folder: Path) -> None:
    """Create MLflow's tables, which takes seconds and happens once."""
    program = "import mlflow; mlflow.search_experiments()"
    subprocess.run(
        [python, "-c", program],
        cwd=folder,
        env=os.environ | dict(env),
        check=True,
        stderr=subprocess.DEVNULL,
    )


def _rows(database: Path) -> int:
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        (count,) = connection.execute("SELECT COUNT(*) FROM metrics").fetchone()
        return int(count)


def _output(script: subprocess.Popen[str]) -> IO[str]:
    assert script.stdout is not None
    return script.stdout


def _input(script: subprocess.Popen[str]) -> IO[str]:
    assert script.stdin is not None
    return script.stdin
