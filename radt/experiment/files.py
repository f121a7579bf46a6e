"""Reads experiment files, and replaces them atomically while their user may be editing them."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from radt.errors import ExperimentError, Problem, StatusError
from radt.experiment.table import UTF_16, encoding_of
from radt.files import sync, whole_file, write_whole

SWEEP_SUFFIXES = (".yaml", ".yml")


def table_path(path: Path | str) -> Path:
    """Return the CSV with the state of an experiment: a sweep's is beside its YAML file."""
    path = Path(path)
    return path.with_suffix(".csv") if path.suffix.lower() in SWEEP_SUFFIXES else path


def call(file: Path, command: str = "", options: str = "") -> str:
    """Return the shell command for a file: ``radt stop 'my study.csv'``.

    Args:
        file: The experiment file.
        command: The command; "" runs the file.
        options: Options after the file, as typed.
    """
    return " ".join(filter(None, ("radt", command, shlex.quote(str(file)), options)))


@dataclass(frozen=True, slots=True)
class Version:
    """A file's content as read, and a fingerprint that changes with every write to the file."""

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


class ChangedError(Exception):
    """Another process has written the file."""


def replace_version(path: Path, content: bytes, version: Version) -> None:
    """Replace the file with ``content`` if it still is ``version``.

    Mode, owner, and extended attributes (including access control lists) are kept. ``path`` must
    not be a symbolic link: the link itself would be replaced, not its target.

    Raises:
        ChangedError: Another process has written it since; its content is left alone.
        OSError: The folder or the disk refuses; the file is unchanged.
    """
    # Readable by the owner only, until it has the file's mode.
    with whole_file(path, mode=0o600, temporary=temporary_of(path)) as temporary:
        with temporary.open("wb") as stream:
            stream.write(content)
            stream.flush()
            _keep_owner(path, stream.fileno())
            shutil.copystat(path, temporary)
            os.utime(temporary)  # editors detect a change by its modification time
            os.fsync(stream.fileno())
        # Checked last, so that the race is limited to the moment between two system calls.
        if _fingerprint(path.stat()) != version.fingerprint:
            raise ChangedError
    sync(path.parent)


def create_file(path: Path, content: bytes) -> None:
    """Write a new file, or replace one, atomically.

    Raises:
        OSError: The folder or the disk refuses.
    """
    write_whole(path, content, durable=True, temporary=temporary_of(path))


def temporary_of(path: Path) -> Path:
    """Return the temporary file for new content.

    Its name is fixed, so that the next process overwrites the file of a killed one instead of
    adding another; the experiment's lock ensures that only one process uses it.
    """
    return path.with_name(f".{path.name}.radt-new")


def _fingerprint(status: os.stat_result) -> tuple[int, int, int, int]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _keep_owner(path: Path, descriptor: int) -> None:
    """Give the new file the owner and group of the old one, or at least its group."""
    wanted, actual = path.stat(), os.fstat(descriptor)
    if (wanted.st_uid, wanted.st_gid) == (actual.st_uid, actual.st_gid):
        return
    for owner in (wanted.st_uid, -1):
        try:
            os.fchown(descriptor, owner, wanted.st_gid)
        except OSError as error:
            # Only root may change owners, and only within its user namespace. The file then belongs
            # to the writer, which the folder's permissions allow; the alternative, writing in
            # place, could leave half a file.
            if error.errno not in (errno.EPERM, errno.EINVAL):
                raise
        else:
            return


#: Maximum number of attempts to write while others write the file.
MAX_ATTEMPTS = 50


class SharedFile:
    """An experiment file that every write replaces atomically; the caller holds its lock.

    Args:
        path: The file; a symbolic link is followed, not replaced.

    Raises:
        StatusError: The temporary file of a killed runner cannot be removed. It is removed here
            rather than at the first write, because there may be none.
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
        """Read the file.

        Raises:
            StatusError: It cannot be read.
        """
        try:
            if not stat.S_ISREG(self._target.stat().st_mode):  # reading a pipe might never end
                raise self.invalid(" is not a regular file")
            return read_version(self._target)
        except OSError as error:
            raise StatusError(
                f"{self.path} cannot be read: {error.strerror}",
                "Restore the file; radt retries at the next status change",
            ) from error

    def rewrite(self, change: Callable[[bytes], bytes]) -> None:
        """Replace the content, keeping concurrent edits.

        Args:
            change: Returns the new content for the current one; called again for every retry.

        Raises:
            StatusError: It cannot be read or written, or ``change`` cannot parse it; the file is
                unchanged.
        """
        for _ in range(MAX_ATTEMPTS):
            version = self.read()
            content = change(version.content)
            if content == version.content:
                return None
            try:
                return replace_version(self._target, content, version)
            except ChangedError:
                continue
            except OSError as error:
                raise StatusError(
                    f"{self.path} cannot be written: {error.strerror}",
                    f"Free space in {self._target.parent}, or check its mode. radt did not change "
                    "the file and will retry at the next status change",
                ) from error
        raise StatusError(
            f"{self.path} keeps changing, so radt could not write statuses",
            "Stop the program that writes it; radt retries at the next status change",
        )

    def invalid(self, problem: str) -> StatusError:
        """Return the error for an invalid file; ``problem`` follows its path."""
        return StatusError(
            f"{self.path}{problem}",
            "Fix the file. radt did not change it and will retry at the next status change",
        )


_ZIP = b"PK\x03\x04"  # the beginning of every .xlsx and .ods


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
            kind: The expected format, for messages: CSV, YAML.

        Raises:
            ExperimentError: It cannot be read, or is not text.
        """
        shown = os.fspath(path)
        absolute = Path(path).absolute()
        try:
            content = read_version(absolute).content
        except FileNotFoundError:
            problem = Problem("there is no such file", "Check the path")
            raise ExperimentError(shown, [problem]) from None
        except OSError as error:
            problem = Problem(f"it cannot be read: {error.strerror}", "Check the path and its mode")
            raise ExperimentError(shown, [problem]) from error
        if content.startswith(_ZIP):
            problem = Problem(f"this is a workbook, not {kind}", f"Save it as {kind} in UTF-8")
            raise ExperimentError(shown, [problem])
        if encoding_of(content) == UTF_16:
            problem = Problem("this is UTF-16 text", "Save it in UTF-8")
            raise ExperimentError(shown, [problem])
        return cls(absolute, shown, content)

    @property
    def text(self) -> str:
        """Return the text; bytes that are not UTF-8 become lone surrogates, to be located later."""
        return self.content.decode(errors="surrogateescape")
