"""MIG through NVML: reads, creates and destroys instances, each recorded in the ledger first.

Only instances in the ledger are changed: a GPU instance by its id, position and profile, and the
compute instances inside it. The mode of a GPU is never changed. Functions that take ``nvml``
(pynvml, initialised as `radt.devices.nvml.Nvml`) may raise ``pynvml.NVMLError``.
https://docs.nvidia.com/deploy/nvml-api/api/group__nvmlMultiInstanceGPU.html
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from radt import procfs
from radt.collocation import permissions
from radt.collocation.instances import PlannedCompute, PlannedInstance
from radt.collocation.ledger import CreatedLedger, LedgerEntry, MigInstance
from radt.collocation.processes import identify
from radt.collocation.topology import GpuInstance, InstanceProfile, Placement, profile_name
from radt.devices.gpus import find_handles, mig_devices
from radt.devices.nvml import Nvml
from radt.errors import DeviceError

T = TypeVar("T")

_NAME_PREFIX = "MIG "
_MIB = 2**20


def read_profiles(
    nvml: Any, gpu: Any, gpu_memory_bytes: int | None = None
) -> list[InstanceProfile]:
    """Return the GPU's profiles without placements, which only privileged users can read.

    If the driver does not report their names, they are derived from ``gpu_memory_bytes``; an
    unprivileged user takes the memory of the largest profile for that.
    """
    infos: dict[int, Any] = {}
    for index in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        with suppress(nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
            infos[index] = nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, index)
    largest_mb = max((int(info.memorySizeMB) for info in infos.values()), default=0)
    memory_bytes = gpu_memory_bytes or largest_mb * _MIB
    return [_profile(nvml, gpu, index, info, memory_bytes) for index, info in infos.items()]


def read_placements(nvml: Any, gpu: Any, profile_id: int) -> tuple[Placement, ...]:
    """Return the possible places of a profile's instances on an empty GPU. Needs privileges."""
    count = ctypes.c_uint(0)
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, profile_id, None, ctypes.byref(count))
    array = (nvml.c_nvmlGpuInstancePlacement_t * max(count.value, 1))()
    if count.value:
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, profile_id, array, ctypes.byref(count))
    places = [Placement(int(place.start), int(place.size)) for place in array[: count.value]]
    return tuple(sorted(places, key=lambda place: (place.start, place.size)))


def gpu_instances(nvml: Any, gpu: Any, profile: InstanceProfile) -> list[tuple[Any, GpuInstance]]:
    """Return the handles of a profile's GPU instances, and what they are. Needs privileges."""
    count = ctypes.c_uint(profile.max_count)
    handles = (nvml.c_nvmlGpuInstance_t * max(profile.max_count, 1))()
    nvml.nvmlDeviceGetGpuInstances(gpu, profile.profile_id, handles, ctypes.byref(count))
    instances = []
    for handle in handles[: count.value]:
        info = nvml.nvmlGpuInstanceGetInfo(handle)
        place = Placement(int(info.placement.start), int(info.placement.size))
        instances.append((handle, GpuInstance(int(info.id), profile.name, place)))
    return instances


def _compute_instances(nvml: Any, instance: Any) -> list[Any]:
    """Return handles of all compute instances in a GPU instance. Needs privileges."""
    instances: list[Any] = []
    for info in _compute_profiles(nvml, instance):
        count = ctypes.c_uint(int(info.instanceCount))
        handles = (nvml.c_nvmlComputeInstance_t * max(count.value, 1))()
        nvml.nvmlGpuInstanceGetComputeInstances(instance, info.id, handles, ctypes.byref(count))
        instances += handles[: count.value]
    return instances


def _profile(nvml: Any, gpu: Any, index: int, info: Any, gpu_memory_bytes: int) -> InstanceProfile:
    if hasattr(info, "name"):
        name = info.name.decode() if isinstance(info.name, bytes) else info.name
    else:  # an older driver does not report the name
        name = profile_name(index, info.sliceCount, info.memorySizeMB, gpu_memory_bytes)
    try:
        remaining = int(nvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, info.id))
    except nvml.NVMLError:  # MIG is off, or the user is unprivileged
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


def _compute_profiles(nvml: Any, instance: Any) -> Iterator[Any]:
    """Yield NVML's description of each compute instance profile of a GPU instance."""
    for index in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            yield nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                instance, index, nvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
            )
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
            continue


#: Seconds to wait for other clients of the driver, which notices the exit of a process late.
IN_USE_TIMEOUT_S = 10.0
_POLL_S = 0.05
#: The kernel's device file of a GPU, which its clients hold open.
_DEVICE_FILE = "/dev/nvidia{minor}"
#: Maximum number of GPU clients named in a message.
_NAMED = 5


@dataclass(frozen=True, slots=True)
class CreatedInstance:
    """A GPU instance created by radt, with its compute instances as they are now, by name."""

    entry: LedgerEntry
    computes: Mapping[str, PlannedCompute]


def create_instance(
    planned: PlannedInstance,
    *,
    run_id: str = "",
    workload_id: str = "",
    timeout_s: float = IN_USE_TIMEOUT_S,
) -> CreatedInstance:
    """Create a planned instance and the compute instances in it.

    Raises:
        DeviceError: The driver refuses, or another client holds the GPU after ``timeout_s``.
            Created parts are removed, or stay in the ledger.
    """
    place = planned.placement
    assert place is not None and planned.existing_id is None, "only new instances are created"
    what = f"MIG instance {planned.profile.name} at {place} of GPU {planned.gpu}"
    with _driver(what, _create_command(planned, place)) as nvml:
        gpu, _ = find_handles(nvml, planned.gpu_uuid)
        before = tuple(instance.instance_id for _, instance in _gpu_instances(nvml, gpu))
        thing = MigInstance(planned.gpu_uuid, planned.profile.name, place.start, place.size, before)
        entry = CreatedLedger().intend(thing, run_id=run_id, workload_id=workload_id)
        patience = _Patience(nvml, timeout_s, lambda: _held(nvml, gpu, what))
        where = nvml.c_nvmlGpuInstancePlacement_t(place.start, place.size)
        create = partial(
            nvml.nvmlDeviceCreateGpuInstanceWithPlacement,
            *(gpu, planned.profile.profile_id, ctypes.byref(where)),
        )
        try:
            instance = patience.once_free(create)
        except nvml.NVMLError_InsufficientResources as error:
            entry.done()
            raise DeviceError(
                f"no room for {what}",
                "Another user may have created an instance meanwhile. Run nvidia-smi mig -i "
                f"{planned.gpu} -lgi to check, and start again",
            ) from error
        except (nvml.NVMLError, DeviceError):
            entry.done()
            raise
        try:
            return _furnish(nvml, gpu, instance, planned, entry, patience)
        except BaseException:
            assert isinstance(entry.thing, MigInstance)
            with suppress(nvml.NVMLError, DeviceError):  # the first error is more informative
                _destroy(nvml, gpu, entry.thing, IN_USE_TIMEOUT_S)
                entry.done()
            raise


def destroy_instance(thing: MigInstance, timeout_s: float = IN_USE_TIMEOUT_S) -> None:
    """Destroy an instance in the ledger: its compute instances, then the GPU instance, by id.

    If its id was never recorded, the instance with the recorded profile and place that did not
    exist before is destroyed. Idempotent.

    Raises:
        DeviceError: A process still uses it after ``timeout_s``, or the driver refuses.
    """
    with _driver(str(thing), _destroy_command(thing.gpu_uuid, thing.gpu_instance)) as nvml:
        try:
            gpu, _ = find_handles(nvml, thing.gpu_uuid)
        except nvml.NVMLError_NotFound:
            return  # the GPU is gone, and its instances with it
        _destroy(nvml, gpu, thing, timeout_s)


def _furnish(
    nvml: Any,
    gpu: Any,
    instance: Any,
    planned: PlannedInstance,
    entry: LedgerEntry,
    patience: _Patience,
) -> CreatedInstance:
    """Create the compute instances in a new GPU instance and find their MIG devices."""
    gpu_instance = int(nvml.nvmlGpuInstanceGetInfo(instance).id)
    entry.confirm(gpu_instance=gpu_instance)
    ids: dict[str, int] = {}
    # Large ones first, for drivers that choose the places themselves.
    for compute in sorted(planned.computes, key=lambda compute: -compute.slices):
        assert compute.placement is not None, "only new instances are created"
        profiles = _compute_profiles(nvml, instance)
        profile_id = next((p.id for p in profiles if p.sliceCount == compute.slices), None)
        if profile_id is None:
            raise DeviceError(
                f"the driver offers no compute instance {compute.profile}",
                "Run nvidia-smi mig -lcip to list the profiles",
            )
        where = nvml.c_nvmlComputeInstancePlacement_t(
            compute.placement.start, compute.placement.size
        )
        create = nvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement
        created = patience.once_free(
            partial(create, instance, int(profile_id), ctypes.byref(where))
        )
        ids[compute.name] = int(nvml.nvmlComputeInstanceGetInfo(created).id)
    found = {
        device.compute_instance: device.uuid
        for device in mig_devices(nvml, gpu)
        if device.gpu_instance == gpu_instance
    }
    if missing := sorted(set(ids.values()) - set(found)):
        raise DeviceError(
            f"the driver lists no MIG device for compute instance {missing[0]} of GPU instance "
            f"{gpu_instance}",
            "Run nvidia-smi -L; a container may hide new MIG devices",
        )
    computes = {}
    for compute in planned.computes:
        uuid = found[ids[compute.name]]
        attributes = nvml.nvmlDeviceGetAttributes(find_handles(nvml, uuid)[0])
        sm_count = int(attributes.multiprocessorCount)
        computes[compute.name] = replace(compute, uuid=uuid, sm_count=sm_count)
    return CreatedInstance(entry, computes)


def _destroy(nvml: Any, gpu: Any, thing: MigInstance, timeout_s: float) -> None:
    current, _ = nvml.nvmlDeviceGetMigMode(gpu)
    if current != nvml.NVML_DEVICE_MIG_ENABLE:
        return  # MIG was turned off, which ends all instances
    instance = _created(nvml, gpu, thing)
    if instance is None:
        return
    instance_id = int(nvml.nvmlGpuInstanceGetInfo(instance).id)
    command = _destroy_command(nvml.nvmlDeviceGetIndex(gpu), instance_id)
    in_use = DeviceError(
        "a process still uses the MIG instance",
        f"nvidia-smi shows it. When it has ended, run `radt doctor --clean` or {command}",
    )
    patience = _Patience(nvml, timeout_s, lambda: in_use)
    for compute in _compute_instances(nvml, instance):
        with suppress(nvml.NVMLError_NotFound):
            patience.once_free(partial(nvml.nvmlComputeInstanceDestroy, compute))
    with suppress(nvml.NVMLError_NotFound):
        patience.once_free(partial(nvml.nvmlGpuInstanceDestroy, instance))


class _Patience:
    """Retries changes that other clients of the GPU prevent, until some seconds have passed.

    ``in_use`` makes the error after that.
    """

    def __init__(self, nvml: Any, timeout_s: float, in_use: Callable[[], DeviceError]) -> None:
        self._nvml = nvml
        self._deadline_s = time.monotonic() + timeout_s
        self._in_use = in_use

    def once_free(self, change: Callable[[], T]) -> T:
        """Return the result of the change, or raise ``in_use``."""
        while True:
            try:
                return change()
            except self._nvml.NVMLError_InUse as error:
                if time.monotonic() >= self._deadline_s:
                    raise self._in_use() from error
                time.sleep(_POLL_S)  # the driver does not notify when it is free


def _held(nvml: Any, gpu: Any, what: str) -> DeviceError:
    """Return the error for a GPU in use, naming its clients."""
    file = _DEVICE_FILE.format(minor=nvml.nvmlDeviceGetMinorNumber(gpu))
    pids = (pid for pid in sorted(procfs.all_pids()) if pid != os.getpid())
    holders = [f"{identify(pid).command} (pid {pid})" for pid in pids if procfs.has_open(pid, file)]
    names = ", ".join(holders[:_NAMED]) or "a process that this user cannot see"
    return DeviceError(
        f"{what} cannot be created while another client uses the GPU: {names}",
        "DCGM's profiling holds a GPU: run `dcgmi profile --pause`. To see all clients, run "
        f"sudo fuser -v {file}",
    )


def _created(nvml: Any, gpu: Any, thing: MigInstance) -> Any | None:
    """Return the handle of the instance that the ledger describes, if it still exists.

    Ids are reused: an instance with another profile or position is not radt's.
    """
    place = Placement(thing.start, thing.size)
    for handle, instance in _gpu_instances(nvml, gpu):
        if instance.profile != thing.profile or instance.placement != place:
            continue
        if thing.gpu_instance == instance.instance_id:
            return handle
        if thing.gpu_instance is None and instance.instance_id not in thing.existing:
            return handle
    return None


def _gpu_instances(nvml: Any, gpu: Any) -> list[tuple[Any, GpuInstance]]:
    profiles = read_profiles(nvml, gpu)
    return [instance for profile in profiles for instance in gpu_instances(nvml, gpu, profile)]


@contextmanager
def _driver(what: str, command: str) -> Iterator[Any]:
    """Yield NVML; turn its errors into `DeviceError`, missing permission with a command."""
    import pynvml

    try:
        with Nvml() as nvml:
            yield nvml
    except pynvml.NVMLError_NoPermission as error:
        needed = f"changing MIG instances needs {permissions.needed()}"
        raise DeviceError(needed, permissions.remedy(command)) from error
    except (pynvml.NVMLError, OSError) as error:
        raise DeviceError(f"{what}: {error}", "Run nvidia-smi for details") from error


def _destroy_command(gpu: int | str, gpu_instance: int | None) -> str:
    which = f"sudo nvidia-smi mig -i {gpu} -gi {'ID' if gpu_instance is None else gpu_instance}"
    return f"{which} -dci && {which} -dgi"


def _create_command(planned: PlannedInstance, place: Placement) -> str:
    which = f"sudo nvidia-smi mig -i {planned.gpu} -cgi {planned.profile.name}:{place.start}"
    computes = [compute.profile for compute in planned.computes]
    if computes == [planned.profile.name]:
        return f"{which} -C"
    return f"{which}, then -cci {','.join(computes)} in it"
