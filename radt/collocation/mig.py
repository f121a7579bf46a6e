"""Creates and destroys MIG instances, each noted in the ledger before it exists.

Only what the ledger says is touched: a GPU instance by its id, place and profile, and the compute
instances inside it. The mode of a GPU is never changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from radt.collocation import mig_driver
from radt.collocation.instances import PlannedInstance
from radt.collocation.ledger import Entry, Ledger, MigInstance
from radt.collocation.mig_driver import FoundInstance
from radt.collocation.topology import Placement
from radt.errors import DeviceError
from radt.nvml import opened

#: Seconds that the driver has to notice that the last process of an instance has gone.
DESTROY_TIMEOUT_S = 10.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class MigDevice:
    """What a process sees as its GPU: a compute instance, and how many SMs it has."""

    compute_instance: int
    uuid: str
    sm_count: int


@dataclass(frozen=True, slots=True)
class CreatedInstance:
    """A GPU instance that radt made; ``devices`` are in it, by the plan's names."""

    entry: Entry
    gpu_instance: int
    devices: Mapping[str, MigDevice]


def create_instance(
    planned: PlannedInstance, ledger: Ledger, *, run_id: str = "", workload_id: str = ""
) -> CreatedInstance:
    """Create a planned instance and the compute instances in it.

    Raises:
        DeviceError: The driver refuses. Nothing of it is left, or else it stays in the ledger.
    """
    place = planned.placement
    assert place is not None and planned.existing_id is None, "only new instances are created"
    what = f"MIG instance {planned.profile.name} at {place} of GPU {planned.gpu}"
    with _driver(what, _create_command(planned, place)) as nvml:
        gpu = nvml.nvmlDeviceGetHandleByUUID(planned.gpu_uuid)
        before = tuple(one.instance_id for one in _gpu_instances(nvml, gpu))
        thing = MigInstance(planned.gpu_uuid, planned.profile.name, place.start, place.size, before)
        entry = ledger.intend(thing, run_id=run_id, workload_id=workload_id)
        try:
            instance = mig_driver.create_gpu_instance(nvml, gpu, planned.profile.profile_id, place)
        except nvml.NVMLError as error:
            entry.done()
            if not isinstance(error, nvml.NVMLError_InsufficientResources):
                raise
            raise DeviceError(
                f"no room for {what}",
                "Another user may have created an instance meanwhile. Run nvidia-smi mig -i "
                f"{planned.gpu} -lgi to see, and start again",
            ) from error
        try:
            return _furnish(nvml, gpu, instance, planned, entry)
        except BaseException:
            _take_back(nvml, gpu, entry)
            raise


def destroy_instance(thing: MigInstance, timeout_s: float = DESTROY_TIMEOUT_S) -> None:
    """Destroy what the ledger says radt made: compute instances, then the GPU instance, by id.

    Where the ids were never noted, it is the instance with the noted profile and place that was
    not there before. Harmless if it is gone.

    Raises:
        DeviceError: A process is still on it after ``timeout_s``, or the driver refuses.
    """
    with _driver(str(thing), _destroy_command(thing.gpu_uuid, thing.gpu_instance)) as nvml:
        try:
            gpu = nvml.nvmlDeviceGetHandleByUUID(thing.gpu_uuid)
        except nvml.NVMLError_NotFound:
            return  # the GPU is not there any more, and with it all that was on it
        _destroy(nvml, gpu, thing, timeout_s)


def _furnish(
    nvml: Any, gpu: Any, instance: Any, planned: PlannedInstance, entry: Entry
) -> CreatedInstance:
    """Create the compute instances in a new GPU instance and find their MIG devices."""
    gpu_instance = int(nvml.nvmlGpuInstanceGetInfo(instance).id)
    entry.confirm(gpu_instance=gpu_instance)
    ids: dict[str, int] = {}
    # Large ones first, for drivers that choose the places themselves.
    for compute in sorted(planned.computes, key=lambda one: -one.slices):
        profile_id = mig_driver.compute_profile_id(nvml, instance, compute.slices)
        if profile_id is None:
            raise DeviceError(
                f"the driver offers no compute instance {compute.profile}",
                "Run nvidia-smi mig -lcip to list the profiles",
            )
        created = mig_driver.create_compute_instance(nvml, instance, profile_id, compute.placement)
        ids[compute.name] = int(nvml.nvmlComputeInstanceGetInfo(created).id)
    there = {
        found.compute_instance: found.handle
        for found in mig_driver.mig_devices(nvml, gpu)
        if found.gpu_instance == gpu_instance
    }
    if missing := sorted(set(ids.values()) - set(there)):
        raise DeviceError(
            f"the driver lists no MIG device for compute instance {missing[0]} of GPU instance "
            f"{gpu_instance}",
            "Run nvidia-smi -L; a container may hide new MIG devices",
        )
    devices = {name: _device(nvml, number, there[number]) for name, number in ids.items()}
    entry.confirm(
        compute_instances=tuple(ids.values()),
        mig_uuids=tuple(device.uuid for device in devices.values()),
    )
    return CreatedInstance(entry, gpu_instance, devices)


def _device(nvml: Any, compute_instance: int, handle: Any) -> MigDevice:
    sm_count = int(nvml.nvmlDeviceGetAttributes_v2(handle).multiprocessorCount)
    return MigDevice(compute_instance, str(nvml.nvmlDeviceGetUUID(handle)), sm_count)


def _take_back(nvml: Any, gpu: Any, entry: Entry) -> None:
    """Destroy what could not be finished; if that fails as well, it stays in the ledger."""
    assert isinstance(entry.thing, MigInstance)
    try:
        _destroy(nvml, gpu, entry.thing, DESTROY_TIMEOUT_S)
    except (nvml.NVMLError, DeviceError):
        return  # the first error says more
    entry.done()


def _destroy(nvml: Any, gpu: Any, thing: MigInstance, timeout_s: float) -> None:
    current, _ = nvml.nvmlDeviceGetMigMode(gpu)
    if current != nvml.NVML_DEVICE_MIG_ENABLE:
        return  # MIG was turned off, which ends all instances
    found = _ours(nvml, gpu, thing)
    if found is None:
        return
    deadline_s = time.monotonic() + timeout_s
    command = _destroy_command(nvml.nvmlDeviceGetIndex(gpu), found.instance_id)
    for compute in mig_driver.compute_instances(nvml, found.handle):
        _insist(nvml, partial(nvml.nvmlComputeInstanceDestroy, compute), deadline_s, command)
    _insist(nvml, partial(nvml.nvmlGpuInstanceDestroy, found.handle), deadline_s, command)


def _insist(nvml: Any, destroy: Callable[[], object], deadline_s: float, command: str) -> None:
    """Destroy as soon as the driver lets go: a process that has ended is noticed a bit later."""
    while True:
        try:
            destroy()
        except nvml.NVMLError_NotFound:
            return
        except nvml.NVMLError_InUse as error:
            if time.monotonic() >= deadline_s:
                raise DeviceError(
                    "a process is still on the MIG instance",
                    "nvidia-smi shows it. When it has ended, run `radt doctor --clean` or "
                    f"{command}",
                ) from error
            time.sleep(_POLL_S)  # the driver does not tell when it is free
        except nvml.NVMLError_NoPermission as error:
            raise _not_permitted(command) from error
        else:
            return


def _ours(nvml: Any, gpu: Any, thing: MigInstance) -> FoundInstance | None:
    """The instance that the ledger means, if it is still there.

    Ids are given out again: what has another profile or place than noted is somebody else's.
    """
    place = Placement(thing.start, thing.size)
    for one in _gpu_instances(nvml, gpu):
        if one.profile != thing.profile or one.placement != place:
            continue
        if thing.gpu_instance == one.instance_id:
            return one
        if thing.gpu_instance is None and one.instance_id not in thing.existing:
            return one
    return None


def _gpu_instances(nvml: Any, gpu: Any) -> list[FoundInstance]:
    return [
        one
        for profile in mig_driver.read_profiles(nvml, gpu)
        for one in mig_driver.gpu_instances(nvml, gpu, profile)
    ]


@contextmanager
def _driver(what: str, command: str) -> Iterator[Any]:
    """NVML; its errors come out as `DeviceError`, one of permission with what to run."""
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
    computes = [one.profile for one in planned.computes]
    if computes == [planned.profile.name]:
        return f"{which} -C"
    return f"{which}, then -cci {','.join(computes)} in it"
