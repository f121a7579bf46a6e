"""Fit MIG instances onto a GPU by an exact search over the places that the driver allows.

A GPU has at most eight memory slices and seven instances, so trying all places is fast.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from radt.collocation.spec import Collocation, MigProfile
from radt.collocation.topology import (
    GpuInventory,
    InstanceProfile,
    MigState,
    Placement,
    compute_placements,
)
from radt.errors import DeviceError


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU's profiles and existing instances."""

    profiles: tuple[InstanceProfile, ...]
    taken: tuple[Placement, ...] = ()
    taken_profiles: tuple[InstanceProfile, ...] = ()

    @classmethod
    def of(cls, mig: MigState) -> Card:
        """Return the GPU in its current state; instances at unknown places are ignored."""
        known = [instance for instance in mig.instances if instance.placement is not None]
        return cls(
            mig.profiles,
            tuple(instance.placement for instance in known if instance.placement is not None),
            tuple(
                profile
                for instance in known
                if (profile := mig.profile(instance.profile)) is not None
            ),
        )

    @property
    def slices(self) -> int:
        """Return the number of compute slices of the whole GPU."""
        return max(
            (profile.slices * max(profile.max_count, 1) for profile in self.profiles), default=0
        )

    @property
    def ofas(self) -> int:
        """Return the number of optical flow accelerators, which the largest profile has all."""
        return max((profile.ofas for profile in self.profiles), default=0)


def pack(wanted: Sequence[InstanceProfile], card: Card) -> list[Placement] | None:
    """Return a place for each wanted instance, in their order; None if they do not fit together.

    The choice among several solutions depends on the profiles only, not on their order.
    """
    if not _within_limits(wanted, card):
        return None
    order = sorted(range(len(wanted)), key=lambda index: (_rank(wanted[index]), index))
    places: list[Placement] = []
    if not _place([wanted[index] for index in order], card.taken, places):
        return None
    placed = dict(zip(order, places, strict=True))
    return [placed[index] for index in range(len(wanted))]


def pack_computes(sizes: Sequence[int], gpu_instance_slices: int) -> list[Placement] | None:
    """Return places in one GPU instance for compute instances of these sizes, in their order."""
    order = sorted(range(len(sizes)), key=lambda index: (-sizes[index], index))
    places: list[Placement] = []

    def place(depth: int) -> bool:
        if depth == len(order):
            return True
        for candidate in compute_placements(gpu_instance_slices, sizes[order[depth]]):
            if not any(candidate.overlaps(other) for other in places):
                places.append(candidate)
                if place(depth + 1):
                    return True
                places.pop()
        return False

    if not place(0):
        return None
    placed = dict(zip(order, places, strict=True))
    return [placed[index] for index in range(len(sizes))]


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


def nearest(wanted: Sequence[InstanceProfile], card: Card) -> list[InstanceProfile] | None:
    """Return as many instances, some of them smaller, that fit; None if there are none.

    Of all choices, the one that loses the fewest compute slices, then the least memory.
    """
    plain = {profile.name for profile in card.profiles if not _attributes(profile)}
    smaller = {
        profile.name: [
            other
            for other in sorted(card.profiles, key=_rank)
            if other.name in plain
            and other.name != profile.name
            and other.slices <= profile.slices
            and other.memory_mb <= profile.memory_mb
        ]
        for profile in {*wanted, *card.profiles}
    }
    if len(wanted) + len(card.taken) > card.slices:
        return None
    start = tuple(sorted(wanted, key=_rank))
    queue: list[tuple[int, int, tuple[str, ...]]] = [
        (0, 0, tuple(profile.name for profile in start))
    ]
    named = {profile.name: profile for profile in (*card.profiles, *wanted)}
    seen = {queue[0][2]}  # the cost of a choice does not depend on the path to it
    while queue:
        slices_lost, memory_lost, names = heapq.heappop(queue)
        profiles = [named[name] for name in names]
        if pack(profiles, card) is not None:
            return profiles
        for index, profile in enumerate(profiles):
            for other in smaller[profile.name]:
                changed = [*profiles[:index], other, *profiles[index + 1 :]]
                key = tuple(profile.name for profile in sorted(changed, key=_rank))
                if key not in seen:
                    seen.add(key)
                    heapq.heappush(
                        queue,
                        (
                            slices_lost + profile.slices - other.slices,
                            memory_lost + profile.memory_mb - other.memory_mb,
                            key,
                        ),
                    )
    return None


def listing(profiles: Sequence[InstanceProfile]) -> str:
    """Return ``2 × 3g.20gb + 1g.5gb``, the largest first."""
    return _counted(profile.name for profile in sorted(profiles, key=_rank))


def _counted(names: Iterable[str]) -> str:
    return " + ".join(
        f"{number} × {name}" if number > 1 else name for name, number in Counter(names).items()
    )


def _rank(profile: InstanceProfile) -> tuple[int, int, str]:
    """Return the order of search: large ones first, the rest is left for small ones."""
    return (-profile.slices, -profile.memory_mb, profile.name)


def _attributes(profile: InstanceProfile) -> bool:
    return "+" in profile.name or "-" in profile.name


def _within_limits(wanted: Sequence[InstanceProfile], card: Card) -> bool:
    """Check the limits besides places: compute slices, media extensions, instances of a kind."""
    together = (*wanted, *card.taken_profiles)
    counts = Counter(profile.name for profile in together)
    return (
        sum(profile.slices for profile in together) <= card.slices
        and sum(profile.ofas for profile in together) <= card.ofas
        and all(counts[profile.name] <= profile.max_count for profile in wanted)
    )


def _place(
    wanted: Sequence[InstanceProfile], taken: Sequence[Placement], places: list[Placement]
) -> bool:
    if len(places) == len(wanted):
        return True
    profile = wanted[len(places)]
    again = bool(places) and wanted[len(places) - 1].name == profile.name
    for candidate in profile.placements:
        if again and candidate.start < places[-1].end:
            continue  # equal instances are kept in order: swapping them gives nothing new
        if any(candidate.overlaps(other) for other in (*taken, *places)):
            continue
        places.append(candidate)
        if _place(wanted, taken, places):
            return True
        places.pop()
    return False


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
            break  # the other bins are as empty as this one
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
class Slot:
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


def slots_of(gpu: GpuInventory, wanted: Sequence[tuple[str, Collocation]]) -> list[Slot]:
    """Return the compute instances requested by rows of one GPU, in order of their first rows.

    Args:
        gpu: A GPU with MIG on.
        wanted: Keys of the rows with the requested profile of each.

    Raises:
        PlacementError: The GPU does not offer the profile.
    """
    members: dict[tuple[str, int, str, str], list[str]] = {}
    profiles: dict[tuple[str, int, str, str], InstanceProfile] = {}
    for key, collocation in wanted:
        assert collocation.mig is not None
        profile, slices = _resolve(key, collocation.mig, gpu)
        if collocation.instance:
            sharing = ("#", collocation.instance)
        elif collocation.mps is not None:
            sharing = ("mps", "")
        else:
            sharing = ("row", key)
        identity = (profile.name, slices, *sharing)
        members.setdefault(identity, []).append(key)
        profiles[identity] = profile
    return [
        Slot(profiles[identity], identity[1], tuple(keys)) for identity, keys in members.items()
    ]


def gpu_instances_for(slots: Sequence[Slot]) -> list[list[Slot]]:
    """Return the contents of the fewest GPU instances: one whole compute instance, or several."""
    contents = [[slot] for slot in slots if slot.is_whole]
    parts: dict[str, list[Slot]] = {}
    for slot in slots:
        if not slot.is_whole:
            parts.setdefault(slot.profile.name, []).append(slot)
    for sharing in parts.values():
        sizes = [slot.slices for slot in sharing]
        bins = distribute(sizes, sharing[0].profile.slices)
        contents += [[sharing[index] for index in indices] for indices in bins]
    return contents


def slot_names(slots: Sequence[Slot]) -> str:
    """Return ``2 × 3g.20gb + 1g.5gb``, the largest first."""
    return _counted(slot.name for slot in sorted(slots, key=slot_order))


def slot_order(slot: Slot) -> tuple[int, int, str]:
    """Return a sort key: the largest first."""
    return -slot.profile.slices, -slot.slices, slot.name


def profile_names(mig: MigState) -> str:
    """Return ``1g.5gb, 2g.10gb``: the GPU's profiles, the small ones first."""
    ordered = sorted(
        mig.profiles, key=lambda profile: (profile.slices, profile.memory_mb, profile.name)
    )
    return ", ".join(profile.name for profile in ordered)


def joined(names: Iterable[str]) -> str:
    """Return ``a, b and c``."""
    words = list(names)
    return " and ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)


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
