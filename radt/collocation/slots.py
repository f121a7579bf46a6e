"""The compute instances that the rows of one GPU ask for together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from radt.collocation.packing import distribute
from radt.collocation.profiles import compute_placements
from radt.collocation.spec import Collocation, MigProfile
from radt.collocation.topology import GpuInventory, InstanceProfile, MigState
from radt.errors import DeviceError


class PlacementError(DeviceError):
    """The workload cannot be placed; ``keys`` are the rows concerned.

    ``may_pass`` tells that only instances in use are in the way, so that waiting helps.
    """

    def __init__(self, message: str, remedy: str | None = None, keys: Sequence[str] = ()) -> None:
        super().__init__(message, remedy)
        self.keys = tuple(keys)
        self.may_pass = False


@dataclass(frozen=True, slots=True)
class Slot:
    """One compute instance that the rows ``keys`` ask for."""

    profile: InstanceProfile
    slices: int
    keys: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        """Whether it takes all slices of its GPU instance."""
        return self.slices == self.profile.slices

    @property
    def name(self) -> str:
        return self.profile.name if self.is_whole else f"{self.slices}c.{self.profile.name}"


def slots_of(gpu: GpuInventory, wanted: Sequence[tuple[str, Collocation]]) -> list[Slot]:
    """The compute instances that rows of one GPU ask for together, in order of their first rows.

    Args:
        gpu: A GPU with MIG on.
        wanted: Keys of the rows with what each asks for.

    Raises:
        PlacementError: The GPU offers no such profile.
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
    """What each GPU instance holds: a whole compute instance, or several that share it.

    As few GPU instances as hold them all.
    """
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
    """``2 × 3g.20gb + 1g.5gb``, the largest first."""
    ordered = sorted(slots, key=lambda one: (-one.profile.slices, -one.slices, one.name))
    counts = Counter(one.name for one in ordered)
    return " + ".join(
        f"{number} × {name}" if number > 1 else name for name, number in counts.items()
    )


def profile_names(mig: MigState) -> str:
    """``1g.5gb, 2g.10gb``: what the GPU offers, the small ones first."""
    ordered = sorted(mig.profiles, key=lambda one: (one.slices, one.memory_mb, one.name))
    return ", ".join(one.name for one in ordered)


def joined(names: Iterable[str]) -> str:
    """``a, b and c``"""
    words = list(names)
    return " and ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)


def _resolve(key: str, wish: MigProfile, gpu: GpuInventory) -> tuple[InstanceProfile, int]:
    """The GPU's profile that a row means, and how many compute slices."""
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
