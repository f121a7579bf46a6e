"""Works out which MIG instances of one GPU its rows get: existing ones first, then new ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from radt.collocation.packing import Card, pack, pack_computes
from radt.collocation.profiles import Placement
from radt.collocation.refusals import does_not_fit, no_places, not_permitted
from radt.collocation.slots import PlacementError, Slot, gpu_instances_for
from radt.collocation.topology import GpuInstance, GpuInventory, InstanceProfile, MigState


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
