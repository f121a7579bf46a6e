"""A job's scratch folder on its node's disk: data folder, runtime folder, collector.

It is removed with the job::

    TMPDIR/radt-job-20261125-201500-3f2a-3-17.2/        .radt-job-….PID while it is being made
    ├── lock          held by the node runner
    ├── home/         data folder
    ├── run/          runtime folder: a user's jobs on a node share no collector and no ledger
    └── output.log    output of the node runner
"""

from __future__ import annotations

import math
import os
import platform
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from radt import __version__, settings
from radt.cluster.attempt import PREEMPTED, TIME_LIMIT, AttemptStart
from radt.collocation.ledger import CreatedLedger
from radt.collocation.setup import clean_up
from radt.errors import ClusterError
from radt.files import PidLock, lock
from radt.home import Home
from radt.processes import stop
from radt.procfs import ProcessId, start_ticks
from radt.runner.active import StopRequest
from radt.runner.outcome import STOPPED

_PREFIX = "radt-job-"
#: The job's own temporary folder, at sites that create one.
_VARIABLE = "SLURM_TMPDIR"
#: Seconds that a collector gets to store its values before it is killed.
COLLECTOR_GRACE_S = 10.0


@dataclass(slots=True)
class ScratchFolder:
    """The scratch folder of a job.

    ``is_kept`` is True if the folder must stay because it holds the only copy of some data.
    """

    path: Path
    is_kept: bool = False

    @property
    def home(self) -> Home:
        return Home(self.path / "home")

    @property
    def runtime(self) -> Path:
        return self.path / "run"

    @property
    def output_log(self) -> Path:
        return self.path / "output.log"

    @classmethod
    @contextmanager
    def made(cls, name: str) -> Iterator[ScratchFolder]:
        """Create the folder; at the end, stop everything that uses it and remove it.

        Folders of killed jobs are removed first.

        Raises:
            ClusterError: It cannot be created.
        """
        base = _base()
        for left in base.glob(f".{_PREFIX}*.*"):  # incomplete: no process was started in these
            pid = left.suffix[1:]
            if pid.isdecimal() and start_ticks(int(pid)) is None and _is_own(left):
                shutil.rmtree(left, ignore_errors=True)
        for left in base.glob(f"{_PREFIX}*"):
            _remove_left(left)
        scratch = cls(base / f"{_PREFIX}{name}")
        unlocked = cls(base / f".{_PREFIX}{name}.{os.getpid()}")
        try:
            unlocked.path.mkdir(mode=0o700)
            unlocked.runtime.mkdir(mode=0o700)
            unlocked.output_log.touch(mode=0o600)
            held = (unlocked.path / "lock").open("a")
            lock(held.fileno())
            unlocked.path.rename(scratch.path)  # visible to other jobs only once it is locked
        except OSError as error:
            raise ClusterError(
                f"the job's folder {scratch.path} cannot be made on this node: {error.strerror}",
                "Free space on its disk, or set TMPDIR in setup of [cluster] to a folder there",
            ) from error
        with held:
            try:
                yield scratch
            finally:
                end_collector(scratch.runtime, COLLECTOR_GRACE_S)
                if not scratch.is_kept:
                    shutil.rmtree(scratch.path, ignore_errors=True)

    def keep(self) -> None:
        """Keep the folder beyond the end of the job.

        Raises:
            OSError: It is kept only until the next job on this node.
        """
        self.is_kept = True
        (self.path / "kept").touch()


def end_collector(runtime: Path, grace_s: float) -> None:
    """End the guardian and the worker of a runtime folder, and wait for them.

    Raises:
        OSError: There is no such folder.
    """
    for name in ("guardian.lock", "worker.lock"):  # in this order: a guardian ends its worker
        held = PidLock(runtime / name)
        try:
            if (pid := held.holder()) and (process := ProcessId.of(pid)):
                stop(process, grace_s, grace_s)
        finally:
            held.close()


def _base() -> Path:
    given = os.environ.get(_VARIABLE, "")
    return Path(given) if given and Path(given).is_dir() else Path(tempfile.gettempdir())


def _is_own(folder: Path) -> bool:
    """Return True if it is a folder owned by this user."""
    try:
        info = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid()


def _remove_left(folder: Path) -> None:
    """Remove the folder of a killed job, after ending the processes it left."""
    try:
        if not _is_own(folder) or (folder / "kept").exists():
            return
        with (folder / "lock").open("a") as held:
            if not lock(held.fileno()):
                return  # the job is running
            end_collector(folder / "run", COLLECTOR_GRACE_S)
            clean_up(CreatedLedger(folder / "run" / "created"), say=lambda _: None)
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        return  # another process is removing it


def node_name() -> str:
    """Return the engine's name of this node."""
    return os.environ.get("SLURMD_NODENAME") or platform.node()


def node_number() -> int:
    """Return the number of this node within its job, from 0."""
    return int(os.environ.get("SLURM_NODEID") or 0)


def engine_job_id() -> str:
    """Return the engine's id of this job, such as ``1234_7``; "" outside of jobs."""
    array, index = (os.environ.get(f"SLURM_ARRAY_{name}_ID", "") for name in ("JOB", "TASK"))
    return f"{array}_{index}" if array and index else os.environ.get("SLURM_JOB_ID", "")


def this_start() -> AttemptStart:
    """Describe the start of an attempt: the same on all nodes of a job, but for host and pid."""
    restarts = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
    beat_s = settings.variable(settings.CLUSTER_BEAT_S, os.environ).value
    return AttemptStart(node_name(), engine_job_id(), os.getpid(), __version__, restarts, beat_s)


@dataclass(frozen=True, slots=True)
class Notice:
    """The meaning of a signal, and how long the job may take to end after it."""

    reason: str
    grace_s: float


#: Slurm sends SIGTERM `KillWait` (default 30 s) before it kills, and SIGUSR1 before the time limit
#: as requested with --signal: about 120 s, up to a minute earlier or later.
NOTICES: Mapping[int, Notice] = {
    signal.SIGUSR1: Notice(TIME_LIMIT, 55.0),
    signal.SIGTERM: Notice(PREEMPTED, 22.0),
    signal.SIGINT: Notice(STOPPED, 22.0),
}
#: Reasons of runs that were killed because of these signals.
NOTICED = frozenset(notice.reason for notice in NOTICES.values())


class NodeStop(StopRequest):
    """A stop requested by the engine's signals, or by a newer attempt of the job."""

    #: Do not wait for a profiler's report: the engine kills soon.
    patience_s = 0.0

    def __init__(self) -> None:
        super().__init__()
        #: Monotonic time by which the whole job must be over.
        self.deadline_s = math.inf

    def take_signals(self) -> None:
        """Handle signals from now on; call it in the main thread. Repeated signals do nothing."""
        for number in NOTICES:
            signal.signal(number, self._notice)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def _notice(self, number: int, _frame: FrameType | None) -> None:
        notice = NOTICES[number]
        self.deadline_s = min(self.deadline_s, time.monotonic() + notice.grace_s)
        self.request_once(notice.reason)
