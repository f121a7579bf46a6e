"""The GPUs of this machine and their MIG devices as NVML shows them, including broken ones.

Imports only the standard library until the driver is queried.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from radt.devices.nvml import Nvml, load_library

#: Folder of the device files of NVIDIA's GPUs: ``nvidia0``.
_DEV = "/dev"
_DEVICE_FILE = re.compile(r"nvidia\d+")
#: The device file for GPUs of a Windows host, of any vendor.
_WSL_FILE = "/dev/dxg"
#: Precedes the profile in names of MIG devices: "NVIDIA A100-SXM4-40GB MIG 3c.7g.40gb".
_BEFORE_PROFILE = "MIG "
#: Volta's compute capability, and CUDA 13.1 as the driver reports it.
_VOLTA = 7
_CUDA_13_1 = 13010


class ComputeMode(StrEnum):
    """The processes that may use a GPU (nvmlComputeMode_t), in the order of NVML's numbers."""

    DEFAULT = "default"
    EXCLUSIVE_THREAD = "exclusive thread"
    PROHIBITED = "prohibited"
    EXCLUSIVE_PROCESS = "exclusive process"

    @property
    def is_exclusive(self) -> bool:
        """Return whether only one process may use the GPU at a time."""
        return self in (ComputeMode.EXCLUSIVE_PROCESS, ComputeMode.EXCLUSIVE_THREAD)


@dataclass(frozen=True, slots=True)
class MigDevice:
    """A compute instance of a GPU in MIG mode, which a process sees as its GPU.

    ``uuid`` is ``MIG-…``; ``profile`` is its name in NVIDIA's notation: ``3c.7g.40gb``.
    """

    uuid: str
    gpu_instance: int
    compute_instance: int
    profile: str = ""

    @property
    def slices(self) -> int:
        """Return the number of its compute slices."""
        return int(self.profile.partition("g.")[0].partition("c.")[0] or 0)

    @property
    def gpu_profile(self) -> str:
        """Return the profile of its GPU instance: ``7g.40gb``."""
        return self.profile.rpartition("c.")[2]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One NVIDIA GPU; ``index`` is NVML's, independent of ``CUDA_VISIBLE_DEVICES``.

    ``memory_bytes`` is None if the GPU has no memory of its own (unified memory: Grace, Jetson,
    Spark), or if only an administrator may read it (a divided GPU). With ``mig_enabled``, processes
    can only use its ``mig_devices``. ``minor`` is the number of its device file (``/dev/nvidia3``),
    if the driver knows it. ``compute_mode`` and ``most_mps_clients`` (the maximum number of MPS
    clients) are None if the driver does not report them. ``problem`` is why the GPU does not
    answer; other fields may be missing then. ``is_denied`` says that this user may not use it.
    """

    index: int
    name: str = ""
    uuid: str = ""
    memory_bytes: int | None = None
    mig_enabled: bool = False
    mig_devices: tuple[MigDevice, ...] = ()
    minor: int | None = None
    compute_mode: ComputeMode | None = None
    most_mps_clients: int | None = None
    problem: str = ""
    is_denied: bool = False

    @classmethod
    def read(cls, nvml: Nvml, index: int) -> Gpu:
        """Query the driver for the GPU with this index; a failure becomes its `problem`."""
        name = uuid = ""
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = str(nvml.nvmlDeviceGetUUID(handle))
            name = str(nvml.nvmlDeviceGetName(handle))
            divided = mig_enabled(nvml, handle)
            return cls(
                index,
                name,
                uuid,
                _memory_bytes(nvml, handle),
                divided,
                tuple(mig_devices(nvml, handle)) if divided else (),
                _known(
                    partial(nvml.nvmlDeviceGetMinorNumber, handle), nvml.NVMLError
                ),  # not on WSL
                _compute_mode(nvml, handle),
                _most_mps_clients(nvml, handle),
            )
        except nvml.NVMLError as error:
            is_denied = isinstance(error, nvml.NVMLError_NoPermission)
            return cls(index, name, uuid, problem=str(error), is_denied=is_denied)

    def __str__(self) -> str:
        return f"GPU {self.index}" + (f" ({self.name})" if self.name else "")


@dataclass(frozen=True, slots=True)
class Device:
    """A device that CUDA can offer a process: a whole GPU, or a MIG device of it."""

    gpu: Gpu
    mig: MigDevice | None = None

    @property
    def uuid(self) -> str:
        return self.gpu.uuid if self.mig is None else self.mig.uuid

    def __str__(self) -> str:
        """Return its name in the records of runs: NVML's index, or a MIG device's UUID."""
        return str(self.gpu.index) if self.mig is None else self.mig.uuid


@dataclass(frozen=True, slots=True)
class Gpus:
    """All GPUs of the machine in NVML's order, including broken ones, and the driver's version.

    ``reason`` says why there are none; ``failed`` distinguishes a broken driver from a machine
    without GPUs.
    """

    every: tuple[Gpu, ...] = ()
    driver: str | None = None
    reason: str = ""
    failed: bool = False

    @classmethod
    def read(cls, more: Callable[[Nvml, Gpu], Gpu] = lambda _nvml, gpu: gpu) -> Gpus:
        """Query the driver, if there is one. Never raises.

        Args:
            more: Adds further properties to a working GPU while NVML is open. Its NVMLError becomes
                the GPU's `problem`.
        """
        try:
            load_library()
        except OSError:
            return cls._absent("no NVIDIA driver")
        try:
            import pynvml
        except ImportError:  # radt is used from an environment that lacks its dependencies
            failed = bool(device_files()) or Path(_WSL_FILE).exists()
            return cls(reason="nvidia-ml-py is not installed here", failed=failed)
        try:
            with Nvml() as nvml:
                driver = str(nvml.nvmlSystemGetDriverVersion())
                count = nvml.nvmlDeviceGetCount()
                gpus = tuple(_with(more, nvml, Gpu.read(nvml, index)) for index in range(count))
        except pynvml.NVMLError_LibraryNotFound:  # a part of the library is missing
            return cls._absent("no NVIDIA driver")
        except pynvml.NVMLError_DriverNotLoaded:
            return cls._absent("the NVIDIA driver is not loaded")
        except (pynvml.NVMLError, OSError) as error:
            return cls(reason=f"the NVIDIA driver does not answer: {error}", failed=True)
        return cls(gpus, driver, "" if gpus else "NVML sees none")

    @classmethod
    def _absent(cls, reason: str) -> Gpus:
        """Return no GPUs; this counts as a failure if the kernel has device files for them."""
        files = device_files()
        although = f", although {_DEV}/{files[0]} exists" if files else ""
        return cls(reason=reason + although, failed=bool(files))

    @property
    def working(self) -> tuple[Gpu, ...]:
        return tuple(gpu for gpu in self.every if not gpu.problem)

    @property
    def permitted(self) -> tuple[Gpu, ...]:
        return tuple(gpu for gpu in self.every if not gpu.is_denied)

    @property
    def broken(self) -> tuple[Gpu, ...]:
        """Return GPUs that do not answer, and denied ones if this user may use no GPU at all."""
        return tuple(gpu for gpu in self.permitted or self.every if gpu.problem)

    @property
    def failure(self) -> str:
        """Return why GPUs of this machine cannot be used; empty if all can, or none exist."""
        if self.failed:
            return self.reason
        return "; ".join(f"{gpu} does not answer: {gpu.problem}" for gpu in self.broken)

    def find(self, uuid: str) -> Device | None:
        """Return the device with this UUID, or the only one whose UUID begins with it.

        Broken GPUs are not found. MIG devices are also found by the form that drivers before 470
        used, ``MIG-GPU-…/gi/ci``.
        """
        wanted = uuid.lower()
        found: list[Device] = []
        for gpu in self.working:
            if wanted.startswith("gpu-") and gpu.uuid.lower().startswith(wanted):
                found.append(Device(gpu))
            for mig in gpu.mig_devices:
                old = f"mig-{gpu.uuid}/{mig.gpu_instance}/{mig.compute_instance}".lower()
                if wanted in (mig.uuid.lower(), old):
                    return Device(gpu, mig)
                if wanted.startswith("mig-") and mig.uuid.lower().startswith(wanted):
                    found.append(Device(gpu, mig))
        return found[0] if len(found) == 1 else None


def _with(more: Callable[[Nvml, Gpu], Gpu], nvml: Nvml, gpu: Gpu) -> Gpu:
    try:
        return gpu if gpu.problem else more(nvml, gpu)
    except nvml.NVMLError as error:  # the GPU has fallen off the bus since
        return replace(gpu, problem=str(error))


def device_files() -> list[str]:
    """Return the device files of NVIDIA's GPUs; WSL has none."""
    try:
        return sorted(filter(_DEVICE_FILE.fullmatch, os.listdir(_DEV)))  # noqa: PTH208
    except OSError:
        return []


def mig_enabled(nvml: Nvml, gpu: Any) -> bool:
    """Return whether processes can use only MIG devices of the GPU."""
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(gpu)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):  # GPU or driver lacks it
        return False
    return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)


def find_handles(nvml: Nvml, uuid: str) -> tuple[Any, Any]:
    """Return the handles of the GPU or MIG device with this UUID, and of the GPU it belongs to.

    ``nvmlDeviceGetHandleByUUID`` fails if any GPU has fallen off the bus (nvml.h), so this queries
    GPU by GPU.

    Raises:
        NVMLError: There is no such device. If GPUs have failed, the error of one that could be it.
    """
    failure = nvml.NVMLError(nvml.NVML_ERROR_NOT_FOUND)
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
            if str(nvml.nvmlDeviceGetUUID(gpu)) == uuid:
                return gpu, gpu
            if uuid.startswith("MIG-") and mig_enabled(nvml, gpu):
                for handle, own in mig_handles(nvml, gpu):
                    if own == uuid:
                        return handle, gpu
        except nvml.NVMLError as error:
            failure = error
    raise failure


def mig_handles(nvml: Nvml, gpu: Any) -> Iterator[tuple[Any, str]]:
    """Yield the handles and UUIDs of all MIG devices of a GPU; needs no privileges."""
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
            yield handle, str(nvml.nvmlDeviceGetUUID(handle))
        except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):  # indices may have gaps
            continue


def mig_devices(nvml: Nvml, gpu: Any) -> Iterator[MigDevice]:
    """Yield all MIG devices of a GPU."""
    for device, uuid in mig_handles(nvml, gpu):
        try:
            yield MigDevice(
                uuid,
                int(nvml.nvmlDeviceGetGpuInstanceId(device)),
                int(nvml.nvmlDeviceGetComputeInstanceId(device)),
                str(nvml.nvmlDeviceGetName(device)).rpartition(_BEFORE_PROFILE)[2],
            )
        except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):  # just destroyed
            continue


def _known(read: Callable[[], int], *absent: type[Exception]) -> int | None:
    """Return a number; None on one of these errors."""
    try:
        return int(read())
    except absent:
        return None


def _memory_bytes(nvml: Nvml, gpu: Any) -> int | None:
    absent = (nvml.NVMLError_NotSupported, nvml.NVMLError_NoPermission)
    return _known(lambda: nvml.nvmlDeviceGetMemoryInfo(gpu).total, *absent)


def _compute_mode(nvml: Nvml, gpu: Any) -> ComputeMode | None:
    number = _known(partial(nvml.nvmlDeviceGetComputeMode, gpu), nvml.NVMLError)
    return None if number is None else dict(enumerate(ComputeMode)).get(number)


def _most_mps_clients(nvml: Nvml, gpu: Any) -> int | None:
    """Return 16 before Volta, 48 from Volta on; 60 with drivers newer than CUDA 13.0.

    https://docs.nvidia.com/deploy/mps/when-to-use-mps.html, "Client-Server Connection Limits"
    """
    try:
        major, _ = nvml.nvmlDeviceGetCudaComputeCapability(gpu)
        cuda_version = int(nvml.nvmlSystemGetCudaDriverVersion_v2())
    except nvml.NVMLError:
        return None
    if major < _VOLTA:
        return 16
    return 60 if cuda_version >= _CUDA_13_1 else 48
