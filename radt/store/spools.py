"""Spool folders of runs beside the store: list, check and remove them, and report lost values."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from sqlalchemy import text

from radt.errors import StoreError
from radt.home import Home, RunDir
from radt.model import SOFTWARE
from radt.store.check import Defect, Trouble
from radt.store.reader import StoreReader
from radt.units import plural

#: Folder among the journals that records the numbers of processes; not a journal.
_LABELS = "labels"
_AT_A_TIME = 500

_UNDELIVERED = text(
    "SELECT run_id FROM run WHERE delivery_done_ns IS NULL AND tracking_uri <> '' "
    "AND spool <> '' AND host = :host ORDER BY run_id"
)

_LOSSES = text(
    "SELECT run_id, missed, reason FROM ledger WHERE listener = :listener AND missed > 0 "
    "ORDER BY run_id"
)


def spooled_runs(home: Home) -> Iterator[str]:
    """Yield the ids of runs that have a spool folder, in no particular order."""
    try:
        with os.scandir(home.path / "runs") as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                    yield entry.name
    except FileNotFoundError:
        return


def check_spools(reader: StoreReader, home: Home) -> Iterator[Defect]:
    """Yield folders of runs missing from the store, and runs whose folder is gone too early.

    Raises:
        StoreError: The store cannot be read.
    """
    names = spooled_runs(home)
    while some := list(islice(names, _AT_A_TIME)):
        known = {run.run_id for run in reader.runs(run_ids=some)}
        for run_id in sorted(set(some) - known):
            folder = home.run_dir(run_id).path
            yield Defect(
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
            yield Defect(
                Trouble.SPOOL,
                f"run {run_id}",
                f"its folder {folder} is gone, and MLflow may not have all that was in it",
                "Move it back if it was moved; otherwise its content is lost",
                run_id,
            )


def has_unread_journals(home: Home, run_id: str) -> bool:
    """Return whether a run may have unstored data: journals are removed once read."""
    try:
        names = os.listdir(home.run_dir(run_id).journal)  # noqa: PTH208 - for up to 10,000 runs
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


def losses(reader: StoreReader, home: Home | None) -> Mapping[str, str]:
    """Return descriptions of lost logged values, by run id.

    Args:
        reader: The store.
        home: The data folder; for its runs, the text also says where damaged files are kept.

    Raises:
        StoreError: The store cannot be read.
    """
    with reader.snapshot() as connection:
        rows = connection.execute(_LOSSES, {"listener": SOFTWARE}).all()
    by_run = {
        str(run_id): f"{plural(int(missed), 'logged value')} missing: {reason}"
        for run_id, missed, reason in rows
    }
    for run_id, folder in ({} if home is None else kept(home)).items():
        # A damaged line with params or tags loses no value.
        what = by_run.get(run_id, "a file of its journal was damaged")
        by_run[run_id] = f"{what}; damaged files are in {folder}"
    return by_run


def kept(home: Home) -> dict[str, Path]:
    """Return the folders with damaged files, by the ids of their runs."""
    folders = sorted(home.path.glob(f"runs/*/{RunDir(Path()).damaged}"))
    return {folder.parent.name: folder for folder in folders}
