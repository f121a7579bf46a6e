"""Ends what a run left running after its runner died."""

from __future__ import annotations

import os
import signal
import time

from radt.collector.processes import carries_run_id
from radt.procfs import all_pids

GRACE_S = 5.0
_POLL_S = 0.05


def processes_of(run_id: str) -> list[int]:
    """Processes that were started, directly or not, by a run. Never the caller."""
    own = os.getpid()
    return [pid for pid in all_pids() if pid != own and carries_run_id(pid, run_id)]


def stop_run(run_id: str, grace_s: float = GRACE_S) -> int:
    """SIGTERM to all processes of a run and to their groups, SIGKILL to what is left.

    Only processes that carry the run's id are touched, and groups that one of them leads: a
    number that meanwhile belongs to somebody else's process is not.

    Returns:
        How many processes there were.
    """
    found = processes_of(run_id)
    for pid in found:
        _signal(pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    left = found
    while left and time.monotonic() < deadline:
        time.sleep(_POLL_S)  # not our children: there is nothing to wait on
        left = processes_of(run_id)
    while left:
        for pid in left:
            _signal(pid, signal.SIGKILL)
        time.sleep(_POLL_S)
        # One that cannot die (waiting for a disk) must not keep the run from being ended.
        left = processes_of(run_id) if time.monotonic() < deadline + grace_s else []
    return len(found)


def _signal(pid: int, number: int) -> None:
    try:
        if os.getpgid(pid) == pid:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)
    except ProcessLookupError:
        pass  # it ended by itself
