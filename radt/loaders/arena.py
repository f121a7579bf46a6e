"""Shared memory of equal slots, each with a batch: one process writes, others read where it lies.

The memory is a memfd (memfd_create(2)): it has no name, so nothing is left of it when its last
process is gone, however that ended.
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
#: proc_pid_pagemap(5): eight bytes a page. The last one says that it is in memory (0x80) or swapped
#: out (0x40), and that it is of a file (0x20); what it says of pages that are not the reader's own:
_PAGEMAP = Path("/proc/self/pagemap")
_SHARED = bytes(flags for flags in range(256) if not flags & 0xC0 or flags & 0x20)
#: fcntl(2); Python 3.11 does not name them.
_F_ADD_SEALS, _F_SEAL_SHRINK, _F_SEAL_GROW = 1033, 2, 4


def page_aligned(nbytes: int) -> int:
    """Return a size rounded up to whole pages, one at least."""
    return max(1, -(-nbytes // mmap.PAGESIZE)) * mmap.PAGESIZE


class Arena:
    """The writer's side.

    Args:
        slots: How many.
        slot_bytes: Size of each, a multiple of the page size.

    Raises:
        LoaderError: There is not so much memory.
    """

    def __init__(self, slots: int, slot_bytes: int) -> None:
        self.slots, self.slot_bytes = slots, slot_bytes
        nbytes = slots * slot_bytes
        what = (
            f"a shared loader needs {size(nbytes)} of memory "
            f"for {slots} batches of {size(slot_bytes)}"
        )
        remedy = "Use smaller batches, or set buffer or window_bytes lower"
        available = _available_bytes()
        if available is not None and nbytes > available:
            raise LoaderError(f"{what}; {size(available)} are available", remedy)
        try:
            self.descriptor = os.memfd_create("radt-loader", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise LoaderError(f"{what}; memfd_create failed: {error.strerror}", remedy) from error
        try:
            # Now rather than by SIGBUS when a page is first written.
            os.posix_fallocate(self.descriptor, 0, nbytes)
            # A reader that made it shorter would take the memory from under the others.
            fcntl.fcntl(self.descriptor, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW)
            self._map = mmap.mmap(self.descriptor, nbytes)
        except OSError as error:
            os.close(self.descriptor)
            raise LoaderError(f"{what}: {error.strerror}", remedy) from error

    def slot(self, number: int) -> memoryview:
        """Return the bytes of a slot, to be written."""
        begin = number * self.slot_bytes
        return memoryview(self._map)[begin : begin + self.slot_bytes]

    def close(self) -> None:
        """Close the descriptor; the memory stays until its last view is gone."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class ArenaView:
    """A reader's side: a mapping that is private to it, so that others do not see its writes.

    Args:
        descriptor: The memfd, which is closed.
        slots: How many.
        slot_bytes: Size of each.
        mutable: Whether somebody may write into batches. A page that was written stays the reader's
            own, and would hide the next batch; releasing a slot therefore drops its pages if there
            is such a one among them.
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

        ``released`` is called once when the last view of them is gone: tensors, arrays and their
        own views included. It may be called in any thread.
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
        """Return whether a slot has pages of the reader's own, or it is not known.

        To look costs 0.1 ms for 38 MB; to drop pages that were only read, and to have them mapped
        again, up to 4 ms.
        """
        first, pages = (self._address + begin) // mmap.PAGESIZE, self.slot_bytes // mmap.PAGESIZE
        try:
            with _PAGEMAP.open("rb", buffering=0) as pagemap:
                entries = os.pread(pagemap.fileno(), pages * 8, first * 8)
        except OSError:
            return True
        flags = entries[7::8]
        return len(flags) < pages or bool(flags.translate(None, delete=_SHARED))


def _available_bytes() -> int | None:
    """Return how much memory the kernel would give; None if it does not say."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", _MEMINFO.read_text(encoding="ascii"), re.M)
    return int(found[1]) * 1024 if found else None
