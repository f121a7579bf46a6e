"""Keeps two runners off one experiment file."""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import platform
import shlex
import sys
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from radt.errors import HeldError, UsageError
from radt.masking import masked


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lock; ``since`` is local time in ISO 8601 with its offset."""

    pid: int
    host: str
    user: str
    since: str
    command: str

    @classmethod
    def myself(cls) -> Holder:
        return cls(
            pid=os.getpid(),
            host=platform.node(),
            user=_user(),
            since=datetime.now().astimezone().isoformat(timespec="seconds"),
            # Everybody who can read the experiment file can read the lock file.
            command=masked(shlex.join(sys.argv)),
        )

    @property
    def is_here(self) -> bool:
        return self.host == platform.node()

    @property
    def seems_alive(self) -> bool:
        """False if it is known to be dead; of other machines nothing is known."""
        return not self.is_here or Path(f"/proc/{self.pid}").exists()

    def __str__(self) -> str:
        since = datetime.fromisoformat(self.since)
        where = f"process {self.pid}" if self.is_here else f"process {self.pid} on {self.host}"
        return f"{where} of {self.user} since {since:%Y-%m-%d %H:%M:%S}"


class ExperimentLock:
    """Held by the runner of a file, from reading it to the last status.

    A ``flock`` on a hidden file beside the experiment file (not on the file itself: that one is
    replaced with every status). The kernel lets go of it when the process dies, however it dies.
    Beside the file, not in the user's runtime folder, so that it also holds between users and, on
    network file systems that pass ``flock`` on (NFS does), between machines. The same process
    cannot hold it twice either.

    Raises:
        HeldError: On entering: another runner holds it; says which.
        UsageError: On entering: the folder does not take a lock.
    """

    def __init__(self, path: Path | str) -> None:
        self._shown = os.fspath(path)
        target = Path(os.path.realpath(path))
        self.path = target.with_name(f".{target.name}.radt-lock")
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock, without waiting."""
        while self._descriptor is None:
            try:
                descriptor, own = self._open()
                taken = self._try(descriptor, own)
            except OSError as error:
                raise UsageError(
                    f"no lock can be put beside {self._shown}: {error.strerror}",
                    f"radt also writes statuses there; make {self.path.parent} a folder on a disk "
                    "that locks files, and yours to write",
                ) from error
            if taken:
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, json.dumps(asdict(Holder.myself())).encode(), 0)
                self._descriptor = descriptor

    def holder(self) -> Holder | None:
        """Who seems to hold it, for people: nothing is locked, so it may change at once."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None  # there is no lock, or none for us to read: nobody to name
        try:
            holder = _read_holder(descriptor)
        finally:
            os.close(descriptor)
        return holder if holder is not None and holder.seems_alive else None

    def _open(self) -> tuple[int, bool]:
        """The lock file, and whether it may be written: another user's may only be read."""
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            return os.open(self.path, flags, 0o644), True
        except PermissionError:
            if not self.path.exists():
                raise
            return os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), False

    def _try(self, descriptor: int, own: bool) -> bool:
        """Lock what was opened; False, and closed, where the lock file has to be opened anew."""
        taken = False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its last holder may have removed it since it was opened: then it locks nothing.
            taken = own and self._is_current(descriptor)
            if not own:
                self.path.unlink()  # left by another user's runner that was killed
        except BlockingIOError:
            raise self._held(_read_holder(descriptor)) from None
        finally:
            if not taken:
                os.close(descriptor)
        return taken

    def release(self) -> None:
        """Let go, and remove the lock file; harmless if it is not held."""
        if self._descriptor is None:
            return
        # Removed while still held, so that nobody else's lock can be removed.
        self.path.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = None

    def _is_current(self, descriptor: int) -> bool:
        try:
            there = self.path.stat()
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(descriptor))

    def _held(self, holder: Holder | None) -> HeldError:
        if holder is None:
            return HeldError(f"{self._shown} is being run by another radt", "Wait for it to end")
        stop = f"kill {holder.pid}" if holder.is_here else f"kill {holder.pid} on {holder.host}"
        return HeldError(
            f"{self._shown} is being run by {holder} ({holder.command})",
            f"Wait for it to end, or stop it: {stop}",
        )

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


def _read_holder(descriptor: int) -> Holder | None:
    """None where the holder has not signed yet, or in a way this version does not know."""
    try:
        holder = Holder(**json.loads(os.pread(descriptor, 65536, 0)))
        datetime.fromisoformat(holder.since)
    except (ValueError, TypeError):
        return None
    return holder


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return f"user {os.getuid()}"
