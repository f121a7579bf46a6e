"""The MIG part of NVML, with Python's types instead of arrays to fill.

Every function may raise ``pynvml.NVMLError``; ``nvml`` is pynvml, initialised
(`radt.nvml.opened`). https://docs.nvidia.com/deploy/nvml-api/api/group__nvmlMultiInstanceGPU.html
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from radt.collocation.topology import InstanceProfile, Placement, profile_name

_NAME_PREFIX = "MIG "
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class FoundInstance:
    """A GPU instance that exists; ``profile`` is its profile's name."""

    handle: Any
    instance_id: int
    profile: str
    placement: Placement


@dataclass(frozen=True, slots=True)
class FoundDevice:
    """A MIG device: the compute instance of a GPU instance, as processes see it."""

    handle: Any
    gpu_instance: int
    compute_instance: int


def read_profiles(
    nvml: Any, gpu: Any, gpu_memory_bytes: int | None = None
) -> list[InstanceProfile]:
    """What the GPU offers, without placements: those are for privileged users.

    Args:
        gpu_memory_bytes: Names of profiles come from it where the driver does not tell them.
    """
    found = [
        _profile(nvml, gpu, index, gpu_memory_bytes)
        for index in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT)
    ]
    return [profile for profile in found if profile is not None]


def read_placements(nvml: Any, gpu: Any, profile_id: int) -> tuple[Placement, ...]:
    """Where instances of a profile may lie, on an empty GPU. Needs privileges."""
    count = ctypes.c_uint(0)
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, profile_id, None, ctypes.byref(count))
    found = (nvml.c_nvmlGpuInstancePlacement_t * max(count.value, 1))()
    if count.value:
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, profile_id, found, ctypes.byref(count))
    places = [Placement(int(one.start), int(one.size)) for one in found[: count.value]]
    return tuple(sorted(places, key=lambda place: (place.start, place.size)))


def gpu_instances(nvml: Any, gpu: Any, profile: InstanceProfile) -> list[FoundInstance]:
    """The GPU instances of a profile. Needs privileges."""
    count = ctypes.c_uint(profile.max_count)
    handles = (nvml.c_nvmlGpuInstance_t * max(profile.max_count, 1))()
    nvml.nvmlDeviceGetGpuInstances(gpu, profile.profile_id, handles, ctypes.byref(count))
    found = []
    for handle in handles[: count.value]:
        info = nvml.nvmlGpuInstanceGetInfo(handle)
        place = Placement(int(info.placement.start), int(info.placement.size))
        found.append(FoundInstance(handle, int(info.id), profile.name, place))
    return found


def mig_devices(nvml: Any, gpu: Any) -> Iterator[FoundDevice]:
    """All MIG devices of a GPU. Needs no privileges."""
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
        except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):  # indices have holes
            continue
        yield FoundDevice(
            device,
            int(nvml.nvmlDeviceGetGpuInstanceId(device)),
            int(nvml.nvmlDeviceGetComputeInstanceId(device)),
        )


def profile_of_device(nvml: Any, device: Any) -> str:
    """The name of the profile of a MIG device's GPU instance."""
    # "NVIDIA A100-SXM4-40GB MIG 3c.7g.40gb"
    name = str(nvml.nvmlDeviceGetName(device)).rpartition(_NAME_PREFIX)[2]
    compute, dot, rest = name.partition("c.")
    return rest if dot and compute.isdigit() else name


def compute_profile_id(nvml: Any, instance: Any, slices: int) -> int | None:
    """The driver's id of the compute instance profile of so many slices, None if there is none."""
    for info in _compute_profiles(nvml, instance):
        if info.sliceCount == slices:
            return int(info.id)
    return None


def compute_instances(nvml: Any, instance: Any) -> list[Any]:
    """Handles of all compute instances in a GPU instance. Needs privileges."""
    found: list[Any] = []
    for info in _compute_profiles(nvml, instance):
        count = ctypes.c_uint(int(info.instanceCount))
        handles = (nvml.c_nvmlComputeInstance_t * max(count.value, 1))()
        nvml.nvmlGpuInstanceGetComputeInstances(instance, info.id, handles, ctypes.byref(count))
        found += handles[: count.value]
    return found


def create_gpu_instance(nvml: Any, gpu: Any, profile_id: int, place: Placement) -> Any:
    """Create a GPU instance at this place. Needs privileges."""
    where = nvml.c_nvmlGpuInstancePlacement_t(place.start, place.size)
    return nvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, profile_id, ctypes.byref(where))


def create_compute_instance(
    nvml: Any, instance: Any, profile_id: int, place: Placement | None
) -> Any:
    """Create a compute instance, at this place if the driver can be told. Needs privileges."""
    if place is not None:
        where = nvml.c_nvmlComputeInstancePlacement_t(place.start, place.size)
        try:
            return nvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement(
                instance, profile_id, ctypes.byref(where)
            )
        except nvml.NVMLError_FunctionNotFound:
            pass  # an older driver chooses the place itself
    return nvml.nvmlGpuInstanceCreateComputeInstance(instance, profile_id)


def _profile(
    nvml: Any, gpu: Any, index: int, gpu_memory_bytes: int | None
) -> InstanceProfile | None:
    """The profile of this index; None if the GPU offers none."""
    try:
        info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, index, version=2)
        name = _text(info.name)
    except nvml.NVMLError_FunctionNotFound:  # an older driver does not tell the name
        try:
            info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, index, version=1)
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
            return None
        memory_bytes = gpu_memory_bytes or _memory_bytes(nvml, gpu)
        name = profile_name(index, info.sliceCount, info.memorySizeMB, memory_bytes)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
        return None
    try:
        remaining = int(nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, info.id))
    except nvml.NVMLError:  # MIG is off, or no administrator
        remaining = None
    return InstanceProfile(
        profile_id=int(info.id),
        name=name.removeprefix(_NAME_PREFIX),
        slices=int(info.sliceCount),
        memory_mb=int(info.memorySizeMB),
        max_count=int(info.instanceCount),
        sm_count=int(info.multiprocessorCount),
        ofas=int(info.ofaCount),
        remaining=remaining,
    )


def _memory_bytes(nvml: Any, gpu: Any) -> int:
    """The whole GPU's memory, for someone who may not read it: that of its largest profile."""
    largest = 0
    for index in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, index, version=1)
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
            continue
        largest = max(largest, int(info.memorySizeMB))
    return largest * _MIB


def _compute_profiles(nvml: Any, instance: Any) -> Iterator[Any]:
    """What NVML says of each compute instance profile that the GPU instance offers."""
    for index in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        for version in (2, 1):
            try:
                yield nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                    instance, index, nvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, version
                )
            except nvml.NVMLError_FunctionNotFound:
                continue  # an older driver knows the first version only
            except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
                pass
            break


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
