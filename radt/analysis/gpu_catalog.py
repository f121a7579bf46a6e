"""What a GPU can be divided into: asked of the driver here, else of NVIDIA's tables by its name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from radt.collocation.packing import Card, pack
from radt.collocation.topology import InstanceProfile, profile_name, published_placements

_MIB = 2**20
#: Compute slices of the GPUs that can be divided, by what their names hold.
_SLICES = (
    (re.compile(r"\b(G?[AH]100|[AH]800|G?H200|H20|G?B[23]00)\b"), 7),
    (re.compile(r"\bA30\b|\bRTX PRO 6000\b"), 4),
)
#: Compute slices and eighths of the memory of instances, by the compute slices of the GPU.
_INSTANCES = {
    7: ((1, 1), (1, 2), (2, 2), (3, 4), (4, 4), (7, 8)),
    4: ((1, 2), (2, 4), (4, 8)),
}


@dataclass(frozen=True, slots=True)
class MigGpu:
    """A GPU that can be divided. ``from_driver`` tells one whose own driver said into what."""

    card: Card
    from_driver: bool = False

    @property
    def slices(self) -> int:
        """Compute slices of all of it."""
        return self.card.slices

    def profile(self, name: str) -> InstanceProfile | None:
        """The profile of this name."""
        wanted = name.lower()
        return next((one for one in self.card.profiles if one.name.lower() == wanted), None)

    def plain(self) -> Sequence[InstanceProfile]:
        """Profiles without special parts, the small ones first; those that are all of it left out.

        One instance that takes the whole card shares it with nobody.
        """
        return sorted(
            (
                one
                for one in self.card.profiles
                if "+" not in one.name and "-" not in one.name and one.slices < self.slices
            ),
            key=lambda one: (one.slices, one.memory_mb),
        )

    def packs(self, names: Sequence[str]) -> bool:
        """Whether instances of these profiles lie beside each other on an empty card."""
        return _packs(self, tuple(sorted(names)))


@cache
def _packs(mig_gpu: MigGpu, names: tuple[str, ...]) -> bool:
    profiles = [mig_gpu.profile(name) for name in names]
    known = [one for one in profiles if one is not None]
    return len(known) == len(names) and pack(known, mig_gpu.card) is not None


def published_gpu(name: str, memory_bytes: float) -> MigGpu | None:
    """What NVIDIA's tables say of a GPU of this name; None if it cannot be divided.

    Source: MIG User Guide, https://docs.nvidia.com/datacenter/tesla/mig-user-guide.

    Args:
        name: As the driver calls it, ``NVIDIA A100-SXM4-40GB``.
        memory_bytes: All of its memory.
    """
    slices = next((count for pattern, count in _SLICES if pattern.search(name)), None)
    if slices is None or memory_bytes <= 0:
        return None
    memory_mb = round(memory_bytes / _MIB)
    profiles = []
    for size, eighths in _INSTANCES[slices]:
        its_mb = memory_mb * eighths // 8
        placements = published_placements(size, its_mb, slices, memory_mb)
        called = profile_name(0, size, its_mb, round(memory_bytes))
        beside = 0
        end = 0
        for place in placements:
            if place.start >= end:
                beside, end = beside + 1, place.end
        profiles.append(InstanceProfile(-1, called, size, its_mb, beside, 0, placements))
    return MigGpu(Card(tuple(profiles)))
