"""Training scripts as real processes, inside a run that somebody else ends, and on their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from radt.home import RunDir
from radt.journal.reader import JournalReader
from radt.store.reader import StoreReader
from tests.support.bench import (
    has_store,
    mlflow_database,
    stop_but_collector,
    stop_collectors,
    wait_until,
)
from tests.support.journal import Found

TIMEOUT_S = 180.0

#: Begins a script whose block has a limit of time: it counts from ``begins.set()`` on, so that a
#: busy machine uses none of it up before the block has come to what is tested.
TIME_BEGINS = """\
import threading
from radt.run.limits import LimitWatch
begins, watch_time = threading.Event(), LimitWatch._watch_time
def from_then_on(watch): begins.wait(); watch_time(watch)
LimitWatch._watch_time = from_then_on
"""


@dataclass
class Scripts:
    """Runs scripts in a folder; ``output`` is what the last one wrote to standard error."""

    folder: Path
    env: dict[str, str]
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, source: str, *arguments: str, **env: str) -> subprocess.Popen[str]:
        path = self.folder / f"script{len(self.started)}.py"
        path.write_text(source, encoding="utf-8")
        process = subprocess.Popen(
            [sys.executable, str(path), *arguments],
            cwd=self.folder,
            env=self.env | {"PWD": str(self.folder)} | env,  # as a shell has it
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def run(self, source: str, *arguments: str, code: int = 0, **env: str) -> tuple[str, str]:
        """Run to the end; returns standard output and standard error."""
        process = self.start(source, *arguments, **env)
        out, err = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == code, out + err
        return out, err

    def end(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()


@dataclass
class Joined(Scripts):
    """Scripts inside a run, as a runner starts them."""

    @property
    def run_dir(self) -> RunDir:
        return RunDir(Path(self.env["RADT_RUN_DIR"]))

    def found(self) -> Found:
        found = Found(JournalReader(self.run_dir.journal, {}))
        found.read(final=True)
        return found


@dataclass
class Alone(Scripts):
    """Scripts without a runner, with a collector of their own."""

    @property
    def home(self) -> Path:
        return Path(self.env["RADT_HOME"])

    @property
    def reader(self) -> StoreReader:
        """The store: a script goes on while its collector starts, which makes the store."""
        wait_until(lambda: has_store(self.home), "there is a store")
        return StoreReader(self.home / "radt.db")


@pytest.fixture
def joined(tmp_path: Path) -> Iterator[Joined]:
    folder = tmp_path / "user's folder"
    folder.mkdir()
    run_dir = RunDir(tmp_path / "run").create()
    env = dict(os.environ, RADT_RUN_ID="0123456789abcdef", RADT_RUN_DIR=str(run_dir.path))
    made = Joined(folder, env)
    yield made
    made.end()


@pytest.fixture
def alone(
    tmp_path: Path, shares_collector: bool, request: pytest.FixtureRequest
) -> Iterator[Alone]:
    """Scripts on their own; their runs go to MLflow where the test is marked ``mlflow``."""
    folder = tmp_path / "user's folder"
    folder.mkdir()
    idle_s = "60" if shares_collector else "2"
    # Quiet: what is on standard error is a warning.
    made = Alone(folder, dict(os.environ, RADT_COLLECTOR_IDLE_S=idle_s, RADT_QUIET="1"))
    if request.node.get_closest_marker("mlflow") is None:
        made.env["RADT_TRACKING_URI"] = "none"
    yield made
    made.end()
    stop = stop_but_collector if shares_collector else stop_collectors
    stop(Path(made.env["RADT_RUNTIME_DIR"]))


@pytest.fixture
def registered(joined: Joined, tmp_path: Path) -> tuple[Joined, MlflowClient, str]:
    """A run that the runner has given to MLflow."""
    shutil.copy(mlflow_database(), tmp_path / "mlflow.db")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    client = MlflowClient(uri)
    experiment = client.create_experiment("digits", (tmp_path / "artifacts").as_uri())
    run_id = client.create_run(experiment).info.run_id
    joined.env |= {
        "MLFLOW_TRACKING_URI": uri,
        "MLFLOW_RUN_ID": run_id,
        "MLFLOW_EXPERIMENT_ID": experiment,
    }
    return joined, client, run_id
