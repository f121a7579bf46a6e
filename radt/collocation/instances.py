"""Plans which MIG instances of a GPU its rows get: existing ones first, then new ones.

If they do not fit, the error names alternatives, or the administrator's commands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product

from radt.collocation import permissions
from radt.collocation.packing import (
    ComputeSlot,
    PlacementError,
    gpu_instances_for,
    pack,
    pack_computes,
    slot_names,
    slot_order,
)
from radt.collocation.topology import (
    GpuInstance,
    GpuInventory,
    InstanceProfile,
    MigState,
    Placement,
)
from radt.units import joined


@dataclass(frozen=True, slots=True)
class PlannedCompute:
    """A compute instance, and thus a MIG device, for the rows ``keys``.

    ``name`` is unique in the plan. ``profile`` is its usual name (``3c.7g.40gb``). ``placement`` is
    its position in the GPU instance, in compute slices. ``existing_id`` and ``uuid`` are set if it
    already exists.
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
    """A GPU instance to create, or to reuse if ``existing_id`` is set, with its content.

    ``placement`` is its position on the GPU, in memory slices; None only for an existing instance
    whose position is not readable.
    """

    gpu: int
    gpu_uuid: str
    profile: InstanceProfile
    placement: Placement | None
    computes: tuple[PlannedCompute, ...]
    existing_id: int | None = None


def plan_instances(gpu: GpuInventory, slots: Sequence[ComputeSlot]) -> list[PlannedInstance]:
    """Return GPU instances that hold all these compute instances: idle ones, then new ones.

    New ones are in order of creation, largest first.

    Raises:
        PlacementError: They do not fit, or this user may not create the missing ones.
    """
    assert gpu.mig is not None
    try:
        return _plan(gpu, gpu.mig, slots)
    except PlacementError as error:
        error.may_pass = _fits_later(gpu, gpu.mig, slots)
        raise


def _plan(gpu: GpuInventory, mig: MigState, slots: Sequence[ComputeSlot]) -> list[PlannedInstance]:
    used, missing = _reuse(gpu, mig, slots)
    new = _create(gpu, mig, missing) if missing else []
    return [*used, *new]


def _fits_later(gpu: GpuInventory, mig: MigState, slots: Sequence[ComputeSlot]) -> bool:
    """Return whether the slots fit once busy instances are idle or gone."""
    busy = [instance for instance in mig.instances if instance.is_busy or instance.claimed]
    idle = tuple(instance for instance in mig.instances if instance not in busy)
    vacated = tuple(_vacated(instance) for instance in busy if not instance.claimed)
    if not busy:
        return False
    for instances in (idle, idle + vacated):
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
    gpu: GpuInventory, mig: MigState, slots: Sequence[ComputeSlot]
) -> tuple[list[PlannedInstance], list[ComputeSlot]]:
    """Assign idle instances to slots; return them and the remaining slots."""
    missing = list(slots)
    used = []
    for instance in mig.instances:
        profile = mig.profile(instance.profile)
        if profile is None or instance.is_busy or instance.claimed:
            continue
        computes = []
        for compute in instance.computes:
            wanted = profile, compute.slices
            slot = next((slot for slot in missing if (slot.profile, slot.slices) == wanted), None)
            if slot is not None:
                missing.remove(slot)
                name = f"gpu{gpu.index}-gi{instance.instance_id}-ci{compute.instance_id}"
                computes.append(
                    PlannedCompute(
                        *(name, slot.name, slot.slices, slot.keys),
                        existing_id=compute.instance_id,
                        uuid=compute.uuid,
                        sm_count=compute.sm_count,
                    )
                )
        if computes:
            used.append(
                PlannedInstance(
                    *(gpu.index, gpu.uuid, profile, instance.placement),
                    computes=tuple(computes),
                    existing_id=instance.instance_id,
                )
            )
    return used, missing


def _create(
    gpu: GpuInventory, mig: MigState, slots: Sequence[ComputeSlot]
) -> list[PlannedInstance]:
    contents = gpu_instances_for(slots)
    wanted = [content[0].profile for content in contents]
    keys = [key for slot in slots for key in slot.keys]
    unplaced = next((profile.name for profile in wanted if not profile.placements), None)
    if unplaced is not None and mig.may_create:
        raise PlacementError(
            f"the driver does not report the placements of {unplaced} on GPU {gpu.index}",
            "Create it yourself; radt uses existing instances: "
            + _create_commands(gpu, contents, None),
            keys,
        )
    places = pack(wanted, mig)
    if places is None and unplaced is None:
        beside = ""
        if mig.instances:
            existing = [f"{instance.profile} ({_state(instance)})" for instance in mig.instances]
            beside = f" beside {', '.join(existing)}"
        raise PlacementError(
            f"GPU {gpu.index} ({gpu.name}) cannot hold {slot_names(slots)}{beside}",
            "; ".join(_alternatives(gpu, mig, slots)),
            keys,
        )
    if not mig.may_create:
        # The positions of existing instances are hidden, too, so new ones cannot be planned.
        commands = _create_commands(gpu, contents, places if not mig.instances else None)
        raise PlacementError(
            f"GPU {gpu.index} has no idle MIG instance for {joined(keys)}, and creating "
            f"{slot_names(slots)} needs {permissions.needed()}",
            permissions.remedy(commands),
            keys,
        )
    assert places is not None
    by_size = sorted(
        zip(contents, places, strict=True),
        key=lambda pair: (-pair[0][0].profile.slices, pair[1].start),
    )
    return [_new_instance(gpu, content, place) for content, place in by_size]


def _new_instance(
    gpu: GpuInventory, content: Sequence[ComputeSlot], place: Placement
) -> PlannedInstance:
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


def _create_commands(
    gpu: GpuInventory, contents: Sequence[Sequence[ComputeSlot]], places: Sequence[Placement] | None
) -> str:
    """Return an administrator's commands to create GPU instances with these contents.

    `places` are their positions; None to let the driver choose.
    """
    starts = [place.start for place in places] if places else [None] * len(contents)
    # For a single one, the driver chooses the position.
    named = [
        (content, content[0].profile.name + (f":{start}" if places and len(contents) > 1 else ""))
        for content, start in sorted(
            zip(contents, starts, strict=True),
            key=lambda pair: (-pair[0][0].profile.slices, pair[1] or 0, pair[0][0].profile.name),
        )
    ]
    command = f"sudo nvidia-smi mig -i {gpu.index}"
    whole = ",".join(name for content, name in named if content[0].is_whole)
    commands = [f"{command} -cgi {whole} -C"] if whole else []
    for content, name in named:
        if not content[0].is_whole:
            parts = ",".join(slot.name for slot in content)
            commands.append(
                f"{command} -cgi {name}, then {command} -gi ID -cci {parts} with the ID it prints"
            )
    return "; ".join(commands)


def _alternatives(gpu: GpuInventory, mig: MigState, slots: Sequence[ComputeSlot]) -> list[str]:
    remedies = []
    idle = [instance for instance in mig.instances if not instance.is_busy and not instance.claimed]
    if idle:
        rest = tuple(instance for instance in mig.instances if instance not in idle)
        if _fits(slots, replace(mig, instances=rest)):
            remedies.append(f"It fits without the idle instances: {_destroy_commands(gpu, idle)}")
    if any(instance.claimed and not instance.is_busy for instance in mig.instances):
        remedies.append("`radt doctor` lists instances that radt created")
    if part := _largest_part(slots, mig):
        remedies.append(f"{slot_names(part)} {'fits' if len(part) == 1 else 'fit'}")
    return remedies or ["Choose another GPU; this one is full"]


def _fits(slots: Sequence[ComputeSlot], mig: MigState) -> bool:
    return pack([content[0].profile for content in gpu_instances_for(slots)], mig) is not None


def _largest_part(slots: Sequence[ComputeSlot], mig: MigState) -> list[ComputeSlot]:
    """Return the largest subset of the slots that fits, preferring large ones."""
    kinds = [list(same) for _, same in groupby(sorted(slots, key=slot_order), key=slot_order)]
    # No GPU has more compute instances than slices.
    numbers = product(*(range(min(len(same), mig.slices) + 1) for same in kinds))
    parts = [
        [slot for same, number in zip(kinds, each, strict=True) for slot in same[:number]]
        for each in numbers
        if 0 < sum(each) <= mig.slices
    ]

    def size(part: Sequence[ComputeSlot]) -> tuple[int, int, int]:
        memory_mb = sum(slot.profile.memory_mb for slot in part)
        return len(part), sum(slot.slices for slot in part), memory_mb

    return next((part for part in sorted(parts, key=size, reverse=True) if _fits(part, mig)), [])


def _state(instance: GpuInstance) -> str:
    """Return why an existing instance is in the way."""
    if instance.is_busy:
        return "in use"
    if instance.claimed:
        return "created by radt"
    return "idle" if instance.computes else "without compute instance"


def _destroy_commands(gpu: GpuInventory, instances: Sequence[GpuInstance]) -> str:
    with_computes = ",".join(
        str(instance.instance_id) for instance in instances if instance.computes
    )
    all_ids = ",".join(str(instance.instance_id) for instance in instances)
    command = f"sudo nvidia-smi mig -i {gpu.index}"
    commands = [f"{command} -gi {with_computes} -dci"] if with_computes else []
    return " && ".join([*commands, f"{command} -gi {all_ids} -dgi"])
