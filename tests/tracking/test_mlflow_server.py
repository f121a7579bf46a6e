"""Delivery over HTTP to a real ``mlflow server``, which takes long to start: one for all tests.

The port is held from the beginning, so that the first test meets a server that is down.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from radt.home import Home, RunDir
from radt.model import RunStatus
from radt.tracking.artifacts import artifact_path
from radt.tracking.mlflow_target import DeliveryError, MlflowTarget, Trouble
from tests.tracking.lab import Lab, closing, count_points, finish, make_lab, poke, wait_until


@dataclass
class Server:
    """An MLflow server that is started when it is first needed."""

    folder: Path
    port: int
    reserved: socket.socket
    process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def database(self) -> Path:
        return self.folder / "server.db"

    def up(self) -> None:
        """Start it, unless it runs, and wait until it answers."""
        if self.process is None:
            self.reserved.close()
            with (self.folder / "server.log").open("wb") as log:
                options = {
                    "--host": "127.0.0.1",
                    "--port": str(self.port),
                    "--workers": "1",
                    "--backend-store-uri": f"sqlite:///{self.database}",
                    "--artifacts-destination": str(self.folder / "artifacts"),
                }
                arguments = [word for option in options.items() for word in option]
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "mlflow", "server", *arguments],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        wait_until(self._healthy, "the MLflow server is up", deadline_s=120)

    def _healthy(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "server.log").read_text()
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def down(self) -> None:
        self.reserved.close()
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, 9)
            self.process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, mlflow_template: Path) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "server.db").write_bytes(mlflow_template.read_bytes())
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    made = Server(folder, reserved.getsockname()[1], reserved)
    yield made
    made.down()


@pytest.fixture
def remote(tmp_path: Path, server: Server) -> Iterator[Lab]:
    """A data folder whose runs go to the server."""
    home = Home(tmp_path / "radt-data").create()
    with closing(make_lab(home, server.uri)) as lab:
        yield lab


def test_server_down_at_the_start_then_up(remote: Lab, server: Server) -> None:
    assert server.process is None, "this test comes first"
    (early,) = remote.add_workload()
    finish(remote.start_deliverer())  # gives up in the end: its collector has gone
    assert remote.record(early).mlflow_run_id is None
    assert "no connection: connection refused" in remote.log_text()

    process = remote.start_deliverer()
    wait_until(
        lambda: f" {process.pid} WARNING radt.tracking" in remote.log_text(), "it met nobody"
    )
    (late,) = remote.add_workload(label="2")
    poke(process)
    remote.log(early, "loss", [1.0, 2.0])
    remote.end(early, RunStatus.KILLED)
    server.up()

    wait_until(lambda: remote.record(late).mlflow_run_id, "the server has the runs")
    wait_until(
        lambda: (
            [run.run_id for run in remote.reader.runs_to_deliver(remote.tracking_uri)]
            == [late.run_id]
        ),
        "delivered",
    )
    finish(process)
    assert remote.mlflow_run(early).info.status == "KILLED"
    assert [value for _, value, _ in remote.history(early, "loss")] == [1.0, 2.0]
    assert remote.mlflow_run(late).info.status == "RUNNING"


def test_everything_of_a_run_over_http(remote: Lab, server: Server) -> None:
    server.up()
    hostile = "ünï 'q' \"d\"\nx, 精度 100 % #1?"
    (run,) = remote.add_workload(experiment=hostile, label="7", name=hostile)
    remote.start(run)
    remote.writer.put_params(run.run_id, {hostile: hostile, "long": "x" * 7000})
    remote.log(run, hostile, [0.5, float("nan"), float("inf"), float("-inf")])
    remote.log(run, "many", [float(i) for i in range(2500)], series_no=1, interval_ns=1000)
    remote.log(run, "cpu", [0.5] * 25, series_no=2, listener="top")
    spool = RunDir(Path(run.spool))
    folder = spool.artifacts / hostile.replace("/", "").replace("\n", " ")
    folder.mkdir()
    (folder / "a file.txt").write_text("content")
    spool.output_log.write_text("printed\n")
    remote.end(run, RunStatus.FAILED, "exit code 1")

    finish(remote.start_deliverer())

    found = remote.mlflow_run(run)
    assert remote.reader.runs_to_deliver(remote.tracking_uri) == [], remote.log_text()
    assert found.info.status == "FAILED"
    assert hostile in found.data.params.values()
    (key,) = {tag for tag in found.data.tags if tag.startswith("radt.metric.")}
    assert found.data.tags[key] == hostile
    biggest = 1.7976931348623157e308
    values = [repr(v) for _, v, _ in remote.history(run, key.removeprefix("radt.metric."))]
    assert values == ["0.5", "nan", repr(biggest), repr(-biggest)]
    assert count_points(server.database, remote.mlflow_id(run), "many") == 2500
    assert len(remote.history(run, "system/cpu")) == 3
    paths = {
        file.path
        for folder in remote.client.list_artifacts(remote.mlflow_id(run))
        for file in (
            remote.client.list_artifacts(remote.mlflow_id(run), folder.path)
            if folder.is_dir
            else [folder]
        )
    }
    assert "output.log" in paths
    assert f"{artifact_path(folder.name)}/a file.txt" in paths, remote.log_text()


def test_run_deleted_on_the_server(remote: Lab, server: Server) -> None:
    server.up()
    gone, kept = remote.add_workload(2)
    remote.deliver_all()
    remote.client.delete_run(remote.mlflow_id(gone))
    for run in (gone, kept):
        remote.log(run, "loss", [1.0])
        remote.end(run)
    remote.deliver_all()
    assert remote.reader.runs_to_deliver(remote.tracking_uri) == []
    assert remote.mlflow_run(kept).info.status == "FINISHED"


def test_at_an_address_that_is_no_mlflow_nothing_is_given_up(remote: Lab, server: Server) -> None:
    server.up()
    with pytest.raises(DeliveryError) as caught:
        MlflowTarget(f"{server.uri}/static-files").connect()
    assert caught.value.trouble in (Trouble.UNREACHABLE, Trouble.BUSY)
