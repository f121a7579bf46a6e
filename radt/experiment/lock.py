"""The lock that prevents two runners of one experiment file."""

from __future__ import annotations

import errno
import getpass
import json
import os
import platform
import shlex
import stat
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Self

from radt.clock import Clock
from radt.errors import HeldError, UsageError
from radt.experiment.files import table_path
from radt.files import is_open_at, lock
from radt.masking import masked
from radt.procfs import own_start_ticks, start_ticks

_TYPES = {"int": int, "str": str, "bool": bool, "tuple[str, ...]": tuple}
#: Options whose values are secrets: the address of a webhook contains one.
_SECRET_OPTIONS = ("--notify",)


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a lock, and its options.

    ``since`` is local time in ISO 8601 with its offset; ``started_ticks`` distinguishes the process
    from later ones with the same pid. ``home`` is its data folder, ``log`` the file that its output
    goes to (empty for a terminal or a pipe); ``rerun``, ``only`` and ``repeat`` are options of the
    start, and ``options`` are all of them as they were typed (`start_options`). Fields that an
    older version did not write have their defaults.
    """

    pid: int
    host: str
    user: str
    since: str
    command: str
    started_ticks: int = 0
    home: str = ""
    log: str = ""
    rerun: bool = False
    only: tuple[str, ...] = ()
    repeat: int = 1
    options: str = ""

    @classmethod
    def myself(cls, file: Path | str, home: Path | None, **work: Any) -> Holder:
        """Describe this process and its start of a file in a data folder.

        Args:
            file: The experiment file.
            home: The data folder; None for none.
            **work: The fields ``rerun``, ``only`` and ``repeat``, unless they have their defaults.
        """
        return cls(
            pid=os.getpid(),
            host=platform.node(),
            user=user_name(),
            # From the runs' clock, because it is compared with their times.
            since=datetime.fromtimestamp(Clock.at_hand().now_ns() // 10**9, UTC)
            .astimezone()
            .isoformat(timespec="seconds"),
            # Everybody who can read the experiment file can read the lock file.
            command=shown_command(sys.argv),
            started_ticks=own_start_ticks(),
            home="" if home is None else str(home),
            log=_output_file(),
            options=start_options(file, home),
            **work,
        )

    @classmethod
    def read(cls, text: bytes) -> Holder:
        """Parse the text of a holder; fields of later versions are ignored.

        Raises:
            ValueError: It is not a holder.
            TypeError: The same.
        """
        given = json.loads(text)
        known = {item.name: given[item.name] for item in fields(cls) if item.name in given}
        holder = cls(**known | {"only": tuple(map(str, known.get("only", ())))})
        for item in fields(cls):
            if type(getattr(holder, item.name)) is not _TYPES[str(item.type)]:
                raise TypeError(f"{item.name} is {getattr(holder, item.name)!r}")
        datetime.fromisoformat(holder.since)
        return holder

    @property
    def is_here(self) -> bool:
        return self.host == platform.node()

    @property
    def seems_alive(self) -> bool:
        """Return False if it is known to be dead; processes on other machines count as alive."""
        if not self.is_here:
            return True
        ticks = start_ticks(self.pid)
        return ticks is not None and self.started_ticks in (0, ticks)

    def __str__(self) -> str:
        since = datetime.fromisoformat(self.since)
        where = f"process {self.pid}" if self.is_here else f"process {self.pid} on {self.host}"
        return f"{where} of {self.user} since {since:%Y-%m-%d %H:%M:%S}"


class ExperimentLock:
    """Held by the runner of a file, from reading it to the last status.

    A ``flock`` on a hidden file beside the experiment file (not on the file itself, which is
    replaced with every status). The kernel releases it when the process dies for any reason. It is
    beside the file rather than in the user's runtime folder so that it also holds between users
    and, on network file systems that support ``flock`` (NFS does), between machines. A process
    cannot hold it twice either.

    Args:
        path: The experiment file.
        home: The data folder, shown to processes that ask for the holder.
        **work: Options of the start (`Holder.myself`), for the same purpose.

    Raises:
        HeldError: On entering: another runner holds it; names that runner.
        UsageError: On entering: no lock can be created in the folder.
    """

    def __init__(self, path: Path | str, *, home: Path | None = None, **work: Any) -> None:
        self._shown = os.fspath(path)
        self._describe = partial(Holder.myself, path, home, **work)
        target = Path(os.path.realpath(table_path(path)))
        self.path = target.with_name(f".{target.name}.radt-lock")
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock, without waiting."""
        while self._descriptor is None:
            try:
                descriptor, own = self._open()
                if self._try(descriptor, own):
                    self._sign(descriptor)
            except OSError as error:
                full = error.errno in (errno.ENOSPC, errno.EDQUOT)
                raise UsageError(
                    f"radt cannot lock {self._shown}: {error.strerror}",
                    f"Free space on the disk of {self.path.parent}"
                    if full
                    else f"Check that you may write into {self.path.parent}, and that its file "
                    "system has locks",
                ) from error

    def _sign(self, descriptor: int) -> None:
        """Write this process's description into the lock file; release the lock if that fails."""
        holder = self._describe()
        self._descriptor = descriptor
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(asdict(holder)).encode(), 0)
        except OSError:
            self.release()
            raise

    def holder(self) -> Holder | None:
        """Return the probable holder, for messages only: it may change at any moment."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None  # there is no lock, or it is unreadable for this user
        try:
            holder = _read_holder(descriptor)
        finally:
            os.close(descriptor)
        return holder if holder is not None and holder.seems_alive else None

    def _open(self) -> tuple[int, bool]:
        """Open the lock file; return whether it is writable: another user's is not."""
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            return os.open(self.path, flags, 0o644), True
        except PermissionError:
            if not self.path.exists():
                raise
            return os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), False

    def _try(self, descriptor: int, own: bool) -> bool:
        """Lock an open lock file; return False, and close it, if it has to be opened again."""
        taken = False
        try:
            if not lock(descriptor):
                raise self._held(_read_holder(descriptor))
            # Its last holder may have removed it since it was opened; then the lock has no effect.
            is_current = is_open_at(descriptor, self.path)
            taken = own and is_current
            if is_current and not own:
                self.path.unlink()  # left by another user's killed runner
        finally:
            if not taken:
                os.close(descriptor)
        return taken

    def release(self) -> None:
        """Release the lock and remove its file; harmless if it is not held."""
        if self._descriptor is None:
            return
        # Removed while still held, so that another process's lock is never removed.
        self.path.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = None

    def _held(self, holder: Holder | None) -> HeldError:
        if holder is None:
            return HeldError(f"{self._shown} is being run by another radt", "Wait for it to end")
        stop = f"radt stop {shlex.quote(self._shown)}"
        where = "" if holder.is_here else f" on {holder.host}"
        return HeldError(
            f"{self._shown} is being run by {holder} ({holder.command})",
            f"Wait for it to end, or stop it: {stop}{where}",
        )

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _read_holder(descriptor: int) -> Holder | None:
    """Read the holder; None if it has not written its description yet, or in an unknown format."""
    try:
        return Holder.read(os.pread(descriptor, 65536, 0))
    except (ValueError, TypeError):
        return None


def shown_command(argv: Sequence[str]) -> str:
    """Return a command line for others to see: without passwords, webhooks, or radt's path."""
    program, *arguments = argv or [""]
    parts = ["radt" if _is_radt(program) else program]
    hidden = False
    for argument in arguments:
        option, equals, _ = argument.partition("=")
        if hidden:
            parts.append("***")
        elif equals and option in _SECRET_OPTIONS:
            parts.append(f"{option}=***")
        else:
            parts.append(argument)
        hidden = not hidden and argument in _SECRET_OPTIONS
    return masked(shlex.join(parts))


def start_options(file: Path | str, home: Path | None) -> str:
    """Return the options with which this radt was called for a file, for others to see.

    Includes ``--detach`` for a runner in the background, whose own command line lacks it.
    """
    program, *arguments = sys.argv or [""]
    if not _is_radt(program):  # a script that calls radt.run_experiment
        return ""
    if arguments[:1] == ["run"]:
        arguments = arguments[1:]
    if home is not None and Path(_output_file()).parent == (home / "logs").resolve():
        arguments = [*arguments, "--detach"]
    options = [argument for argument in arguments if Path(argument) != Path(file)]
    return shown_command(["radt", *options]).removeprefix("radt").strip()


def _is_radt(program: str) -> bool:
    return Path(program).name in ("radt", "__main__.py")


def _output_file() -> str:
    """Return the file that standard output goes to; "" if it is not a file, or gone."""
    try:
        target = Path(f"/proc/self/fd/{sys.stdout.fileno()}")
        status = target.stat()
        path = target.readlink()
        same = stat.S_ISREG(status.st_mode) and path.samefile(target)
    except (OSError, ValueError, AttributeError):
        return ""
    return str(path) if same else ""


def user_name() -> str:
    """Return the name of the user of this process, for people."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return f"user {os.getuid()}"
