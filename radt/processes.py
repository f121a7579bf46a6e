"""Start, stop and restart processes, and end them together with their parent."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any

from radt import procfs
from radt.files import lock
from radt.home import RUN_ID_VARIABLE
from radt.procfs import ProcessId

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.05


# Starting -----------------------------------------------------------------------------------------


def command(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module of radt."""
    # -P: do not mistake a user's file of the same name for the module.
    return [sys.executable, "-P", "-m", module, *arguments]


def run_command(
    command: Sequence[str],
    timeout_s: float,
    *,
    text: str = "",
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    errors: str = "replace",
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, and return its output and exit code.

    Args:
        command: The program, looked up on PATH, and its arguments.
        timeout_s: Limit after which it is killed.
        text: Its standard input.
        env: Its environment; None for that of this process.
        cwd: Its working folder; None for that of this process.
        errors: How its output is decoded, as for `bytes.decode`.

    Raises:
        OSError: It cannot be started.
        subprocess.TimeoutExpired: It took too long.
    """
    return subprocess.run(
        list(command),
        input=text,
        capture_output=True,
        encoding="utf-8",
        errors=errors,
        env=None if env is None else dict(env),
        cwd=cwd,
        timeout=timeout_s,
        check=False,
    )


def reap(process: subprocess.Popen[Any]) -> threading.Thread:
    """Wait for a child in a thread, so that it does not remain a zombie."""
    thread = threading.Thread(target=process.wait, name=f"child-{process.pid}", daemon=True)
    thread.start()
    return thread


class Backoff:
    """Retry delays: they double with each failure, up to `longest_s`.

    With jitter, so that processes that fail together do not retry together.
    """

    def __init__(self, first_s: float = 0.5, longest_s: float = 15.0) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._failures = 0

    def next_s(self, worked_s: float = 0.0) -> float:
        """Return the seconds to wait after another failure, up to a quarter below the full delay.

        Args:
            worked_s: How long it worked before it failed; longer than the longest delay counts as a
                success.
        """
        if worked_s > self._longest_s:
            self.reset()
        import random  # a process in which nothing fails does not need it

        delay_s = min(self._first_s * 2.0**self._failures, self._longest_s)
        self._failures = min(self._failures + 1, 32)
        return float(delay_s) * random.uniform(0.75, 1.0)  # noqa: S311 - not about secrets

    def reset(self) -> None:
        """Start again with the first delay, after a success."""
        self._failures = 0


# Ending with the parent ---------------------------------------------------------------------------


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when the thread that started it ends (prctl(2)).

    Args:
        parent: Id of the process that started this one; if it has already ended, exit at once.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(0)


class ParentMessage(Enum):
    """Event on standard input: a line means news; end of file means finish and exit."""

    NOTHING = "nothing"
    NEWS = "news"
    CLOSED = "closed"


def wait_for_parent(timeout_s: float | None) -> ParentMessage:
    """Wait up to `timeout_s` for a message from the parent; None waits without limit."""
    stdin = 0
    readable, _, _ = select.select([stdin], [], [], timeout_s)
    if not readable:
        return ParentMessage.NOTHING
    return ParentMessage.NEWS if os.read(stdin, 65536) else ParentMessage.CLOSED


#: How often `take_lock` retries.
_LOCK_POLL_S = 0.2


def take_lock(descriptor: int) -> None:
    """Wait for the lock of a file, even after the parent has closed the input.

    A helper of a killed collector may still hold the lock while it finishes the same work. It may
    have looked for work before all of it existed, so this process must look, too.
    """
    closed = False
    while not lock(descriptor, wait=closed):
        closed = wait_for_parent(_LOCK_POLL_S) is ParentMessage.CLOSED


# Stopping -----------------------------------------------------------------------------------------


def stop(process: ProcessId, terminate_s: float, kill_s: float) -> bool:
    """End a process, not necessarily a child: SIGTERM, then SIGKILL.

    Args:
        process: The process; a later process with the same id is not signalled.
        terminate_s: Seconds from SIGTERM to SIGKILL.
        kill_s: Seconds from SIGKILL to giving up: a process may be waiting for a disk.

    Returns:
        True if the process has ended.

    Raises:
        PermissionError: The process belongs to another user.
    """
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    poll = select.poll()  # unlike select, works for any descriptor number
    poll.register(handle, select.POLLIN)
    try:
        if not process.alive:  # if alive now, the handle refers to this very process
            return True
        for number, patience_s in ((signal.SIGTERM, terminate_s), (signal.SIGKILL, kill_s)):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)
            if poll.poll(patience_s * 1000):
                return True
        return False
    finally:
        os.close(handle)


#: A killed process that waits for a file server takes longer; nobody waits for it.
_UNKILLABLE_S = 30.0


def stop_child(process: subprocess.Popen[Any], grace_s: float, *, group: bool = False) -> None:
    """End a child and wait for it: SIGTERM, then SIGKILL after `grace_s`.

    Args:
        process: The child.
        grace_s: Seconds from SIGTERM to SIGKILL.
        group: Signal the process group that it leads.
    """
    patience_s = {signal.SIGTERM: grace_s, signal.SIGKILL: _UNKILLABLE_S}
    for number, wait_s in patience_s.items():
        if group:  # other members may outlive the child
            send_signal(process.pid, number, group=True)
        else:
            process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)


def run_mark(run_id: str, variable: str = RUN_ID_VARIABLE) -> bytes:
    """Return the environment entry that marks the processes of a run."""
    return f"{variable}={run_id}".encode()


def processes_of(run_id: str, variable: str = RUN_ID_VARIABLE) -> set[int]:
    """Return the ids of a run's live processes, except this one.

    With another ``variable``, return those that were started with that value of it.
    """
    mark = run_mark(run_id, variable)
    return {pid for pid in procfs.all_pids() - {os.getpid()} if mark in procfs.environment(pid)}


def stop_run(
    run_id: str,
    *,
    terminate_s: float = 0.0,
    kill_s: float,
    group: int | None = None,
    variable: str = RUN_ID_VARIABLE,
) -> int:
    """End a run's processes and groups that they lead: SIGTERM, then SIGKILL until all have ended.

    They carry the run's id in their environment, so a process that reuses another's id is not
    signalled.

    Args:
        run_id: The run.
        terminate_s: Seconds from SIGTERM to SIGKILL; 0 for SIGKILL at once.
        kill_s: Seconds from SIGKILL to giving up: a process may be waiting for a disk.
        group: Process group created for the run, if it can still be the run's.
        variable: As in `processes_of`.

    Returns:
        The number of processes that were signalled.
    """
    signalled: set[int] = set()
    for number, patience_s in ((signal.SIGTERM, terminate_s), (signal.SIGKILL, kill_s)):
        until_s = time.monotonic() + patience_s
        while time.monotonic() < until_s:
            left = processes_of(run_id, variable)
            if group is not None:
                left |= procfs.group_members(group)
            if not left:
                return len(signalled)
            for pid in left if number == signal.SIGKILL else left - signalled:
                with suppress(ProcessLookupError):
                    is_leader = os.getpgid(pid) == pid
                    send_signal(pid, number, group=is_leader)
            signalled |= left
            time.sleep(_POLL_S)  # not our children, so there is nothing to wait on
    return len(signalled)


def send_signal(pid: int, number: int, *, group: bool = False) -> None:
    """Signal a process or the group that it leads; ignore one that is gone or another user's."""
    with suppress(ProcessLookupError, PermissionError):
        (os.killpg if group else os.kill)(pid, number)


#: Peer credentials of a Unix socket: struct ucred with pid, uid, gid.
_PEER = struct.Struct("iII")


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return the process at the other end of a Unix socket, 0 if it is not visible, and its user.

    Processes in other containers are not visible.
    """
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    pid, uid, _ = _PEER.unpack(peer)
    return pid, uid
