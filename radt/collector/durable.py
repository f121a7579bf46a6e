"""Puts commits on the disk for good, before what they were made of is removed.

A commit is not synchronised by itself (``synchronous = NORMAL``): a power cut may take back the
last of them, never half of one. What journals still hold is read again then. Once a segment is
removed nothing could be read again, so that its commits must be on the disk first.
"""

from __future__ import annotations

import os
from pathlib import Path


def settle(store: Path) -> None:
    """Return when all commits of a SQLite store are on the disk.

    What is committed stands in the write-ahead log, or in the file, to which it is moved with a
    synchronisation of its own (https://www.sqlite.org/wal.html#performance_considerations).

    Raises:
        OSError: The disk refuses.
    """
    try:
        descriptor = os.open(store.with_name(f"{store.name}-wal"), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
