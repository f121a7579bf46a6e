"""Start the user's collector as a daemon, only once: settings, locks, environment, log.

Imports the standard library only.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import math
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radt import settings
from radt.errors import CollectorError
from radt.home import RUNTIME_VARIABLE, runtime_dir
from radt.settings import Setting

log = logging.getLogger(__name__)

#: Settings that the collector inherits, by field of `CollectorSettings`.
_BY_FIELD: Mapping[str, Setting[Any]] = {
    "idle_s": settings.COLLECTOR_IDLE_S,
    "flush_s": settings.FLUSH_S,
    "disk_sync_s": settings.DISK_SYNC_S,
    "hang_s": settings.COLLECTOR_HANG_S,
    "buffered_points": settings.COLLECTOR_BUFFER,
    "delivery_grace_s": settings.COLLECTOR_DELIVERY_S,
    "upload_wait_s": settings.UPLOAD_WAIT_S,
    "owner_pid": settings.COLLECTOR_OWNER,
}
VARIABLES = tuple(name for setting in _BY_FIELD.values() for name in setting.variables)


@dataclass(frozen=True, slots=True)
class CollectorSettings:
    """The collector's settings, from its parent's environment (`radt.settings`).

    Each of ``buffered_points`` takes 16 bytes. With the process ``owner_pid`` the collector ends.
    """

    idle_s: float = settings.COLLECTOR_IDLE_S.default
    flush_s: float = settings.FLUSH_S.default
    disk_sync_s: float = settings.DISK_SYNC_S.default
    hang_s: float = settings.COLLECTOR_HANG_S.default
    buffered_points: int = settings.COLLECTOR_BUFFER.default
    delivery_grace_s: float = settings.COLLECTOR_DELIVERY_S.default
    upload_wait_s: float = settings.UPLOAD_WAIT_S.default
    owner_pid: int | None = settings.COLLECTOR_OWNER.default

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> CollectorSettings:
        """Return the settings; an invalid one is logged and has its default."""
        for problem in problems(environ):
            log.error("%s", problem)
        return cls(
            **{
                field: settings.variable(setting, environ).value
                for field, setting in _BY_FIELD.items()
            }
        )

    @property
    def supervise_s(self) -> float:
        """Seconds between checks of owners, listeners and deliveries."""
        return min(1.0, self.idle_s / 4, self.hang_s / 4)


def problems(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return errors in the collector's variables, one sentence each."""
    values = (settings.variable(setting, environ) for setting in _BY_FIELD.values())
    return [str(value.problem) for value in values if value.problem is not None]


# A lock between processes that names its holder and ends with it ----------------------------------


# struct flock of 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid. A record lock rather than
# flock(2), as only record locks can be queried for their holder without being taken.
_FLOCK = struct.Struct("hhqqi4x")


def guardian_lock() -> PidLock:
    """Return the lock that a guardian holds while it lives."""
    return PidLock(runtime_dir() / "guardian.lock")


def worker_lock() -> PidLock:
    """Return the lock that the worker holds while it lives."""
    return PidLock(runtime_dir() / "worker.lock")


class PidLock:
    """Lock file with one holder. Open it once per process: closing another drops the lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def acquire(self) -> bool:
        """Take the lock; return False if another process has it."""
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def holder(self) -> int | None:
        """Return the id of the process that has the lock; None if no other process has it."""
        request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(self._fd, fcntl.F_GETLK, request))
        return None if kind == fcntl.F_UNLCK else int(pid)

    def close(self) -> None:
        """Release the lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


#: A run's variables must not reach the collector: it outlives the run, and any process with a run's
#: id is stopped with the run.
_NOT_INHERITED = ("RADT_", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME")

#: The log is rotated at this size; the previous one is kept beside it.
_MAX_LOG_BYTES = 5_000_000

#: Free space needed by locks, the clock and the first lines of a log.
_LEAST_ROOM_BYTES = 64 * 1024

#: How long the daemon's first process may take to hand over to the second.
_DETACH_TIMEOUT_S = 30.0
_POLL_S = 0.02


def log_path() -> Path:
    """Return the log file of the collector, its listeners and the uploads."""
    return runtime_dir() / "collector.log"


@contextmanager
def starting(deadline_s: float = math.inf) -> Iterator[None]:
    """Let one client start the collector; the others wait and find it running.

    Args:
        deadline_s: Until when they wait, by the monotonic clock.

    Raises:
        CollectorError: The one has not done so by then.
    """
    with (runtime_dir() / "start.lock").open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline_s:
                    raise _slow() from None
                time.sleep(_POLL_S)
            else:
                break
        yield


def collector_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the collector's environment, given that of its parent."""
    env = {
        name: value
        for name, value in environ.items()
        if name in VARIABLES or not name.startswith(_NOT_INHERITED)
    }
    env[RUNTIME_VARIABLE] = str(runtime_dir().absolute())
    if "PYTHONPATH" in env:  # the collector has another current directory
        env["PYTHONPATH"] = os.pathsep.join(
            str(Path(part).absolute()) for part in env["PYTHONPATH"].split(os.pathsep) if part
        )
    return env


def start_guardian(deadline_s: float = math.inf) -> None:
    """Start a guardian, which starts the worker; harmless if both run.

    Args:
        deadline_s: Until when to wait for it, by the monotonic clock; it starts all the same.

    Raises:
        CollectorError: It cannot be started, or has not started by then.
    """
    if not sys.executable:
        raise CollectorError(
            "the collector cannot be started: this Python does not know its own executable",
            "Start it with `python -m radt.collector`",
        )
    try:
        _check_room(runtime_dir())
        _rotate(log_path())
        with log_path().open("ab") as log_file:
            # -P: a file of the user's named like a module must not be taken for it.
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "radt.collector", "--detach"],
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                cwd="/",
                env=collector_environment(os.environ),
                start_new_session=True,
            )
    except OSError as error:
        raise CollectorError(f"the collector cannot be started: {error}", _remedy()) from error
    try:
        code = process.wait(max(0.0, min(_DETACH_TIMEOUT_S, deadline_s - time.monotonic())))
    except subprocess.TimeoutExpired:
        # Somebody has to take note of its end.
        threading.Thread(target=process.wait, name="starting", daemon=True).start()
        raise _slow() from None
    if code != 0:
        raise CollectorError(f"the collector exited immediately with code {code}", _remedy())


def _slow() -> CollectorError:
    return CollectorError("the collector has not started yet", f"Look into {log_path()}")


def _check_room(folder: Path) -> None:
    """Raise CollectorError if the disk is full: there would not even be a log with the error."""
    probe = folder / f"room-{os.getpid()}"
    try:
        with probe.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, _LEAST_ROOM_BYTES)
    except OSError as error:
        if error.errno == errno.EFBIG:  # a limit of this process; the collector sets its own
            return
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise CollectorError(
            f"the collector cannot be started: the disk of {folder} is full",
            f"Free space there, or set {RUNTIME_VARIABLE} to a folder with a short path elsewhere",
        ) from error
    finally:
        probe.unlink(missing_ok=True)


def _rotate(path: Path) -> None:
    if path.exists() and path.stat().st_size > _MAX_LOG_BYTES:
        path.replace(path.with_suffix(".old.log"))


def _remedy() -> str:
    return f"Look into {log_path()}, or run `{sys.executable} -m radt.collector` to see why"
