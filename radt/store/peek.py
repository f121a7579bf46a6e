"""Check a local store when a runner starts, without importing SQLAlchemy.

That import takes as long as everything else a runner does before its first row.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from importlib import resources
from pathlib import Path


def is_settled(path: Path) -> bool:
    """Return whether a store has this radt's schema and all of its runs have ended.

    False also for a store that does not exist or cannot be read: opening it will report why.
    """
    folder = resources.files("radt.schemas") / "migrations" / "sqlite"
    latest = max(int(file.name[:4]) for file in folder.iterdir() if file.name[:4].isdigit())
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as store:
            version = store.execute("SELECT MAX(version) FROM schema_version").fetchone()
            unended = store.execute("SELECT 1 FROM run WHERE ended_ns IS NULL LIMIT 1").fetchone()
    except sqlite3.Error:
        return False
    return version == (latest,) and unended is None
