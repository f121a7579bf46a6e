"""Segments: files of fixed size that a process maps and fills with records."""

from __future__ import annotations

import mmap
import os

from radt.journal.format import RECORD_BYTES, SEGMENT_BYTES, segment_name


def allocate(folder: str, number: int) -> tuple[mmap.mmap, mmap.mmap]:
    """Make a segment and map it: its records, and behind them the one in reserve.

    Its blocks are allocated here, so that a full disk is an error of this call: a store into a
    mapping that finds no block kills the process (SIGBUS). The pages are made present here too,
    so that logging does not stumble over them one by one.

    Raises:
        OSError: No space, no quota, a limit on file sizes, no such folder.
    """
    path = f"{folder}/{segment_name(number)}"
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, SEGMENT_BYTES + RECORD_BYTES)
        how = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
        return (
            mmap.mmap(descriptor, SEGMENT_BYTES, flags=how),
            mmap.mmap(descriptor, RECORD_BYTES, flags=how, offset=SEGMENT_BYTES),
        )
    except BaseException:
        os.unlink(path)  # noqa: PTH108 - part of the time that logging waits
        raise
    finally:
        os.close(descriptor)


def discard(folder: str, number: int) -> None:
    """Remove a segment that was never written to."""
    try:
        os.unlink(f"{folder}/{segment_name(number)}")  # noqa: PTH108
    except OSError:
        pass  # gone with its folder, or left for whoever removes that
