"""List, check and remove the spool folders of runs beside the store."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from sqlalchemy import text

from radt.errors import StoreError
from radt.home import Home
from radt.store.check import Finding, Trouble
from radt.store.reader import StoreReader

#: Folder among the journals that records which process had which number; not a journal.
_LABELS = "labels"
_AT_A_TIME = 500

_UNDELIVERED = text(
    "SELECT run_id FROM run WHERE delivery_done_ns IS NULL AND tracking_uri <> '' "
    "AND spool <> '' AND host = :host ORDER BY run_id"
)


def spooled_runs(home: Home) -> Iterator[str]:
    """Yield the ids of runs that have a spool folder, in no order."""
    try:
        with os.scandir(home.path / "runs") as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                    yield entry.name
    except FileNotFoundError:
        return


def check_spools(reader: StoreReader, home: Home) -> Iterator[Finding]:
    """Return folders of runs missing from the store, and runs whose folder is gone too early.

    Raises:
        StoreError: The store cannot be read.
    """
    names = spooled_runs(home)
    while some := list(islice(names, _AT_A_TIME)):
        known = {run.run_id for run in reader.runs(run_ids=some)}
        for run_id in sorted(set(some) - known):
            folder = home.run_dir(run_id).path
            yield Finding(
                Trouble.SPOOL,
                f"run {run_id}",
                f"the folder {folder} belongs to no run",
                "Run `radt sync` to read its content; delete it if the run was pruned",
                run_id,
            )
    with reader.snapshot() as connection:
        run_ids = connection.execute(_UNDELIVERED, {"host": platform.node()}).scalars().all()
    for run_id in run_ids:
        folder = home.run_dir(run_id).path
        if not folder.is_dir():
            yield Finding(
                Trouble.SPOOL,
                f"run {run_id}",
                f"its folder {folder} is gone, and MLflow may not have all that was in it",
                "Move it back if it was moved; otherwise its content is lost",
                run_id,
            )


def has_unread_journals(home: Home, run_id: str) -> bool:
    """Return whether a run may have unstored data: journals are removed once read."""
    try:
        names = os.listdir(home.run_dir(run_id).journal)  # noqa: PTH208 - of ten thousand runs
    except (FileNotFoundError, NotADirectoryError):
        return False
    return any(name != _LABELS and not name.startswith(".") for name in names)


def remove_spool(home: Home, run_id: str) -> int:
    """Remove a run's folder and return its size in bytes; 0 if there is none.

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
            "Check the owner of its files",
        ) from error
    return size_bytes


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:  # removed concurrently
        return 0
