"""Give back the room that deleted rows leave in a store's file.

SQLite keeps free pages for what comes. A file that was made with ``auto_vacuum = INCREMENTAL`` lets
go of them a few at a time, beside whoever writes; any other is copied once, which needs room and
keeps writers out, and is such a file from then on.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from radt.errors import StoreError
from radt.units import size

#: Less than this is not worth a copy.
_MIN_FREE_BYTES = 1_000_000
#: Copying needs the rows twice, in the temporary file and in the write-ahead log, and a bit more.
_COPIES = 2
_SPARE_BYTES = 64_000_000
#: Pages of one step; each is a transaction.
_STEP_PAGES = 2000
_INCREMENTAL = 2
_PATIENCE_S = 10.0
#: Where SQLite puts temporary files, https://www.sqlite.org/tempfiles.html
_TEMPORARY = ("SQLITE_TMPDIR", "TMPDIR")


@dataclass(frozen=True, slots=True)
class Space:
    """What became of free pages; ``reason`` says why some stay, and is empty if none do."""

    given_back_bytes: int = 0
    left_bytes: int = 0
    reason: str = ""


def give_back(path: Path) -> Space:
    """Make a store's file as small as what is in it, if that can be done now.

    Raises:
        StoreError: The file is damaged or cannot be opened.
    """
    try:
        with closing(sqlite3.connect(path, timeout=_PATIENCE_S, isolation_level=None)) as store:
            before = _pages_bytes(store, "page_count")
            reason = _shrink(store, path)
            after = _pages_bytes(store, "page_count")
            left = _pages_bytes(store, "freelist_count")
            # Only now does the file itself get smaller.
            store.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except sqlite3.Error as error:
        raise StoreError(
            f"the space in {path} cannot be given back: {error}",
            "New runs will use it; `radt prune` tries again",
        ) from error
    return Space(max(0, before - after), left if reason else 0, reason)


def _shrink(store: sqlite3.Connection, path: Path) -> str:
    free = _pages_bytes(store, "freelist_count")
    if free < _MIN_FREE_BYTES:
        return ""
    try:
        if _pragma(store, "auto_vacuum") == _INCREMENTAL:
            while pages := _pragma(store, "freelist_count"):
                store.execute(f"PRAGMA incremental_vacuum({_STEP_PAGES})").fetchall()
                if _pragma(store, "freelist_count") >= pages:
                    break
            return ""
        if store.execute("SELECT 1 FROM run WHERE ended_ns IS NULL LIMIT 1").fetchone():
            return "runs are being recorded; prune again when none is"
        used = _pages_bytes(store, "page_count") - free
        needed = _COPIES * used + _SPARE_BYTES
        for folder in (path.parent, _temporary_folder()):
            if shutil.disk_usage(folder).free < needed:
                return f"that takes {size(needed)} of room on the disk of {folder} for a moment"
        store.execute(f"PRAGMA auto_vacuum = {_INCREMENTAL}")
        store.execute("VACUUM")
    except sqlite3.OperationalError as error:
        if str(getattr(error, "sqlite_errorname", "")).startswith("SQLITE_BUSY"):
            return "another program is using the store; prune again later"
        raise
    return ""


def _pages_bytes(store: sqlite3.Connection, count: str) -> int:
    """The file itself says less: what was written last may be in the write-ahead log."""
    return _pragma(store, count) * _pragma(store, "page_size")


def _pragma(store: sqlite3.Connection, name: str) -> int:
    return int(store.execute(f"PRAGMA {name}").fetchone()[0])


def _temporary_folder() -> Path:
    named = [os.environ.get(name, "") for name in _TEMPORARY]
    return next(path for one in [*named, "/var/tmp", "/tmp", "."] if (path := Path(one)).is_dir())  # noqa: S108 - SQLite's
