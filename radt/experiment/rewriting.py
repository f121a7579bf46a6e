"""Writes into a file that its user may be editing at the same time."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from radt.errors import StatusError
from radt.experiment.atomic import (
    Version,
    read_version,
    replace_if_unchanged,
    temporary_of,
)

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
            return read_version(self._target)
        except OSError as error:
            raise StatusError(
                f"{self.path} cannot be read: {error.strerror}",
                "Put it back; statuses are written with the next change of one",
            ) from error

    def rewrite(self, change: Callable[[bytes], bytes]) -> None:
        """Put new content in its place; edits that are made meanwhile stay.

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
            f"{self.path} changes all the time, statuses cannot be written",
            "Stop what writes it; they are written with the next change of a status",
        )

    def in_disorder(self, what: str) -> StatusError:
        """For ``change``: the content is not what it should be."""
        return StatusError(
            f"{self.path}{what}",
            "Mend it; it was left alone, statuses are written with the next change of one",
        )

    def _replace(self, content: bytes, version: Version) -> bool:
        try:
            return replace_if_unchanged(self._target, content, version)
        except OSError as error:
            raise StatusError(
                f"{self.path} cannot be written: {error.strerror}",
                f"Make room in {self._target.parent}, or check its mode; the file is as it was, "
                "statuses are written with the next change of one",
            ) from error
