"""Replaces a file as a whole: whoever looks sees the old content or the new, also after a crash."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO


@dataclass(frozen=True, slots=True)
class Version:
    """A file's content as read, and what tells whether somebody has written it since."""

    content: bytes
    fingerprint: tuple[int, int, int, int]


def read_version(path: Path) -> Version:
    """Read a file.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as stream:
        before = _fingerprint(os.fstat(stream.fileno()))
        content = stream.read()
    return Version(content, before)


def replace_if_unchanged(path: Path, content: bytes, version: Version) -> bool:
    """Put ``content`` in the file's place, unless somebody else has written it since ``version``.

    Mode, owner, and extended attributes (with them access control lists) are kept. ``path`` must
    not be a symbolic link: it would be replaced, not what it points to.

    Returns:
        Whether the file was replaced.

    Raises:
        OSError: The folder or the disk refuses; the file is as it was.
    """
    temporary = temporary_of(path)
    try:
        with _open_private(temporary) as stream:
            stream.write(content)
            stream.flush()
            _keep_owner(path, stream.fileno())
            shutil.copystat(path, temporary)
            os.utime(temporary)  # editors notice a change by the time of it
            os.fsync(stream.fileno())
        # Checked last: what is left open is the moment between two system calls.
        if _fingerprint(path.stat()) != version.fingerprint:
            temporary.unlink()
            return False
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)
    return True


def temporary_of(path: Path) -> Path:
    """The file that holds new content for a moment.

    It has one name, so that what a killed process left is overwritten by the next one, not piled
    up; the experiment's lock keeps two processes off it.
    """
    return path.with_name(f".{path.name}.radt-new")


def _open_private(path: Path) -> BinaryIO:
    """Open for the owner alone: content must not be readable before it has the file's mode."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o600), "wb")


def _fingerprint(status: os.stat_result) -> tuple[int, int, int, int]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _keep_owner(path: Path, descriptor: int) -> None:
    """Give the new file the old one's owner and group, or at least the group."""
    wanted, actual = path.stat(), os.fstat(descriptor)
    if (wanted.st_uid, wanted.st_gid) == (actual.st_uid, actual.st_gid):
        return
    for owner in (wanted.st_uid, -1):
        try:
            os.fchown(descriptor, owner, wanted.st_gid)
        except OSError as error:
            # Only root may give files away, and not to owners outside its user namespace. The file
            # becomes the writer's, which the folder's permissions allow; the alternative, writing
            # in place, could leave half a file.
            if error.errno not in (errno.EPERM, errno.EINVAL):
                raise
        else:
            return


def _sync_folder(folder: Path) -> None:
    """Make the new name durable; without it a power cut could bring back the old content."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems do not sync folders; the new content is in its place anyhow.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
