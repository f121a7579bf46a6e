"""Files that several processes share: replace them atomically, lock them, identify them.

Imports very little, because training processes use it.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from radt.errors import UsageError

with suppress(ImportError):  # missing on systems that only display results
    import fcntl


# Replacing ----------------------------------------------------------------------------------------


@contextmanager
def whole_file(
    path: Path, *, mode: int | None = None, durable: bool = False, temporary: Path | None = None
) -> Iterator[Path]:
    """Yield an empty file beside ``path`` that replaces it if the block succeeds.

    Args:
        path: The file. Readers see the old or the new content, never a part.
        mode: Permissions; None for those of any new file.
        durable: Sync content and name to the disk, so that a crash of the machine cannot leave the
            new name without content.
        temporary: Name of the temporary file, if there is only one writer at a time: it overwrites
            what a killed writer left there. None for a unique name.

    Raises:
        OSError: The file cannot be written.
    """
    if temporary is None:
        temporary = path.absolute().with_name(f".{path.name}.{os.urandom(8).hex()}")
    else:
        temporary.unlink(missing_ok=True)
    try:
        flags = os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        # A new file gets the umask applied. Reading the umask would change it for other threads.
        os.close(os.open(temporary, flags, 0o666 if mode is None else mode))
        new_mode = temporary.stat().st_mode & 0o777
        yield temporary
        if mode is None:
            temporary.chmod(new_mode)  # the block may have replaced the file
        if durable:
            sync(temporary)
        temporary.replace(path)
        if durable:
            sync(path.parent)
    finally:
        with suppress(OSError):  # the folder no longer exists
            temporary.unlink(missing_ok=True)


def write_whole(
    path: Path,
    content: str | bytes,
    *,
    mode: int | None = None,
    durable: bool = False,
    temporary: Path | None = None,
) -> None:
    """Write a file atomically; for arguments see `whole_file`.

    Raises:
        OSError: The file cannot be written and is unchanged.
    """
    with whole_file(path, mode=mode, durable=durable, temporary=temporary) as file:
        file.write_bytes(content.encode() if isinstance(content, str) else content)


def create_whole(path: Path, content: str, *, mode: int = 0o600) -> None:
    """Write a file as `write_whole` does, unless it exists: the first of several writers wins.

    Raises:
        OSError: The file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    try:
        write_whole(temporary, content, mode=mode)
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def output_file(path: Path) -> Iterator[Path]:
    """Wrap `whole_file` for an output file that the user named.

    Raises:
        UsageError: The file cannot be written.
    """
    try:
        with whole_file(path) as temporary:
            yield temporary
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror or error}",
            "Give another file with -o, or free some disk space",
        ) from error


#: Errors of network file systems that cannot sync folders, and of folders that cannot be read.
_NO_FSYNC = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM)


def sync(path: Path) -> None:
    """Write a file to the disk, or the names in a folder, if that is possible there.

    Raises:
        OSError: The file cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if not path.is_dir() or error.errno not in _NO_FSYNC:
            raise


# Locking ------------------------------------------------------------------------------------------


def lock(descriptor: int, *, shared: bool = False, wait: bool = False) -> bool:
    """Lock an open file (flock(2)). The lock ends when no process has the file open any more.

    Returns:
        True if the lock is held; False if another process has it.

    Raises:
        OSError: The file system has no locks.
    """
    operation = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, operation if wait else operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait for the lock of a file and hold it. Create the file if missing.

    Raises:
        OSError: The file cannot be created, or its file system has no locks.
    """
    with path.open("a") as file:
        lock(file.fileno(), wait=True)
        yield


#: struct flock (fcntl(2)) of 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid.
_RECORD = struct.Struct("hhqqi4x")


def lock_byte(descriptor: int, byte: int, *, shared: bool = False, wait: bool = False) -> bool:
    """Lock one byte of an open file (F_OFD_SETLK of fcntl(2)).

    Like that of `lock`, this lock belongs to the open file. One file can have many of them.

    Returns:
        True if the lock is held; False if another process has it.
    """
    request = _RECORD.pack(fcntl.F_RDLCK if shared else fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK, request)
    except BlockingIOError:
        return False
    return True


def unlock_byte(descriptor: int, byte: int) -> None:
    request = _RECORD.pack(fcntl.F_UNLCK, os.SEEK_SET, byte, 1, 0)
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, request)


class PidLock:
    """Lock file whose holder can be queried.

    The lock belongs to the process, not to the open file: open the file once per process, because
    closing any descriptor of it drops the lock.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def acquire(self) -> bool:
        """Take the lock; return False if another process has it."""
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def holder(self) -> int | None:
        """Return the id of another process that holds the lock, or None."""
        request = _RECORD.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, *_, pid = _RECORD.unpack(fcntl.fcntl(self._descriptor, fcntl.F_GETLK, request))
        return None if kind == fcntl.F_UNLCK else int(pid)

    def close(self) -> None:
        """Release the lock."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


# Recognising --------------------------------------------------------------------------------------


def identity(descriptor: int) -> tuple[int, int] | None:
    """Return device and inode of an open file, or None if the descriptor is closed."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def is_open_at(descriptor: int, path: Path) -> bool:
    """Return True if an open file is still the one at a path: not removed or replaced."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
