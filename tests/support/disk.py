"""A disk that a test can fill: a small tmpfs, mounted for it."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.privileges import MOUNTS, may_mount


@dataclass(frozen=True)
class SmallDisk:
    """A file system of its own."""

    path: Path

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Nothing can be written here for a while, whoever has a file open."""
        with tempfile.TemporaryDirectory(prefix="radt-") as aside:
            # Where nobody opens a file amid it; what is bound from there is read-only at once.
            subprocess.run(["mount", "--bind", self.path, aside], check=True)
            try:
                subprocess.run(["mount", "-o", "remount,bind,ro", aside], check=True)
                subprocess.run(["mount", "--bind", aside, self.path], check=True)
            finally:
                subprocess.run(["umount", "--lazy", aside], check=True)
        try:
            yield
        finally:
            subprocess.run(["umount", "--lazy", self.path], check=True)

    @property
    def filler(self) -> Path:
        """The file that fills it."""
        return self.path / "filler"

    def resize(self, size_bytes: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size_bytes}", self.path], check=True)

    def fill(self) -> None:
        """Leave no block free; whoever frees one meanwhile may have it."""
        with self.filler.open("ab") as file:
            for size in (1 << 16, 1 << 12):
                try:
                    while True:
                        os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, size)
                except OSError as error:
                    assert error.errno == errno.ENOSPC, error

    def clear(self) -> None:
        """Give it all back; harmless if that was done."""
        self.filler.unlink(missing_ok=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A tmpfs of 32 MiB."""
    if not may_mount():
        pytest.skip(f"{MOUNTS}; test_store_faults uses limits instead")
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", path], check=True)
    yield SmallDisk(path)
    subprocess.run(["umount", "--lazy", path], check=True)
