"""Fits MIG instances onto a GPU by an exact search over the positions that the driver allows.

A GPU has at most eight memory slices and seven instances, so trying all positions is fast.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from radt.collocation.spec import Collocation, MigProfile
from radt.collocation.topology import (
    GpuInventory,
    InstanceProfile,
    MigState,
    Placement,
    compute_placements,
)
from radt.errors import DeviceError


def pack(wanted: Sequence[InstanceProfile], mig: MigState) -> list[Placement] | None:
    """Return a position for each wanted instance, in order; None if they do not fit together.

    They must fit beside the existing instances, of which those at unknown positions are ignored.
    The choice among several solutions depends only on the profiles, not on their order.
    """
    known = [instance for instance in mig.instances if instance.placement is not None]
    existing = [mig.profile(instance.profile) for instance in known]
    together = [*wanted, *(profile for profile in existing if profile is not None)]
    counts = Counter(profile.name for profile in together)
    # Limits besides positions: compute slices, media extensions, instances per profile.
    if (
        sum(profile.slices for profile in together) > mig.slices
        or sum(profile.ofas for profile in together) > mig.ofas
        or any(counts[profile.name] > profile.max_count for profile in wanted)
    ):
        return None
    taken = [instance.placement for instance in known if instance.placement is not None]
    return _places([(_rank(profile), profile.placements) for profile in wanted], taken)


def pack_computes(sizes: Sequence[int], gpu_instance_slices: int) -> list[Placement] | None:
    """Return positions in one GPU instance for compute instances of these sizes, in order."""
    return _places([(-size, compute_placements(gpu_instance_slices, size)) for size in sizes], [])


def _places(
    wanted: Sequence[tuple[Any, tuple[Placement, ...]]], taken: Sequence[Placement]
) -> list[Placement] | None:
    """Choose a position for each so that none overlap, searching by rank; keep their order."""
    order = sorted(range(len(wanted)), key=lambda index: (wanted[index][0], index))
    found = _search([wanted[index][1] for index in order], taken)
    if found is None:
        return None
    placed = dict(zip(order, found, strict=True))
    return [placed[index] for index in range(len(wanted))]


def _search(
    possible: Sequence[tuple[Placement, ...]], taken: Sequence[Placement]
) -> list[Placement] | None:
    if not possible:
        return []
    for place in possible[0]:
        if any(place.overlaps(other) for other in taken):
            continue
        # Items with the same positions go from left to right: swapping them gives nothing new.
        later = tuple(other for other in possible[0] if other.start >= place.end)
        rest = _search(
            [later if other == possible[0] else other for other in possible[1:]], [*taken, place]
        )
        if rest is not None:
            return [place, *rest]
    return None


def distribute(sizes: Sequence[int], gpu_instance_slices: int) -> list[list[int]]:
    """Distribute compute instances, each of which fits alone, over the fewest GPU instances.

    Returns:
        For each GPU instance the indices of its compute instances.
    """
    order = sorted(range(len(sizes)), key=lambda index: (-sizes[index], index))
    for count in range(1, len(sizes) + 1):
        bins: list[list[int]] = [[] for _ in range(count)]
        if _fill(order, sizes, gpu_instance_slices, bins):
            return bins
    return []


def _rank(profile: InstanceProfile) -> tuple[int, int, str]:
    """Return the sort key for the search: large ones first, as small ones fit into the rest."""
    return (-profile.slices, -profile.memory_mb, profile.name)


def _fill(
    order: Sequence[int], sizes: Sequence[int], gpu_instance_slices: int, bins: list[list[int]]
) -> bool:
    if not order:
        return True
    first, rest = order[0], order[1:]
    for content in bins:
        content.append(first)
        fits = pack_computes([sizes[index] for index in content], gpu_instance_slices)
        if fits is not None and _fill(rest, sizes, gpu_instance_slices, bins):
            return True
        content.pop()
        if not content:
            break  # all other bins are as empty as this one
    return False


class PlacementError(DeviceError):
    """The workload cannot be placed; ``keys`` are the affected rows.

    ``may_pass``: only instances in use are in the way, so waiting helps.
    """

    def __init__(self, message: str, remedy: str | None = None, keys: Sequence[str] = ()) -> None:
        super().__init__(message, remedy)
        self.keys = tuple(keys)
        self.may_pass = False


@dataclass(frozen=True, slots=True)
class ComputeSlot:
    """One compute instance requested by the rows ``keys``."""

    profile: InstanceProfile
    slices: int
    keys: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        """Return whether it takes all slices of its GPU instance."""
        return self.slices == self.profile.slices

    @property
    def name(self) -> str:
        return self.profile.name if self.is_whole else f"{self.slices}c.{self.profile.name}"


def slots_of(gpu: GpuInventory, wanted: Sequence[tuple[str, Collocation]]) -> list[ComputeSlot]:
    """Return the compute instances requested by rows of one GPU, in order of their first rows.

    Args:
        gpu: A GPU with MIG on.
        wanted: Keys of the rows with the requested profile of each.

    Raises:
        PlacementError: The GPU does not offer the profile.
    """
    slots: dict[tuple[str, ...], ComputeSlot] = {}
    for key, collocation in wanted:
        assert collocation.mig is not None
        profile, slices = _resolve(key, collocation.mig, gpu)
        if collocation.instance:
            sharing = ("#", collocation.instance)
        elif collocation.mps is not None:
            sharing = ("mps", "")
        else:
            sharing = ("row", key)
        slot = ComputeSlot(profile, slices, (key,))
        if earlier := slots.get((slot.name, *sharing)):
            slot = replace(earlier, keys=(*earlier.keys, key))
        slots[slot.name, *sharing] = slot
    return list(slots.values())


def gpu_instances_for(slots: Sequence[ComputeSlot]) -> list[list[ComputeSlot]]:
    """Return the compute instances of each GPU instance, using the fewest GPU instances."""
    contents = [[slot] for slot in slots if slot.is_whole]
    parts: dict[str, list[ComputeSlot]] = {}
    for slot in slots:
        if not slot.is_whole:
            parts.setdefault(slot.profile.name, []).append(slot)
    for sharing in parts.values():
        sizes = [slot.slices for slot in sharing]
        bins = distribute(sizes, sharing[0].profile.slices)
        contents += [[sharing[index] for index in indices] for indices in bins]
    return contents


def slot_names(slots: Sequence[ComputeSlot]) -> str:
    """Return ``2 × 3g.20gb + 1g.5gb``, the largest first."""
    counts = Counter(slot.name for slot in sorted(slots, key=slot_order))
    return " + ".join(
        f"{number} × {name}" if number > 1 else name for name, number in counts.items()
    )


def slot_order(slot: ComputeSlot) -> tuple[int, int, str]:
    """Return a sort key: the largest first."""
    return -slot.profile.slices, -slot.slices, slot.name


def profile_names(mig: MigState) -> str:
    """Return ``1g.5gb, 2g.10gb``: the GPU's profiles, the small ones first."""
    ordered = sorted(
        mig.profiles, key=lambda profile: (profile.slices, profile.memory_mb, profile.name)
    )
    return ", ".join(profile.name for profile in ordered)


def _resolve(key: str, wish: MigProfile, gpu: GpuInventory) -> tuple[InstanceProfile, int]:
    """Return the GPU's profile that a row names, and its compute slices."""
    assert gpu.mig is not None
    profile = gpu.mig.profile(wish.gpu_instance)
    if profile is None:
        names = profile_names(gpu.mig)
        raise PlacementError(
            f"GPU {gpu.index} ({gpu.name}) has no profile {wish.gpu_instance}",
            f"It offers {names}" if names else "Run nvidia-smi mig -lgip",
            [key],
        )
    slices = wish.compute_slices if wish.compute_slices is not None else profile.slices
    if not compute_placements(profile.slices, slices):
        offered = [
            f"{size}c"
            for size in range(1, profile.slices)
            if compute_placements(profile.slices, size)
        ]
        raise PlacementError(
            f"a {profile.name} instance has no compute instances of {slices} slices",
            f"It offers {', '.join(offered)}, or the whole: {profile.name}",
            [key],
        )
    return profile, slices
