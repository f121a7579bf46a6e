"""Daemons of NVIDIA's Multi-Process Service: one for each set of GPUs or MIG device that is shared.

Each has a folder of its own in the runtime folder, mode 700, so that it is found by nobody else's
clients and finds nobody else's. Nothing is done to other daemons, to ``/tmp/nvidia-mps`` or to a
GPU's compute mode. https://docs.nvidia.com/deploy/mps
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from radt import procfs
from radt.collocation.ledger import Entry, Ledger, MpsDaemon
from radt.collocation.processes import MPS_CONTROL, MPS_SERVER, is_mps
from radt.errors import DeviceError
from radt.home import RUNTIME_VARIABLE, runtime_dir

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


PERCENTAGE_VARIABLE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"

#: Seconds that a daemon has to come up.
START_TIMEOUT_S = 20.0
#: Seconds in which the daemon's pid file is waited for, before it is looked for otherwise.
PID_FILE_TIMEOUT_S = 1.0
#: The daemon's longest socket in its pipe directory; a socket's path may have 107 characters.
_LONGEST_SOCKET = "control_privileged"
_MAX_SOCKET_PATH = 107


class MpsServer:
    """One daemon, from start to end. Use as a context manager, or stop it.

    Args:
        devices: UUIDs of the GPUs, or of the one MIG device, that its clients share.
        ledger: Where it is noted before it is started.
        run_id: The run it is made for, if it is for one only.
        workload_id: The workload it is made for.
    """

    def __init__(
        self,
        devices: Sequence[str],
        ledger: Ledger | None = None,
        *,
        run_id: str = "",
        workload_id: str = "",
    ) -> None:
        self.devices = tuple(devices)
        self._ledger = ledger if ledger is not None else Ledger()
        self._ids = {"run_id": run_id, "workload_id": workload_id}
        # Short: see _MAX_SOCKET_PATH.
        self._paths = MpsPaths(runtime_dir().absolute() / "mps" / uuid.uuid4().hex[:8])
        self._entry: Entry | None = None

    @property
    def pid(self) -> int | None:
        """The control daemon's, while it runs."""
        thing = self._entry.thing if self._entry is not None else None
        return thing.pid if isinstance(thing, MpsDaemon) else None

    def start(self) -> None:
        """Start the daemon and see that it answers.

        Raises:
            DeviceError: It cannot be started, or not on these devices; nothing of it is left.
        """
        tool = find_tool()
        longest = self._paths.pipes / _LONGEST_SOCKET
        if len(os.fsencode(longest)) > _MAX_SOCKET_PATH:
            raise DeviceError(
                f"the path of the MPS daemon's socket is too long: {longest}",
                f"Set {RUNTIME_VARIABLE} to a folder with a short path",
            )
        thing = MpsDaemon(self.devices, str(self._paths.folder))
        entry = self._ledger.intend(thing, **self._ids)
        self._entry = entry
        try:
            self._launch(tool)
            pid = self._wait_for_pid(thing)
            entry.confirm(pid=pid, start_ticks=procfs.start_ticks(pid))
            self._wait_for_answer()
        except BaseException as error:
            tail = self.log_tail()
            with suppress(DeviceError):  # the first error says more; the entry stays
                self.stop()
            if isinstance(error, DeviceError) and tail:
                raise DeviceError(f"{error.message}. Its log ends: {tail}", error.remedy) from error
            raise

    def client_environment(self, percentage: float | None = None) -> dict[str, str]:
        """What makes a process a client of this daemon.

        Args:
            percentage: Share of the SMs that it may use, above 0 and up to 100; None for all.
        """
        variables = {PIPE_VARIABLE: str(self._paths.pipes), LOG_VARIABLE: str(self._paths.logs)}
        if percentage is not None:
            variables[PERCENTAGE_VARIABLE] = f"{percentage:g}"
        return variables

    def server_pids(self) -> list[int]:
        """Processes that run the clients' work, one a user; none before the first client.

        Raises:
            DeviceError: The daemon does not answer.
        """
        return numbers(self._ask("get_server_list"))

    def terminate_clients(self, pids: Sequence[int]) -> list[int]:
        """Take clients off their server before they are killed; return those that were clients.

        A client that is killed in the middle of its work may leave the server undefined for all
        others. Processes that are no clients are left alone.

        Raises:
            DeviceError: The daemon does not answer.
        """
        terminated = []
        for server in self.server_pids():
            clients = set(numbers(self._ask(f"get_client_list {server}")))
            for pid in pids:
                if pid in clients:
                    self._ask(f"terminate_client {server} {pid}")
                    terminated.append(pid)
        return terminated

    def log_tail(self) -> str:
        """The last lines of the daemon's and the server's log, on one line."""
        return log_tail(self._paths.logs)

    def stop(self) -> None:
        """End the daemon and its server, and take its folder and its entry away.

        Harmless if it does not run.

        Raises:
            DeviceError: It could not be ended; its entry in the ledger stays.
        """
        if self._entry is None:
            return
        assert isinstance(self._entry.thing, MpsDaemon)
        remove_daemon(self._entry.thing)
        self._entry.done()
        self._entry = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _launch(self, tool: str) -> None:
        for folder in (self._paths.folder, self._paths.pipes, self._paths.logs):
            folder.mkdir(mode=0o700, parents=True)
        env = daemon_environment(self._paths) | {DEVICES_VARIABLE: ",".join(self.devices)}
        output = self._paths.logs / "start.log"
        # Into a file: the daemon keeps what it inherits, so that a pipe would never end.
        with output.open("wb") as file:
            try:
                done = subprocess.run(
                    [tool, "-d"],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    cwd="/",
                    env=env,
                    start_new_session=True,
                    timeout=START_TIMEOUT_S,
                    check=False,
                )
            except subprocess.TimeoutExpired as error:
                raise DeviceError(
                    f"{MPS_CONTROL} did not start within {START_TIMEOUT_S:g} s", start_remedy()
                ) from error
            except OSError as error:
                raise DeviceError(
                    f"{tool} cannot be started: {error.strerror or error}", start_remedy()
                ) from error
        if done.returncode != 0:
            message = output.read_text(encoding="utf-8", errors="replace").strip()
            raise DeviceError(
                f"{MPS_CONTROL} ended with exit code {done.returncode}"
                + (f": {message.splitlines()[-1]}" if message else ""),
                start_remedy(),
            )

    def _wait_for_pid(self, thing: MpsDaemon) -> int:
        # While it starts, the processes it forks from have its environment, too: what the daemon
        # says of itself comes first.
        wait(lambda: pid_in_file(thing) is not None, PID_FILE_TIMEOUT_S)
        wait(lambda: find_daemon(thing) is not None, START_TIMEOUT_S)
        pid = find_daemon(thing)
        if pid is None:
            raise DeviceError(f"{MPS_CONTROL} ended right after its start", start_remedy())
        return pid

    def _wait_for_answer(self) -> None:
        answer = self._ask("get_default_active_thread_percentage")
        if not re.search(r"\d", answer):
            raise DeviceError(
                f"the MPS daemon answers {answer.strip()!r} instead of a percentage",
                start_remedy(),
            )

    def _ask(self, command: str) -> str:
        return ask(self._paths, command)


def no_mps_environment() -> Mapping[str, str]:
    """What keeps a process from becoming a client of whatever daemon is at the usual place.

    CUDA looks for one in ``/tmp/nvidia-mps`` unless told otherwise, and goes without if there is
    none where it looks.
    """
    return {PIPE_VARIABLE: str(runtime_dir().absolute() / "mps" / "none")}
