"""The dashboard as a server of the stack."""

from __future__ import annotations

import http.client
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlencode

from radt.stack.daemon import LOOPBACK, Daemon, chosen_port, write_private
from radt.stack.services import dashboard_command

_START_S = 60.0


class DashboardServer:
    """One server on loopback, which asks for a token.

    Args:
        folder: Of its log, its port and what it keeps.
        environ: What it is told (`radt.stack.services.dashboard_environment`).
        port: 0 for a free one, which is kept.
    """

    name = "dashboard"

    def __init__(self, folder: Path, environ: Mapping[str, str], port: int = 0) -> None:
        self.folder = folder.absolute()
        self._environ = environ
        self._asked_for = port
        self._daemon = Daemon("dashboard", self.folder)

    @property
    def port(self) -> int:
        """The port it has, had last, or shall have; 0 if that is still open."""
        try:
            return int((self.folder / "dashboard.port").read_text(encoding="ascii"))
        except (OSError, ValueError):
            return self._asked_for

    @property
    def url(self) -> str:
        """What to open in a browser, with the token."""
        return f"http://{LOOPBACK}:{self.port}{self._path}"

    @property
    def log(self) -> Path:
        return self._daemon.log

    @property
    def pid(self) -> int | None:
        return self._daemon.pid

    @property
    def answers(self) -> bool:
        """Whether it takes the token."""
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=30)
        try:
            connection.request("GET", self._path)
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        return status < http.HTTPStatus.BAD_REQUEST

    @property
    def runs(self) -> bool:
        """Whether it runs, answers, and was told what it would be told now."""
        if self.pid is None or self._asked_for not in (0, self.port):
            return False
        if not self._daemon.was_told(self._told) or not self.answers:
            return False
        return self.pid is not None  # the workers of a head that was just killed may answer

    def start(self) -> None:
        """Start it, and return when it answers; harmless if it runs.

        Raises:
            StackError: It cannot be started.
        """
        if self.runs:
            return
        self._daemon.stop()
        self.folder.mkdir(parents=True, exist_ok=True)
        port = chosen_port(self._asked_for, self.port)
        write_private(self.folder / "dashboard.port", f"{port}\n")
        command = [sys.executable, "-P", "-m", "radt", *dashboard_command(LOOPBACK, port)]
        self._daemon.start(command, self._told, self.folder)
        self._daemon.wait_until(lambda: self.answers, _START_S)

    def stop(self) -> None:
        self._daemon.stop()

    def kill(self) -> None:
        self._daemon.kill()

    @property
    def _told(self) -> dict[str, str]:
        return {"RADT_HOME": str(self.folder), **self._environ}

    @property
    def _path(self) -> str:
        return "/?" + urlencode({"token": self._environ["RADT_DASHBOARD_TOKEN"]})
