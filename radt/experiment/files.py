"""Read experiment files, and replace them as a whole while their user may be editing them."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from radt.errors import ExperimentError, Problem, StatusError
from radt.experiment.table import UTF_16, encoding_of

SWEEP_SUFFIXES = (".yaml", ".yml")


def table_path(path: Path | str) -> Path:
    """Return the CSV that holds the state of an experiment: a sweep's is beside its YAML file."""
    path = Path(path)
    return path.with_suffix(".csv") if path.suffix.lower() in SWEEP_SUFFIXES else path


@dataclass(frozen=True, slots=True)
class Version:
    """A file's content as read, and a fingerprint that changes when somebody writes the file."""

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


def create_file(path: Path, content: bytes) -> None:
    """Write a new file, or replace one, as a whole.

    Raises:
        OSError: The folder or the disk refuses.
    """
    temporary = temporary_of(path)
    try:
        with temporary.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def temporary_of(path: Path) -> Path:
    """Return the file that holds new content for a moment.

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
    """Give the new file the owner and group of the old one, or at least the group."""
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


#: How often a write starts again because somebody else has written the file in between.
MAX_ATTEMPTS = 50


class SharedFile:
    """An experiment file, replaced as a whole with every write; the caller holds its lock.

    Args:
        path: The file; a symbolic link is followed, not replaced.

    Raises:
        StatusError: What a runner left that was killed at work cannot be removed. It is removed
            here, not at the first write, because there may be none.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._target = Path(os.path.realpath(path))
        leftover = temporary_of(self._target)
        try:
            leftover.unlink(missing_ok=True)
        except OSError as error:
            raise StatusError(
                f"{leftover}, left by a killed runner, cannot be removed: {error.strerror}",
                "Remove it",
            ) from error

    def read(self) -> Version:
        """
        Raises:
            StatusError: It cannot be read.
        """
        try:
            if not stat.S_ISREG(self._target.stat().st_mode):  # reading a pipe might never end
                raise self.invalid(" is no longer a file")
            return read_version(self._target)
        except OSError as error:
            raise StatusError(
                f"{self.path} cannot be read: {error.strerror}",
                "Restore the file; radt retries at the next status change",
            ) from error

    def rewrite(self, change: Callable[[bytes], bytes]) -> None:
        """Replace the content; edits that are made meanwhile stay.

        Args:
            change: Makes the new content of the present one; called again for every attempt.

        Raises:
            StatusError: It cannot be read or written, or ``change`` cannot understand it; the file
                is as it was.
        """
        for _ in range(MAX_ATTEMPTS):
            version = self.read()
            content = change(version.content)
            if content == version.content or self._replace(content, version):
                return
        raise StatusError(
            f"{self.path} keeps changing, so radt could not write statuses",
            "Stop the program that writes it; radt retries at the next status change",
        )

    def invalid(self, problem: str) -> StatusError:
        """Return an error for ``change``: the content is not what it should be."""
        return StatusError(
            f"{self.path}{problem}",
            "Fix the file. radt did not change it and will retry at the next status change",
        )

    def _replace(self, content: bytes, version: Version) -> bool:
        try:
            return replace_if_unchanged(self._target, content, version)
        except OSError as error:
            raise StatusError(
                f"{self.path} cannot be written: {error.strerror}",
                f"Free space in {self._target.parent}, or check its mode. radt did not change the "
                "file and will retry at the next status change",
            ) from error


_ZIP = b"PK\x03\x04"  # what every .xlsx and .ods begins with


@dataclass(frozen=True, slots=True)
class RawFile:
    """A file as it was read; ``shown`` is its name in messages."""

    path: Path
    shown: str
    content: bytes

    @classmethod
    def read(cls, path: Path | str, kind: str) -> RawFile:
        """Read a file.

        Args:
            path: The file.
            kind: What it should be, for messages: CSV, YAML.

        Raises:
            ExperimentError: It cannot be read, or is no text at all.
        """
        shown = os.fspath(path)
        absolute = Path(path).absolute()
        try:
            content = read_version(absolute).content
        except FileNotFoundError:
            raise ExperimentError(
                shown, [Problem("there is no such file", "Check the path")]
            ) from None
        except OSError as error:
            cause = f"it cannot be read: {error.strerror}"
            raise ExperimentError(shown, [Problem(cause, "Check the path and its mode")]) from error
        if content.startswith(_ZIP):
            problem = Problem(f"this is a workbook, not {kind}", f"Save it as {kind} in UTF-8")
            raise ExperimentError(shown, [problem])
        if encoding_of(content) == UTF_16:
            problem = Problem("this is UTF-16 text", "Save it in UTF-8")
            raise ExperimentError(shown, [problem])
        return cls(absolute, shown, content)

    @property
    def text(self) -> str:
        """The text; bytes that are not UTF-8 become lone surrogates, to be reported in place."""
        return self.content.decode(errors="surrogateescape")
