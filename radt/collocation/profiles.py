"""What NVIDIA publishes of MIG profiles: their names, and where instances may lie.

The driver tells both, but names only since R520 and placements only to privileged users. Source:
the MIG User Guide, https://docs.nvidia.com/datacenter/tesla/mig-user-guide, and the output of
``nvidia-smi mig -lgipp`` and ``-lcipp`` on A100, A30 and H100.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

_MIB = 2**20
_GIB = 2**30
#: Of a GPU's memory a profile has a number of eighths.
_FRACTION = 8

#: What stands behind the memory in a profile's name, by NVML's index of the profile (nvml.h).
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
        """The first slice after it."""
        return self.start + self.size

    def overlaps(self, other: Placement) -> bool:
        """Whether the two share a slice."""
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
    """The name of a profile for a driver that does not tell it: ``1g.5gb+me``.

    Args:
        index: NVML's number of the profile (``NVML_GPU_INSTANCE_PROFILE_…``).
        slices: Its compute slices.
        memory_mb: Its memory in MiB.
        gpu_memory_bytes: The whole GPU's, which the names are fractions of.
    """
    eighths = round(memory_mb * _MIB / gpu_memory_bytes * _FRACTION)
    whole_gb = -(-gpu_memory_bytes // _GIB)
    memory_gb = math.floor(whole_gb * eighths / _FRACTION + 0.5)  # halves go up: 3g.71gb of 141
    return f"{slices}g.{memory_gb}gb{_ATTRIBUTES.get(index, '')}"


def published_placements(
    slices: int, memory_mb: int, gpu_slices: int, gpu_memory_mb: int
) -> tuple[Placement, ...]:
    """Where an instance may lie according to NVIDIA's tables; nowhere if they do not say.

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
    """Where a compute instance may lie in a GPU instance; nowhere if none of this size is offered.

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
