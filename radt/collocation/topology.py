"""GPUs, their existing and possible MIG instances: plain data.

The driver reports the names of profiles only since R520, and placements only to privileged users;
the tables here are NVIDIA's: the MIG User Guide,
https://docs.nvidia.com/datacenter/tesla/mig-user-guide, and the output of ``nvidia-smi mig -lgipp``
and ``-lcipp`` on A100, A30 and H100.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from radt.nvml import Gpu

_MIB = 2**20
_GIB = 2**30
#: Profiles have a number of eighths of the GPU's memory.
_FRACTION = 8

#: The attributes in a profile's name, by NVML's index of the profile (nvml.h).
_ATTRIBUTES: Mapping[int, str] = {
    0x7: "+me",
    0x8: "+me",
    0xA: "+gfx",
    0xB: "+gfx",
    0xC: "+gfx",
    0xD: "-me",
    0xE: "-me",
    0xF: "+me.all",
    0x10: "+me.all",
    0x11: "+gfx",
}


@dataclass(frozen=True, slots=True)
class Placement:
    """A place in a GPU, or in a GPU instance: ``size`` slices from ``start`` on."""

    start: int
    size: int

    @property
    def end(self) -> int:
        """Return the first slice after it."""
        return self.start + self.size

    def overlaps(self, other: Placement) -> bool:
        """Return whether the two share a slice."""
        return self.start < other.end and other.start < self.end

    def __str__(self) -> str:
        return f"{self.start}-{self.end - 1}" if self.size > 1 else str(self.start)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Starts of GPU instances by their compute slices and memory slices."""

    memory_slices: int
    starts: Mapping[tuple[int, int], tuple[int, ...]]


#: By the compute slices of the whole GPU: A100, H100, H200, B200; A30, RTX PRO 6000.
_LAYOUTS: Mapping[int, _Layout] = {
    7: _Layout(
        8,
        {
            (1, 1): (0, 1, 2, 3, 4, 5, 6),
            (1, 2): (0, 2, 4, 6),
            (2, 2): (0, 2, 4),
            (3, 4): (0, 4),
            (4, 4): (0,),
            (7, 8): (0,),
        },
    ),
    4: _Layout(4, {(1, 1): (0, 1, 2, 3), (2, 2): (0, 2), (4, 4): (0,)}),
}


def profile_name(index: int, slices: int, memory_mb: int, gpu_memory_bytes: int) -> str:
    """Return the name of a profile for a driver that does not report it: ``1g.5gb+me``.

    Args:
        index: NVML's number of the profile (``NVML_GPU_INSTANCE_PROFILE_…``).
        slices: Its compute slices.
        memory_mb: Its memory in MiB.
        gpu_memory_bytes: Memory of the whole GPU, of which the names are fractions.
    """
    eighths = round(memory_mb * _MIB / gpu_memory_bytes * _FRACTION)
    whole_gb = -(-gpu_memory_bytes // _GIB)
    memory_gb = math.floor(whole_gb * eighths / _FRACTION + 0.5)  # halves round up: 3g.71gb of 141
    return f"{slices}g.{memory_gb}gb{_ATTRIBUTES.get(index, '')}"


def published_placements(
    slices: int, memory_mb: int, gpu_slices: int, gpu_memory_mb: int
) -> tuple[Placement, ...]:
    """Return the possible places of an instance in NVIDIA's tables; none if it is not listed.

    Args:
        slices: Compute slices of the instance.
        memory_mb: Its memory in MiB.
        gpu_slices: Compute slices of the GPU's largest profile.
        gpu_memory_mb: Memory of that profile in MiB.
    """
    layout = _LAYOUTS.get(gpu_slices)
    if layout is None or gpu_memory_mb <= 0:
        return ()
    size = round(memory_mb / gpu_memory_mb * layout.memory_slices)
    return tuple(Placement(start, size) for start in layout.starts.get((slices, size), ()))


def compute_placements(gpu_instance_slices: int, slices: int) -> tuple[Placement, ...]:
    """Return the possible places of a compute instance in a GPU instance; none for other sizes.

    Compute instances have 1, 2, 3, 4 or all slices of their GPU instance; they begin at multiples
    of their size, those of three at multiples of four.
    """
    if slices == gpu_instance_slices:
        return (Placement(0, slices),)
    if slices not in (1, 2, 3, 4) or (slices == 3 and gpu_instance_slices == 4):
        return ()
    step = 4 if slices == 3 else slices
    return tuple(
        Placement(start, slices)
        for start in range(0, gpu_instance_slices, step)
        if start + slices <= gpu_instance_slices
    )


@dataclass(frozen=True, slots=True)
class InstanceProfile:
    """A kind of GPU instance that a GPU offers.

    ``profile_id`` is the driver's; ``name`` is NVIDIA's, without ``MIG ``. ``max_count`` is the
    capacity of an empty GPU. ``ofas`` are optical flow accelerators, of which GPUs have few: the
    media extensions of ``+me``. ``remaining`` is how many more the driver would create now, None if
    unreported.
    """

    profile_id: int
    name: str
    slices: int
    memory_mb: int
    max_count: int
    sm_count: int
    placements: tuple[Placement, ...] = ()
    ofas: int = 0
    remaining: int | None = None


@dataclass(frozen=True, slots=True)
class ComputeInstance:
    """A MIG device, which a process sees as its GPU; ``uuid`` is its ``MIG-…``."""

    instance_id: int
    slices: int
    uuid: str
    sm_count: int | None = None
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuInstance:
    """An existing part of a GPU.

    ``profile`` is its profile's name. ``placement`` is None if this user may not read it.
    ``claimed``: created by a radt of this user that may have been killed since; it is about to be
    used or removed.
    """

    instance_id: int
    profile: str
    placement: Placement | None
    computes: tuple[ComputeInstance, ...] = ()
    claimed: bool = False

    @property
    def is_busy(self) -> bool:
        """Return whether a process runs on it."""
        return any(compute.pids for compute in self.computes)


@dataclass(frozen=True, slots=True)
class MigState:
    """The state of MIG on a GPU that supports it.

    ``enabled`` is the current mode, ``pending`` the mode after the next reset. ``may_create``: this
    user may create and destroy instances.
    """

    enabled: bool
    pending: bool
    may_create: bool = False
    profiles: tuple[InstanceProfile, ...] = ()
    instances: tuple[GpuInstance, ...] = ()

    def profile(self, name: str) -> InstanceProfile | None:
        """Return the profile with this name, ignoring case."""
        return next(
            (profile for profile in self.profiles if profile.name.lower() == name.lower()), None
        )


@dataclass(frozen=True, slots=True)
class GpuInventory:
    """One GPU; ``index`` is NVML's. ``mig`` is None if the GPU cannot be divided.

    ``memory_bytes`` and ``free_bytes`` are None if the GPU has no memory of its own, or only an
    administrator may read it. ``problem`` is why the driver reports nothing on this GPU.
    """

    index: int
    uuid: str
    name: str
    memory_bytes: int | None = None
    free_bytes: int | None = None
    mig: MigState | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Inventory:
    """GPUs of the machine; ``reason`` is why there are none.

    ``is_complete``: profiles and instances are included. ``is_given``: its instances are those that
    a cluster gave the job that this is.
    """

    gpus: tuple[GpuInventory, ...] = ()
    driver: str | None = None
    reason: str = ""
    is_complete: bool = True
    is_given: bool = False

    @classmethod
    def of(cls, gpus: Iterable[Gpu]) -> Inventory:
        """Return an inventory without profiles and instances, enough for workloads without MIG."""
        return cls(
            tuple(
                GpuInventory(
                    gpu.index,
                    gpu.uuid,
                    gpu.name,
                    gpu.memory_bytes,
                    mig=MigState(enabled=True, pending=True) if gpu.mig_enabled else None,
                )
                for gpu in gpus
            ),
            is_complete=False,
        )

    def gpu(self, index: int) -> GpuInventory | None:
        """Return the GPU with this NVML index."""
        return next((gpu for gpu in self.gpus if gpu.index == index), None)
