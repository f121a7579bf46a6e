"""A server process that tests start, kill, start again, and find again from another process.

A note beside its log holds its process number and start time, so that a number which the kernel has
given to another process is never taken for it.
"""

from __future__ import annotations

import errno
import os
import secrets
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from radt.procfs import process_stat
from tests.support.waiting import wait_until

LOOPBACK = "127.0.0.1"
_PORTS = range(15_000, 22_000)
#: Each worker of a test run has every so many-th of them: nobody else takes one that it has chosen
#: before its server listens there.
_MOST_WORKERS = 16
#: Ports that were given lately: their servers may not listen there yet.
_given: deque[int] = deque(maxlen=100)
_PORT_TRIES = 200
_START_S = 300.0
_LOOK_S = 0.1
_QUOTED_LINES = 8


class ServerError(RuntimeError):
    """A server of the tests does not start, answer or end."""


class Daemon:
    """One server: a process that heads a session of its own.

    Args:
        name: Of its note and its log.
        folder: Where both lie.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._note = folder / f"{name}.process"
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Its number while it is alive."""
        if self._child is not None:
            self._child.poll()  # reaps it if it has ended
        head = self._head()
        return head[0] if head is not None and _started(head[0]) == head[1] else None

    def start(self, command: Sequence[str], environ: Mapping[str, str], cwd: Path) -> None:
        """Start it, with ``environ`` beside the variables that name no other server."""
        self.kill()
        with open(self.log, "ab") as log:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=cwd,
                env={**plain_environ(os.environ), **environ},
                start_new_session=True,
            )
        pid = self._child.pid
        part = self._note.with_suffix(".part")
        part.write_text(f"{pid} {_started(pid)}")
        part.replace(self._note)

    def wait_answers(self, server: Answers) -> None:
        """Return when it answers; fail with the end of its log when it has ended."""

        def settled() -> bool:
            return server.answers or self.pid is None

        wait_until(settled, f"{self.name} to answer", _START_S)
        if not server.answers:
            raise ServerError(f"{self.name} has ended: {last_lines(self.log)}")

    def stop(self) -> None:
        """SIGTERM, and SIGKILL to what is left of its session."""
        if (pid := self.pid) is not None:
            _signal(pid, signal.SIGTERM)
            wait_until(lambda: self.pid is None, f"the end of {self.name}")
        self.kill()
        self._note.unlink(missing_ok=True)

    def kill(self) -> None:
        """SIGKILL to its whole session; the note stays, as after a crash."""
        head = self._head()
        if head is None:
            return
        for pid in session_members(*head):
            _signal(pid, signal.SIGKILL)
        if self._child is not None and self._child.pid == head[0]:
            self._child.wait()
        wait_until(lambda: not session_members(*head), f"the end of {self.name}")

    def _head(self) -> tuple[int, int] | None:
        try:
            pid, started = self._note.read_text(encoding="ascii").split()
        except FileNotFoundError:
            return None
        return int(pid), int(started)


class Answers(Protocol):
    """A server that can be asked whether it answers."""

    @property
    def pid(self) -> int | None:
        """Its number while it is alive."""
        ...

    @property
    def answers(self) -> bool:
        """Whether it answers now."""
        ...


def is_there(server: Answers) -> bool:
    """Whether it runs and answers: a busy one takes its time, and is not to be started anew while
    others use it."""
    deadline_s = time.monotonic() + _START_S
    while server.pid is not None and time.monotonic() < deadline_s:
        if server.answers:
            # Asked again: the children of a head that was just killed may answer.
            return server.pid is not None
        time.sleep(_LOOK_S)
    return False


def session_members(head: int, started_ticks: int) -> list[int]:
    """Live processes of a session; none if a later process has its number."""
    members = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        pid = int(entry.name)
        try:
            if os.getsid(pid) != head:
                continue
        except ProcessLookupError:
            continue
        started = _started(pid)
        if pid == head and started not in (None, started_ticks):
            return []
        if started is not None and started >= started_ticks:
            members.append(pid)
    return members


def free_port(preferred: int = 0) -> int:
    """A loopback port that nobody listens on; ``preferred`` if that is free.

    Nor one of the last hundred that were given, whose servers may not listen yet. Not one of those
    that the kernel gives to outgoing connections (from 32768 on): a server that was down for a
    minute finds its port free.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    for _ in range(_PORT_TRIES):
        port = preferred or secrets.choice(_PORTS[worker % _MOST_WORKERS :: _MOST_WORKERS])
        if port in _given and not preferred:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port))
            except OSError as error:
                if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
                preferred = 0
            else:
                _given.append(port)
                return port
    raise ServerError("every loopback port is taken")


def kept_port(file: Path) -> int:
    """The port noted in a file, if it is free once its last owner's threads have let go of it;
    otherwise a free one, which is noted."""
    preferred = read_port(file)
    if preferred:
        try:
            wait_until(lambda: free_port(preferred) == preferred, "the port", 3)
        except AssertionError:
            preferred = 0  # another program has it
    port = free_port(preferred)
    file.write_text(f"{port}\n", encoding="ascii")
    return port


def read_port(file: Path) -> int:
    """The port noted in a file, 0 if none is."""
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def listening(port: int) -> bool:
    """Whether somebody accepts connections there."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1):
            return True
    except OSError:
        return False


def plain_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables for a server, without those that name other servers and runs."""
    plain = {
        name: value
        for name, value in environ.items()
        if not name.startswith(("AWS_", "MLFLOW_", "PG", "RADT_"))
    }
    if path := plain.get("PYTHONPATH"):  # a server has another current folder
        parts = (str(Path(part).absolute()) for part in path.split(os.pathsep) if part)
        plain["PYTHONPATH"] = os.pathsep.join(parts)
    return plain


def last_lines(log: Path) -> str:
    """The end of a log, in one line."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return " | ".join(line.strip() for line in lines[-_QUOTED_LINES:] if line.strip())


def _started(pid: int) -> int | None:
    stat = process_stat(pid)
    return stat.started_ticks if stat is not None and stat.alive else None


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it has ended meanwhile
