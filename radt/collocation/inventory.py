"""Reads the machine's GPUs, their MIG instances, and the instances that they could hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from radt.collocation import mig
from radt.collocation.ledger import CreatedLedger, MigInstance
from radt.collocation.permissions import may_configure
from radt.collocation.spec import Collocation
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
from radt.devices.gpus import Gpu, Gpus, MigDevice, find_handles
from radt.devices.nvml import Nvml
from radt.devices.visible import given_mig_uuids
from radt.errors import DeviceError


def read_inventory() -> Inventory:
    """Query the driver, if there is one, for all GPUs.

    If ``CUDA_VISIBLE_DEVICES`` names MIG devices, as in a cluster job, only those are included.

    Raises:
        DeviceError: The driver is installed but does not work.
    """
    gpus = Gpus.read(_read_gpu)
    if gpus.failed:
        raise DeviceError(gpus.reason, "Run nvidia-smi for details")
    created = [
        entry.thing for entry in CreatedLedger().entries() if isinstance(entry.thing, MigInstance)
    ]
    given = given_mig_uuids(gpus)
    found = []
    for gpu in gpus.every:
        known = gpu if isinstance(gpu, GpuInventory) else GpuInventory.of(gpu)  # broken
        known = _with_claims(known, created)
        found.append(_limited_to(known, given) if given else known)
    return Inventory(tuple(found), gpus.driver, gpus.reason, is_given=bool(given))


def _limited_to(gpu: GpuInventory, uuids: Collection[str]) -> GpuInventory:
    """Return what a job can use of a GPU: only these MIG devices, and no new ones."""
    if gpu.mig is None:
        return gpu
    instances = []
    for instance in gpu.mig.instances:
        computes = tuple(compute for compute in instance.computes if compute.uuid in uuids)
        if computes:
            instances.append(replace(instance, computes=computes))
    return replace(gpu, mig=replace(gpu.mig, may_create=False, instances=tuple(instances)))


def _read_gpu(nvml: Nvml, gpu: Gpu) -> GpuInventory:
    """Return a GPU with its free memory and its instances."""
    handle = nvml.nvmlDeviceGetHandleByIndex(gpu.index)
    free_bytes = None
    if gpu.memory_bytes is not None:
        free_bytes = int(nvml.nvmlDeviceGetMemoryInfo(handle).free)
    return GpuInventory.of(gpu, free_bytes, _read_mig(nvml, handle, gpu))


def _read_mig(nvml: Nvml, handle: Any, gpu: Gpu) -> MigState | None:
    try:
        _, pending = nvml.nvmlDeviceGetMigMode(handle)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        return None
    instances = _seen_instances(nvml, gpu.mig_devices)
    profiles: Sequence[InstanceProfile] = ()
    allowed = False
    try:
        profiles = mig.read_profiles(nvml, handle, gpu.memory_bytes)
        profiles = _placed(nvml, handle, profiles)
        if gpu.mig_enabled:
            computes = {instance.instance_id: instance.computes for instance in instances}
            instances = [
                replace(existing, computes=computes.get(existing.instance_id, ()))
                for profile in profiles
                for _, existing in mig.gpu_instances(nvml, handle, profile)
            ]
        allowed = bool(profiles) and may_configure()
    except nvml.NVMLError_NoPermission:
        profiles = _from_tables(profiles) or _profiles_of(instances)
    return MigState(
        enabled=gpu.mig_enabled,
        pending=pending == nvml.NVML_DEVICE_MIG_ENABLE,
        may_create=allowed,
        profiles=tuple(profiles),
        instances=tuple(sorted(instances, key=lambda instance: instance.instance_id)),
    )


def _placed(
    nvml: Nvml, handle: Any, profiles: Sequence[InstanceProfile]
) -> Sequence[InstanceProfile]:
    """Add the placements that the driver reports to privileged users."""
    try:
        return [
            replace(profile, placements=mig.read_placements(nvml, handle, profile.profile_id))
            for profile in profiles
        ]
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        return _from_tables(profiles)


def _profiles_of(instances: Sequence[GpuInstance]) -> list[InstanceProfile]:
    """Return the profiles of existing instances, for users without access to those of the GPU."""
    counts = Counter(instance.profile for instance in instances)
    named = [(name, count, Collocation.parse(name).mig) for name, count in counts.items()]
    return [
        InstanceProfile(-1, name, profile.gpu_slices, profile.memory_gb * 1024, count, sm_count=0)
        for name, count, profile in named
        if profile is not None
    ]


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


def _seen_instances(nvml: Nvml, devices: Iterable[MigDevice]) -> list[GpuInstance]:
    """Return the GPU instances with a MIG device, which an unprivileged user sees."""
    found: dict[int, GpuInstance] = {}
    for device in sorted(devices, key=lambda device: device.compute_instance):
        try:
            handle = find_handles(nvml, device.uuid)[0]
            attributes = nvml.nvmlDeviceGetAttributes(handle)
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError_NotFound:  # just destroyed
            continue
        compute = ComputeInstance(
            instance_id=device.compute_instance,
            slices=device.slices,
            uuid=device.uuid,
            sm_count=int(attributes.multiprocessorCount),
            pids=_pids(nvml, handle),
            memory_bytes=int(memory.total),
            free_bytes=int(memory.free),
        )
        number = device.gpu_instance
        instance = found.get(number, GpuInstance(number, device.gpu_profile, None))
        found[number] = replace(instance, computes=(*instance.computes, compute))
    return list(found.values())


def _pids(nvml: Nvml, device: Any) -> tuple[int, ...]:
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
