"""Daemons of NVIDIA's Multi-Process Service: one for each set of GPUs or MIG device that is shared.

Each has a folder of its own in the runtime folder, mode 700, so that it is found by nobody else's
clients and finds nobody else's. Nothing is done to other daemons, to ``/tmp/nvidia-mps`` or to a
GPU's compute mode. https://docs.nvidia.com/deploy/mps
"""

from __future__ import annotations

import os
import re
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from radt import procfs
from radt.collocation.ledger import Entry, Ledger, MpsDaemon
from radt.collocation.mps_daemon import (
    LOG_VARIABLE,
    PIPE_VARIABLE,
    MpsPaths,
    ask,
    daemon_environment,
    find_daemon,
    find_tool,
    log_tail,
    numbers,
    pid_in_file,
    remove_daemon,
    start_remedy,
    wait,
)
from radt.collocation.processes import MPS_CONTROL
from radt.errors import DeviceError
from radt.home import RUNTIME_VARIABLE, runtime_dir

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
