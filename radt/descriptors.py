"""Files that stay mapped in a script's process even if its code closes all descriptors.

Libraries that daemonize close all descriptors (``os.closerange(3, 256)``), and the script's own
files then reuse the numbers. Imports the standard library only.
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


def map_shared(descriptor: int, nbytes: int) -> memoryview:
    """Map a file for reading and writing, with its pages loaded, without keeping a descriptor.

    `mmap.mmap` keeps a duplicate descriptor and closes that number when the mapping ends, whatever
    file has the number by then. This mapping ends with its last view.

    Raises:
        OSError: The file cannot be mapped.
    """
    how = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
    address = _libc.mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, how, descriptor, 0)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return memoryview(_mapping_type(nbytes).from_address(address)).cast("B")


@cache
def _mapping_type(nbytes: int) -> type[ctypes.Array[ctypes.c_ubyte]]:
    address_of, unmap = ctypes.addressof, _libc.munmap  # needed even at interpreter shutdown

    class Mapping(ctypes.c_ubyte * nbytes):  # type: ignore[misc]
        """A mapping that is unmapped when garbage-collected."""

        def __del__(self) -> None:
            unmap(address_of(self), nbytes)

    return Mapping
