"""Processes of a run as they are found from outside: below its keeper, or by its id.

Below its keeper stands everything that the run started, whatever it did since
(`radt.runner.keeper`). The id, which a process carries in its environment, is for runs whose keeper
is gone: it misses a process that cleared its environment.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable

from radt.home import RUN_ID_VARIABLE
from radt.procfs import all_pids, environment, process_stat

#: One that waits for a disk cannot die; it must not keep anybody waiting.
KILL_PATIENCE_S = 10.0
_POLL_S = 0.01


def descendants_of(root: int) -> list[int]:
    """Ids of all live processes below a process, itself left out, parents before their children."""
    return descendants_of_each([root])[root]


def descendants_of_each(roots: Iterable[int]) -> dict[int, list[int]]:
    """As `descendants_of`, of several by one look at all processes, which is what it costs."""
    children: dict[int, list[int]] = {}
    for pid in sorted(all_pids()):
        stat = process_stat(pid)
        if stat is not None and stat.alive:
            children.setdefault(stat.parent, []).append(pid)
    found: dict[int, list[int]] = {}
    for root in roots:
        below = found[root] = list(children.get(root, ()))
        for pid in below:  # which grows
            below += children.get(pid, ())
    return found


def processes_of(run_id: str) -> list[int]:
    """Ids of the user's live processes that carry the run's id, this one left out."""
    mark = f"{RUN_ID_VARIABLE}={run_id}".encode()
    own = os.getpid()
    return [pid for pid in all_pids() if pid != own and mark in environment(pid)]


def group_members(pgid: int) -> list[int]:
    """Ids of the live processes of a process group."""
    stats = (process_stat(pid) for pid in all_pids())
    return [stat.pid for stat in stats if stat is not None and stat.alive and stat.group == pgid]


def send_signal(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone, or be another user's by now."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def stop_processes_of(run_id: str, pgid: int | None = None) -> int:
    """SIGKILL to what is left of a run whose keeper is gone, until nothing is.

    Args:
        pgid: The process group that was made for the run, if it may still be the run's.

    Returns:
        How many processes there were.
    """
    ended: set[int] = set()
    deadline = time.monotonic() + KILL_PATIENCE_S
    while True:
        left = set(processes_of(run_id))
        if pgid is not None:
            left |= set(group_members(pgid))
        if not left or time.monotonic() > deadline:
            return len(ended)
        for pid in left:
            send_signal(pid, signal.SIGKILL)
        ended |= left
        time.sleep(_POLL_S)  # not our children: there is nothing to wait on
