"""Stores for parameters and optimiser states that no pass needs, and the count of loaded bytes."""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from radt import units
from radt.errors import TrainingError
from radt.loaders.pinned import unpin
from radt.training.pinned import pinned

#: Alignment of parts of a file: a page.
_PAGE_BYTES = 4096


class Buffers:
    """Memory in separate mappings, reused for tensors of the same size.

    New pages from the kernel cost more than copying data into them. malloc keeps memory, too, but
    in gaps that the next tensor may not fit.
    """

    def __init__(self) -> None:
        self._idle: list[mmap.mmap] = []
        self._lock = threading.Lock()

    def take(self, byte_count: int) -> Tensor:
        """Return uninitialised bytes, which become idle again when no tensor uses them."""
        if byte_count == 0:
            return torch.empty(0, dtype=torch.uint8)
        with self._lock:
            found = next((each for each in self._idle if len(each) == byte_count), None)
            if found is not None:
                self._idle.remove(found)
        mapped = mmap.mmap(-1, byte_count, mmap.MAP_PRIVATE) if found is None else found
        view = memoryview(mapped)
        weakref.finalize(view, self._idle.append, mapped).atexit = False
        return torch.frombuffer(view, dtype=torch.uint8)

    def keep(self, byte_count: int) -> None:
        """Free idle memory beyond this size, the oldest first."""
        with self._lock:
            while self._idle and sum(map(len, self._idle)) > byte_count:
                self._idle.pop(0)


@dataclass(slots=True)
class Budget:
    """Counts the bytes in memory at each event, and raises above the limit.

    Attributes:
        limit_bytes: The limit.
        buffers: May keep the rest of the limit.
        used_bytes: Bytes in memory now.
        peak_bytes: Peak of these.
        recent_bytes: Peak since `restart_recent`.
    """

    limit_bytes: int
    buffers: Buffers = field(default_factory=Buffers)
    used_bytes: int = 0
    peak_bytes: int = 0
    recent_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, byte_count: int) -> None:
        """Count bytes that are about to be used.

        Raises:
            TrainingError: They exceed the limit.
        """
        with self._lock:
            if self.used_bytes + byte_count > self.limit_bytes:
                raise TrainingError(
                    f"offload needs {units.size(self.used_bytes + byte_count)} at once, "
                    f"more than memory={units.size(self.limit_bytes)}",
                    "The batch is larger than the sample, or the model computes something else "
                    "than with it: plan with the largest batch, or allow more memory",
                )
            self.used_bytes += byte_count
            self.peak_bytes = max(self.peak_bytes, self.used_bytes)
            self.recent_bytes = max(self.recent_bytes, self.used_bytes)
            self.buffers.keep(self.limit_bytes - self.used_bytes)

    def has_room(self, byte_count: int) -> bool:
        """Return True if this many bytes are left."""
        return self.used_bytes + byte_count <= self.limit_bytes

    def restart_recent(self) -> None:
        """Restart the recent peak."""
        with self._lock:
            self.recent_bytes = self.used_bytes

    def give(self, byte_count: int) -> None:
        """Count bytes that are no longer used."""
        with self._lock:
            self.used_bytes -= byte_count

    @contextmanager
    def taken(self, byte_count: int) -> Iterator[None]:
        """Count bytes that are used within the block. Raises like `take`."""
        self.take(byte_count)
        try:
            yield
        finally:
            self.give(byte_count)


class FileStore:
    """Parts of given sizes, each read and written as a whole, in any thread, one at a time.

    They are in a file without a name, which is freed when it is closed, or when the process ends or
    is killed.

    Args:
        folder: A folder on a disk; one in memory (tmpfs) would save nothing.
        buffers: Memory for reads.
        page_cache: Whether the kernel may keep pages of the file in free memory. False drops them
            after each access.
    """

    def __init__(self, folder: Path, buffers: Buffers, page_cache: bool = True) -> None:
        self._folder = folder
        self._buffers = buffers
        self._page_cache = page_cache
        self._offsets: list[int] = []
        self._sizes: list[int] = []
        try:
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        except OSError as error:
            raise self._error("cannot be made", error) from error

    def add(self, byte_count: int) -> int:
        """Add a part and return its number."""
        begin = self._offsets[-1] + self._sizes[-1] if self._offsets else 0
        self._offsets.append(-(-begin // _PAGE_BYTES) * _PAGE_BYTES)
        self._sizes.append(byte_count)
        return len(self._sizes) - 1

    def reserve(self) -> None:
        """Allocate all parts, so that the disk cannot be full later.

        Raises:
            TrainingError: The disk is full, or the file exceeds the maximum file size.
        """
        length = self._offsets[-1] + self._sizes[-1]
        try:
            os.posix_fallocate(self._file.fileno(), 0, max(1, length))
        except OSError as error:
            raise self._error(f"cannot get {units.size(length)}", error) from error

    def read(self, part: int) -> Tensor:
        """Return the bytes of a part in memory from the buffers."""
        return self._read(part, self._buffers.take(self._sizes[part]))

    def host_copy(self, part: int) -> Tensor:
        """Return the bytes of a part in new memory."""
        return self._read(part, Buffers().take(self._sizes[part]))

    def _read(self, part: int, flat: Tensor) -> Tensor:
        view, begin, done = _bytes_of(flat), self._offsets[part], 0
        while done < len(view):
            try:
                count = os.preadv(self._file.fileno(), [view[done:]], begin + done)
            except OSError as error:
                raise self._error("cannot be read", error) from error
            if count == 0:
                raise TrainingError(f"offload's file in {self._folder} became shorter")
            done += count
        self._drop(part)
        return flat

    def write(self, part: int, offset: int, flat: Tensor) -> None:
        """Replace some bytes of a part."""
        view, begin, done = _bytes_of(flat), self._offsets[part] + offset, 0
        while done < len(view):
            try:
                done += os.pwritev(self._file.fileno(), [view[done:]], begin + done)
            except OSError as error:
                raise self._error("cannot be written", error) from error
        if not self._page_cache:
            os.fdatasync(self._file.fileno())  # only clean pages can be dropped
        self._drop(part)

    def close(self) -> None:
        """Close the file, which frees it."""
        self._file.close()

    def _drop(self, part: int) -> None:
        if not self._page_cache:
            where = self._offsets[part], self._sizes[part]
            os.posix_fadvise(self._file.fileno(), *where, os.POSIX_FADV_DONTNEED)

    def _error(self, what: str, error: OSError) -> TrainingError:
        reason = os.strerror(error.errno) if error.errno else str(error)
        return TrainingError(
            f"offload's file in {self._folder} {what}: {reason}",
            'Free some space, or give another folder: offload(…, folder="/data/tmp")',
        )


class PinnedStore:
    """A store like `FileStore` in pinned host memory, from which a GPU loads in a separate stream.

    Args:
        device: The GPU.

    Attributes:
        parts: The bytes of each part.
        loads: The stream of loads.
        updates: The stream that copies gradients to the host.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sizes: list[int] = []
        self.parts: list[Tensor] = []
        self.loads, self.updates = (_stream(device) for _ in range(2))

    def add(self, byte_count: int) -> int:
        """Add a part and return its number."""
        self._sizes.append(byte_count)
        return len(self._sizes) - 1

    def reserve(self) -> None:
        """Allocate all parts."""
        for size in self._sizes:
            self.parts.append(pinned(size))

    def read(self, part: int) -> Tensor:
        """Load a part into new GPU memory, and return it once the copy is complete."""
        with torch.cuda.stream(self.loads):
            flat = self.parts[part].to(self._device, non_blocking=True)
        self.loads.synchronize()  # this blocks only the loading thread
        return flat

    def host_copy(self, part: int) -> Tensor:
        """Return the bytes of a part in new memory of the host."""
        return self.parts[part].clone()

    def write(self, part: int, offset: int, flat: Tensor) -> None:
        """Replace some bytes of a part."""
        self.parts[part][offset : offset + len(flat)].copy_(flat)

    def close(self) -> None:
        """Free the memory."""
        while self.parts:
            unpin(self.parts.pop())


def _stream(device: torch.device) -> torch.cuda.Stream:
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return stream


def _bytes_of(flat: Tensor) -> memoryview:
    array: Any = flat.numpy()
    return memoryview(array)


def give_memory_back() -> None:
    """Return freed memory from glibc to the system: gradients leave gaps of their size."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
