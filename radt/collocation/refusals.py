"""Why MIG instances cannot be had, the nearest that can, and what an administrator would run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from radt.collocation.packing import Card, listing, nearest, pack
from radt.collocation.profiles import Placement
from radt.collocation.slots import PlacementError, Slot, gpu_instances_for, joined, slot_names
from radt.collocation.topology import GpuInstance, GpuInventory, MigState


def does_not_fit(gpu: GpuInventory, mig: MigState, slots: Sequence[Slot]) -> PlacementError:
    """The GPU has no room for these compute instances together."""
    card = Card.of(mig)
    beside = ""
    if mig.instances:
        there = [f"{one.profile} ({_state(one)})" for one in mig.instances]
        beside = f" beside what is there: {', '.join(there)}"
    return PlacementError(
        f"GPU {gpu.index} ({gpu.name}) cannot hold {slot_names(slots)}{beside}",
        "; ".join(_alternatives(gpu, mig, card, slots)) or None,
        [key for slot in slots for key in slot.keys],
    )


def not_permitted(
    gpu: GpuInventory, slots: Sequence[Slot], places: Sequence[Placement] | None
) -> PlacementError:
    """What is needed is not there, and this user may not create it.

    Args:
        places: Where the GPU instances of these slots fit, None if that cannot be known.
    """
    keys = [key for slot in slots for key in slot.keys]
    return PlacementError(
        f"GPU {gpu.index} has no idle MIG instance for {joined(keys)}, and creating "
        f"{slot_names(slots)} needs an administrator",
        f"Run {create_commands(gpu, slots, places)}",
        keys,
    )


def no_places(gpu: GpuInventory, slots: Sequence[Slot], profile: str) -> PlacementError:
    """Nobody says where instances of this profile may lie."""
    return PlacementError(
        f"the driver does not say where on GPU {gpu.index} a {profile} instance may lie",
        f"Create it, radt uses what is there: {create_commands(gpu, slots, None)}",
        [key for slot in slots for key in slot.keys],
    )


def create_commands(
    gpu: GpuInventory, slots: Sequence[Slot], places: Sequence[Placement] | None
) -> str:
    """What an administrator runs to create these instances.

    Args:
        places: Where the GPU instances of these slots fit, None to let the driver choose.
    """
    contents = gpu_instances_for(slots)
    order = sorted(
        range(len(contents)),
        key=lambda index: (
            -contents[index][0].profile.slices,
            places[index].start if places is not None else 0,
            contents[index][0].profile.name,
        ),
    )

    def named(index: int) -> str:
        profile = contents[index][0].profile.name
        # One alone goes where the driver likes best.
        return f"{profile}:{places[index].start}" if places and len(contents) > 1 else profile

    whole = [named(index) for index in order if contents[index][0].is_whole]
    commands = []
    if whole:
        commands.append(f"sudo nvidia-smi mig -i {gpu.index} -cgi {','.join(whole)} -C")
    for index in order:
        if not contents[index][0].is_whole:
            parts = ",".join(slot.name for slot in contents[index])
            commands.append(
                f"sudo nvidia-smi mig -i {gpu.index} -cgi {named(index)}, then "
                f"sudo nvidia-smi mig -i {gpu.index} -gi ID -cci {parts} with the ID that it says"
            )
    return "; ".join(commands)


def _alternatives(gpu: GpuInventory, mig: MigState, card: Card, slots: Sequence[Slot]) -> list[str]:
    """What would be possible instead, the nearest first."""
    found = []
    idle = [one for one in mig.instances if not one.is_busy and not one.claimed]
    if idle:
        rest = tuple(one for one in mig.instances if one not in idle)
        if _fits(slots, Card.of(replace(mig, instances=rest))):
            found.append(f"Without the idle ones it fits: {_destroy_commands(gpu, idle)}")
    if any(one.claimed and not one.is_busy for one in mig.instances):
        found.append("`radt doctor` shows what radt has made")
    if part := _largest_part(slots, card):
        found.append(f"{slot_names(part)} {'fits' if len(part) == 1 else 'fit'}")
    if all(slot.is_whole for slot in slots):
        smaller = nearest([slot.profile for slot in slots], card)
        if smaller is not None:
            found.append(f"{listing(smaller)} would" + ("" if part else " fit"))
    if not found:
        found.append("Choose another GPU: on this one there is no room left")
    return found


def _fits(slots: Sequence[Slot], card: Card) -> bool:
    return pack([content[0].profile for content in gpu_instances_for(slots)], card) is not None


def _largest_part(slots: Sequence[Slot], card: Card) -> list[Slot]:
    """As many of the slots as fit together, and of those the largest."""
    kinds: dict[str, list[Slot]] = {}
    for slot in sorted(slots, key=lambda one: (-one.profile.slices, -one.slices, one.name)):
        kinds.setdefault(slot.name, []).append(slot)
    best: list[Slot] = []
    best_value = (0, 0, 0)
    # No GPU has more compute instances than slices.
    ranges = [range(min(len(some), card.slices), -1, -1) for some in kinds.values()]
    for numbers in product(*ranges):
        if sum(numbers) > card.slices:
            continue
        part = [
            slot
            for some, number in zip(kinds.values(), numbers, strict=True)
            for slot in some[:number]
        ]
        value = (
            len(part),
            sum(slot.slices for slot in part),
            sum(slot.profile.memory_mb for slot in part),
        )
        if value > best_value and _fits(part, card):
            best, best_value = part, value
    return best


def _state(instance: GpuInstance) -> str:
    """Why an existing instance is in the way."""
    if instance.is_busy:
        return "in use"
    if instance.claimed:
        return "made by a radt"
    return "idle" if instance.computes else "without compute instance"


def _destroy_commands(gpu: GpuInventory, instances: Sequence[GpuInstance]) -> str:
    furnished = ",".join(str(one.instance_id) for one in instances if one.computes)
    everything = ",".join(str(one.instance_id) for one in instances)
    command = f"sudo nvidia-smi mig -i {gpu.index}"
    commands = [f"{command} -gi {furnished} -dci"] if furnished else []
    return " && ".join([*commands, f"{command} -gi {everything} -dgi"])
