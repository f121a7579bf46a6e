"""A job's own folder on its node's disk: data folder, runtime folder, collector; gone with the job.

::

    TMPDIR/radt-job-20261125-201500-3f2a-3-17.2/        .radt-job-….PID while it is made
    ├── lock          held by the node runner
    ├── home/         data folder
    ├── run/          runtime folder: two jobs of a user on a node share no collector and no ledger
    └── output.log    of the node runner
"""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import signal
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from radt.collector.start import PidLock
from radt.collocation.ledger import Ledger
from radt.collocation.setup import clean_up
from radt.errors import ClusterError
from radt.home import Home
from radt.procfs import start_ticks

_PREFIX = "radt-job-"
#: Of the job's own folder, where the site makes one.
_VARIABLE = "SLURM_TMPDIR"
#: How long a collector may take to store what it has, before it is killed.
COLLECTOR_GRACE_S = 10.0


@dataclass(slots=True)
class NodePlace:
    """See the module's text.

    ``is_kept`` is whether the folder stays: something in it is nowhere else.
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
    def made(cls, name: str) -> Iterator[NodePlace]:
        """Make the folder, and remove it at the end with all that goes on in it.

        What jobs have left that were killed is removed first.

        Raises:
            ClusterError: It cannot be made.
        """
        base = _base()
        for left in base.glob(f".{_PREFIX}*.*"):  # nothing was started in these
            pid = left.suffix[1:]
            if pid.isdecimal() and start_ticks(int(pid)) is None and _is_own(left):
                shutil.rmtree(left, ignore_errors=True)
        for left in base.glob(f"{_PREFIX}*"):
            _remove_left(left)
        place = cls(base / f"{_PREFIX}{name}")
        unlocked = cls(base / f".{_PREFIX}{name}.{os.getpid()}")
        try:
            unlocked.path.mkdir(mode=0o700)
            unlocked.runtime.mkdir(mode=0o700)
            unlocked.output_log.touch(mode=0o600)
            lock = (unlocked.path / "lock").open("a")
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            unlocked.path.rename(place.path)  # only now others may look whether it is held
        except OSError as error:
            raise ClusterError(
                f"the job's folder {place.path} cannot be made on this node: {error.strerror}",
                "Free space on its disk, or set TMPDIR in setup of [cluster] to a folder there",
            ) from error
        with lock:
            try:
                yield place
            finally:
                end_collector(place.runtime, COLLECTOR_GRACE_S)
                if not place.is_kept:
                    shutil.rmtree(place.path, ignore_errors=True)

    def keep(self) -> None:
        """Have the folder stay.

        Raises:
            OSError: It stays only until the next job on this node.
        """
        self.is_kept = True
        (self.path / "kept").touch()


def end_collector(runtime: Path, grace_s: float) -> None:
    """End guardian and worker of a runtime folder, and wait for them.

    Raises:
        OSError: There is no such folder.
    """
    for name in ("guardian.lock", "worker.lock"):  # a guardian ends its worker
        lock = PidLock(runtime / name)
        try:
            if pid := lock.holder():
                _end(pid, grace_s)
        finally:
            lock.close()


def _end(pid: int, grace_s: float) -> None:
    """Ask a process to end, and wait for it; kill it if it does not."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(process, select.POLLIN)
        signal.pidfd_send_signal(process, signal.SIGTERM)
        if not poll.poll(grace_s * 1000):
            signal.pidfd_send_signal(process, signal.SIGKILL)
            poll.poll(grace_s * 1000)
    except ProcessLookupError:
        return
    finally:
        os.close(process)


def _base() -> Path:
    given = os.environ.get(_VARIABLE, "")
    return Path(given) if given and Path(given).is_dir() else Path(tempfile.gettempdir())


def _is_own(folder: Path) -> bool:
    """Whether it is a folder of this user."""
    try:
        info = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.getuid()


def _remove_left(folder: Path) -> None:
    """Remove the folder of a job that was killed; what it left on the machine goes with it."""
    try:
        if not _is_own(folder) or (folder / "kept").exists():
            return
        with (folder / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            end_collector(folder / "run", COLLECTOR_GRACE_S)
            clean_up(Ledger(folder / "run" / "created"), say=lambda _: None)
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        return  # it lives, or is another one's at the same moment
