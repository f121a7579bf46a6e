"""Files that stay open in a script's process, whose code may close descriptors that are not its.

Libraries for daemons close all descriptors (``os.closerange(3, 256)``); the numbers then go to the
script's own files. Imports the standard library only.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from functools import cache

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


def identity(descriptor: int) -> tuple[int, int] | None:
    """Return the device and inode of an open file; None if the descriptor is closed."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def map_shared(descriptor: int, nbytes: int) -> memoryview:
    """Map a file for reading and writing, with its pages loaded, and keep no descriptor.

    `mmap.mmap` keeps a duplicate until the mapping ends and closes that number then, whatever file
    has it by now. The mapping ends with the last view of it.

    Raises:
        OSError: It cannot be mapped.
    """
    how = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
    address = _libc.mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, how, descriptor, 0)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return memoryview(_mapping_type(nbytes).from_address(address)).cast("B")


@cache
def _mapping_type(nbytes: int) -> type[ctypes.Array[ctypes.c_ubyte]]:
    address_of, unmap = ctypes.addressof, _libc.munmap  # also at the end of the interpreter

    class Mapping(ctypes.c_ubyte * nbytes):  # type: ignore[misc]
        """A mapping that ends when nobody refers to it."""

        def __del__(self) -> None:
            unmap(address_of(self), nbytes)

    return Mapping
