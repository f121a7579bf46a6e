"""A Postgres cluster in a folder, on loopback, from the newest binaries that are installed.

Postgres refuses to run as root: root runs it as the user ``postgres``, as Debian's package does.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg2

from radt import procfs
from tests.support.daemon import (
    LOOPBACK,
    Answers,
    ServerError,
    is_there,
    kept_port,
    last_lines,
    read_port,
)
from tests.support.waiting import wait_until

SUPERUSER = "postgres"
_UNPRIVILEGED = "postgres"
_WAITING = ("--wait", "--timeout=180", "--silent")
#: Gives up what keeps data over a power cut. Over SIGKILL it keeps what it has committed, for which
#: synchronous_commit must stay on. A test that hangs in a statement fails: libpq hears no signals.
THROWAWAY = {"fsync": "off", "full_page_writes": "off", "statement_timeout": "600s"}


def binaries() -> Path:
    """The folder of the newest installed Postgres' programs."""
    folders = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name)
    )
    if pg_ctl := shutil.which("pg_ctl"):
        folders.append(Path(pg_ctl).resolve().parent)
    if not folders:
        raise ServerError("Postgres is not installed. Run: sh tests/system_packages.sh")
    return folders[-1]


class Postgres(Answers):
    """One cluster.

    Args:
        folder: Made if it does not exist.
        password: Of the superuser, ``postgres``.
        settings: Lines for ``postgresql.conf``, such as ``{"fsync": "off"}``.
    """

    def __init__(
        self, folder: Path, password: str, settings: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder.absolute()
        self.data = self.folder / "data"
        self.log = self.folder / "postgres.log"
        self._port_file = self.folder / "postgres.port"
        self._password = password
        self._settings = dict(settings or {})
        self._name = f"radt-{hashlib.sha256(str(self.data).encode()).hexdigest()[:12]}"

    @property
    def port(self) -> int:
        """The port it has or had last; 0 before its first start."""
        return read_port(self._port_file)

    @property
    def pid(self) -> int | None:
        """The head process while it is alive."""
        try:
            first = (self.data / "postmaster.pid").read_text(encoding="ascii").split("\n", 1)[0]
            pid = int(first)
        except (OSError, ValueError):
            return None
        return pid if pid in self._processes() else None

    def uri(self, database: str = "postgres", user: str = SUPERUSER, password: str = "") -> str:
        """For SQLAlchemy and libpq, with the password."""
        secret = quote(password or self._password, safe="")
        return f"postgresql://{quote(user)}:{secret}@{LOOPBACK}:{self.port}/{quote(database)}"

    def connect(self, database: str = "postgres") -> Any:
        """A connection of psycopg2 as superuser, in autocommit."""
        connection = psycopg2.connect(
            host=LOOPBACK,
            port=self.port,
            user=SUPERUSER,
            password=self._password,
            dbname=database,
            connect_timeout=60,
        )
        connection.autocommit = True
        return connection

    @property
    def answers(self) -> bool:
        """Whether it takes commands, with this password."""
        try:
            self.connect().close()
        except psycopg2.OperationalError:
            return False
        return True

    def start(self) -> None:
        """Make the cluster if there is none, start it, and return when it answers.

        Does nothing if it runs. After a crash Postgres recovers by itself.
        """
        if is_there(self):
            return
        if not (self.data / "PG_VERSION").exists():
            self._make()
        if self.pid is not None:  # alive, but it does not answer
            self.stop()
        # After a kill of the head alone its children take a moment.
        wait_until(lambda: not self._processes(), "the end of Postgres' processes")
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        self._configure(kept_port(self._port_file))
        folders = (f"--pgdata={self.data}", f"--log={self.log}")
        result = self._run("pg_ctl", "start", *folders, *_WAITING)
        if result.returncode != 0 or not self.answers:
            raise ServerError(f"Postgres does not start: {last_lines(self.log)}")

    def stop(self) -> None:
        """End it, closing its clients' connections; does nothing if it does not run."""
        if self.pid is not None:
            self._run("pg_ctl", "stop", f"--pgdata={self.data}", "--mode=fast", *_WAITING)
            wait_until(lambda: self.pid is None, "the end of Postgres")

    def kill(self) -> None:
        """SIGKILL to all its processes, as a crash would; return when they are gone."""
        for pid in self._processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it has ended meanwhile
        wait_until(lambda: not self._processes(), "the end of Postgres' processes")

    def _processes(self) -> list[int]:
        """Live processes of this cluster, by what they are called: root of a container may see no
        more of another user's processes."""
        head, child = f"\0{self.data}\0".encode(), f"postgres: {self._name}: ".encode()
        pids = []
        for pid in procfs.all_pids():
            words = procfs.read(f"/proc/{pid}/cmdline")
            program = words.partition(b"\0")[0]
            if words.startswith(child) or (program.endswith(b"/postgres") and head in words):
                stat = procfs.process_stat(pid)
                if stat is not None and stat.alive:
                    pids.append(pid)
        return pids

    def _make(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        unfinished = self.folder / "data.part"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        self.log.touch(mode=0o600)
        _give_away(unfinished, self.log)
        with tempfile.NamedTemporaryFile("w", prefix="radt-", encoding="utf-8") as secret:
            secret.write(self._password + "\n")
            secret.flush()
            _give_away(Path(secret.name))
            result = self._run(
                "initdb",
                *(f"--pgdata={unfinished}", f"--username={SUPERUSER}"),
                *(f"--pwfile={secret.name}", "--auth=scram-sha-256", "--encoding=UTF8"),
                *("--locale=C.UTF-8", "--data-checksums", "--no-sync"),
            )
        if result.returncode != 0:
            raise ServerError(f"initdb failed in {self.folder}: {result.stderr.strip()}")
        unfinished.replace(self.data)

    def _configure(self, port: int) -> None:
        settings = {
            "listen_addresses": LOOPBACK,
            "port": str(port),
            "cluster_name": self._name,
            "unix_socket_directories": "",  # a path of 107 characters at most, and not needed
            "max_connections": "200",
            "password_encryption": "scram-sha-256",
            **self._settings,
        }
        own = self.data / "radt.conf"
        own.write_text("".join(f"{name} = '{value}'\n" for name, value in settings.items()))
        main = self.data / "postgresql.conf"
        include = "include 'radt.conf'\n"
        text = main.read_text(encoding="utf-8")
        if include not in text:
            main.write_text(text + include, encoding="utf-8")
        _give_away(own, main)

    def _run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        user = _runs_as()
        return subprocess.run(
            [str(binaries() / program), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # inherited by the server: a pipe would never end
            stderr=subprocess.PIPE if program == "initdb" else subprocess.DEVNULL,
            text=True,
            cwd="/",
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "LANG": "C"},
            check=False,
            start_new_session=True,  # Ctrl-C of whoever starts it is not for it
            user=user and user.pw_uid,
            group=user and user.pw_gid,
            extra_groups=user and [],
        )


def _give_away(*paths: Path) -> None:
    if user := _runs_as():
        for path in paths:
            os.chown(path, user.pw_uid, user.pw_gid)


def _runs_as() -> pwd.struct_passwd | None:
    """The user that Postgres runs as instead of root; None if we are not root."""
    return pwd.getpwnam(_UNPRIVILEGED) if os.geteuid() == 0 else None
