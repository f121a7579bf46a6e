"""A fake nvidia-cuda-mps-control whose daemons run until they are told to quit.

As the real one, it is a program that becomes a daemon with ``-d`` and otherwise passes commands on
to the daemon of its pipe directory; the daemon starts a server process with its first client. It
refuses what the real one would refuse, keeps clear of the usual places, and notes what it is asked.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from radt.collocation.mps import MpsServer
from radt.procfs import start_ticks
from tests.support.bench import wait_until

CONTROL = "nvidia-cuda-mps-control"
SERVER = "nvidia-cuda-mps-server"

_SOURCE = r'''#!{python} -IS
"""See tests/support/fake_mps.py."""
import json, os, signal, socket, subprocess, sys, time

HERE = os.environ["FAKE_MPS"]
PIPES = os.environ.get("CUDA_MPS_PIPE_DIRECTORY")
LOGS = os.environ.get("CUDA_MPS_LOG_DIRECTORY")
if not PIPES or not LOGS:
    sys.exit("the fake does not use the usual places")


def note(**what):
    names = ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY",
             "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "RADT_RUN_ID")
    what["env"] = {{name: os.environ[name] for name in names if name in os.environ}}
    what["pid"] = os.getpid()
    with open("/proc/self/stat") as file:
        what["ticks"] = int(file.read().rpartition(")")[2].split()[19])
    with open(HERE + "/calls", "a") as file:
        file.write(json.dumps(what) + "\n")


def mood(what):
    """Whether the test wants this to happen."""
    try:
        with open(HERE + "/mood") as file:
            return what in file.read().splitlines()
    except FileNotFoundError:
        return False


def hang():
    while True:
        time.sleep(3600)


def log(text):
    with open(LOGS + "/control.log", "a") as file:
        file.write("[fake] Control " + text + "\n")


def ask(command):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(PIPES + "/control")
        connection.sendall(command.encode() + b"\n")
        answer = b""
        while piece := connection.recv(4096):
            answer += piece
    return answer.decode()


def running():
    try:
        ask("ping")
    except OSError:
        return False
    return True


class Daemon:
    def __init__(self, listener):
        self.listener = listener
        self.server = None
        self.clients = []

    def serve(self):
        while True:
            connection, _ = self.listener.accept()
            with connection:
                command = connection.makefile().readline().strip()
                if command == "ping":
                    continue
                note(command=command)
                if mood("hang " + command.split()[0]):
                    hang()
                answer, ends = self.answer(command.split())
                log(command)
                if ends:
                    self.end()
                connection.sendall(answer.encode())
            if ends:
                return

    def answer(self, words):
        known = self.server and str(self.server.pid)
        match words:
            case ["get_default_active_thread_percentage"]:
                return "100.0\n", False
            case ["get_server_list"]:
                return (known + "\n" if known else ""), False
            case ["get_client_list", server] if server == known:
                return "".join(client + "\n" for client in self.clients), False
            case ["terminate_client", server, client] if server == known:
                if client not in self.clients:
                    return "Client not found\n", False
                self.clients.remove(client)
                return "", False
            case ["connect", client]:  # a CUDA program does this, in its own way
                if self.server is None:
                    self.server = subprocess.Popen(
                        [os.path.join(HERE, "{server}")],
                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                    )
                self.clients.append(client)
                return str(self.server.pid) + "\n", False
            case ["quit"] | ["quit", "-t", _]:
                return "", not mood("ignore quit")
        return "Unknown command\n", False

    def end(self):
        if self.server is not None:
            self.server.kill()
            self.server.wait()
        self.listener.close()
        for name in os.listdir(PIPES):
            os.unlink(os.path.join(PIPES, name))


def become_daemon():
    note(command="-d")
    if mood("hang -d"):
        hang()
    if mood("fail -d"):
        log("Failed to start: out of luck")
        sys.exit("Failed to start MPS control daemon")
    for folder in (PIPES, LOGS):
        if not os.path.isdir(folder):
            sys.exit("no directory " + folder)
    if running():
        sys.exit("An instance of this daemon is already running")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(PIPES + "/control")
    listener.listen()
    if os.fork():
        if mood("slow -d"):
            hang()
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    if mood("die"):
        log("Cannot allocate a thing")
        os._exit(1)
    note(command="daemon")
    log("Starting control daemon")
    if not mood("no pid file"):
        with open(PIPES + "/new", "w") as file:
            file.write(str(os.getpid()) + "\n")
        os.rename(PIPES + "/new", PIPES + "/{control}.pid")
    Daemon(listener).serve()


def main():
    if sys.argv[1:] == ["-d"]:
        become_daemon()
        return
    if sys.argv[1:]:
        sys.exit("Unknown option " + sys.argv[1])
    for command in sys.stdin.read().splitlines():
        try:
            sys.stdout.write(ask(command))
        except OSError:
            sys.exit("Cannot find MPS control daemon process")


main()
'''

_SERVER_SOURCE = """#!{python} -IS
import signal
signal.pause()
"""


@dataclass(frozen=True)
class FakeMps:
    """The fake programs and what they were asked."""

    folder: Path

    @classmethod
    def install(cls, folder: Path) -> FakeMps:
        """Put the programs there."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, source in ((CONTROL, _SOURCE), (SERVER, _SERVER_SOURCE)):
            path = folder / name
            path.write_text(source.format(python=sys.executable, control=CONTROL, server=SERVER))
            path.chmod(0o755)
        return cls(folder)

    def variables(self) -> dict[str, str]:
        return {
            "PATH": f"{self.folder}{os.pathsep}{os.environ['PATH']}",
            "FAKE_MPS": str(self.folder),
        }

    def be(self, *moods: str) -> None:
        """Misbehave from now on.

        ``hang -d``, ``slow -d`` (the daemon is there), ``fail -d``, ``die``, ``no pid file``,
        ``hang COMMAND``, ``ignore quit``.
        """
        (self.folder / "mood").write_text("\n".join(moods))

    def calls(self, command: str = "") -> list[dict[str, Any]]:
        """What was asked, in order, each with its environment; of one command if it is given."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        calls = [json.loads(line) for line in lines]
        return [call for call in calls if not command or call["command"].split()[0] == command]

    @property
    def daemons(self) -> list[int]:
        """Process ids of the daemons that run now."""
        # On a busy machine the number of one that has ended is soon another process's.
        return [
            call["pid"]
            for call in self.calls("daemon")
            if start_ticks(call["pid"]) == call["ticks"]
        ]

    def start_daemon(self, pipes: Path, logs: Path, devices: str) -> int:
        """Start one as somebody else would, and return its process id."""
        for folder in (pipes, logs):
            folder.mkdir(parents=True)
        before = set(self.daemons)
        variables = {
            "CUDA_MPS_PIPE_DIRECTORY": str(pipes),
            "CUDA_MPS_LOG_DIRECTORY": str(logs),
            "CUDA_VISIBLE_DEVICES": devices,
        }
        # Not through a pipe: the daemon keeps what it inherits, as the real one may.
        subprocess.run(
            [self.folder / CONTROL, "-d"],
            env=self._environment(variables),
            stdout=subprocess.DEVNULL,
            check=True,
        )
        wait_until((pipes / f"{CONTROL}.pid").exists, "a pid file")
        pid = int((pipes / f"{CONTROL}.pid").read_text())
        assert pid not in before
        return pid

    def connect(self, variables: Mapping[str, str], client: int) -> int:
        """Make a process a client, as CUDA would; return the server's process id."""
        done = subprocess.run(
            [self.folder / CONTROL],
            env=self._environment(variables),
            input=f"connect {client}",
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return int(done.stdout)

    def stop(self) -> None:
        """Kill what is left."""
        for pid in self.daemons:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            for process in (pid, *map(int, children)):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)

    def _environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        return {**os.environ, **self.variables(), **variables}


@pytest.fixture
def mps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMps]:
    """On the PATH of the test and of what it starts."""
    fake = FakeMps.install(tmp_path / "mps-tools")
    for name, value in fake.variables().items():
        monkeypatch.setenv(name, value)
    yield fake
    fake.stop()


@contextmanager
def running(devices: Sequence[str]) -> Iterator[MpsServer]:
    """A daemon of radt's that is stopped at the end."""
    server = MpsServer(devices)
    server.start()
    try:
        yield server
    finally:
        server.stop()
