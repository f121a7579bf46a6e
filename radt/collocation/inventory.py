"""Read the machine's GPUs, their MIG instances, and the instances that they could hold."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from radt.collocation import mig
from radt.collocation.ledger import Ledger, MigInstance
from radt.collocation.topology import (
    ComputeInstance,
    GpuInstance,
    GpuInventory,
    InstanceProfile,
    Inventory,
    MigState,
    Placement,
    published_placements,
)
from radt.errors import DeviceError
from radt.nvml import opened

_VISIBLE = "CUDA_VISIBLE_DEVICES"
#: Names the device file that grants the creation of MIG instances; missing without MIG.
_MIG_CONFIG = Path("/proc/driver/nvidia/capabilities/mig/config")


def read_inventory(only: Collection[int] | None = None, ledger: Ledger | None = None) -> Inventory:
    """Query the driver, if there is one, for all GPUs or those with the given NVML indices.

    Where ``CUDA_VISIBLE_DEVICES`` names MIG devices, as in a job of a cluster, there are no others.

    Raises:
        DeviceError: The driver is installed but does not work.
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
        return Inventory(reason="the NVIDIA driver is not loaded")
    except (pynvml.NVMLError, OSError) as error:
        raise DeviceError(
            f"the NVIDIA driver does not answer: {error}", "Run nvidia-smi for details"
        ) from error
    entries = (ledger if ledger is not None else Ledger()).entries()
    created = [entry.thing for entry in entries if isinstance(entry.thing, MigInstance)]
    gpus = tuple(_with_claims(gpu, created) for gpu in gpus)
    given = [name for name in os.environ.get(_VISIBLE, "").split(",") if name.startswith("MIG-")]
    if given:
        gpus = tuple(_limited_to(gpu, given) for gpu in gpus)
    return Inventory(gpus, driver, "" if gpus else "NVML sees none", is_given=bool(given))


def _limited_to(gpu: GpuInventory, uuids: Collection[str]) -> GpuInventory:
    """Return what a job can use that was given these MIG devices: them alone, as they are."""
    if gpu.mig is None:
        return gpu
    instances = []
    for instance in gpu.mig.instances:
        computes = tuple(compute for compute in instance.computes if compute.uuid in uuids)
        if computes:
            instances.append(replace(instance, computes=computes))
    return replace(gpu, mig=replace(gpu.mig, may_create=False, instances=tuple(instances)))


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
            pass  # no memory of its own, or a divided GPU and an unprivileged user
        mig = _read_mig(nvml, handle, memory_bytes)
    except nvml.NVMLError as error:
        # A GPU that has fallen off the bus leaves the others usable.
        return GpuInventory(index, "", "", problem=str(error))
    return GpuInventory(index, uuid, name, memory_bytes, free_bytes, mig)


def _read_mig(nvml: Any, handle: Any, memory_bytes: int | None) -> MigState | None:
    try:
        current, pending = nvml.nvmlDeviceGetMigMode(handle)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        return None
    profiles = mig.read_profiles(nvml, handle, memory_bytes)
    allowed = bool(profiles) and _may_configure()
    try:
        profiles = [
            replace(profile, placements=mig.read_placements(nvml, handle, profile.profile_id))
            for profile in profiles
        ]
    except nvml.NVMLError_NoPermission:
        allowed = False
        profiles = _from_tables(profiles)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        profiles = _from_tables(profiles)
    instances: Sequence[GpuInstance] = ()
    if current == nvml.NVML_DEVICE_MIG_ENABLE:
        computes = dict(_read_devices(nvml, handle))
        try:
            instances = [
                GpuInstance(
                    instance.instance_id,
                    instance.profile,
                    instance.placement,
                    tuple(
                        device.compute
                        for ids, device in sorted(computes.items())
                        if ids[0] == instance.instance_id
                    ),
                )
                for profile in profiles
                for instance in mig.gpu_instances(nvml, handle, profile)
            ]
        except nvml.NVMLError_NoPermission:
            allowed = False
            instances = _seen_instances(computes)
    return MigState(
        enabled=current == nvml.NVML_DEVICE_MIG_ENABLE,
        pending=pending == nvml.NVML_DEVICE_MIG_ENABLE,
        may_create=allowed,
        profiles=tuple(profiles),
        instances=tuple(sorted(instances, key=lambda instance: instance.instance_id)),
    )


def _from_tables(profiles: Sequence[InstanceProfile]) -> list[InstanceProfile]:
    """Add NVIDIA's published placements."""
    largest = max(profiles, key=lambda profile: (profile.slices, profile.memory_mb), default=None)
    if largest is None:
        return []
    return [
        replace(
            profile,
            placements=published_placements(
                profile.slices, profile.memory_mb, largest.slices, largest.memory_mb
            ),
        )
        for profile in profiles
    ]


@dataclass(frozen=True, slots=True)
class _MigDevice:
    """A compute instance with the profile name of its GPU instance."""

    profile: str
    compute: ComputeInstance


def _read_devices(nvml: Any, handle: Any) -> Iterator[tuple[tuple[int, int], _MigDevice]]:
    """Yield all MIG devices with the ids of their GPU and compute instance."""
    for device in mig.mig_devices(nvml, handle):
        attributes = nvml.nvmlDeviceGetAttributes_v2(device.handle)
        compute = ComputeInstance(
            instance_id=device.compute_instance,
            slices=int(attributes.computeInstanceSliceCount),
            uuid=str(nvml.nvmlDeviceGetUUID(device.handle)),
            sm_count=int(attributes.multiprocessorCount),
            pids=_pids(nvml, device.handle),
        )
        profile = mig.profile_of_device(nvml, device.handle)
        yield (device.gpu_instance, device.compute_instance), _MigDevice(profile, compute)


def _pids(nvml: Any, device: Any) -> tuple[int, ...]:
    pids: set[int] = set()
    for listed in (
        nvml.nvmlDeviceGetComputeRunningProcesses,
        nvml.nvmlDeviceGetMPSComputeRunningProcesses,
    ):
        try:
            pids.update(int(process.pid) for process in listed(device))
        except nvml.NVMLError:  # this driver has no such list
            continue
    return tuple(sorted(pids))


def _seen_instances(computes: dict[tuple[int, int], _MigDevice]) -> list[GpuInstance]:
    """Return the GPU instances that an unprivileged user sees: those with a MIG device."""
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
    """Return whether this user may change MIG instances, by the permissions of a device file.

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
        return True  # unknown: the driver will report it
    return os.access(f"/dev/nvidia-caps/nvidia-cap{minor}", os.R_OK)


def _with_claims(gpu: GpuInventory, created: Sequence[MigInstance]) -> GpuInventory:
    if gpu.mig is None or not created:
        return gpu
    instances = tuple(
        replace(instance, claimed=any(_is(thing, gpu, instance) for thing in created))
        for instance in gpu.mig.instances
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
