"""The CUDA calls of a shared loader: memory of a GPU that several processes map.

Such memory has a descriptor, as the arena has. It goes to consumers over the socket, and the memory
is freed when the last process that has mapped it is gone, however the others ended (NVIDIA, *CUDA
Driver API*, "Virtual Memory Management", ``cuMemRelease``). The older ``cudaIpc`` functions promise
less: what becomes of memory and interprocess events when the process that made them ends is not
defined (*CUDA Runtime API*, "Device Management", ``cudaIpcOpenMemHandle`` and
``cudaIpcGetEventHandle``), and processes that share a loader may be killed at any time. For that
reason no GPU waits for another process: each process waits for its own work, and then says so.

Read for it: *CUDA Programming Guide*, "Virtual Memory Management"; NVIDIA's sample
``memMapIPCDrv``; Numba, *CUDA Array Interface*, which ``torch.as_tensor`` reads. Across instances
of a GPU that is divided (MIG) such memory cannot be mapped (*MIG User Guide*, "Application
Considerations").

**Not tested on a GPU.** Tests replace what is here by a memfd.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

#: Of cuda.h.
_PINNED, _DESCRIPTOR, _DEVICE, _READ_WRITE = 1, 1, 1, 3


class CudaError(Exception):
    """A call failed, or a GPU is not there."""


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    """CUmemAllocationProp; the last field is its allocFlags."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32_metadata", ctypes.c_void_p),
        ("flags", ctypes.c_uint8 * 8),
    )


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


def identity(device: torch.device) -> str:
    """Return the UUID of a GPU, the same in all processes.

    Raises:
        CudaError: There is no such GPU.
    """
    try:
        return str(torch.cuda.get_device_properties(device).uuid)
    except (AssertionError, RuntimeError) as error:  # torch without CUDA, no driver, no such index
        raise CudaError(f"there is no {device}: {error}") from error


def device_of(gpu: str) -> torch.device:
    """Return the GPU with a UUID.

    Raises:
        CudaError: This process does not see it.
    """
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        if identity(device) == gpu:
            return device
    raise CudaError(f"process {os.getpid()} does not see the GPU {gpu}")


def moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor of the CPU on a GPU, when it is there."""
    return tensor.to(device)


def finish(device: torch.device) -> None:
    """Wait for the copies of this thread."""
    torch.cuda.current_stream(device).synchronize()


def stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream to which this thread gives its work."""
    return torch.cuda.current_stream(device)


def mark(work: torch.cuda.Stream) -> torch.cuda.Event:
    """Return an event after all work that a stream has been given."""
    event: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(work)
    return event


class Memory:
    """Bytes of a GPU, mapped until the last view of them is gone.

    Args:
        device: The GPU.
        nbytes: How many; rounded up in new memory.
        descriptor: Of memory that another process made, which is closed; without it, the memory is
            new, and has a descriptor for others.

    Raises:
        CudaError: There is not so much memory, or it cannot be shared.
    """

    def __init__(self, device: torch.device, nbytes: int, descriptor: int = -1) -> None:
        self._device, self.nbytes, self.descriptor = device, nbytes, -1
        self._address = ctypes.c_uint64()
        self._location = _Location(_DEVICE, device.index or 0)
        undo = contextlib.ExitStack()
        weakref.finalize(self, _undone, undo, os.getpid()).atexit = False
        try:
            torch.cuda.synchronize(device)  # CUDA is ready in this thread
        except RuntimeError as error:  # no memory is left for its context, say
            raise CudaError(str(error)) from error
        handle = self._new(undo) if descriptor < 0 else _opened(descriptor)
        try:
            self._map(handle, undo)
        finally:
            _call("cuMemRelease", handle)  # the mapping keeps the memory
        undo.callback(torch.cuda.synchronize, device)  # the first to be done

    def view(self, begin: int, nbytes: int, gone: Callable[[], None] | None = None) -> torch.Tensor:
        """Return some of the bytes, uint8; ``gone`` is called when no tensor refers to them."""
        region = _Region(self, self._address.value + begin, nbytes)
        if gone is not None:
            weakref.finalize(region, gone).atexit = False
        return torch.as_tensor(region, device=self._device)

    def _new(self, undo: contextlib.ExitStack) -> ctypes.c_uint64:
        properties = _Properties(_PINNED, _DESCRIPTOR, self._location)
        unit, handle, descriptor = ctypes.c_size_t(), ctypes.c_uint64(), ctypes.c_int()
        _call("cuMemGetAllocationGranularity", _ref(unit), _ref(properties), ctypes.c_int(0))
        self.nbytes = -(-self.nbytes // unit.value) * unit.value
        size, no_flags = ctypes.c_size_t(self.nbytes), ctypes.c_uint64(0)
        _call("cuMemCreate", _ref(handle), size, _ref(properties), no_flags)
        kind = ctypes.c_int(_DESCRIPTOR)
        try:
            _call("cuMemExportToShareableHandle", _ref(descriptor), handle, kind, no_flags)
        except CudaError:
            _call("cuMemRelease", handle)
            raise
        self.descriptor = descriptor.value
        undo.callback(os.close, self.descriptor)
        return handle

    def _map(self, handle: ctypes.c_uint64, undo: contextlib.ExitStack) -> None:
        size, zero = ctypes.c_size_t(self.nbytes), ctypes.c_uint64(0)
        _call("cuMemAddressReserve", _ref(self._address), size, ctypes.c_size_t(0), zero, zero)
        undo.callback(_call, "cuMemAddressFree", self._address, size)
        _call("cuMemMap", self._address, size, ctypes.c_size_t(0), handle, zero)
        undo.callback(_call, "cuMemUnmap", self._address, size)
        access = _Access(self._location, _READ_WRITE)
        _call("cuMemSetAccess", self._address, size, _ref(access), ctypes.c_size_t(1))


class _Region:
    """Has ``torch.as_tensor`` make a tensor of the memory, which keeps this object."""

    def __init__(self, memory: Memory, address: int, nbytes: int) -> None:
        self._memory = memory
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def _opened(descriptor: int) -> ctypes.c_uint64:
    handle, kind = ctypes.c_uint64(), ctypes.c_int(_DESCRIPTOR)
    try:
        _call("cuMemImportFromShareableHandle", _ref(handle), ctypes.c_void_p(descriptor), kind)
    finally:
        os.close(descriptor)
    return handle


def _undone(undo: contextlib.ExitStack, process: int) -> None:
    if os.getpid() == process:  # a forked process cannot use its parent's GPU memory
        undo.close()


def _ref(value: Any) -> Any:
    return ctypes.byref(value)


@cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CudaError(f"NVIDIA's driver cannot be loaded: {error}") from error


def _call(name: str, *arguments: Any) -> None:
    """Call a function of the driver.

    Raises:
        CudaError: It failed.
    """
    if code := getattr(_driver(), name)(*arguments):
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(ctypes.c_int(code), _ref(text))
        raise CudaError(f"{name} failed: {(text.value or b'').decode() or code}")
