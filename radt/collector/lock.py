"""A lock between processes that says who holds it, and that the kernel lets go when they die."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

from radt.home import runtime_dir

# struct flock of 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid. A record lock rather than
# flock(2), as only those can be asked who holds them without being taken.
_FLOCK = struct.Struct("hhqqi4x")


def guardian_lock() -> PidLock:
    """The lock that a guardian holds for as long as it lives."""
    return PidLock(runtime_dir() / "guardian.lock")


def worker_lock() -> PidLock:
    """The lock that the worker holds for as long as it lives."""
    return PidLock(runtime_dir() / "worker.lock")


class PidLock:
    """One file, one holder. Open it only once in a process: closing any other drops the lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def acquire(self) -> bool:
        """Take the lock; False if another process has it."""
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def holder(self) -> int | None:
        """Id of the process that has the lock, None if no other has."""
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(self._fd, fcntl.F_GETLK, asked))
        return None if kind == fcntl.F_UNLCK else int(pid)

    def close(self) -> None:
        """Let go."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
