"""The password in a tracking URI reaches MLflow and no file."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from radt.collector.client import CollectorClient
from radt.masking import masked
from radt.store.records import WorkloadRecord
from radt.store.writer import StoreWriter
from tests.run.conftest import TIMEOUT_S, Alone
from tests.support.mlflow_server import MlflowServer
from tests.support.waiting import alive, wait_until

SCRIPT = """\
import mlflow, os, radt
with radt.Run(listeners="none") as run:
    run.log_metric("loss", 1)
    mlflow.log_param("from", "the script")
    print(run.id, flush=True)
    if os.environ.get("PIPE"):
        open(os.environ["PIPE"]).read()
"""


def files_with(folder: Path, secret: str) -> list[str]:
    """What `grep -a -r -l` finds."""
    return [
        str(path)
        for path in folder.rglob("*")
        if path.is_file() and secret.encode() in path.read_bytes()
    ]


def sync(alone: Alone, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "radt", "sync"],
        env=alone.env | env,
        cwd=alone.folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.mark.mlflow
def test_a_password_is_in_no_file_and_delivery_goes_on_after_a_crash(
    alone: Alone, mlflow_server_with_auth: MlflowServer
) -> None:
    auth = mlflow_server_with_auth.auth
    assert auth is not None
    uri = mlflow_server_with_auth.uri.replace("://", f"://{auth.user}:{auth.password}@")
    alone.env["RADT_TRACKING_URI"] = uri
    client = MlflowClient(uri)

    os.mkfifo(alone.folder / "go.pipe")
    running = alone.start(SCRIPT, PIPE="go.pipe")
    assert running.stdout is not None
    run_id = running.stdout.readline().strip()
    assert run_id, running.communicate()
    assert not files_with(alone.home, auth.password)
    with CollectorClient(timeout_s=TIMEOUT_S).reach() as collector:
        status = collector.status()
    assert status.guardian_pid is not None
    for pid in (status.guardian_pid, status.pid, running.pid):
        os.kill(pid, signal.SIGKILL)
    running.wait()
    wait_until(lambda: not alive(status.pid), "the collector is gone")

    # Nobody knows the password any more.
    left = sync(alone, RADT_TRACKING_URI="none")
    assert left.returncode == 1, left.stdout
    assert masked(uri) in left.stdout
    assert "radt sync --tracking-uri URI" in left.stdout
    done = sync(alone)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = alone.reader.runs()
    assert run.tracking_uri == masked(uri) != uri
    found = client.get_run(str(run.mlflow_run_id))
    assert (found.info.status, found.data.params["from"]) == ("KILLED", "the script")
    assert found.data.metrics["loss"] == 1
    assert "***" in done.stdout
    assert auth.password not in done.stdout + done.stderr + left.stdout + left.stderr
    assert not files_with(alone.home, auth.password)


@pytest.mark.parametrize("password", ["SECRET", "TOP SECRET", "p@SECRET", "12 SECRET"])
def test_stores_of_earlier_versions_lose_their_passwords(tmp_path: Path, password: str) -> None:
    path = tmp_path / "radt.db"
    with StoreWriter(path) as writer:
        writer.put_workload(WorkloadRecord("w", "e", "1", created_ns=1, tracking_uri="sqlite:///x"))
    uri = f"https://me:{password}@mlflow.org"
    with sqlite3.connect(path) as store:
        store.execute("UPDATE workload SET tracking_uri = ?", (uri,))
    store.close()
    assert files_with(tmp_path, password)

    with StoreWriter(path) as writer:
        writer.update_workload("w", tracking_uri=uri)
    assert not files_with(tmp_path, "SECRET")
    with sqlite3.connect(path) as store:
        assert store.execute("SELECT tracking_uri FROM workload").fetchone() == (masked(uri),)
    store.close()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:my pass@host/x", "https://***@host/x"),
        ("https://me:p@ss word@host", "https://***@host"),
        ("https://me:12 34@host", "https://***@host"),
        ("http://me:5000@host", "http://***@host"),
        ("https://token@host/y", "https://***@host/y"),
        ("radt 'http://me:my pw@h/x' --notify z", "radt 'http://***@h/x' --notify z"),
        ("https://me:pw@a: moved to https://you:p w@b", "https://***@a: moved to https://***@b"),
        (
            "http://mlflow:5000/x is down, write to a@b",
            "http://mlflow:5000/x is down, write to a@b",
        ),
        ("http://[::1]:5000/ is down, write to a@b", "http://[::1]:5000/ is down, write to a@b"),
        ("sqlite:////home/me@work/a.db", "sqlite:////home/me@work/a.db"),
        ("postgresql://u@/db?password=x&host=/t", "postgresql://***@/db?password=***&host=/t"),
    ],
)
def test_users_and_passwords_are_hidden_once(text: str, shown: str) -> None:
    assert masked(text) == shown
    assert masked(shown) == shown
