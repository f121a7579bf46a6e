"""A Postgres cluster in a folder, on loopback, of the binaries that are installed.

::

    FOLDER/
    ├── data/            the cluster, of the user it runs as
    ├── postgres.log
    └── postgres.port    the port it had last, and has again

Postgres does not run as root. Root has it run as the user ``postgres``, which Debian's and Red
Hat's packages make.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from radt import procfs
from radt.errors import StackError
from radt.stack.daemon import LOOPBACK, free_port, last_lines, wait_gone

SUPERUSER = "postgres"
_UNPRIVILEGED = "postgres"
_PLACES = (
    "/usr/lib/postgresql/*/bin",  # Debian and its kin
    "/usr/pgsql-*/bin",  # Red Hat and its kin, packages of postgresql.org
    "/opt/homebrew/opt/postgresql@*/bin",
)
_NEEDED = ("initdb", "pg_ctl", "postgres")
_WAITING = ("--wait", "--timeout=60", "--silent")
HOW_TO_INSTALL = (
    "Install Postgres: apt install postgresql (its binaries in /usr/lib/postgresql are found), "
    "or put a folder with pg_ctl on PATH"
)
#: What a throwaway cluster does without: what keeps data over a power cut. It keeps what it has
#: committed over SIGKILL, for which synchronous_commit must stay on.
THROWAWAY = {"fsync": "off", "full_page_writes": "off"}


@dataclass(frozen=True, slots=True)
class Binaries:
    """Where Postgres' programs are, and of which major version."""

    folder: Path
    major: int

    @classmethod
    def find(cls, major: int | None = None) -> Binaries:
        """The newest, or those of one major version.

        Raises:
            StackError: There are none.
        """
        found = [one for one in _installed() if major in (None, one.major)]
        if not found:
            which = "" if major is None else f" {major}, which made this cluster,"
            raise StackError(f"Postgres{which} is not installed here", HOW_TO_INSTALL)
        return max(found, key=lambda one: one.major)

    def __getitem__(self, program: str) -> str:
        return str(self.folder / program)


def _installed() -> Iterator[Binaries]:
    folders = [Path(folder) for place in _PLACES for folder in sorted(Path("/").glob(place[1:]))]
    if on_path := shutil.which("pg_ctl"):
        folders.append(Path(on_path).resolve().parent)
    for folder in folders:
        if not all((folder / program).exists() for program in _NEEDED):
            continue
        said = subprocess.run(
            [folder / "postgres", "--version"], capture_output=True, text=True, check=False
        ).stdout
        if version := re.search(r"\) (\d+)", said):
            yield Binaries(folder, int(version[1]))


class Postgres:
    """One cluster.

    Args:
        folder: Made if it is not there.
        password: Of the superuser, ``postgres``.
        settings: More of ``postgresql.conf``, such as ``{"fsync": "off"}``.
        port: To begin with; 0 for a free one. Another one is taken, and remembered, if it is not
            free.
    """

    name = "Postgres"

    def __init__(
        self, folder: Path, password: str, settings: Mapping[str, str] | None = None, port: int = 0
    ) -> None:
        self.folder = folder.absolute()
        self.data = self.folder / "data"
        self.log = self.folder / "postgres.log"
        self._password = password
        self._settings = dict(settings or {})
        self._preferred_port = port

    # What it is at --------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """The port it has, had last, or shall have; 0 if that is still open."""
        try:
            return int((self.folder / "postgres.port").read_text(encoding="ascii"))
        except (OSError, ValueError):
            return self._preferred_port

    @property
    def pid(self) -> int | None:
        """The server's process while it is alive."""
        try:
            first = (self.data / "postmaster.pid").read_text(encoding="ascii").split("\n", 1)[0]
            pid = int(first)
        except (OSError, ValueError):
            return None
        return pid if self._is_ours(pid) else None

    def uri(self, database: str = "postgres", user: str = SUPERUSER, password: str = "") -> str:
        """For SQLAlchemy and libpq alike. Holds the password; show it ``masked`` only."""
        secret = quote(password or self._password, safe="")
        return f"postgresql://{quote(user)}:{secret}@{LOOPBACK}:{self.port}/{quote(database)}"

    def connect(self, database: str = "postgres") -> Any:
        """A connection of psycopg2 as superuser, in autocommit.

        Raises:
            StackError: It does not answer.
        """
        import psycopg2

        try:
            connection = psycopg2.connect(
                host=LOOPBACK,
                port=self.port,
                user=SUPERUSER,
                password=self._password,
                dbname=database,
                connect_timeout=10,
            )
        except psycopg2.OperationalError as error:
            raise StackError(
                f"Postgres on port {self.port} does not let us in: {str(error).strip()}",
                f"Look into {self.log}",
            ) from error
        connection.autocommit = True
        return connection

    @property
    def answers(self) -> bool:
        """Whether it takes commands, with the password that is known."""
        try:
            connection = self.connect()
        except StackError:
            return False
        connection.close()
        return True

    @property
    def runs(self) -> bool:
        """Whether it runs and answers."""
        if self.pid is None or not self.answers:
            return False
        return self.pid is not None  # children of a head that was just killed may answer

    # What can be done with it ----------------------------------------------------------------

    def start(self) -> None:
        """Make the cluster if there is none, start it, and return when it answers.

        Harmless if it runs. After a crash Postgres recovers by itself.

        Raises:
            StackError: It cannot be made or started.
        """
        if self.runs:
            return
        binaries = self._binaries()
        if not (self.data / "PG_VERSION").exists():
            self._make(binaries)
        self._end_remains()
        port = free_port(self.port)
        (self.folder / "postgres.port").write_text(f"{port}\n", encoding="ascii")
        self._configure(port)
        done = self._run(
            [binaries["pg_ctl"], "start", f"--pgdata={self.data}", f"--log={self.log}", *_WAITING]
        )
        if done.returncode != 0 or not self.answers:
            said = last_lines(self.log) or f"pg_ctl ended with exit code {done.returncode}"
            raise StackError(f"Postgres cannot be started: {said}", f"Look into {self.log}")

    def stop(self) -> None:
        """End it, closing its clients' connections; harmless if it does not run.

        Raises:
            StackError: It does not end.
        """
        if self.pid is None:
            return
        done = self._run(
            [self._binaries()["pg_ctl"], "stop", f"--pgdata={self.data}", "--mode=fast", *_WAITING]
        )
        if done.returncode != 0 and self.pid is not None:
            raise StackError("Postgres does not end", f"Look into {self.log}")

    def kill(self) -> None:
        """SIGKILL to all its processes, as a crash would; return when they are gone."""
        head = self.pid
        if head is None:
            return
        pids = [head, *_children(head)]
        for pid in pids:
            _kill(pid)
        if not wait_gone(lambda: not any(_alive(pid) for pid in pids), 20.0):
            raise StackError("Postgres cannot be killed", "Is its disk gone?")

    # How -------------------------------------------------------------------------------------

    def _binaries(self) -> Binaries:
        try:
            text = (self.data / "PG_VERSION").read_text(encoding="ascii")
        except FileNotFoundError:
            return Binaries.find()
        return Binaries.find(int(text))

    def _make(self, binaries: Binaries) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        unfinished = self.folder / "data.part"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        if not self.log.exists():
            self.log.touch(mode=0o600)
        self._give_away(unfinished, self.log)
        with tempfile.NamedTemporaryFile("w", prefix="radt-", encoding="utf-8") as secret:
            secret.write(self._password + "\n")  # mode 600, and gone in a second
            secret.flush()
            self._give_away(Path(secret.name))
            done = self._run(
                [binaries["initdb"], f"--pgdata={unfinished}", f"--username={SUPERUSER}"]
                + [f"--pwfile={secret.name}", "--auth=scram-sha-256", "--encoding=UTF8"]
                + ["--locale=C.UTF-8", "--data-checksums"]
                + (["--no-sync"] if self._settings.get("fsync") == "off" else [])
            )
        if done.returncode != 0:
            raise StackError(
                f"Postgres cannot make a cluster in {self.folder}: {done.stderr.strip()}",
                self._remedy_for_place(),
            )
        unfinished.replace(self.data)

    def _configure(self, port: int) -> None:
        settings = {
            "listen_addresses": LOOPBACK,
            "port": str(port),
            "unix_socket_directories": "",  # a path of 107 characters at most, and not needed
            "max_connections": "200",
            "password_encryption": "scram-sha-256",
            "log_min_duration_statement": "-1",
            "log_statement": "none",  # statements may hold passwords
            **self._settings,
        }
        lines = [f"{name} = '{value}'\n" for name, value in settings.items()]
        own = self.data / "radt.conf"
        own.write_text("".join(lines), encoding="utf-8")
        main = self.data / "postgresql.conf"
        include = "include 'radt.conf'\n"
        text = main.read_text(encoding="utf-8")
        if include not in text:
            main.write_text(text + include, encoding="utf-8")
        self._give_away(own, main)

    def _end_remains(self) -> None:
        """After a kill of the head alone its children take a moment; a note may be stale."""
        note = self.data / "postmaster.pid"
        if not note.exists():
            return
        if self.pid is not None:  # alive, but it does not answer
            self.stop()
            return
        wait_gone(lambda: not any(self._is_ours(pid) for pid in _processes()), 20.0)
        note.unlink(missing_ok=True)

    def _is_ours(self, pid: int) -> bool:
        """Whether this process is of this cluster: all have its folder as the current one."""
        stat = procfs.process_stat(pid)
        if stat is None or not stat.alive:
            return False
        try:
            return Path(f"/proc/{pid}/cwd").resolve(strict=True) == self.data.resolve()
        except OSError:
            return False

    def _run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        user = _runs_as()
        environ = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "LANG": "C"}
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # inherited by the server: a pipe would never end
            stderr=subprocess.PIPE if "initdb" in command[0] else subprocess.DEVNULL,
            text=True,
            cwd="/",
            env=environ,
            check=False,
            start_new_session=True,  # Ctrl-C of whoever starts it is not for it
            user=user and user.pw_uid,
            group=user and user.pw_gid,
            extra_groups=user and [],
        )

    def _give_away(self, *paths: Path) -> None:
        if user := _runs_as():
            for path in paths:
                os.chown(path, user.pw_uid, user.pw_gid)

    def _remedy_for_place(self) -> str:
        if user := _runs_as():
            return (
                f"Started by root, Postgres runs as {user.pw_name}, which must reach this folder: "
                "take one below /var/lib or /srv, or start it as another user than root"
            )
        return "Is the disk full, or the folder somebody else's?"


def _runs_as() -> pwd.struct_passwd | None:
    """The user that Postgres runs as instead of root; None if we are not root."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(_UNPRIVILEGED)
    except KeyError:
        raise StackError(
            "Postgres does not run as root, and there is no user postgres",
            "Start it as another user than root, or make one: useradd --system postgres",
        ) from None


def _processes() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _children(parent: int) -> list[int]:
    stats = (procfs.process_stat(pid) for pid in _processes())
    return [stat.pid for stat in stats if stat is not None and stat.parent == parent]


def _alive(pid: int) -> bool:
    stat = procfs.process_stat(pid)
    return stat is not None and stat.alive


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it has ended by itself
