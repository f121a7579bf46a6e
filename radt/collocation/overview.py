"""The current state of the machine: host, GPUs, MIG devices, MPS daemons, processes."""

from __future__ import annotations

from dataclasses import dataclass

from radt.collocation.inventory import read_inventory
from radt.collocation.mps import Daemon, mps_daemons
from radt.collocation.processes import Occupant, ProcessListing, ProcessLists
from radt.collocation.topology import GpuInventory
from radt.devices.host import Host
from radt.errors import DeviceError


@dataclass(frozen=True, slots=True)
class GpuView:
    """A GPU and its processes; ``unknown`` is why they are not listed."""

    gpu: GpuInventory
    utilization: float | None
    occupants: tuple[Occupant, ...] = ()
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class MachineOverview:
    """The machine; ``no_gpu_reason`` is why ``gpus`` is empty, ``gpu_failure`` any failure."""

    host: Host
    driver: str | None = None
    gpus: tuple[GpuView, ...] = ()
    daemons: tuple[Daemon, ...] = ()
    no_gpu_reason: str = ""
    gpu_failure: str = ""

    @classmethod
    def read(cls) -> MachineOverview:
        """Read everything once. ``gpu_failure`` describes a driver that does not work."""
        host = Host.detect()
        try:
            inventory = read_inventory()
        except DeviceError as error:
            return cls(host, gpu_failure=str(error), daemons=mps_daemons())
        if not inventory.gpus:
            return cls(host, inventory.driver, (), mps_daemons(), inventory.reason)
        try:
            with ProcessLists() as lists:
                gpus = tuple(_view(gpu, lists) for gpu in inventory.gpus)
        except DeviceError as error:
            return cls(host, inventory.driver, daemons=mps_daemons(), gpu_failure=str(error))
        return cls(host, inventory.driver, gpus, mps_daemons())


def _view(gpu: GpuInventory, lists: ProcessLists) -> GpuView:
    if gpu.problem:
        return GpuView(gpu, None, unknown=gpu.problem)
    listing: ProcessListing = lists.of(gpu.uuid)
    processes = sorted(listing.processes, key=lambda process: (process.device, process.pid))
    occupants = tuple(Occupant.of(process) for process in processes)
    divided = gpu.mig is not None and gpu.mig.enabled
    return GpuView(
        gpu,
        None if divided else lists.utilization(gpu.uuid),
        occupants,
        listing.unknown,
    )
