"""Spool folders of runs, beside the store: which there are, and removing them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from radt.errors import StoreError
from radt.home import Home

#: A folder in each journal's place that says which process had which number; not a journal.
_LABELS = "labels"


def spooled_runs(home: Home) -> Iterator[str]:
    """Ids of the runs that have a folder; in no order."""
    try:
        with os.scandir(home.path / "runs") as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                    yield entry.name
    except FileNotFoundError:
        return


def has_unread_journals(home: Home, run_id: str) -> bool:
    """Whether something that the run wrote may not be in the store: what is read is removed."""
    try:
        names = os.listdir(home.run_dir(run_id).journal)  # noqa: PTH208 - of ten thousand runs
    except (FileNotFoundError, NotADirectoryError):
        return False
    return any(name != _LABELS and not name.startswith(".") for name in names)


def remove_spool(home: Home, run_id: str) -> int:
    """Remove a run's folder; returns how many bytes that were. Harmless if there is none.

    Raises:
        StoreError: Something in it cannot be removed; the rest may be gone.
    """
    folder = home.run_dir(run_id).path
    size_bytes = sum(_size(path) for path in folder.rglob("*"))
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StoreError(
            f"the folder {folder} cannot be removed: {error.strerror or error}",
            "Check who owns what is in it",
        ) from error
    return size_bytes


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:  # it went just now
        return 0
