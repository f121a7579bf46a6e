"""Open and list files below a folder with untrusted content; no link or path leads out of it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

#: Deeper folders are not searched.
_MAX_DEPTH = 12
_NO_FOLLOW = os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | _NO_FOLLOW
# Non-blocking: opening a named pipe would otherwise block forever.
_FILE = os.O_RDONLY | os.O_NONBLOCK | _NO_FOLLOW


def open_below(root: Path, relative: str) -> BinaryIO:
    """Open a regular file below a folder for reading, without following links below the folder.

    Args:
        root: The folder; links in its own path are followed.
        relative: The path below it, possibly written by somebody else.

    Raises:
        OSError: The file does not exist, or the path is absolute, contains ``..`` or a link.
    """
    parts = relative.split("/")
    if "\0" in relative or any(part in ("", ".", "..") for part in parts):
        raise OSError(errno.EINVAL, "the path leads out of its folder", relative)
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            below = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = below
        number = os.open(parts[-1], _FILE, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise OSError(errno.ELOOP, "links are not followed", relative) from error
        raise
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "it is not a regular file", relative)
    return os.fdopen(number, "rb")


def list_files(root: Path) -> Iterator[tuple[str, int]]:
    """Yield path and size in bytes of each regular file below ``root``, without following links."""
    stack: list[tuple[Path, str, int]] = [(root, "", 0)]
    while stack:
        folder, prefix, depth = stack.pop()
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            continue  # it was just deleted
        for entry in entries:
            path = f"{prefix}{entry.name}"
            with suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    if depth < _MAX_DEPTH:
                        stack.append((Path(entry.path), f"{path}/", depth + 1))
                elif entry.is_file(follow_symlinks=False):
                    yield path, entry.stat(follow_symlinks=False).st_size
