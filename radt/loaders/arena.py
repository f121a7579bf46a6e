"""Shared memory of equal slots, each with a batch: one process writes, others read in place.

The memory is a memfd (memfd_create(2)). It has no name, so the kernel frees it when its last
process ends, however that happens.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import re
import weakref
from collections.abc import Callable
from pathlib import Path

from radt.errors import LoaderError
from radt.units import size

_MEMINFO = Path("/proc/meminfo")
#: proc_pid_pagemap(5): eight bytes per page. Flags in the last byte: page in memory (0x80), swapped
#: out (0x40), page of a file (0x20). `_SHARED` are the values of pages that are not private to the
#: reader.
_PAGEMAP = Path("/proc/self/pagemap")
_SHARED = bytes(flags for flags in range(256) if not flags & 0xC0 or flags & 0x20)
#: fcntl(2); Python 3.11 has no names for these.
_F_ADD_SEALS, _F_SEAL_SHRINK, _F_SEAL_GROW = 1033, 2, 4


def page_aligned(nbytes: int) -> int:
    """Return a size rounded up to whole pages, at least one."""
    return max(1, -(-nbytes // mmap.PAGESIZE)) * mmap.PAGESIZE


class Arena:
    """The writer's side of the shared memory.

    Args:
        slots: Number of slots.
        slot_bytes: Size of each slot, a multiple of the page size.

    Raises:
        LoaderError: There is not enough memory.
    """

    def __init__(self, slots: int, slot_bytes: int) -> None:
        self.slots, self.slot_bytes = slots, slot_bytes
        nbytes = slots * slot_bytes
        what = (
            f"a shared loader needs {size(nbytes)} of memory "
            f"for {slots} batches of {size(slot_bytes)}"
        )
        remedy = "Use smaller batches, or set buffer or window_bytes lower"
        available = available_bytes()
        if available is not None and nbytes > available:
            raise LoaderError(f"{what}; {size(available)} are available", remedy)
        try:
            self.descriptor = os.memfd_create("radt-loader", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise LoaderError(f"{what}; memfd_create failed: {error.strerror}", remedy) from error
        try:
            # Allocate now: otherwise a first write to a page could raise SIGBUS.
            os.posix_fallocate(self.descriptor, 0, nbytes)
            # Seal the size: a reader that shrank the file would break all others.
            fcntl.fcntl(self.descriptor, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW)
            self._map = mmap.mmap(self.descriptor, nbytes)
        except OSError as error:
            os.close(self.descriptor)
            raise LoaderError(f"{what}: {error.strerror}", remedy) from error

    @property
    def memory(self) -> memoryview:
        """All bytes of all slots."""
        return memoryview(self._map)

    def slot(self, number: int) -> memoryview:
        """Return the bytes of a slot for writing."""
        begin = number * self.slot_bytes
        return memoryview(self._map)[begin : begin + self.slot_bytes]

    def close(self) -> None:
        """Close the descriptor; the memory stays until its last view is gone."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class ArenaView:
    """A reader's side: a private mapping, so that others do not see its writes.

    Args:
        descriptor: The memfd. It is closed here.
        slots: Number of slots.
        slot_bytes: Size of each slot.
        mutable: Allow writing into batches. A written page stays private to the reader and would
            hide the next batch, so releasing a slot drops its pages if one of them was written.
    """

    def __init__(self, descriptor: int, slots: int, slot_bytes: int, *, mutable: bool) -> None:
        self.slots, self.slot_bytes, self.mutable = slots, slot_bytes, mutable
        try:
            self._map = mmap.mmap(descriptor, slots * slot_bytes, flags=mmap.MAP_PRIVATE)
        finally:
            os.close(descriptor)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def slot(self, number: int, released: Callable[[], None]) -> memoryview:
        """Return the bytes of a slot.

        ``released`` is called once, in any thread, when the last view of the bytes is gone,
        including tensors, arrays and their views.
        """
        begin = number * self.slot_bytes
        view = memoryview(self._map)[begin : begin + self.slot_bytes]
        weakref.finalize(view, self._release, begin, released).atexit = False
        return view

    def _release(self, begin: int, released: Callable[[], None]) -> None:
        if self.mutable and self._written(begin):
            self._map.madvise(mmap.MADV_DONTNEED, begin, self.slot_bytes)
        released()

    def _written(self, begin: int) -> bool:
        """Return True if a slot has pages private to the reader, or if that is unknown.

        Looking takes 0.1 ms for 38 MB. Dropping pages that were only read, and mapping them again,
        takes up to 4 ms.
        """
        first, pages = (self._address + begin) // mmap.PAGESIZE, self.slot_bytes // mmap.PAGESIZE
        try:
            with _PAGEMAP.open("rb", buffering=0) as pagemap:
                entries = os.pread(pagemap.fileno(), pages * 8, first * 8)
        except OSError:
            return True
        flags = entries[7::8]
        return len(flags) < pages or bool(flags.translate(None, delete=_SHARED))


def available_bytes() -> int | None:
    """Return the available memory (``MemAvailable``); None if the kernel does not report it."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", _MEMINFO.read_text(encoding="ascii"), re.M)
    return int(found[1]) * 1024 if found else None
