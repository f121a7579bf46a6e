"""The CUDA calls of a shared loader: memory of a GPU that several processes map.

Such memory has a descriptor, like the arena. It is sent to consumers over the socket, and the
memory is freed when the last process that mapped it ends, however the others ended (NVIDIA, *CUDA
Driver API*, "Virtual Memory Management", ``cuMemRelease``). The older ``cudaIpc`` functions
guarantee less: the state of memory and interprocess events after the end of the process that
created them is undefined (*CUDA Runtime API*, "Device Management", ``cudaIpcOpenMemHandle`` and
``cudaIpcGetEventHandle``), and processes that share a loader may be killed at any time. For the
same reason no GPU waits for another process: each process waits for its own work, and then reports
it.

Further sources: *CUDA Programming Guide*, "Virtual Memory Management"; NVIDIA's sample
``memMapIPCDrv``; Numba, *CUDA Array Interface*, which ``torch.as_tensor`` reads. Across instances
of a partitioned GPU (MIG) such memory cannot be mapped (*MIG User Guide*, "Application
Considerations").

**Not tested on a GPU.** Tests replace these calls with a memfd.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import torch

from radt.devices.ordinals import offered_uuids
from radt.loaders import pinned

#: Constants of cuda.h.
_PINNED, _DESCRIPTOR, _DEVICE, _READ_WRITE = 1, 1, 1, 3


class CudaError(Exception):
    """A call failed, or a GPU does not exist."""


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    """CUmemAllocationProp. The last field is its allocFlags."""

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
    """Return the UUID of a GPU or MIG device, the same in all processes.

    Raises:
        CudaError: There is no such GPU.
    """
    try:
        properties = torch.cuda.get_device_properties(device)  # initialises CUDA
        index = torch.cuda.current_device() if device.index is None else device.index
    except (AssertionError, RuntimeError) as error:  # torch without CUDA, no driver, no such index
        raise CudaError(f"there is no {device}: {error}") from error
    # PyTorch may report the UUID of the GPU to which a MIG device belongs.
    uuids = offered_uuids(os.environ)
    return str(properties.uuid) if uuids is None else uuids[index]


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


def can_access(device: torch.device, peer: torch.device) -> bool:
    """Return True if a GPU can read another one's memory directly, over NVLink or PCIe."""
    return device != peer and torch.cuda.can_device_access_peer(device, peer)


def peers_of(device: torch.device) -> list[torch.device]:
    """Return the GPUs of this process that can read one's memory."""
    others = (torch.device("cuda", index) for index in range(torch.cuda.device_count()))
    return [other for other in others if can_access(other, device)]


def pin(memory: memoryview) -> torch.Tensor:
    """Pin memory for copies to all GPUs, until `unpin`. Return it as a tensor.

    Raises:
        CudaError: It cannot be pinned.
    """
    flat = torch.frombuffer(memory, dtype=torch.uint8)
    with _torch_fails():
        pinned.pin(flat)
    return flat


def unpin(flat: torch.Tensor) -> None:
    """Unpin memory that `pin` pinned. Does nothing if the GPU fails."""
    with contextlib.suppress(CudaError), _torch_fails():
        pinned.unpin(flat)


def moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a CPU tensor to a GPU, and return it once the copy is complete."""
    return tensor.to(device)


def side_stream(device: torch.device) -> torch.cuda.Stream:
    """Return a separate stream for copies, which waits for no other kernels.

    Raises:
        CudaError: The GPU fails.
    """
    with _torch_fails():
        return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def copy(target: torch.Tensor, source: torch.Tensor, *streams: torch.cuda.Stream) -> None:
    """Start a copy on these streams, one for each participating GPU.

    Raises:
        CudaError: A GPU fails.
    """
    with _torch_fails(), contextlib.ExitStack() as stack:
        for each in streams:
            stack.enter_context(torch.cuda.stream(each))
        target.copy_(source, non_blocking=True)


def finish(copies: torch.cuda.Stream) -> None:
    """Wait for the copies of a stream.

    Raises:
        CudaError: One has failed.
    """
    with _torch_fails():
        copies.synchronize()


def stream(device: torch.device) -> torch.cuda.Stream:
    """Return the current stream of this thread."""
    return torch.cuda.current_stream(device)


def mark(work: torch.cuda.Stream) -> torch.cuda.Event:
    """Return an event after all work that was submitted to a stream."""
    event: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(work)
    return event


class GpuMemory:
    """Bytes of a GPU, mapped until the last view of them is gone.

    Args:
        device: The GPU.
        nbytes: Their number; rounded up in new memory.
        descriptor: Descriptor of another process's memory, which is closed here. Without it, the
            memory is new, and has a descriptor for others.
        peers: GPUs of this process that read it, too.

    Raises:
        CudaError: There is not enough memory, or it cannot be shared.
    """

    def __init__(
        self,
        device: torch.device,
        nbytes: int,
        descriptor: int = -1,
        peers: Sequence[torch.device] = (),
    ) -> None:
        self._device, self.nbytes, self.descriptor = device, nbytes, -1
        self._peers = peers
        self._address = ctypes.c_uint64()
        self._location = _Location(_DEVICE, device.index or 0)
        undo = contextlib.ExitStack()
        weakref.finalize(self, _undone, undo, os.getpid()).atexit = False
        with _torch_fails():
            torch.cuda.synchronize(device)  # CUDA is ready in this thread
        handle = self._new(undo) if descriptor < 0 else _opened(descriptor)
        try:
            self._map(handle, undo)
        finally:
            _call("cuMemRelease", handle)  # the mapping keeps the memory
        undo.callback(torch.cuda.synchronize, device)  # runs first

    def view(self, begin: int, nbytes: int, gone: Callable[[], None] | None = None) -> torch.Tensor:
        """Return some of the bytes as uint8. ``gone`` is called when no tensor refers to them.

        Raises:
            CudaError: PyTorch cannot use them; ``gone`` is not called.
        """
        region = _Region(self, self._address.value + begin, nbytes)
        with _torch_fails(), torch.cuda.device(self._device):
            made = torch.as_tensor(region, device=self._device)
        if gone is not None:
            weakref.finalize(region, gone).atexit = False
        return made

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
        devices = [self._location.id, *(peer.index for peer in self._peers)]
        access = (_Access * len(devices))(
            *(_Access(_Location(_DEVICE, index), _READ_WRITE) for index in devices)
        )
        count = ctypes.c_size_t(len(devices))
        _call("cuMemSetAccess", self._address, size, access, count)


@contextlib.contextmanager
def _torch_fails() -> Iterator[None]:
    """Raise PyTorch's errors as a `CudaError`, for example a lack of memory for a context."""
    try:
        yield
    except (AssertionError, RuntimeError) as error:  # a PyTorch without CUDA asserts
        raise CudaError(str(error)) from error


class _Region:
    """Makes ``torch.as_tensor`` return a tensor of the memory, which keeps this object alive."""

    def __init__(self, memory: GpuMemory, address: int, nbytes: int) -> None:
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
