"""Count values that could not be written into a run's folder, in the runtime folder.

That is usually on another disk. A journal counts its own losses. Until a journal exists, as on a
disk that is full or read-only from the start of the run, one small file here holds the count of all
of the run's processes. Imports the standard library only.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from radt.errors import RadtError
from radt.files import lock
from radt.home import runtime_dir

#: Name of this count among a run's cursors: ``event_offset`` is the count.
UNWRITTEN = "unwritten"
_COUNT = struct.Struct("@q")


def count_unwritten(run_id: str, count: int) -> bool:
    """Add to a run's count; return False if there is no space here either."""
    try:
        path = _path(run_id)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except (OSError, RadtError):
        return False
    try:
        lock(descriptor, wait=True)
        os.pwrite(descriptor, _COUNT.pack(_count_in(descriptor) + count), 0)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def unwritten(run_id: str) -> int:
    """Return a run's count.

    Raises:
        OSError: The file exists and cannot be read.
    """
    try:
        descriptor = os.open(_path(run_id), os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, RadtError):
        return 0
    try:
        return _count_in(descriptor)
    finally:
        os.close(descriptor)


def forget_unwritten(run_id: str) -> None:
    """Remove a run's count once it is in the store."""
    try:
        _path(run_id).unlink(missing_ok=True)
    except (OSError, RadtError):
        pass  # the runtime folder is temporary anyway


def _count_in(descriptor: int) -> int:
    data = os.pread(descriptor, _COUNT.size, 0)
    return int(_COUNT.unpack(data)[0]) if len(data) == _COUNT.size else 0


def _path(run_id: str) -> Path:
    return runtime_dir() / UNWRITTEN / run_id
