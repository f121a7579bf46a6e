"""The node that a runner is on, as the engine calls it, and how it is asked to end there."""

from __future__ import annotations

import math
import os
import platform
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import FrameType

from radt import __version__
from radt.cluster.spool import PREEMPTED, TIME_LIMIT, Start
from radt.runner.active import StopRequest
from radt.runner.outcome import STOPPED


def node_name() -> str:
    """Return what the engine calls this node."""
    return os.environ.get("SLURMD_NODENAME") or platform.node()


def node_number() -> int:
    """Return which node of its job this is, from 0."""
    return int(os.environ.get("SLURM_NODEID") or 0)


def engine_job_id() -> str:
    """Return the engine's id of this job, such as ``1234_7``; "" outside of one."""
    array, index = (os.environ.get(f"SLURM_ARRAY_{name}_ID", "") for name in ("JOB", "TASK"))
    return f"{array}_{index}" if array and index else os.environ.get("SLURM_JOB_ID", "")


def this_start() -> Start:
    """Return who begins an attempt here: the same on all nodes of a job, but for host and pid."""
    restarts = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
    return Start(node_name(), engine_job_id(), os.getpid(), __version__, restarts)


@dataclass(frozen=True, slots=True)
class Notice:
    """What a signal means, and how long the job may take to end then."""

    reason: str
    grace_s: float


#: Slurm sends SIGTERM `KillWait` before it kills, 30 s by default, and SIGUSR1 as long before the
#: time limit as it was asked to, 120 s, give or take a minute.
NOTICES: Mapping[int, Notice] = {
    signal.SIGUSR1: Notice(TIME_LIMIT, 55.0),
    signal.SIGTERM: Notice(PREEMPTED, 22.0),
    signal.SIGINT: Notice(STOPPED, 22.0),
}
#: Why runs were killed that were told so.
NOTICED = frozenset(notice.reason for notice in NOTICES.values())


class NodeStop(StopRequest):
    """How a job is asked to end: by the engine's signals, or by a newer attempt."""

    #: A profiler's report is not worth the rest: the engine kills soon.
    patience_s = 0.0

    def __init__(self) -> None:
        super().__init__()
        #: When all of the job has to be over, by the monotonic clock.
        self.deadline_s = math.inf

    def take_signals(self) -> None:
        """Have signals ask from here on; in the main thread. Sent again, they change nothing."""
        for number in NOTICES:
            signal.signal(number, self._notice)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def _notice(self, number: int, _frame: FrameType | None) -> None:
        notice = NOTICES[number]
        self.deadline_s = min(self.deadline_s, time.monotonic() + notice.grace_s)
        self.request_once(notice.reason)
