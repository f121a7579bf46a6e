"""Daemons of NVIDIA's Multi-Process Service (MPS): one per shared set of GPUs or MIG device.

Each has its own folder in the runtime folder, mode 700, which isolates it from other users' clients
and daemons. radt does not change other daemons, ``/tmp/nvidia-mps`` or a GPU's compute mode. A
daemon of a dead runner is found and ended by its folder. https://docs.nvidia.com/deploy/mps
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from radt import procfs
from radt.collocation.ledger import CreatedLedger, LedgerEntry, MpsDaemon
from radt.collocation.processes import identify
from radt.devices.nvml import MPS_CONTROL, MPS_SERVER
from radt.devices.visible import VISIBLE_VARIABLE
from radt.errors import DeviceError
from radt.home import RUNTIME_VARIABLE, runtime_dir
from radt.processes import run_command, stop
from radt.procfs import ProcessId

PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
LOG_VARIABLE = "CUDA_MPS_LOG_DIRECTORY"

#: Seconds for a daemon to respond, and to exit when requested.
ANSWER_TIMEOUT_S = 5.0
STOP_TIMEOUT_S = 15.0
#: Seconds that a daemon gives its clients when it is asked to exit.
_CLIENTS_GRACE_S = 5

#: The daemon's longest socket in its pipe directory; a socket's path may have 107 characters.
_LONGEST_SOCKET = "control_privileged"
_MAX_SOCKET_PATH = 107
_LOG_LINES = 5
_POLL_S = 0.02


def remove_daemon(thing: MpsDaemon) -> None:
    """End exactly the daemon that the ledger describes, with its server and its folder.

    The daemon is asked to quit; remaining processes are killed by process id, after a check that
    they are MPS processes with this folder in their environment.

    Raises:
        DeviceError: The daemon cannot be ended.
    """
    if targets := _processes_of(thing):
        try:
            ask(thing, f"quit -t {_CLIENTS_GRACE_S}", timeout_s=STOP_TIMEOUT_S)
        except DeviceError:
            pass  # it does not listen: it is killed below
        else:
            _wait(lambda: not any(target.alive for target in targets), STOP_TIMEOUT_S)
        stuck = [target.pid for target in targets if not stop(target, 0.0, STOP_TIMEOUT_S)]
        # A server may have been started while the daemon was ending.
        later = set(_processes_of(thing)) - set(targets)
        stuck += [target.pid for target in later if not stop(target, 0.0, STOP_TIMEOUT_S)]
        if stuck:
            pids = ", ".join(map(str, stuck))
            raise DeviceError(
                f"the MPS daemon of {', '.join(thing.devices)} did not end (pid {pids})",
                "Ask the machine's administrator to check it (dmesg, nvidia-smi)",
            )
    remove_folder(thing)


def remove_folder(thing: MpsDaemon) -> None:
    """Remove the folder of a stopped daemon; raise DeviceError if that fails."""
    try:
        shutil.rmtree(thing.folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise DeviceError(
            f"cannot remove the folder of an MPS daemon: {error.filename}: {error.strerror}",
            f"Remove {thing.folder}",
        ) from error


def _log_tail(thing: MpsDaemon) -> str:
    """Return the last lines of a daemon's logs, on one line; empty if there are none."""
    lines: list[str] = []
    for name in ("control.log", "server.log"):
        try:
            text = (thing.logs / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        lines += text.strip().splitlines()[-_LOG_LINES:]
    return " | ".join(line.strip() for line in lines[-_LOG_LINES:])


def check() -> str:
    """Return the path of NVIDIA's control program if radt can start daemons with it.

    Raises:
        DeviceError: It is not installed, or the runtime folder's path is too long for a socket.
    """
    tool = _tool()
    folder = _new_folder()
    longest = MpsDaemon((), str(folder)).pipes / _LONGEST_SOCKET
    if len(os.fsencode(longest)) > _MAX_SOCKET_PATH:
        raise DeviceError(
            f"the path of an MPS daemon's socket in {folder.parent} would be too long",
            f"Set {RUNTIME_VARIABLE} to a folder with a short path",
        )
    return tool


def _new_folder() -> Path:
    """Return a folder for a daemon. Its name is short: see _MAX_SOCKET_PATH."""
    return runtime_dir().absolute() / "mps" / uuid.uuid4().hex[:8]


def _tool() -> str:
    tool = shutil.which(MPS_CONTROL)
    if tool is None:
        raise DeviceError(
            f"MPS needs {MPS_CONTROL}, which is not installed",
            "It comes with NVIDIA's driver; where the distribution splits that up, install "
            "nvidia-compute-utils-VERSION (Ubuntu) or nvidia-cuda-mps (Debian). In a container, "
            "pass it in with the driver (NVIDIA_DRIVER_CAPABILITIES=compute,utility)",
        )
    return tool


def _environment(thing: MpsDaemon) -> dict[str, str]:
    """Return the daemon's variables, without those of a run or of other daemons."""
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("RADT_", "MLFLOW_", "CUDA_MPS_", "CUDA_VISIBLE_"))
    }
    return env | {PIPE_VARIABLE: str(thing.pipes), LOG_VARIABLE: str(thing.logs)}


def ask(thing: MpsDaemon, command: str, timeout_s: float | None = None) -> str:
    """Send the daemon a command and return its response; raise DeviceError if there is none."""
    timeout_s = ANSWER_TIMEOUT_S if timeout_s is None else timeout_s
    try:
        done = run_command(
            [_tool()], timeout_s, text=f"{command}\n", env=_environment(thing), cwd="/"
        )
    except subprocess.TimeoutExpired:
        problem = f"does not answer within {timeout_s:g} s"
    except OSError as error:
        problem = f"cannot be asked: {error.strerror or error}"
    else:
        if done.returncode == 0:
            return done.stdout
        message = (done.stderr or done.stdout).strip()
        problem = f"refuses {command.split()[0]}" + (f": {message}" if message else "")
    log_end = _log_tail(thing)
    raise DeviceError(
        f"the MPS daemon {problem}" + (f" (its log ends: {log_end})" if log_end else ""), _REMEDY
    )


def _pids(text: str) -> list[int]:
    """Return the process ids in a response, one per line."""
    return [int(word) for word in text.split() if word.isdigit()]


def _pid_in_file(thing: MpsDaemon) -> int | None:
    """Return the process id in the daemon's pid file, if it is an MPS daemon."""
    try:
        pid = int((thing.pipes / f"{MPS_CONTROL}.pid").read_text(encoding="ascii").strip() or 0)
    except (OSError, ValueError):
        return None
    return pid if procfs.start_ticks(pid) and procfs.executes(pid, MPS_CONTROL) else None


def _find_daemon(thing: MpsDaemon) -> int | None:
    """Return the control daemon of this folder: by its pid file, else by its environment."""
    if (pid := _pid_in_file(thing)) is not None:
        return pid
    pids = (process.pid for process in _processes_of(thing))
    return next((pid for pid in pids if procfs.executes(pid, MPS_CONTROL)), None)


def _processes_of(thing: MpsDaemon) -> list[ProcessId]:
    """Return the live processes of an entry: the daemon and its servers.

    They have the folder in their environment, which no other daemon has; the daemon is also
    identified by its recorded id and start time.
    """
    mark = f"{PIPE_VARIABLE}={thing.pipes}".encode()
    processes, servers = [], []
    for pid in procfs.all_pids():
        is_control, is_server = procfs.executes(pid, MPS_CONTROL), procfs.executes(pid, MPS_SERVER)
        stat = procfs.process_stat(pid) if is_control or is_server else None
        if stat is None or not stat.alive:
            continue
        process = ProcessId(pid, stat.started_ticks)
        noted = is_control and (pid, stat.started_ticks) == (thing.pid, thing.start_ticks)
        if noted or mark in procfs.environment(pid):
            processes.append(process)
        elif is_server:
            servers.append((stat.parent, process))
    daemons = {process.pid for process in processes}
    return processes + [process for parent, process in servers if parent in daemons]


def _wait(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Return True as soon as the condition holds, False on timeout."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(_POLL_S)  # a daemon is not a child process: its exit sends no notification
    return True


PERCENTAGE_VARIABLE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"

#: Seconds for a daemon to start.
START_TIMEOUT_S = 20.0
#: Seconds to wait for the daemon's pid file before searching otherwise.
PID_FILE_TIMEOUT_S = 1.0
_REMEDY = "Run `radt devices` to see what uses the GPU, or run without MPS"


class MpsServer:
    """One daemon, from `start` to `stop`.

    ``devices`` are the UUIDs of the GPUs, or of the one MIG device, that its clients share. It is
    recorded in the ledger before it starts, with the run or workload that it serves.
    """

    def __init__(
        self,
        devices: Sequence[str],
        *,
        run_id: str = "",
        workload_id: str = "",
    ) -> None:
        self._ids = {"run_id": run_id, "workload_id": workload_id}
        self.thing = MpsDaemon(tuple(devices), str(_new_folder()))
        self.entry: LedgerEntry | None = None

    def start(self) -> LedgerEntry:
        """Start the daemon and check that it responds; return its entry in the ledger.

        Raises:
            DeviceError: The daemon cannot be started on these devices; nothing is left behind.
        """
        tool = check()
        entry = self.entry = CreatedLedger().intend(self.thing, **self._ids)
        try:
            self._launch(tool)
            pid = self._wait_for_pid()
            ticks = procfs.start_ticks(pid)
            self.thing = replace(self.thing, pid=pid, start_ticks=ticks)
            entry.confirm(pid=pid, start_ticks=ticks)
            self._wait_for_answer()
        except BaseException as error:
            log_end = self.log_tail()
            with suppress(DeviceError):  # the first error is more informative; the entry stays
                self.stop()
            if isinstance(error, DeviceError) and log_end:
                message = f"{error.message}. Its log ends: {log_end}"
                raise DeviceError(message, error.remedy) from error
            raise
        return entry

    def client_environment(self, percentage: float | None = None) -> dict[str, str]:
        """Return the variables that make a process a client of this daemon.

        ``percentage`` is the share of the SMs that it may use, above 0 and up to 100; None for all.
        """
        variables = {PIPE_VARIABLE: str(self.thing.pipes), LOG_VARIABLE: str(self.thing.logs)}
        if percentage is not None:
            variables[PERCENTAGE_VARIABLE] = f"{percentage:g}"
        return variables

    def clients(self, within_s: float | None = None) -> dict[int, int]:
        """Return the processes that are clients, with the server (one per user) of each.

        Raises:
            DeviceError: The daemon does not answer all questions within `within_s` seconds together
                (None: `ANSWER_TIMEOUT_S`).
        """
        end_s = time.monotonic() + (ANSWER_TIMEOUT_S if within_s is None else within_s)

        def answer(command: str) -> str:
            return ask(self.thing, command, max(0.0, end_s - time.monotonic()))

        servers = _pids(answer("get_server_list"))
        lists = {server: answer(f"get_client_list {server}") for server in servers}
        return {pid: server for server, text in lists.items() for pid in _pids(text)}

    def terminate_clients(self, pids: Sequence[int]) -> None:
        """Detach clients from their server before they are killed.

        Killing a working client may leave the server in an undefined state for all others.
        Processes that are not clients are ignored.

        Raises:
            DeviceError: The daemon does not respond.
        """
        for pid, server in self.clients().items():
            if pid in pids:
                ask(self.thing, f"terminate_client {server} {pid}")

    def log_tail(self) -> str:
        """Return the last lines of the daemon's and the server's log, on one line."""
        return _log_tail(self.thing)

    def stop(self) -> None:
        """End the daemon and its server, remove its folder and entry. Idempotent.

        Raises:
            DeviceError: The daemon could not be ended; its entry in the ledger stays.
        """
        if self.entry is None:
            return
        assert isinstance(self.entry.thing, MpsDaemon)
        remove_daemon(self.entry.thing)
        self.entry.done()
        self.entry = None

    def _launch(self, tool: str) -> None:
        for folder in (Path(self.thing.folder), self.thing.pipes, self.thing.logs):
            folder.mkdir(mode=0o700, parents=True)
        env = _environment(self.thing) | {VISIBLE_VARIABLE: ",".join(self.thing.devices)}
        output = self.thing.logs / "start.log"
        # Into a file: the daemon keeps inherited descriptors, so a pipe would never close.
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
                    f"{MPS_CONTROL} did not start within {START_TIMEOUT_S:g} s", _REMEDY
                ) from error
            except OSError as error:
                raise DeviceError(
                    f"{tool} cannot be started: {error.strerror or error}", _REMEDY
                ) from error
        if done.returncode != 0:
            message = output.read_text(encoding="utf-8", errors="replace").strip()
            raise DeviceError(
                f"{MPS_CONTROL} ended with exit code {done.returncode}"
                + (f": {message.splitlines()[-1]}" if message else ""),
                _REMEDY,
            )

    def _wait_for_pid(self) -> int:
        # While it starts, its forked processes have its environment too, so its pid file comes
        # first.
        _wait(lambda: _pid_in_file(self.thing) is not None, PID_FILE_TIMEOUT_S)
        _wait(lambda: _find_daemon(self.thing) is not None, START_TIMEOUT_S)
        pid = _find_daemon(self.thing)
        if pid is None:
            raise DeviceError(f"{MPS_CONTROL} ended right after its start", _REMEDY)
        return pid

    def _wait_for_answer(self) -> None:
        answer = ask(self.thing, "get_default_active_thread_percentage")
        if not re.search(r"\d", answer):
            raise DeviceError(
                f"expected a percentage from the MPS daemon, got {answer.strip()!r}", _REMEDY
            )


def no_mps_environment() -> Mapping[str, str]:
    """Return variables that keep a process from using a daemon at the default path.

    CUDA looks in ``/tmp/nvidia-mps`` unless a variable names another folder, and runs without MPS
    if there is no daemon.
    """
    return {PIPE_VARIABLE: str(runtime_dir().absolute() / "mps" / "none")}


@dataclass(frozen=True, slots=True)
class Daemon:
    """An MPS control daemon of any user.

    ``devices`` are the UUIDs or indices it serves, ``folder`` its pipe directory; both are empty if
    not visible. ``ours``: radt has started it. ``orphaned``: its runner is dead.
    """

    pid: int
    user: str | None
    devices: tuple[str, ...] = ()
    folder: str = ""
    ours: bool = False
    orphaned: bool = False


def mps_daemons() -> tuple[Daemon, ...]:
    """Return all visible MPS control daemons, of all users."""
    known = {
        (entry.thing.pid, entry.thing.start_ticks): (entry.thing, entry.orphaned)
        for entry in CreatedLedger().entries()
        if isinstance(entry.thing, MpsDaemon)
    }
    daemons = []
    for pid in sorted(pid for pid in procfs.all_pids() if procfs.executes(pid, MPS_CONTROL)):
        user = identify(pid).user
        thing, orphaned = known.get((pid, procfs.start_ticks(pid)), (None, False))
        if thing is not None:
            daemons.append(Daemon(pid, user, thing.devices, thing.folder, True, orphaned))
        else:
            devices = tuple(filter(None, procfs.variable(pid, VISIBLE_VARIABLE).split(",")))
            daemons.append(Daemon(pid, user, devices, procfs.variable(pid, PIPE_VARIABLE)))
    return tuple(daemons)
