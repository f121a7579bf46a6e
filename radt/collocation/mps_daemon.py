"""A daemon of MPS by its folder: asked, looked for, ended; also one of a dead runner."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from radt import procfs
from radt.collocation.ledger import MpsDaemon
from radt.collocation.processes import MPS_CONTROL, MPS_SERVER, is_mps
from radt.errors import DeviceError

PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
LOG_VARIABLE = "CUDA_MPS_LOG_DIRECTORY"

#: Seconds that a daemon has to answer, and to end once asked to.
ANSWER_TIMEOUT_S = 5.0
STOP_TIMEOUT_S = 15.0
#: Seconds that a daemon gives to clients that are still there when it is asked to end.
_CLIENTS_GRACE_S = 5

_LOG_LINES = 5
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class MpsPaths:
    """What lies in a daemon's folder; names are short, as a socket's path may not be long."""

    folder: Path

    @property
    def pipes(self) -> Path:
        return self.folder / "p"

    @property
    def logs(self) -> Path:
        return self.folder / "l"

    @property
    def pid_file(self) -> Path:
        return self.pipes / f"{MPS_CONTROL}.pid"


def remove_daemon(thing: MpsDaemon) -> None:
    """End exactly the daemon that the ledger describes, its server with it, and its folder.

    It is asked to end; what has not ended in time is killed, by process id, after a look that it
    is that process: of MPS, and with this very folder in its environment.

    Raises:
        DeviceError: It cannot be ended.
    """
    paths = MpsPaths(Path(thing.folder))
    if targets := _processes_of(thing):
        try:
            ask(paths, f"quit -t {_CLIENTS_GRACE_S}", timeout_s=STOP_TIMEOUT_S)
        except DeviceError:
            pass  # it does not listen (any more): it is killed below
        else:
            wait(lambda: not any(target.alive for target in targets), STOP_TIMEOUT_S)
        for target in targets:
            target.kill()
        targets += _processes_of(thing)  # a server that came up while the daemon was ending
        for target in targets:
            target.kill()
        if not wait(lambda: not any(target.alive for target in targets), STOP_TIMEOUT_S):
            pids = ", ".join(str(target.pid) for target in targets if target.alive)
            raise DeviceError(
                f"the MPS daemon of {', '.join(thing.devices)} did not end (pid {pids})",
                "Ask the machine's administrator to look at it (dmesg, nvidia-smi)",
            )
    remove_folder(thing)


def remove_folder(thing: MpsDaemon) -> None:
    """Remove what a daemon that is gone has left.

    Raises:
        DeviceError: It cannot be removed.
    """
    try:
        shutil.rmtree(thing.folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise DeviceError(
            f"cannot remove the folder of an MPS daemon: {error.filename}: {error.strerror}",
            f"Remove {thing.folder}",
        ) from error


def log_tail(logs: Path) -> str:
    """The last lines of the logs in an MPS log directory, on one line; empty if there are none."""
    lines: list[str] = []
    for name in ("control.log", "server.log"):
        try:
            text = (logs / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        lines += text.strip().splitlines()[-_LOG_LINES:]
    return " | ".join(line.strip() for line in lines[-_LOG_LINES:])


def find_tool() -> str:
    """The path of NVIDIA's control program.

    Raises:
        DeviceError: It is not there.
    """
    tool = shutil.which(MPS_CONTROL)
    if tool is None:
        raise DeviceError(
            f"MPS needs {MPS_CONTROL}, which is not installed",
            "It comes with NVIDIA's driver; where the distribution splits that up, install "
            "nvidia-compute-utils-VERSION (Ubuntu) or nvidia-cuda-mps (Debian). In a container, "
            "pass it in with the driver (NVIDIA_DRIVER_CAPABILITIES=compute,utility)",
        )
    return tool


def daemon_environment(paths: MpsPaths) -> dict[str, str]:
    """The daemon's: it outlives runs, so it carries nothing of one, and nothing of other MPS."""
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("RADT_", "MLFLOW_", "CUDA_MPS_", "CUDA_VISIBLE_"))
    }
    return env | {PIPE_VARIABLE: str(paths.pipes), LOG_VARIABLE: str(paths.logs)}


def ask(paths: MpsPaths, command: str, timeout_s: float | None = None) -> str:
    """Give the daemon a command and return its answer.

    Raises:
        DeviceError: It does not answer, or refuses.
    """
    timeout_s = ANSWER_TIMEOUT_S if timeout_s is None else timeout_s
    try:
        done = subprocess.run(
            [find_tool()],
            input=f"{command}\n",
            capture_output=True,
            text=True,
            errors="replace",
            cwd="/",
            env=daemon_environment(paths),
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _silent(paths, f"does not answer within {timeout_s:g} s") from error
    except OSError as error:
        raise _silent(paths, f"cannot be asked: {error.strerror or error}") from error
    if done.returncode != 0:
        message = (done.stderr or done.stdout).strip()
        raise _silent(paths, f"refuses {command.split()[0]}" + (f": {message}" if message else ""))
    return done.stdout


def _silent(paths: MpsPaths, what: str) -> DeviceError:
    tail = log_tail(paths.logs)
    return DeviceError(
        f"the MPS daemon {what}" + (f" (its log ends: {tail})" if tail else ""), start_remedy()
    )


def start_remedy() -> str:
    """What to do about a daemon that does not work."""
    return "Run `radt devices` to see what uses the GPU, or run without MPS"


def numbers(text: str) -> list[int]:
    """Process ids in an answer, one a line."""
    return [int(word) for word in text.split() if word.isdigit()]


@dataclass(frozen=True, slots=True)
class _Process:
    """A process that no later one of its number is taken for."""

    pid: int
    start_ticks: int

    @property
    def alive(self) -> bool:
        return procfs.start_ticks(self.pid) == self.start_ticks

    def kill(self) -> None:
        """SIGKILL, if it still is this process."""
        try:
            process = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            if self.alive:
                signal.pidfd_send_signal(process, signal.SIGKILL)
        except ProcessLookupError:
            return
        finally:
            os.close(process)


def pid_in_file(thing: MpsDaemon) -> int | None:
    """What the daemon's pid file says, if that is such a daemon."""
    paths = MpsPaths(Path(thing.folder))
    try:
        pid = int(paths.pid_file.read_text(encoding="ascii").strip() or 0)
    except (OSError, ValueError):
        return None
    return pid if procfs.start_ticks(pid) and is_mps(pid, MPS_CONTROL) else None


def find_daemon(thing: MpsDaemon) -> int | None:
    """The control daemon that works in this folder: by its pid file, else by its environment."""
    if (pid := pid_in_file(thing)) is not None:
        return pid
    found = (process.pid for process in _processes_of(thing))
    return next((pid for pid in found if is_mps(pid, MPS_CONTROL)), None)


def _processes_of(thing: MpsDaemon) -> list[_Process]:
    """Live processes of MPS itself that work for this entry: the daemon, and its servers.

    Known by the folder in their environment, which no other daemon has; the daemon also by its
    noted number and start.
    """
    mark = f"{PIPE_VARIABLE}={MpsPaths(Path(thing.folder)).pipes}".encode()
    found, servers = [], []
    for pid in procfs.all_pids():
        is_control, is_server = is_mps(pid, MPS_CONTROL), is_mps(pid, MPS_SERVER)
        stat = procfs.process_stat(pid) if is_control or is_server else None
        if stat is None or not stat.alive:
            continue
        process = _Process(pid, stat.started_ticks)
        noted = is_control and (pid, stat.started_ticks) == (thing.pid, thing.start_ticks)
        if noted or mark in procfs.environment(pid):
            found.append(process)
        elif is_server:
            servers.append((stat.parent, process))
    daemons = {process.pid for process in found}
    return found + [process for parent, process in servers if parent in daemons]


def wait(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Return True as soon as the condition holds, False if it does not in time."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(_POLL_S)  # a daemon is no child of ours: nothing else says that it has ended
    return True
