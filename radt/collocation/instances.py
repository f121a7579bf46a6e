"""Works out which MIG instances of one GPU its rows get: existing ones first, then new ones.

Where they cannot be had, the error names the nearest that can, or what an administrator runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from radt.collocation.packing import (
    Card,
    PlacementError,
    Slot,
    gpu_instances_for,
    joined,
    listing,
    nearest,
    pack,
    pack_computes,
    slot_names,
)
from radt.collocation.topology import (
    GpuInstance,
    GpuInventory,
    InstanceProfile,
    MigState,
    Placement,
)


@dataclass(frozen=True, slots=True)
class PlannedCompute:
    """A compute instance, and so a MIG device, for the rows ``keys``.

    ``name`` is unique in the plan. ``profile`` is what people call it (``3c.7g.40gb``).
    ``placement`` is its place in the GPU instance, in compute slices. ``existing_id`` and ``uuid``
    are set where it is there already.
    """

    name: str
    profile: str
    slices: int
    keys: tuple[str, ...]
    placement: Placement | None = None
    existing_id: int | None = None
    uuid: str | None = None
    sm_count: int | None = None


@dataclass(frozen=True, slots=True)
class PlannedInstance:
    """A GPU instance to create, or to use where ``existing_id`` is set, with what it holds.

    ``placement`` is its place on the GPU, in memory slices; None only for an existing instance
    whose place may not be read.
    """

    gpu: int
    gpu_uuid: str
    profile: InstanceProfile
    placement: Placement | None
    computes: tuple[PlannedCompute, ...]
    existing_id: int | None = None


def plan_instances(gpu: GpuInventory, slots: Sequence[Slot]) -> list[PlannedInstance]:
    """GPU instances that hold all these compute instances: idle existing ones, then new ones.

    New ones stand in the order to create them in, the large ones first.

    Raises:
        PlacementError: They do not fit, or must be created and this user may not.
    """
    assert gpu.mig is not None
    try:
        return _plan(gpu, gpu.mig, slots)
    except PlacementError as error:
        error.may_pass = _fits_later(gpu, gpu.mig, slots)
        raise


def _plan(gpu: GpuInventory, mig: MigState, slots: Sequence[Slot]) -> list[PlannedInstance]:
    used, missing = _reuse(gpu, mig, slots)
    new = _create(gpu, mig, missing) if missing else []
    return [*used, *new]


def _fits_later(gpu: GpuInventory, mig: MigState, slots: Sequence[Slot]) -> bool:
    """Whether there is room once those who use instances have left, with or without them."""
    waited_for = [one for one in mig.instances if one.is_busy or one.claimed]
    left = tuple(one for one in mig.instances if one not in waited_for)
    stay = tuple(_vacated(one) for one in waited_for if not one.claimed)
    if not waited_for:
        return False
    for instances in (left, left + stay):
        try:
            _plan(gpu, replace(mig, instances=instances), slots)
        except PlacementError:
            continue
        return True
    return False


def _vacated(instance: GpuInstance) -> GpuInstance:
    computes = tuple(replace(compute, pids=()) for compute in instance.computes)
    return replace(instance, computes=computes)


def _reuse(
    gpu: GpuInventory, mig: MigState, slots: Sequence[Slot]
) -> tuple[list[PlannedInstance], list[Slot]]:
    """Give slots what exists and is idle; return that, and the slots that got nothing."""
    missing = list(slots)
    used = []
    for instance in mig.instances:
        profile = mig.profile(instance.profile)
        if profile is None or instance.is_busy or instance.claimed:
            continue
        computes = []
        for there in instance.computes:
            slot = next(
                (one for one in missing if one.profile == profile and one.slices == there.slices),
                None,
            )
            if slot is not None:
                missing.remove(slot)
                computes.append(
                    PlannedCompute(
                        f"gpu{gpu.index}-gi{instance.instance_id}-ci{there.instance_id}",
                        slot.name,
                        slot.slices,
                        slot.keys,
                        existing_id=there.instance_id,
                        uuid=there.uuid,
                        sm_count=there.sm_count,
                    )
                )
        if computes:
            used.append(
                PlannedInstance(
                    gpu.index,
                    gpu.uuid,
                    profile,
                    instance.placement,
                    tuple(computes),
                    instance.instance_id,
                )
            )
    return used, missing


def _create(gpu: GpuInventory, mig: MigState, slots: Sequence[Slot]) -> list[PlannedInstance]:
    contents = gpu_instances_for(slots)
    wanted = [content[0].profile for content in contents]
    unplaced = next((one.name for one in wanted if not one.placements), None)
    if unplaced is not None and mig.may_create:
        raise no_places(gpu, slots, unplaced)
    places = pack(wanted, Card.of(mig))
    if places is None and unplaced is None:
        raise does_not_fit(gpu, mig, slots)
    if not mig.may_create:
        # The places of what exists are hidden as well, so that none can be promised then.
        raise not_permitted(gpu, slots, places if not mig.instances else None)
    assert places is not None
    planned = [
        _new_instance(gpu, content, place) for content, place in zip(contents, places, strict=True)
    ]
    return sorted(planned, key=lambda one: (-one.profile.slices, _start(one)))


def _new_instance(gpu: GpuInventory, content: Sequence[Slot], place: Placement) -> PlannedInstance:
    profile = content[0].profile
    places = pack_computes([slot.slices for slot in content], profile.slices)
    assert places is not None, "distribute() keeps to what fits"
    ordered = sorted(zip(content, places, strict=True), key=lambda pair: pair[1].start)
    return PlannedInstance(
        gpu.index,
        gpu.uuid,
        profile,
        place,
        tuple(
            PlannedCompute(
                f"gpu{gpu.index}-{profile.name}-{place}-{where.start}",
                slot.name,
                slot.slices,
                slot.keys,
                where,
            )
            for slot, where in ordered
        ),
    )


def _start(instance: PlannedInstance) -> int:
    return instance.placement.start if instance.placement is not None else -1


def does_not_fit(gpu: GpuInventory, mig: MigState, slots: Sequence[Slot]) -> PlacementError:
    """The GPU has no room for these compute instances together."""
    card = Card.of(mig)
    beside = ""
    if mig.instances:
        there = [f"{one.profile} ({_state(one)})" for one in mig.instances]
        beside = f" beside {', '.join(there)}"
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
        f"Create it yourself, radt uses existing instances: {create_commands(gpu, slots, None)}",
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
                f"sudo nvidia-smi mig -i {gpu.index} -gi ID -cci {parts} with the ID it prints"
            )
    return "; ".join(commands)


def _alternatives(gpu: GpuInventory, mig: MigState, card: Card, slots: Sequence[Slot]) -> list[str]:
    """What would be possible instead, the nearest first."""
    found = []
    idle = [one for one in mig.instances if not one.is_busy and not one.claimed]
    if idle:
        rest = tuple(one for one in mig.instances if one not in idle)
        if _fits(slots, Card.of(replace(mig, instances=rest))):
            found.append(f"It fits without the idle instances: {_destroy_commands(gpu, idle)}")
    if any(one.claimed and not one.is_busy for one in mig.instances):
        found.append("`radt doctor` lists instances that radt created")
    if part := _largest_part(slots, card):
        found.append(f"{slot_names(part)} {'fits' if len(part) == 1 else 'fit'}")
    if all(slot.is_whole for slot in slots):
        smaller = nearest([slot.profile for slot in slots], card)
        if smaller is not None:
            found.append(f"{listing(smaller)} would" + ("" if part else " fit"))
    if not found:
        found.append("Choose another GPU; this one is full")
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
        return "created by radt"
    return "idle" if instance.computes else "without compute instance"


def _destroy_commands(gpu: GpuInventory, instances: Sequence[GpuInstance]) -> str:
    furnished = ",".join(str(one.instance_id) for one in instances if one.computes)
    everything = ",".join(str(one.instance_id) for one in instances)
    command = f"sudo nvidia-smi mig -i {gpu.index}"
    commands = [f"{command} -gi {furnished} -dci"] if furnished else []
    return " && ".join([*commands, f"{command} -gi {everything} -dgi"])
