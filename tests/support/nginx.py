"""nginx as a reverse proxy, on loopback, with its files in a folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.daemon import LOOPBACK, Answers, Daemon, ServerError, kept_port, listening

#: Paths that Debian's package has below /var.
_FOLDERS = "".join(
    f"{name}_temp_path {name}; " for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
)


class Nginx(Answers):
    """One nginx, as one process.

    Args:
        folder: Of its files.
        location: What its server has: ``location /radt/ { proxy_pass http://…; }``.
    """

    def __init__(self, folder: Path, location: str) -> None:
        self._folder = folder
        self._daemon = Daemon("nginx", folder)
        self.port = kept_port(folder / "nginx.port")
        (folder / "nginx.conf").write_text(
            "daemon off; master_process off; pid nginx.pid; error_log stderr; events {}\n"
            f"http {{ access_log off; {_FOLDERS}\n"
            f"server {{ listen {LOOPBACK}:{self.port}; proxy_set_header Host $http_host;\n"
            f"{location} }} }}\n"
        )

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int | None:
        return self._daemon.pid

    @property
    def answers(self) -> bool:
        return listening(self.port)

    def start(self) -> None:
        """Start it, and return when it answers."""
        program = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
        if program is None:
            raise ServerError("nginx is not installed. Run: sh tests/system_packages.sh")
        folder = self._folder
        command = [program, "-p", f"{folder}/", "-c", str(folder / "nginx.conf"), "-e", "stderr"]
        self._daemon.start(command, {}, folder)
        self._daemon.wait_answers(self)

    def stop(self) -> None:
        self._daemon.stop()


@contextmanager
def nginx(folder: Path, location: str) -> Iterator[Nginx]:
    """An nginx from its start to its end."""
    server = Nginx(folder, location)
    server.start()
    try:
        yield server
    finally:
        server.stop()
