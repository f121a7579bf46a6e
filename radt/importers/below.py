"""Find and open files of a source without leaving the given folder.

The folder may belong to somebody whom the importing user does not trust: a link, or a path in a
log, may lead to any file of that user, and the dashboard shows the files that an import copies.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO

from radt.beneath import open_below


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file at ``path`` below the folder ``root``; `open` follows no link below ``root``."""

    root: Path
    path: str

    def __str__(self) -> str:
        return str(self.full)

    @property
    def full(self) -> Path:
        """Return the path, for its names; use only `open` to read the file."""
        return self.root / self.path

    def beside(self, path: str) -> SourceFile:
        """Return the file at a path relative to this file's folder."""
        folder = self.path.rpartition("/")[0]
        return SourceFile(self.root, f"{folder}/{path}" if folder else path)

    def open(self) -> BinaryIO:
        """Open the file for reading.

        Raises:
            OSError: It is not a regular file, or the path leaves the folder.
        """
        try:
            return open_below(self.root, self.path)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self)) from error

    def stat(self) -> os.stat_result:
        """Return the file's status.

        Raises:
            OSError: The file no longer exists.
        """
        return self.full.lstat()


@dataclass(frozen=True, slots=True)
class Found:
    """The files of a source in the order of their paths, and entries that were skipped."""

    files: list[SourceFile]
    left_out: list[str]


def find_files(place: Path, pattern: str) -> Found:
    """Return the files below a folder whose name matches a pattern, or the file that was given."""
    if not place.is_dir():
        file = (place.resolve() if place.is_symlink() else place).absolute()
        return Found([SourceFile(file.parent, file.name)], [])
    root = place.absolute()
    files: list[SourceFile] = []
    left_out: list[str] = []
    for entry in _entries(root, left_out):
        is_wanted = fnmatchcase(entry.name, pattern)
        if entry.is_symlink() and (is_wanted or Path(entry.path).is_dir()):
            # If its target is in the folder, too, it is found there.
            target = Path(os.path.realpath(entry.path))
            if not target.is_relative_to(root.resolve()):
                left_out.append(f"{entry.path}: a link to {target}")
        elif is_wanted and entry.is_file(follow_symlinks=False):
            files.append(SourceFile(root, Path(entry.path).relative_to(root).as_posix()))
    return Found(sorted(files, key=lambda file: file.full), sorted(left_out))


def first_link(root: Path, skip: Collection[str]) -> Path | None:
    """Return a link below a folder that another program is going to read; None if there is none.

    Args:
        root: The folder.
        skip: Names of folders that are not read.
    """
    links = (Path(entry.path) for entry in _entries(root, [], skip) if entry.is_symlink())
    return next((link for link in links if link.name not in skip), None)


def _entries(
    root: Path, left_out: list[str], skip: Collection[str] = ()
) -> Iterator[os.DirEntry[str]]:
    """Yield all entries below a folder; folders that cannot be listed are added to ``left_out``."""
    folders = [str(root)]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    yield entry
                    if entry.is_dir(follow_symlinks=False) and entry.name not in skip:
                        folders.append(entry.path)
        except OSError as error:
            left_out.append(f"{folder}: {error.strerror}")
