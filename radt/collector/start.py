"""Start the user's collector as a daemon, only once: settings, locks, environment, log.

Imports the standard library only.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from radt import settings
from radt.errors import CollectorError
from radt.files import PidLock, lock
from radt.home import RUNTIME_VARIABLE, runtime_dir
from radt.processes import command, reap
from radt.settings import Setting

log = logging.getLogger(__name__)


def _of(setting: Setting[Any]) -> Any:
    return field(default=setting.default, metadata={"setting": setting})


@dataclass(frozen=True, slots=True)
class CollectorSettings:
    """The collector's settings, from its parent's environment (`radt.settings`).

    Each of ``buffered_points`` takes 16 bytes. The collector ends when the process ``owner_pid``
    does.
    """

    idle_s: float = _of(settings.COLLECTOR_IDLE_S)
    flush_s: float = _of(settings.FLUSH_S)
    disk_sync_s: float = _of(settings.DISK_SYNC_S)
    hang_s: float = _of(settings.COLLECTOR_HANG_S)
    buffered_points: int = _of(settings.COLLECTOR_BUFFER)
    delivery_stall_s: float = _of(settings.COLLECTOR_DELIVERY_S)
    upload_wait_s: float = _of(settings.UPLOAD_WAIT_S)
    owner_pid: int | None = _of(settings.COLLECTOR_OWNER)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> CollectorSettings:
        """Return the settings; an invalid one is logged and replaced by its default."""
        for problem in problems(environ):
            log.error("%s", problem)
        values = {
            name: settings.variable(setting, environ).value for name, setting in _BY_FIELD.items()
        }
        return cls(**values)

    @property
    def supervise_s(self) -> float:
        """Return the seconds between checks of owners, listeners and deliveries."""
        return min(1.0, self.idle_s / 4, self.hang_s / 4)


#: Settings that the collector inherits, by field of `CollectorSettings`.
_BY_FIELD: Mapping[str, Setting[Any]] = {
    item.name: item.metadata["setting"] for item in fields(CollectorSettings)
}
VARIABLES = tuple(name for setting in _BY_FIELD.values() for name in setting.variables)


def problems(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return errors in the collector's variables, one sentence each."""
    values = (settings.variable(setting, environ) for setting in _BY_FIELD.values())
    return [str(value.problem) for value in values if value.problem is not None]


# Locks between processes that name their holder and end with it -----------------------------------


def guardian_lock() -> PidLock:
    """Return the lock that a guardian holds while it lives."""
    return PidLock(runtime_dir() / "guardian.lock")


def worker_lock() -> PidLock:
    """Return the lock that the worker holds while it lives."""
    return PidLock(runtime_dir() / "worker.lock")


#: A run's variables must not reach the collector: it outlives the run, and any process with a run's
#: id is stopped with the run.
_NOT_INHERITED = ("RADT_", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME")

#: The log is rotated at this size; the previous one is kept beside it.
_MAX_LOG_BYTES = 5_000_000

#: Free space needed for locks, the clock and the first lines of a log.
_LEAST_ROOM_BYTES = 64 * 1024

#: How long the daemon's first process may take to hand over to the second.
_DETACH_TIMEOUT_S = 30.0
_POLL_S = 0.02


def log_path() -> Path:
    """Return the log file of the collector, its listeners and the uploads."""
    return runtime_dir() / "collector.log"


@contextmanager
def starting(deadline_s: float = math.inf) -> Iterator[None]:
    """Let one client start the collector; the others wait for it.

    Args:
        deadline_s: End of the wait on the monotonic clock.

    Raises:
        CollectorError: The other client has not started it by then.
    """
    with (runtime_dir() / "start.lock").open("a") as file:
        while not lock(file.fileno()):
            if time.monotonic() >= deadline_s:
                raise _slow()
            time.sleep(_POLL_S)
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
    """Start a guardian, which starts the worker; harmless if both are running.

    Args:
        deadline_s: End of the wait on the monotonic clock; the guardian is started even so.

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
            process = subprocess.Popen(
                command("radt.collector", "--detach"),
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
        reap(process)
        raise _slow() from None
    if code != 0:
        raise CollectorError(f"the collector exited immediately with code {code}", _remedy())


def _slow() -> CollectorError:
    return CollectorError("the collector has not started yet", f"Look into {log_path()}")


def _check_room(folder: Path) -> None:
    """Raise CollectorError if the disk is full: not even a log with the error could be written."""
    probe = folder / f"room-{os.getpid()}"
    try:
        with probe.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, _LEAST_ROOM_BYTES)
    except OSError as error:
        if error.errno == errno.EFBIG:  # a limit of this process; the collector resets its own
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
