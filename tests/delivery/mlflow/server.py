"""A plain ``mlflow server`` on SQLite, which takes all hosts' names of loopback: links may stand
before it. It can be killed and started again on the same port."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from tests.delivery.mlflow.lab import wait_until
from tests.support.links import HOST


@dataclass
class Server:
    """Artifacts go through it unless an experiment says otherwise."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def database(self) -> Path:
        return self.folder / "server.db"

    def up(self) -> None:
        """Start it, unless it runs, and wait until it answers."""
        if self.process is None:
            with (self.folder / "server.log").open("ab") as log:
                options = {
                    "--host": HOST,
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
                    env=os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
                )
        wait_until(self._healthy, "the MLflow server is up", deadline_s=120)

    def kill(self) -> None:
        """SIGKILL to all of it."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, 9)
            self.process.wait()
            self.process = None

    def _healthy(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "server.log").read_text()
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def free_port() -> int:
    """One that nobody has at the moment."""
    with socket.socket() as one:
        one.bind((HOST, 0))
        return int(one.getsockname()[1])
