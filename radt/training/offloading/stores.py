"""Where parameters and optimiser states are while no pass needs them, and the count of what is."""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from radt import units
from radt.errors import TrainingError

#: A page: where each part of a file begins, and each tensor of a part at a cache line.
_PAGE_BYTES = 4096
_LINE_BYTES = 64


@dataclass(frozen=True, slots=True)
class Piece:
    """One tensor in the bytes of a part."""

    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def of(self, flat: Tensor) -> Tensor:
        """Return the tensor that lies in the bytes."""
        length = sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True)) + 1
        if 0 in self.shape:
            length = 0
        end = self.offset + length * self.dtype.itemsize
        return flat[self.offset : end].view(self.dtype).as_strided(self.shape, self.stride)


@dataclass(frozen=True, slots=True)
class Layout:
    """How tensors lie in the bytes of one part of a store."""

    pieces: tuple[Piece, ...]
    byte_count: int

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> Layout:
        """Lay out tensors one behind another; those with gaps become contiguous."""
        pieces, offset = [], 0
        for tensor in tensors:
            dense = torch.empty_like(tensor, device="meta")  # preserves dense strides
            shape, stride = tuple(dense.shape), tuple(dense.stride())
            pieces.append(Piece(offset, shape, stride, tensor.dtype))
            offset += -(-tensor.nbytes // _LINE_BYTES) * _LINE_BYTES
        return cls(tuple(pieces), offset)

    def tensors(self, flat: Tensor) -> list[Tensor]:
        """Return the tensors in the bytes."""
        return [piece.of(flat) for piece in self.pieces]

    def write(self, store: Store, part: int, tensors: Sequence[Tensor]) -> None:
        """Write tensors into a part of a store."""
        for piece, tensor in zip(self.pieces, tensors, strict=True):
            dense = tensor.detach()
            if tuple(dense.stride()) != piece.stride:
                dense = torch.empty_strided(piece.shape, piece.stride, dtype=piece.dtype)
                dense.copy_(tensor)
            row = dense.as_strided((dense.numel(),), (1,))
            store.write(part, piece.offset, row.view(torch.uint8))


class Buffers:
    """Memory in mappings of its own, used again for the next tensor of its size.

    New pages from the kernel cost more than the bytes that are copied into them. malloc keeps
    memory, too, but in gaps between others that the next tensor may not fit into.
    """

    def __init__(self) -> None:
        self._idle: list[mmap.mmap] = []
        self._lock = threading.Lock()

    def take(self, byte_count: int) -> Tensor:
        """Return bytes of any content; they are idle again when no tensor uses them any more."""
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
        """Free what is idle beyond some bytes, the oldest first."""
        with self._lock:
            while self._idle and sum(map(len, self._idle)) > byte_count:
                self._idle.pop(0)


@dataclass(slots=True)
class Budget:
    """Counts the bytes in memory at each event; more than allowed is an error.

    Attributes:
        limit_bytes: What is allowed.
        buffers: May keep what is free of it.
        used_bytes: What is in memory now.
        peak_bytes: The most that was.
        recent_bytes: The most since `restart_recent`.
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
            TrainingError: They are more than is left.
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

    def restart_recent(self) -> None:
        """Look for the most from now on."""
        with self._lock:
            self.recent_bytes = self.used_bytes

    def give(self, byte_count: int) -> None:
        """Count bytes that are no longer used."""
        with self._lock:
            self.used_bytes -= byte_count

    @contextmanager
    def taken(self, byte_count: int) -> Iterator[None]:
        """Count bytes that are used within the block; as `take` raises."""
        self.take(byte_count)
        try:
            yield
        finally:
            self.give(byte_count)


class Store(Protocol):
    """Parts of given sizes, each read and written as a whole; in any thread, one at a time."""

    def add(self, byte_count: int) -> int:
        """Add a part and return its number."""
        ...

    def reserve(self) -> None:
        """Allocate all parts."""
        ...

    def read(self, part: int) -> Tensor:
        """Return the bytes of a part on the device."""
        ...

    def write(self, part: int, offset: int, flat: Tensor) -> None:
        """Replace some bytes of a part by those of a tensor on the host."""
        ...

    def host_copy(self, part: int) -> Tensor:
        """Return the bytes of a part in new memory of the host."""
        ...

    def close(self) -> None:
        """Free everything."""
        ...


class FileStore:
    """A file without a name: it is gone when it is closed, or when the process ends or is killed.

    Args:
        folder: Where; a folder on a disk, as one in memory (tmpfs) saves none.
        buffers: Memory for what is read.
        page_cache: Whether the kernel may keep pages of the file in memory that is free. False
            drops them after each access.
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
            TrainingError: The disk is full, or the file larger than files may be.
        """
        length = self._offsets[-1] + self._sizes[-1]
        try:
            os.posix_fallocate(self._file.fileno(), 0, max(1, length))
        except OSError as error:
            raise self._error(f"cannot get {units.size(length)}", error) from error

    def read(self, part: int) -> Tensor:
        """Return the bytes of a part in memory of the buffers."""
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
    """Pinned host memory, from which a GPU loads in a stream of its own.

    Args:
        device: The GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sizes: list[int] = []
        self.parts: list[Tensor] = []
        self.stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def add(self, byte_count: int) -> int:
        """Add a part and return its number."""
        self._sizes.append(byte_count)
        return len(self._sizes) - 1

    def reserve(self) -> None:
        """Allocate all parts."""
        for size in self._sizes:
            try:
                self.parts.append(torch.empty(size, dtype=torch.uint8, pin_memory=True))
            except RuntimeError as error:
                raise TrainingError(
                    f"the host cannot pin {units.size(sum(self._sizes))} for offload: {error}",
                    "It holds the parameters and the optimiser's states: give the job more memory",
                ) from error

    def read(self, part: int) -> Tensor:
        """Return the bytes of a part in new memory of the GPU, when they are there."""
        with torch.cuda.stream(self.stream):
            flat = self.parts[part].to(self._device, non_blocking=True)
        self.stream.synchronize()  # this is the loading thread; passes go on meanwhile
        return flat

    def host_copy(self, part: int) -> Tensor:
        """Return the bytes of a part in new memory of the host."""
        return self.parts[part].clone()

    def write(self, part: int, offset: int, flat: Tensor) -> None:
        """Replace some bytes of a part."""
        self.parts[part][offset : offset + len(flat)].copy_(flat)

    def close(self) -> None:
        """Free the memory."""
        self.parts.clear()


def _bytes_of(flat: Tensor) -> memoryview:
    array: Any = flat.numpy()
    return memoryview(array)


def give_memory_back() -> None:
    """Return freed memory to the system, which glibc keeps: gradients leave gaps of their size."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
