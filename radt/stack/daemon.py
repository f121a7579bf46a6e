"""A server process of ours: started apart from whoever starts it, found again, ended.

A note beside its log says which process it is, by number and start time, so that a number that
the kernel has given to somebody else is never taken for it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from radt.errors import StackError
from radt.procfs import process_stat

LOOPBACK = "127.0.0.1"
#: SeaweedFS takes another port 10,000 above some of its own.
_PORTS = range(15_000, 22_000)
_PORT_TRIES = 200
#: The log starts anew at this size; the one before is kept beside it.
_MAX_LOG_BYTES = 20_000_000
#: How long a port may stay taken after the process that held it.
_CLOSING_S = 3.0
#: Between two looks at something that takes its time.
_LOOK_S = 0.05
#: How much of a log an error quotes.
_QUOTED_LINES = 8
_OWN = 0o600


@dataclass(frozen=True, slots=True)
class Identity:
    """A process, told from a later one of the same number; ``boot`` tells boots apart."""

    pid: int
    started_ticks: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> Identity | None:
        """Of a process that is there."""
        stat = process_stat(pid)
        if stat is None or not stat.alive:
            return None
        return cls(pid, stat.started_ticks, _boot_id())

    @property
    def alive(self) -> bool:
        return Identity.of(self.pid) == self


class Daemon:
    """One server, which is a process or the head of a session of processes.

    Args:
        name: Of its note and its log.
        folder: Where these lie.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._note = folder / f"{name}.process"
        self._told = folder / f"{name}.told"
        self._claim = folder / f"{name}.claim"
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def identity(self) -> Identity | None:
        """Which process was started last, be it alive or not."""
        try:
            return Identity(**json.loads(self._note.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):  # written in part, as the machine went down
            return None

    def was_told(self, what: Mapping[str, str]) -> bool:
        """Whether it was started with these variables (`start`)."""
        try:
            return self._told.read_text(encoding="ascii") == _digest(what)
        except FileNotFoundError:
            return False

    @property
    def pid(self) -> int | None:
        """Its number while it is alive."""
        if self._child is not None:
            self._child.poll()  # takes leave of it if it has ended
        known = self.identity
        return known.pid if known is not None and known.alive else None

    def start(self, command: Sequence[str], told: Mapping[str, str], cwd: Path) -> None:
        """Start it; whether it works is for the caller to see (`wait_until`).

        Args:
            command: What to run.
            told: Variables beside those of this process that are no other server's.
            cwd: Its current folder.

        Raises:
            StackError: It cannot be started.
        """
        self.end_remains()
        _rotate(self.log)
        try:
            with open_private(self.log, "ab") as log, open_private(self._claim, "ab") as claim:
                self._child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=cwd,
                    env={**plain_environ(os.environ), **told},
                    start_new_session=True,
                    pass_fds=[claim.fileno()],
                )
        except OSError as error:
            raise StackError(f"{self.name} cannot be started: {error}") from error
        identity = Identity.of(self._child.pid)
        if identity is None:
            raise self.ended()
        write_private(self._told, _digest(told))
        write_private(self._note, json.dumps(asdict(identity)))

    def _claimed(self) -> list[int]:
        """Processes that hold the file which a server inherits (`start`), and thereby are ours.

        Whoever starts a server and is killed before it has noted which that is leaves one that is
        known by this alone; two on the same data would spoil them.
        """
        mine = str(self._claim.absolute())
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            if mine in _open_files(entry / "fd"):
                found.append(int(entry.name))
        return found

    def wait_until(self, answers: Callable[[], bool], timeout_s: float) -> None:
        """Return when it answers.

        Raises:
            StackError: It has ended, or does not answer in time.
        """
        deadline = time.monotonic() + timeout_s
        while not answers():
            if self.pid is None:
                raise self.ended()
            if time.monotonic() > deadline:
                raise StackError(
                    f"{self.name} does not answer after {timeout_s:.0f} s", f"Look into {self.log}"
                )
            time.sleep(_LOOK_S)

    def ended(self) -> StackError:
        """What to say of a server that has ended by itself."""
        said = last_lines(self.log)
        return StackError(
            f"{self.name} has ended" + (f": {said}" if said else ""), f"Look into {self.log}"
        )

    def stop(self, timeout_s: float = 20.0) -> None:
        """End it politely, and what is left of it then, firmly."""
        if (pid := self.pid) is not None:
            _signal(pid, signal.SIGTERM)
            wait_gone(lambda: self.pid is None, timeout_s)
        self.end_remains()
        self._note.unlink(missing_ok=True)

    def kill(self) -> None:
        """SIGKILL to all of it at once; the note stays, as after a crash."""
        self.end_remains()

    def end_remains(self) -> None:
        """SIGKILL whatever of it is still there, such as workers whose head was killed.

        Raises:
            StackError: It does not end.
        """
        known = self.identity
        if known is not None and known.boot != _boot_id():
            known = None

        def remains() -> list[int]:
            return [*self._claimed(), *(session_members(known) if known is not None else ())]

        for pid in remains():
            _signal(pid, signal.SIGKILL)
        if self._child is not None and known is not None and self._child.pid == known.pid:
            self._child.wait()
        if not wait_gone(lambda: not remains(), 20.0):
            raise StackError(f"{self.name} {remains()} does not end", "Is its disk gone?")


def _open_files(folder: Path) -> Iterator[str]:
    try:
        files = list(folder.iterdir())
    except OSError:  # gone, or another user's
        return
    for file in files:
        try:
            yield str(file.readlink())
        except OSError:
            continue  # closed meanwhile


def session_members(head: Identity) -> list[int]:
    """Live processes of a session, its head among them; none of a later session of that number."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        pid = int(entry.name)
        try:
            if os.getsid(pid) != head.pid:
                continue
        except ProcessLookupError:
            continue
        stat = process_stat(pid)
        if stat is None or not stat.alive or stat.started_ticks < head.started_ticks:
            continue
        if pid == head.pid and stat.started_ticks != head.started_ticks:
            return []
        found.append(pid)
    return found


def wait_gone(gone: Callable[[], bool], timeout_s: float) -> bool:
    """Whether it is gone in time."""
    deadline = time.monotonic() + timeout_s
    while not gone():
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_S)
    return True


def free_port(preferred: int = 0) -> int:
    """A port of the loopback interface that nobody listens on; ``preferred`` if that is free.

    Not one of those that the kernel gives to outgoing connections (`ip_local_port_range`, from
    32768 on): a server that was down for a minute shall find its port free.

    Raises:
        StackError: None is free.
    """
    for _ in range(_PORT_TRIES):
        port = preferred or secrets.choice(_PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port))
            except OSError as error:
                if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
                preferred = 0
            else:
                return port
    raise StackError("no port of the loopback interface is free", "Which program listens on all?")


def chosen_port(asked_for: int, last: int) -> int:
    """The port that was asked for, 0 for none; else the one it had last, if that is free.

    Raises:
        StackError: It is not free, and was asked for.
    """
    wanted = asked_for or last
    if wanted:
        # The threads of a process that was killed may hold its port a moment longer than it is.
        wait_gone(lambda: free_port(wanted) == wanted, _CLOSING_S)
    found = free_port(wanted)
    if asked_for and found != asked_for:
        raise StackError(
            f"another program listens on port {asked_for}", "Stop it, or choose another port"
        )
    return found


def listening(port: int) -> bool:
    """Whether somebody accepts connections there."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1):
            return True
    except OSError:
        return False


def open_private(path: Path, mode: Literal["ab", "wb"]) -> BinaryIO:
    """Open for writing a file that only its owner may read."""
    return open(path, mode, opener=lambda name, flags: os.open(name, flags, _OWN))


def plain_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables for a server, without what other servers and runs are told."""
    found = {
        name: value
        for name, value in environ.items()
        if not name.startswith(("AWS_", "MLFLOW_", "PG", "RADT_", "STACK_"))
    }
    if path := found.get("PYTHONPATH"):  # a server has another current folder
        parts = (str(Path(part).absolute()) for part in path.split(os.pathsep) if part)
        found["PYTHONPATH"] = os.pathsep.join(parts)
    return found


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read; it is there whole or not at all."""
    part = path.with_name(f"{path.name}.part")
    with open_private(part, "wb") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def last_lines(log: Path) -> str:
    """The end of a log, in one line."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return " | ".join(line.strip() for line in lines[-_QUOTED_LINES:] if line.strip())


def _digest(told: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(dict(told), sort_keys=True).encode()).hexdigest()


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it has ended by itself


def _rotate(path: Path) -> None:
    if path.exists() and path.stat().st_size > _MAX_LOG_BYTES:
        path.replace(path.with_suffix(".old.log"))


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
