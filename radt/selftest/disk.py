"""How long the disk of the data folder takes to keep what the store commits."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

#: About what eight runs write in a second.
WRITE_BYTES = 64 * 1024
WRITES = 40


@dataclass(frozen=True, slots=True)
class Synced:
    """Times of a write brought to the disk with ``fdatasync``, in seconds, and the file system."""

    median_s: float
    worst_s: float
    file_system: str


def sync_times(folder: Path) -> Synced:
    """Write and synchronise, as the store does before it removes what it was made of.

    Raises:
        OSError: The disk refuses.
    """
    path, block, times = folder / "synced", os.urandom(WRITE_BYTES), []
    with path.open("wb", buffering=0) as file:
        for _ in range(WRITES):
            begun_s = time.perf_counter()
            file.write(block)
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - begun_s)
    path.unlink()
    return Synced(statistics.median(times), max(times), file_system(folder))


def file_system(folder: Path) -> str:
    """Its type (``ext4``, ``tmpfs``, ``nfs4``), from proc_pid_mountinfo(5); empty if unknown."""
    device = folder.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    for line in reversed(lines):
        fields, _, rest = line.partition(" - ")
        if fields.split()[2] == wanted:
            return rest.split()[0]
    return ""
