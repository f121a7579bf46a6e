"""Works out which MIG instances of one GPU its rows get: existing ones first, then new ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from radt.collocation.packing import (
    Card,
    distribute,
    largest_part,
    listing,
    nearest,
    pack,
    pack_computes,
)
from radt.collocation.profiles import Placement, compute_placements
from radt.collocation.spec import Collocation, MigProfile
from radt.collocation.topology import GpuInstance, GpuInventory, InstanceProfile, MigState
from radt.errors import DeviceError


class PlacementError(DeviceError):
    """The workload cannot be placed; ``keys`` are the rows concerned."""

    def __init__(self, message: str, remedy: str | None = None, keys: Sequence[str] = ()) -> None:
        super().__init__(message, remedy)
        self.keys = tuple(keys)


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


def plan_instances(gpu: GpuInventory, slots: Sequence[Slot]) -> list[PlannedInstance]:
    """GPU instances that hold all these compute instances: idle existing ones, then new ones.

    New ones stand in the order to create them in, the large ones first.

    Raises:
        PlacementError: They do not fit, or must be created and this user may not.
    """
    assert gpu.mig is not None
    used, missing = _reuse(gpu, gpu.mig, slots)
    new = _create(gpu, gpu.mig, missing) if missing else []
    return [*used, *new]


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
    contents = _contents(slots)
    wanted = [content[0].profile for content in contents]
    card = Card.of(mig)
    keys = [key for slot in slots for key in slot.keys]
    unplaced = [one.name for one in wanted if not one.placements]
    if unplaced and mig.may_create:
        raise PlacementError(
            f"the driver does not say where on GPU {gpu.index} a {unplaced[0]} instance may lie",
            f"Create it yourself, radt uses what is there: {_commands(gpu, contents, None)}",
            keys,
        )
    places = pack(wanted, card)
    if places is None and not unplaced:
        raise _does_not_fit(gpu, mig, card, wanted, keys)
    if not mig.may_create:
        # The places of what exists are hidden as well, so that none can be promised here.
        raise PlacementError(
            f"GPU {gpu.index} has no idle MIG instance for {joined(keys)}, and creating "
            f"{listing(wanted)} needs an administrator",
            f"Run {_commands(gpu, contents, places if not mig.instances else None)}",
            keys,
        )
    assert places is not None
    planned = [
        _new_instance(gpu, content, place) for content, place in zip(contents, places, strict=True)
    ]
    return sorted(planned, key=lambda one: (-one.profile.slices, _start(one)))


def _contents(slots: Sequence[Slot]) -> list[list[Slot]]:
    """What each new GPU instance holds: a whole compute instance, or several that share it."""
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


def _does_not_fit(
    gpu: GpuInventory,
    mig: MigState,
    card: Card,
    wanted: Sequence[InstanceProfile],
    keys: Sequence[str],
) -> PlacementError:
    beside = ""
    if mig.instances:
        there = [f"{one.profile} ({_why(one)})" for one in mig.instances]
        beside = f" beside what is there: {', '.join(there)}"
    part, smaller = largest_part(wanted, card), nearest(wanted, card)
    possible = []
    if part:
        possible.append(f"{listing(part)} {'fits' if len(part) == 1 else 'fit'}")
    if smaller is not None:
        possible.append(f"{listing(smaller)} would" if part else f"{listing(smaller)} would fit")
    if not possible and mig.instances:
        possible.append("Nothing more fits before instances are destroyed (nvidia-smi mig -lgi)")
    return PlacementError(
        f"GPU {gpu.index} ({gpu.name}) cannot hold {listing(wanted)}{beside}",
        "; ".join(possible) or None,
        keys,
    )


def _why(instance: GpuInstance) -> str:
    """Why an existing instance is in the way."""
    if instance.is_busy:
        return "in use"
    if instance.claimed:
        return "made by a radt"
    return "idle" if instance.computes else "without compute instance"


def _commands(
    gpu: GpuInventory, contents: Sequence[Sequence[Slot]], places: Sequence[Placement] | None
) -> str:
    """What an administrator runs to create these instances."""
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


def _start(instance: PlannedInstance) -> int:
    return instance.placement.start if instance.placement is not None else -1
