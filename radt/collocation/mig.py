"""MIG through NVML: read, create and destroy instances, each recorded in the ledger in advance.

Only instances in the ledger are changed: a GPU instance by its id, place and profile, and the
compute instances inside it. The mode of a GPU is never changed. Functions that take ``nvml``
(pynvml, initialised by `radt.nvml.opened`) may raise ``pynvml.NVMLError``.
https://docs.nvidia.com/deploy/nvml-api/api/group__nvmlMultiInstanceGPU.html
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from radt.collocation.instances import PlannedInstance
from radt.collocation.ledger import Entry, Ledger, MigInstance
from radt.collocation.topology import InstanceProfile, Placement, profile_name
from radt.errors import DeviceError
from radt.nvml import opened

_NAME_PREFIX = "MIG "
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class ExistingInstance:
    """An existing GPU instance; ``profile`` is its profile's name."""

    handle: Any
    instance_id: int
    profile: str
    placement: Placement


@dataclass(frozen=True, slots=True)
class ExistingDevice:
    """A MIG device: the compute instance of a GPU instance, as processes see it."""

    handle: Any
    gpu_instance: int
    compute_instance: int


def read_profiles(
    nvml: Any, gpu: Any, gpu_memory_bytes: int | None = None
) -> list[InstanceProfile]:
    """Return the GPU's profiles without placements, which only privileged users can read.

    If the driver does not report their names, they are derived from ``gpu_memory_bytes``.
    """
    indices = range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT)
    profiles = (_profile(nvml, gpu, index, gpu_memory_bytes) for index in indices)
    return [profile for profile in profiles if profile is not None]


def read_placements(nvml: Any, gpu: Any, profile_id: int) -> tuple[Placement, ...]:
    """Return the possible places of a profile's instances on an empty GPU. Needs privileges."""
    count = ctypes.c_uint(0)
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, profile_id, None, ctypes.byref(count))
    array = (nvml.c_nvmlGpuInstancePlacement_t * max(count.value, 1))()
    if count.value:
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, profile_id, array, ctypes.byref(count))
    places = [Placement(int(place.start), int(place.size)) for place in array[: count.value]]
    return tuple(sorted(places, key=lambda place: (place.start, place.size)))


def gpu_instances(nvml: Any, gpu: Any, profile: InstanceProfile) -> list[ExistingInstance]:
    """Return the GPU instances of a profile. Needs privileges."""
    count = ctypes.c_uint(profile.max_count)
    handles = (nvml.c_nvmlGpuInstance_t * max(profile.max_count, 1))()
    nvml.nvmlDeviceGetGpuInstances(gpu, profile.profile_id, handles, ctypes.byref(count))
    instances = []
    for handle in handles[: count.value]:
        info = nvml.nvmlGpuInstanceGetInfo(handle)
        place = Placement(int(info.placement.start), int(info.placement.size))
        instances.append(ExistingInstance(handle, int(info.id), profile.name, place))
    return instances


def mig_devices(nvml: Any, gpu: Any) -> Iterator[ExistingDevice]:
    """Yield all MIG devices of a GPU. Needs no privileges."""
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
        except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):  # indices may have gaps
            continue
        yield ExistingDevice(
            device,
            int(nvml.nvmlDeviceGetGpuInstanceId(device)),
            int(nvml.nvmlDeviceGetComputeInstanceId(device)),
        )


def profile_of_device(nvml: Any, device: Any) -> str:
    """Return the name of the profile of a MIG device's GPU instance."""
    # "NVIDIA A100-SXM4-40GB MIG 3c.7g.40gb"
    name = str(nvml.nvmlDeviceGetName(device)).rpartition(_NAME_PREFIX)[2]
    compute, dot, rest = name.partition("c.")
    return rest if dot and compute.isdigit() else name


def compute_profile_id(nvml: Any, instance: Any, slices: int) -> int | None:
    """Return the driver's id of the compute instance profile of this size; None without one."""
    for info in _compute_profiles(nvml, instance):
        if info.sliceCount == slices:
            return int(info.id)
    return None


def compute_instances(nvml: Any, instance: Any) -> list[Any]:
    """Return handles of all compute instances in a GPU instance. Needs privileges."""
    instances: list[Any] = []
    for info in _compute_profiles(nvml, instance):
        count = ctypes.c_uint(int(info.instanceCount))
        handles = (nvml.c_nvmlComputeInstance_t * max(count.value, 1))()
        nvml.nvmlGpuInstanceGetComputeInstances(instance, info.id, handles, ctypes.byref(count))
        instances += handles[: count.value]
    return instances


def create_gpu_instance(nvml: Any, gpu: Any, profile_id: int, place: Placement) -> Any:
    """Create a GPU instance at this place. Needs privileges."""
    where = nvml.c_nvmlGpuInstancePlacement_t(place.start, place.size)
    return nvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, profile_id, ctypes.byref(where))


def create_compute_instance(
    nvml: Any, instance: Any, profile_id: int, place: Placement | None
) -> Any:
    """Create a compute instance, at this place if the driver accepts one. Needs privileges."""
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
    """Return the profile of this index; None if the GPU offers none."""
    try:
        info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, index, version=2)
        name = _text(info.name)
    except nvml.NVMLError_FunctionNotFound:  # an older driver does not report the name
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


def _memory_bytes(nvml: Any, gpu: Any) -> int:
    """Return the GPU's memory for an unprivileged user: that of its largest profile."""
    largest = 0
    for index in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, index, version=1)
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
            continue
        largest = max(largest, int(info.memorySizeMB))
    return largest * _MIB


def _compute_profiles(nvml: Any, instance: Any) -> Iterator[Any]:
    """Yield NVML's description of each compute instance profile of a GPU instance."""
    for index in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        for version in (2, 1):
            try:
                yield nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                    instance, index, nvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, version
                )
            except nvml.NVMLError_FunctionNotFound:
                continue  # an older driver only supports the first version
            except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
                pass
            break


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


#: Seconds for the driver to notice that the last process of an instance has exited.
DESTROY_TIMEOUT_S = 10.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class MigDevice:
    """A compute instance, which a process sees as its GPU, with its number of SMs."""

    compute_instance: int
    uuid: str
    sm_count: int


@dataclass(frozen=True, slots=True)
class CreatedInstance:
    """A GPU instance created by radt, with its devices by their names in the plan."""

    entry: Entry
    gpu_instance: int
    devices: Mapping[str, MigDevice]


def create_instance(
    planned: PlannedInstance, ledger: Ledger, *, run_id: str = "", workload_id: str = ""
) -> CreatedInstance:
    """Create a planned instance and the compute instances in it.

    Raises:
        DeviceError: The driver refuses. Created parts are removed, or stay in the ledger.
    """
    place = planned.placement
    assert place is not None and planned.existing_id is None, "only new instances are created"
    what = f"MIG instance {planned.profile.name} at {place} of GPU {planned.gpu}"
    with _driver(what, _create_command(planned, place)) as nvml:
        gpu = nvml.nvmlDeviceGetHandleByUUID(planned.gpu_uuid)
        before = tuple(instance.instance_id for instance in _gpu_instances(nvml, gpu))
        thing = MigInstance(planned.gpu_uuid, planned.profile.name, place.start, place.size, before)
        entry = ledger.intend(thing, run_id=run_id, workload_id=workload_id)
        try:
            instance = create_gpu_instance(nvml, gpu, planned.profile.profile_id, place)
        except nvml.NVMLError as error:
            entry.done()
            if not isinstance(error, nvml.NVMLError_InsufficientResources):
                raise
            raise DeviceError(
                f"no room for {what}",
                "Another user may have created an instance meanwhile. Run nvidia-smi mig -i "
                f"{planned.gpu} -lgi to check, and start again",
            ) from error
        try:
            return _furnish(nvml, gpu, instance, planned, entry)
        except BaseException:
            _take_back(nvml, gpu, entry)
            raise


def destroy_instance(thing: MigInstance, timeout_s: float = DESTROY_TIMEOUT_S) -> None:
    """Destroy an instance in the ledger: its compute instances, then the GPU instance, by id.

    If its id was never recorded, the instance with the recorded profile and place that did not
    exist before is destroyed. Idempotent.

    Raises:
        DeviceError: A process still uses it after ``timeout_s``, or the driver refuses.
    """
    with _driver(str(thing), _destroy_command(thing.gpu_uuid, thing.gpu_instance)) as nvml:
        try:
            gpu = nvml.nvmlDeviceGetHandleByUUID(thing.gpu_uuid)
        except nvml.NVMLError_NotFound:
            return  # the GPU is gone, and its instances with it
        _destroy(nvml, gpu, thing, timeout_s)


def _furnish(
    nvml: Any, gpu: Any, instance: Any, planned: PlannedInstance, entry: Entry
) -> CreatedInstance:
    """Create the compute instances in a new GPU instance and find their MIG devices."""
    gpu_instance = int(nvml.nvmlGpuInstanceGetInfo(instance).id)
    entry.confirm(gpu_instance=gpu_instance)
    ids: dict[str, int] = {}
    # Large ones first, for drivers that choose the places themselves.
    for compute in sorted(planned.computes, key=lambda compute: -compute.slices):
        profile_id = compute_profile_id(nvml, instance, compute.slices)
        if profile_id is None:
            raise DeviceError(
                f"the driver offers no compute instance {compute.profile}",
                "Run nvidia-smi mig -lcip to list the profiles",
            )
        created = create_compute_instance(nvml, instance, profile_id, compute.placement)
        ids[compute.name] = int(nvml.nvmlComputeInstanceGetInfo(created).id)
    handles = {
        device.compute_instance: device.handle
        for device in mig_devices(nvml, gpu)
        if device.gpu_instance == gpu_instance
    }
    if missing := sorted(set(ids.values()) - set(handles)):
        raise DeviceError(
            f"the driver lists no MIG device for compute instance {missing[0]} of GPU instance "
            f"{gpu_instance}",
            "Run nvidia-smi -L; a container may hide new MIG devices",
        )
    devices = {name: _device(nvml, number, handles[number]) for name, number in ids.items()}
    entry.confirm(
        compute_instances=tuple(ids.values()),
        mig_uuids=tuple(device.uuid for device in devices.values()),
    )
    return CreatedInstance(entry, gpu_instance, devices)


def _device(nvml: Any, compute_instance: int, handle: Any) -> MigDevice:
    sm_count = int(nvml.nvmlDeviceGetAttributes_v2(handle).multiprocessorCount)
    return MigDevice(compute_instance, str(nvml.nvmlDeviceGetUUID(handle)), sm_count)


def _take_back(nvml: Any, gpu: Any, entry: Entry) -> None:
    """Destroy an unfinished instance; if that also fails, it stays in the ledger."""
    assert isinstance(entry.thing, MigInstance)
    try:
        _destroy(nvml, gpu, entry.thing, DESTROY_TIMEOUT_S)
    except (nvml.NVMLError, DeviceError):
        return  # the first error is more informative
    entry.done()


def _destroy(nvml: Any, gpu: Any, thing: MigInstance, timeout_s: float) -> None:
    current, _ = nvml.nvmlDeviceGetMigMode(gpu)
    if current != nvml.NVML_DEVICE_MIG_ENABLE:
        return  # MIG was turned off, which ends all instances
    instance = _created(nvml, gpu, thing)
    if instance is None:
        return
    deadline_s = time.monotonic() + timeout_s
    command = _destroy_command(nvml.nvmlDeviceGetIndex(gpu), instance.instance_id)
    for compute in compute_instances(nvml, instance.handle):
        _retry(nvml, partial(nvml.nvmlComputeInstanceDestroy, compute), deadline_s, command)
    _retry(nvml, partial(nvml.nvmlGpuInstanceDestroy, instance.handle), deadline_s, command)


def _retry(nvml: Any, destroy: Callable[[], object], deadline_s: float, command: str) -> None:
    """Destroy as soon as the driver allows it: it notices the exit of a process with a delay."""
    while True:
        try:
            destroy()
        except nvml.NVMLError_NotFound:
            return
        except nvml.NVMLError_InUse as error:
            if time.monotonic() >= deadline_s:
                raise DeviceError(
                    "a process still uses the MIG instance",
                    "nvidia-smi shows it. When it has ended, run `radt doctor --clean` or "
                    f"{command}",
                ) from error
            time.sleep(_POLL_S)  # the driver does not notify when it is free
        except nvml.NVMLError_NoPermission as error:
            raise _not_permitted(command) from error
        else:
            return


def _created(nvml: Any, gpu: Any, thing: MigInstance) -> ExistingInstance | None:
    """Return the instance that the ledger describes, if it still exists.

    Ids are reused: an instance with another profile or place belongs to others.
    """
    place = Placement(thing.start, thing.size)
    for instance in _gpu_instances(nvml, gpu):
        if instance.profile != thing.profile or instance.placement != place:
            continue
        if thing.gpu_instance == instance.instance_id:
            return instance
        if thing.gpu_instance is None and instance.instance_id not in thing.existing:
            return instance
    return None


def _gpu_instances(nvml: Any, gpu: Any) -> list[ExistingInstance]:
    profiles = read_profiles(nvml, gpu)
    return [instance for profile in profiles for instance in gpu_instances(nvml, gpu, profile)]


@contextmanager
def _driver(what: str, command: str) -> Iterator[Any]:
    """Yield NVML; turn its errors into `DeviceError`, missing permission with a command."""
    import pynvml

    try:
        with opened() as nvml:
            yield nvml
    except pynvml.NVMLError_NoPermission as error:
        raise _not_permitted(command) from error
    except (pynvml.NVMLError, OSError) as error:
        raise DeviceError(f"{what}: {error}", "Run nvidia-smi for details") from error


def _not_permitted(command: str) -> DeviceError:
    return DeviceError(
        "changing MIG instances needs an administrator",
        f"Start radt as root, or run {command}",
    )


def _destroy_command(gpu: int | str, gpu_instance: int | None) -> str:
    which = f"sudo nvidia-smi mig -i {gpu} -gi {'ID' if gpu_instance is None else gpu_instance}"
    return f"{which} -dci && {which} -dgi"


def _create_command(planned: PlannedInstance, place: Placement) -> str:
    which = f"sudo nvidia-smi mig -i {planned.gpu} -cgi {planned.profile.name}:{place.start}"
    computes = [compute.profile for compute in planned.computes]
    if computes == [planned.profile.name]:
        return f"{which} -C"
    return f"{which}, then -cci {','.join(computes)} in it"
