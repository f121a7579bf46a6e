"""Reads what the machine's GPUs are, how they are divided, and what they could be divided into."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from radt.collocation.ledger import Ledger, MigInstance
from radt.collocation.profiles import Placement, profile_name, published_placements
from radt.collocation.topology import (
    ComputeInstance,
    GpuInstance,
    GpuInventory,
    InstanceProfile,
    Inventory,
    MigState,
    PlacementSource,
)
from radt.errors import DeviceError
from radt.nvml import opened

__all__ = [
    "ComputeInstance",
    "GpuInstance",
    "GpuInventory",
    "InstanceProfile",
    "Inventory",
    "MigState",
    "Placement",
    "PlacementSource",
    "read_inventory",
]

#: Says which device file grants the creation of MIG instances; not there without MIG.
_MIG_CONFIG = Path("/proc/driver/nvidia/capabilities/mig/config")
_NAME_PREFIX = "MIG "


def read_inventory(only: Collection[int] | None = None, ledger: Ledger | None = None) -> Inventory:
    """Ask the driver, if there is one.

    Args:
        only: NVML indices of the GPUs to look at; all by default.
        ledger: What radt has made; this user's by default.

    Raises:
        DeviceError: There is a driver and it does not work.
    """
    import pynvml

    try:
        with opened() as nvml:
            driver = str(nvml.nvmlSystemGetDriverVersion())
            gpus = tuple(
                _read_gpu(nvml, index)
                for index in range(nvml.nvmlDeviceGetCount())
                if only is None or index in only
            )
    except pynvml.NVMLError_LibraryNotFound:
        return Inventory(reason="no NVIDIA driver")
    except pynvml.NVMLError_DriverNotLoaded:
        return Inventory(reason="NVIDIA's driver is not loaded")
    except (pynvml.NVMLError, OSError) as error:
        raise DeviceError(
            f"NVIDIA's driver does not answer: {error}", "Run nvidia-smi to see what it says"
        ) from error
    made = _made_by_radt(ledger if ledger is not None else Ledger())
    gpus = tuple(_with_claims(gpu, made) for gpu in gpus)
    return Inventory(gpus, driver, "" if gpus else "NVML sees none")


def _read_gpu(nvml: Any, index: int) -> GpuInventory:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = str(nvml.nvmlDeviceGetUUID(handle))
        name = str(nvml.nvmlDeviceGetName(handle))
        memory_bytes = free_bytes = None
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
            memory_bytes, free_bytes = int(memory.total), int(memory.free)
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_NoPermission):
            pass  # none of its own, or a divided GPU and no administrator
        mig = _read_mig(nvml, handle, memory_bytes)
    except nvml.NVMLError as error:
        # One GPU that has fallen off the bus leaves the others usable.
        return GpuInventory(index, "", "", problem=str(error))
    return GpuInventory(index, uuid, name, memory_bytes, free_bytes, mig)


def _read_mig(nvml: Any, handle: Any, memory_bytes: int | None) -> MigState | None:
    try:
        current, pending = nvml.nvmlDeviceGetMigMode(handle)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        return None
    profiles = [
        found
        for index in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT)
        if (found := _read_profile(nvml, handle, index, memory_bytes)) is not None
    ]
    allowed = bool(profiles) and _may_configure()
    source = PlacementSource.DRIVER
    try:
        profiles = [
            replace(one, placements=_placements(nvml, handle, one.profile_id)) for one in profiles
        ]
    except nvml.NVMLError_NoPermission:
        allowed = False
        profiles, source = _from_tables(profiles)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        profiles, source = _from_tables(profiles)
    instances: Sequence[GpuInstance] = ()
    if current == nvml.NVML_DEVICE_MIG_ENABLE:
        computes = dict(_mig_devices(nvml, handle))
        try:
            instances = [
                one
                for profile in profiles
                for one in _gpu_instances(nvml, handle, profile, computes)
            ]
        except nvml.NVMLError_NoPermission:
            allowed = False
            instances = _seen_instances(computes)
    return MigState(
        enabled=current == nvml.NVML_DEVICE_MIG_ENABLE,
        pending=pending == nvml.NVML_DEVICE_MIG_ENABLE,
        may_create=allowed,
        profiles=tuple(profiles),
        placements_from=source if profiles else PlacementSource.NONE,
        instances=tuple(sorted(instances, key=lambda one: one.instance_id)),
    )


def _read_profile(
    nvml: Any, handle: Any, index: int, gpu_memory_bytes: int | None
) -> InstanceProfile | None:
    """The profile of this index; None if the GPU offers none."""
    try:
        info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, index, version=2)
        name = _text(info.name)
    except nvml.NVMLError_FunctionNotFound:  # drivers before R520 do not tell the name
        try:
            info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, index, version=1)
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
            return None
        name = profile_name(
            index, info.sliceCount, info.memorySizeMB, gpu_memory_bytes or info.memorySizeMB * 2**20
        )
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
        return None
    try:
        remaining = int(nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(handle, info.id))
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


def _placements(nvml: Any, handle: Any, profile_id: int) -> tuple[Placement, ...]:
    count = ctypes.c_uint(0)
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, None, ctypes.byref(count))
    found = (nvml.c_nvmlGpuInstancePlacement_t * count.value)()
    if count.value:
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(
            handle, profile_id, found, ctypes.byref(count)
        )
    places = [Placement(int(one.start), int(one.size)) for one in found[: count.value]]
    return tuple(sorted(places, key=lambda place: (place.start, place.size)))


def _from_tables(
    profiles: Sequence[InstanceProfile],
) -> tuple[list[InstanceProfile], PlacementSource]:
    largest = max(profiles, key=lambda one: (one.slices, one.memory_mb), default=None)
    if largest is None:
        return [], PlacementSource.NONE
    placed = [
        replace(
            one,
            placements=published_placements(
                one.slices, one.memory_mb, largest.slices, largest.memory_mb
            ),
        )
        for one in profiles
    ]
    known = any(one.placements for one in placed)
    return placed, PlacementSource.TABLE if known else PlacementSource.NONE


@dataclass(frozen=True, slots=True)
class _MigDevice:
    """A compute instance with the name of the profile of its GPU instance."""

    profile: str
    compute: ComputeInstance


def _mig_devices(nvml: Any, handle: Any) -> Iterator[tuple[tuple[int, int], _MigDevice]]:
    """All MIG devices by the ids of their GPU and compute instance."""
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except nvml.NVMLError_NotFound:  # indices have holes
            continue
        ids = (
            int(nvml.nvmlDeviceGetGpuInstanceId(device)),
            int(nvml.nvmlDeviceGetComputeInstanceId(device)),
        )
        attributes = nvml.nvmlDeviceGetAttributes_v2(device)
        # "NVIDIA A100-SXM4-40GB MIG 3c.7g.40gb"
        name = str(nvml.nvmlDeviceGetName(device)).rpartition(_NAME_PREFIX)[2]
        yield (
            ids,
            _MigDevice(
                name.partition("c.")[2] or name,
                ComputeInstance(
                    instance_id=ids[1],
                    slices=int(attributes.computeInstanceSliceCount),
                    uuid=str(nvml.nvmlDeviceGetUUID(device)),
                    sm_count=int(attributes.multiprocessorCount),
                    pids=_pids(nvml, device),
                ),
            ),
        )


def _pids(nvml: Any, device: Any) -> tuple[int, ...]:
    found: set[int] = set()
    for listed in (
        nvml.nvmlDeviceGetComputeRunningProcesses,
        nvml.nvmlDeviceGetMPSComputeRunningProcesses,
    ):
        try:
            found.update(int(process.pid) for process in listed(device))
        except nvml.NVMLError:  # this driver has no such list
            continue
    return tuple(sorted(found))


def _gpu_instances(
    nvml: Any,
    handle: Any,
    profile: InstanceProfile,
    computes: dict[tuple[int, int], _MigDevice],
) -> Iterator[GpuInstance]:
    count = ctypes.c_uint(profile.max_count)
    found = (nvml.c_nvmlGpuInstance_t * max(profile.max_count, 1))()
    nvml.nvmlDeviceGetGpuInstances(handle, profile.profile_id, found, ctypes.byref(count))
    for instance in found[: count.value]:
        info = nvml.nvmlGpuInstanceGetInfo(instance)
        yield GpuInstance(
            int(info.id),
            profile.name,
            Placement(int(info.placement.start), int(info.placement.size)),
            tuple(device.compute for ids, device in sorted(computes.items()) if ids[0] == info.id),
        )


def _seen_instances(computes: dict[tuple[int, int], _MigDevice]) -> list[GpuInstance]:
    """What a user without privileges sees of the GPU instances: those with a MIG device."""
    return [
        GpuInstance(
            instance_id,
            computes[members[0]].profile,
            None,
            tuple(computes[ids].compute for ids in members),
        )
        for instance_id, group in groupby(sorted(computes), key=lambda ids: ids[0])
        if (members := list(group))
    ]


def _may_configure() -> bool:
    """Whether this user may change MIG instances, as far as the device file of that says.

    https://docs.nvidia.com/datacenter/tesla/mig-user-guide/device-nodes-and-capabilities.html
    """
    if os.geteuid() == 0:
        return True
    try:
        lines = dict(
            line.split(":", 1) for line in _MIG_CONFIG.read_text(encoding="ascii").splitlines()
        )
        minor = int(lines["DeviceFileMinor"])
    except (OSError, ValueError, KeyError):
        return True  # cannot be known from here: the driver will say
    return os.access(f"/dev/nvidia-caps/nvidia-cap{minor}", os.R_OK)


def _made_by_radt(ledger: Ledger) -> list[MigInstance]:
    return [entry.thing for entry in ledger.entries() if isinstance(entry.thing, MigInstance)]


def _with_claims(gpu: GpuInventory, made: Sequence[MigInstance]) -> GpuInventory:
    if gpu.mig is None or not made:
        return gpu
    instances = tuple(
        replace(one, claimed=any(_is(thing, gpu, one) for thing in made))
        for one in gpu.mig.instances
    )
    return replace(gpu, mig=replace(gpu.mig, instances=instances))


def _is(thing: MigInstance, gpu: GpuInventory, instance: GpuInstance) -> bool:
    if thing.gpu_uuid != gpu.uuid:
        return False
    if thing.gpu_instance is not None:
        return thing.gpu_instance == instance.instance_id
    return instance.instance_id not in thing.existing and instance.placement in (
        None,
        Placement(thing.start, thing.size),
    )


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
