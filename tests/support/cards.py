"""GPUs as an inventory would show them, for tests without a driver."""

from __future__ import annotations

from collections.abc import Sequence

from radt.collocation.topology import (
    ComputeInstance,
    GpuInstance,
    GpuInventory,
    InstanceProfile,
    Inventory,
    MigState,
    Placement,
)
from tests.support.nvml import BYTES, NAMES, PROFILES, places_of


def profiles_of(card: str) -> tuple[InstanceProfile, ...]:
    """What the card offers, with places."""
    found = []
    for line in PROFILES[card]:
        _, number, slices, count, sms, memory_mb, ofas, name = line.split()
        starts, size = places_of(card)[number]
        places = tuple(Placement(start, size) for start in starts)
        found.append(
            InstanceProfile(
                int(number),
                name,
                int(slices),
                int(memory_mb),
                int(count),
                int(sms),
                places,
                int(ofas),
            )
        )
    return tuple(found)


def divided(
    index: int = 0,
    card: str = "A100-40",
    *instances: GpuInstance,
    enabled: bool = True,
    pending: bool | None = None,
    may_create: bool = True,
) -> GpuInventory:
    """A GPU in MIG mode, or one that could be."""
    return GpuInventory(
        index,
        NAMES[card],
        f"GPU-fake-{index}",
        BYTES[card],
        mig=MigState(
            enabled=enabled,
            pending=enabled if pending is None else pending,
            may_create=may_create,
            profiles=profiles_of(card),
            instances=instances,
        ),
    )


def plain(index: int = 0) -> GpuInventory:
    """A GPU without MIG."""
    return GpuInventory(index, "NVIDIA GeForce RTX 3090", f"GPU-fake-{index}")


def machine(*gpus: GpuInventory) -> Inventory:
    return Inventory(gpus, "570.00")


def existing(
    number: int,
    profile: str,
    start: int | None,
    *slices: int,
    card: str = "A100-40",
    pids: Sequence[int] = (),
    claimed: bool = False,
) -> GpuInstance:
    """A GPU instance with compute instances of so many slices; its place is hidden if None."""
    offered = next(one for one in profiles_of(card) if one.name == profile)
    place = None if start is None else Placement(start, offered.placements[0].size)
    computes = tuple(
        ComputeInstance(position, size, f"MIG-{number}-{position}", pids=tuple(pids))
        for position, size in enumerate(slices)
    )
    return GpuInstance(number, profile, place, computes, claimed)
