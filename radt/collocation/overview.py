"""What is on this machine right now: host, GPUs, MIG devices, MPS daemons, processes."""

from __future__ import annotations

from dataclasses import dataclass

from radt import procfs
from radt.collocation.compute_mode import ComputeMode, compute_mode
from radt.collocation.host import Host
from radt.collocation.inventory import GpuInventory, read_inventory
from radt.collocation.ledger import Ledger, MpsDaemon
from radt.collocation.mps_daemon import PIPE_VARIABLE
from radt.collocation.processes import (
    Identity,
    Listing,
    ProcessLists,
    identify,
    mps_daemons,
    variable,
)
from radt.errors import DeviceError


@dataclass(frozen=True, slots=True)
class Occupant:
    """A process on a GPU; ``device`` is the UUID of the GPU or MIG device."""

    pid: int
    device: str
    mps: bool
    memory_bytes: int | None
    who: Identity


@dataclass(frozen=True, slots=True)
class Daemon:
    """An MPS control daemon, anybody's.

    ``devices`` are the UUIDs or indices it serves, ``folder`` its pipe directory; empty where that
    cannot be seen. ``ours`` tells one that radt has started, ``orphaned`` one whose runner is dead.
    """

    pid: int
    user: str | None
    devices: tuple[str, ...] = ()
    folder: str = ""
    ours: bool = False
    orphaned: bool = False


@dataclass(frozen=True, slots=True)
class GpuView:
    """A GPU and who is on it; ``unknown`` says why its processes are not listed."""

    gpu: GpuInventory
    compute_mode: ComputeMode | None
    utilization: float | None
    occupants: tuple[Occupant, ...] = ()
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class Overview:
    """The machine; ``no_gpu_reason`` says why ``gpus`` is empty, ``gpu_failure`` what is broken."""

    host: Host
    driver: str | None = None
    gpus: tuple[GpuView, ...] = ()
    daemons: tuple[Daemon, ...] = ()
    no_gpu_reason: str = ""
    gpu_failure: str = ""

    @classmethod
    def read(cls) -> Overview:
        """Look at everything once. A driver that does not work is in ``gpu_failure``."""
        host = Host.detect()
        try:
            inventory = read_inventory()
        except DeviceError as error:
            return cls(host, gpu_failure=str(error), daemons=_daemons())
        if not inventory.gpus:
            return cls(host, inventory.driver, (), _daemons(), inventory.reason)
        try:
            with ProcessLists() as lists:
                gpus = tuple(_view(gpu, lists) for gpu in inventory.gpus)
        except DeviceError as error:
            return cls(host, inventory.driver, daemons=_daemons(), gpu_failure=str(error))
        return cls(host, inventory.driver, gpus, _daemons())


def _view(gpu: GpuInventory, lists: ProcessLists) -> GpuView:
    listing: Listing = lists.of(gpu.uuid)
    occupants = tuple(
        Occupant(
            process.pid,
            process.device,
            bool(process.mps),
            process.memory_bytes,
            identify(process.pid),
        )
        for process in sorted(listing.processes, key=lambda process: (process.device, process.pid))
    )
    divided = gpu.mig is not None and gpu.mig.enabled
    return GpuView(
        gpu,
        compute_mode(lists, gpu.uuid),
        None if divided else lists.utilization(gpu.uuid),
        occupants,
        listing.unknown,
    )


def _daemons() -> tuple[Daemon, ...]:
    known = {
        entry.thing.pid: (entry, entry.thing)
        for entry in Ledger().entries()
        if isinstance(entry.thing, MpsDaemon)
    }
    found = []
    for pid in mps_daemons():
        user = identify(pid).user
        entry, thing = known.get(pid, (None, None))
        if entry and thing and thing.start_ticks == procfs.start_ticks(pid):
            daemon = Daemon(pid, user, thing.devices, thing.folder, True, entry.orphaned)
        else:
            devices = variable(pid, "CUDA_VISIBLE_DEVICES").split(",")
            daemon = Daemon(pid, user, tuple(filter(None, devices)), variable(pid, PIPE_VARIABLE))
        found.append(daemon)
    return tuple(found)
