"""GPUs, their existing and possible MIG instances, as plain data.

The driver reports the names of profiles only since R520, and placements only to privileged users;
the tables here are NVIDIA's, from the MIG User Guide,
https://docs.nvidia.com/datacenter/tesla/mig-user-guide, and the output of ``nvidia-smi mig -lgipp``
and ``-lcipp`` on A100, A30 and H100.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Self

from radt.devices.gpus import Gpu

_MIB = 2**20
_GIB = 2**30
#: Profiles have a whole number of eighths of the GPU's memory.
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
    """A position in a GPU, or in a GPU instance: ``size`` slices from ``start`` on."""

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


#: Compute slices of the GPUs that can be divided, by a part of their names.
_SLICES = (
    (re.compile(r"\b(G?[AH]100|[AH]800|G?H200|H20|G?B[23]00)\b"), 7),
    (re.compile(r"\bA30\b|\bRTX PRO 6000\b"), 4),
)


def _published_slices(name: str) -> int | None:
    """Return the compute slices of a GPU by its name; None if it cannot be divided."""
    return next((slices for pattern, slices in _SLICES if pattern.search(name)), None)


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
    """Return an instance's possible positions in NVIDIA's tables; none if it is not listed.

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
    """Return a compute instance's possible positions in a GPU instance; none for other sizes.

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
    capacity of an empty GPU. ``ofas`` is the number of optical flow accelerators, which GPUs have
    few of: the media extensions of ``+me``. ``remaining`` is how many more instances the driver
    would create now, None if unreported.
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
    """A MIG device, which a process sees as its GPU; ``uuid`` is its ``MIG-…``.

    ``memory_bytes`` and ``free_bytes`` are those of its GPU instance.
    """

    instance_id: int
    slices: int
    uuid: str
    sm_count: int | None = None
    pids: tuple[int, ...] = ()
    memory_bytes: int | None = None
    free_bytes: int | None = None


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

    @property
    def slices(self) -> int:
        """Return the number of compute slices of the whole GPU."""
        return max(
            (profile.slices * max(profile.max_count, 1) for profile in self.profiles), default=0
        )

    @property
    def ofas(self) -> int:
        """Return the number of optical flow accelerators; the largest profile has all of them."""
        return max((profile.ofas for profile in self.profiles), default=0)

    def profile(self, name: str) -> InstanceProfile | None:
        """Return the profile with this name, ignoring case."""
        return next(
            (profile for profile in self.profiles if profile.name.lower() == name.lower()), None
        )


def published_mig(name: str, memory_bytes: float) -> MigState | None:
    """Return the possible MIG instances of a GPU by its name, from NVIDIA's tables, if any.

    Args:
        name: The driver's name, ``NVIDIA A100-SXM4-40GB``.
        memory_bytes: Its total memory.
    """
    gpu_slices = _published_slices(name)
    if gpu_slices is None or memory_bytes <= 0:
        return None
    layout, gpu_mb = _LAYOUTS[gpu_slices], round(memory_bytes / _MIB)
    profiles = []
    for (slices, memory_slices), starts in layout.starts.items():
        memory_mb = gpu_mb * memory_slices // layout.memory_slices
        named = profile_name(0, slices, memory_mb, round(memory_bytes))
        places = tuple(Placement(start, memory_slices) for start in starts)
        profiles.append(InstanceProfile(-1, named, slices, memory_mb, len(starts), 0, places))
    return MigState(enabled=True, pending=True, profiles=tuple(profiles))


@dataclass(frozen=True, slots=True)
class GpuInventory(Gpu):
    """A GPU with its free memory, and how it is or can be divided.

    ``mig`` is None if it cannot be divided. ``free_bytes`` is None if the GPU has no memory of its
    own, or only an administrator may read it.
    """

    free_bytes: int | None = None
    mig: MigState | None = None

    @property
    def slices(self) -> int:
        """Return the GPU's compute slices; from NVIDIA's table if its profiles are unreadable."""
        if self.mig is not None and any(profile.profile_id >= 0 for profile in self.mig.profiles):
            return self.mig.slices
        return _published_slices(self.name) or 7

    @classmethod
    def of(cls, gpu: Gpu, free_bytes: int | None = None, mig: MigState | None = None) -> Self:
        facts = {field.name: getattr(gpu, field.name) for field in fields(Gpu)}
        return cls(**facts, free_bytes=free_bytes, mig=mig)


@dataclass(frozen=True, slots=True)
class Inventory:
    """GPUs of the machine; ``reason`` is why there are none.

    ``is_complete``: profiles and instances are included. ``is_given``: its instances are those that
    a cluster gave this job.
    """

    gpus: tuple[GpuInventory, ...] = ()
    driver: str | None = None
    reason: str = ""
    is_complete: bool = True
    is_given: bool = False

    @classmethod
    def of(cls, gpus: Iterable[Gpu], reason: str = "") -> Inventory:
        """Return an inventory without profiles and instances, enough for workloads without MIG."""
        on = MigState(enabled=True, pending=True)
        return cls(
            tuple(GpuInventory.of(gpu, mig=on if gpu.mig_enabled else None) for gpu in gpus),
            reason=reason,
            is_complete=False,
        )

    def gpu(self, index: int) -> GpuInventory | None:
        """Return the GPU with this NVML index."""
        return next((gpu for gpu in self.gpus if gpu.index == index), None)
