"""Fits MIG instances onto a GPU: an exact search over the places that the driver allows.

A GPU has at most eight memory slices and seven instances, so trying all places is fast.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from radt.collocation.profiles import Placement, compute_placements
from radt.collocation.topology import InstanceProfile, MigState


@dataclass(frozen=True, slots=True)
class Card:
    """What a GPU offers, and the instances that are on it already."""

    profiles: tuple[InstanceProfile, ...]
    taken: tuple[Placement, ...] = ()
    taken_profiles: tuple[InstanceProfile, ...] = ()

    @classmethod
    def of(cls, mig: MigState) -> Card:
        """The GPU as it is; instances whose place is not known are left out."""
        known = [one for one in mig.instances if one.placement is not None]
        return cls(
            mig.profiles,
            tuple(one.placement for one in known if one.placement is not None),
            tuple(found for one in known if (found := mig.profile(one.profile)) is not None),
        )

    @property
    def slices(self) -> int:
        """Compute slices of the whole GPU."""
        return max((one.slices * max(one.max_count, 1) for one in self.profiles), default=0)

    @property
    def ofas(self) -> int:
        """Optical flow accelerators of the whole GPU: as many as its largest profile has."""
        return max((one.ofas for one in self.profiles), default=0)


def pack(wanted: Sequence[InstanceProfile], card: Card) -> list[Placement] | None:
    """A place for each wanted instance, in their order; None if they do not fit together.

    Which of several possible answers is given depends on the profiles only, not on their order.
    """
    if not _within_limits(wanted, card):
        return None
    order = sorted(range(len(wanted)), key=lambda index: (_rank(wanted[index]), index))
    found: list[Placement] = []
    if not _place([wanted[index] for index in order], card.taken, found):
        return None
    placed = dict(zip(order, found, strict=True))
    return [placed[index] for index in range(len(wanted))]


def pack_computes(sizes: Sequence[int], gpu_instance_slices: int) -> list[Placement] | None:
    """A place in one GPU instance for compute instances of so many slices, in their order."""
    order = sorted(range(len(sizes)), key=lambda index: (-sizes[index], index))
    found: list[Placement] = []

    def place(depth: int) -> bool:
        if depth == len(order):
            return True
        for candidate in compute_placements(gpu_instance_slices, sizes[order[depth]]):
            if not any(candidate.overlaps(other) for other in found):
                found.append(candidate)
                if place(depth + 1):
                    return True
                found.pop()
        return False

    if not place(0):
        return None
    placed = dict(zip(order, found, strict=True))
    return [placed[index] for index in range(len(sizes))]


def distribute(sizes: Sequence[int], gpu_instance_slices: int) -> list[list[int]]:
    """The fewest GPU instances that hold compute instances of so many slices.

    Returns:
        For each GPU instance the indices of its compute instances. Each must fit alone.
    """
    order = sorted(range(len(sizes)), key=lambda index: (-sizes[index], index))
    for count in range(1, len(sizes) + 1):
        bins: list[list[int]] = [[] for _ in range(count)]
        if _fill(order, sizes, gpu_instance_slices, bins):
            return bins
    return []


def nearest(wanted: Sequence[InstanceProfile], card: Card) -> list[InstanceProfile] | None:
    """The same number of instances, some of them smaller, that fit; None if there is no such.

    Of all, the one that takes away the fewest compute slices, then the least memory.
    """
    plain = {one.name for one in card.profiles if not _attributes(one)}
    smaller = {
        one.name: [
            other
            for other in sorted(card.profiles, key=_rank)
            if other.name in plain
            and other.name != one.name
            and other.slices <= one.slices
            and other.memory_mb <= one.memory_mb
        ]
        for one in {*wanted, *card.profiles}
    }
    if len(wanted) + len(card.taken) > card.slices:
        return None
    start = tuple(sorted(wanted, key=_rank))
    queue: list[tuple[int, int, tuple[str, ...]]] = [(0, 0, tuple(one.name for one in start))]
    named = {one.name: one for one in (*card.profiles, *wanted)}
    seen = {queue[0][2]}  # what a choice costs does not depend on the way to it
    while queue:
        slices_lost, memory_lost, names = heapq.heappop(queue)
        profiles = [named[name] for name in names]
        if pack(profiles, card) is not None:
            return profiles
        for index, profile in enumerate(profiles):
            for other in smaller[profile.name]:
                changed = [*profiles[:index], other, *profiles[index + 1 :]]
                key = tuple(one.name for one in sorted(changed, key=_rank))
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
    """``2 × 3g.20gb + 1g.5gb``, the largest first."""
    counts = Counter(one.name for one in sorted(profiles, key=_rank))
    return " + ".join(
        f"{number} × {name}" if number > 1 else name for name, number in counts.items()
    )


def _rank(profile: InstanceProfile) -> tuple[int, int, str]:
    """Large first: what is left over is then found for the small ones."""
    return (-profile.slices, -profile.memory_mb, profile.name)


def _attributes(profile: InstanceProfile) -> bool:
    return "+" in profile.name or "-" in profile.name


def _within_limits(wanted: Sequence[InstanceProfile], card: Card) -> bool:
    """What counts besides the places: compute slices, media extensions, instances of a kind."""
    together = (*wanted, *card.taken_profiles)
    counts = Counter(one.name for one in together)
    return (
        sum(one.slices for one in together) <= card.slices
        and sum(one.ofas for one in together) <= card.ofas
        and all(counts[one.name] <= one.max_count for one in wanted)
    )


def _place(
    wanted: Sequence[InstanceProfile], taken: Sequence[Placement], found: list[Placement]
) -> bool:
    if len(found) == len(wanted):
        return True
    profile = wanted[len(found)]
    again = bool(found) and wanted[len(found) - 1].name == profile.name
    for candidate in profile.placements:
        if again and candidate.start < found[-1].end:
            continue  # like instances stand in order: exchanging them gives nothing new
        if any(candidate.overlaps(other) for other in (*taken, *found)):
            continue
        found.append(candidate)
        if _place(wanted, taken, found):
            return True
        found.pop()
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
