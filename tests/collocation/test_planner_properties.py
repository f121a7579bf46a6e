"""What holds for every plan; and what is refused cannot be had: against a plain enumeration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, product

from hypothesis import given, settings
from hypothesis import strategies as st

from radt.collocation.packing import PlacementError
from radt.collocation.planner import DevicePlan, DeviceRequest, plan_devices
from radt.collocation.spec import Collocation
from radt.collocation.topology import GpuInstance, GpuInventory, InstanceProfile, Placement
from tests.support.cards import divided, machine, profiles_of
from tests.support.nvml import PROFILES

#: Starts of compute instances by slices of the GPU instance and of their own, as
#: `nvidia-smi mig -lcipp` prints them.
COMPUTE_STARTS = {
    (1, 1): [0],
    (2, 1): [0, 1], (2, 2): [0],
    (3, 1): [0, 1, 2], (3, 2): [0], (3, 3): [0],
    (4, 1): [0, 1, 2, 3], (4, 2): [0, 2], (4, 4): [0],
    (7, 1): [0, 1, 2, 3, 4, 5, 6], (7, 2): [0, 2, 4], (7, 3): [0, 4], (7, 4): [0], (7, 7): [0],
}  # fmt: skip

cards = st.sampled_from(sorted(PROFILES))


@st.composite
def wishes(draw: st.DrawFn, card: str) -> str:
    """A MIG profile of the card, perhaps a part of it, a name, MPS."""
    profile = draw(st.sampled_from(profiles_of(card)))
    text = profile.name
    parts = [own for whole, own in COMPUTE_STARTS if whole == profile.slices and own < whole]
    if parts and draw(st.booleans()):
        text = f"{draw(st.sampled_from(parts))}c.{text}"
    text += draw(st.sampled_from(["", "", "", "#1", "#2"]))
    return text + draw(st.sampled_from(["", "", "+MPS", "+MPS:50"]))


@st.composite
def situations(draw: st.DrawFn, most: int = 4) -> tuple[GpuInventory, list[DeviceRequest]]:
    """A GPU, perhaps with other people's busy instances, and rows that want parts of it."""
    card = draw(cards)
    taken: list[GpuInstance] = []
    if draw(st.booleans()):
        for number in range(draw(st.integers(1, 3))):
            profile = draw(st.sampled_from(profiles_of(card)))
            place = draw(st.sampled_from(profile.placements))
            if possible([profile], taken, profiles_of(card), [place]):
                taken.append(GpuInstance(number + 1, profile.name, place))
    count = draw(st.integers(1, most))
    rows = [
        DeviceRequest(f"r{index}", (0,), Collocation.parse(draw(wishes(card))))
        for index in range(count)
    ]
    return divided(0, card, *taken), rows


def possible(
    wanted: Sequence[InstanceProfile],
    taken: Sequence[GpuInstance],
    profiles: Sequence[InstanceProfile],
    places: Sequence[Placement],
) -> bool:
    """Whether these instances at these places keep to all limits of the card."""
    named = {one.name: one for one in profiles}
    everything = [*wanted, *(named[one.profile] for one in taken)]
    occupied = [*places, *(one.placement for one in taken if one.placement)]
    return (
        all(place in profile.placements for profile, place in zip(wanted, places, strict=True))
        and not any(one.overlaps(other) for one, other in combinations(occupied, 2))
        and sum(one.slices for one in everything) <= max(one.slices for one in profiles)
        and sum(one.ofas for one in everything) <= 1
        and all(everything.count(one) <= one.max_count for one in everything)
    )


def slots(rows: Sequence[DeviceRequest]) -> list[tuple[str, int | None]]:
    """Profile and slices (None: all) of each compute instance that the rows ask for."""
    found = set()
    for row in rows:
        wish = row.collocation
        assert wish.mig is not None
        share = wish.instance or ("MPS" if wish.mps else f"of {row.key} alone")
        named = bool(wish.instance)
        found.add((wish.mig.gpu_instance, wish.mig.compute_slices, named, share))
    return [(profile, slices) for profile, slices, _, _ in sorted(found, key=str)]


def groupings(items: Sequence[int]) -> Iterator[list[list[int]]]:
    """All ways to put things into groups."""
    if not items:
        yield []
        return
    for rest in groupings(items[1:]):
        yield [[items[0]], *rest]
        for index in range(len(rest)):
            yield [*rest[:index], [items[0], *rest[index]], *rest[index + 1 :]]


def shares_an_instance(sizes: Sequence[int], whole: int) -> bool:
    """Whether compute instances of these sizes fit into one GPU instance."""
    choices = [COMPUTE_STARTS[whole, size] for size in sizes]
    return any(
        not any(
            a < b + size_b and b < a + size_a
            for (a, size_a), (b, size_b) in combinations(zip(starts, sizes, strict=True), 2)
        )
        for starts in product(*choices)
    )


def can_be_had(gpu: GpuInventory, rows: Sequence[DeviceRequest]) -> bool:
    """Try everything."""
    assert gpu.mig is not None
    named = {one.name: one for one in gpu.mig.profiles}
    wanted = slots(rows)
    for grouping in groupings(range(len(wanted))):
        profiles = []
        for group in grouping:
            names = {wanted[index][0] for index in group}
            sizes = [wanted[index][1] for index in group]
            if len(names) > 1 or (None in sizes and len(group) > 1):
                break
            profile = named[names.pop()]
            parts = [size for size in sizes if size is not None]
            if parts and not shares_an_instance(parts, profile.slices):
                break
            profiles.append(profile)
        else:
            for places in product(*(one.placements for one in profiles)):
                if possible(profiles, gpu.mig.instances, gpu.mig.profiles, places):
                    return True
    return False


def planned(gpu: GpuInventory, rows: Sequence[DeviceRequest]) -> DevicePlan | None:
    try:
        return plan_devices(rows, machine(gpu))
    except PlacementError as error:
        assert set(error.keys) <= {row.key for row in rows}
        assert error.keys and error.remedy
        return None


@given(situations())
@settings(max_examples=250, deadline=None)
def test_a_plan_is_found_exactly_where_there_is_one(
    situation: tuple[GpuInventory, list[DeviceRequest]],
) -> None:
    gpu, rows = situation
    assert (planned(gpu, rows) is not None) == can_be_had(gpu, rows)


@given(situations(most=8))
@settings(max_examples=250, deadline=None)
def test_a_plan_keeps_to_what_the_driver_reports(
    situation: tuple[GpuInventory, list[DeviceRequest]],
) -> None:
    gpu, rows = situation
    plan = planned(gpu, rows)
    if plan is None:
        return
    assert gpu.mig is not None
    assert set(plan.shares) == {row.key for row in rows}
    places = [one.placement for one in plan.instances if one.placement is not None]
    assert len(places) == len(plan.instances)
    assert possible(
        [one.profile for one in plan.instances], gpu.mig.instances, gpu.mig.profiles, places
    )
    for instance in plan.instances:
        for compute in instance.computes:
            assert compute.placement is not None
            starts = COMPUTE_STARTS[instance.profile.slices, compute.slices]
            assert compute.placement.start in starts
            assert compute.placement.size == compute.slices
        inside = [one.placement for one in instance.computes if one.placement]
        assert not any(one.overlaps(other) for one, other in combinations(inside, 2))
    for row in rows:
        share = plan.shares[row.key]
        instance, compute = share.instance, share.compute
        assert instance is not None and compute is not None
        assert row.key in compute.keys
        assert row.collocation.mig is not None
        assert compute.profile == str(row.collocation.mig)
        assert (share.mps is not None) == (row.collocation.mps is not None)
    # Rows are together exactly where they asked for it.
    for one, other in combinations(rows, 2):
        together = plan.shares[one.key].compute == plan.shares[other.key].compute
        a, b = one.collocation, other.collocation
        named = bool(a.instance) and a.instance == b.instance
        mps = not a.instance and not b.instance and a.mps is not None and b.mps is not None
        assert together == (a.mig == b.mig and (named or mps))


@given(situations(most=6), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_a_plan_does_not_depend_on_the_order_of_the_rows(
    situation: tuple[GpuInventory, list[DeviceRequest]], random
) -> None:
    gpu, rows = situation
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert planned(gpu, rows) == planned(gpu, shuffled)


@given(situations(most=6))
@settings(max_examples=100, deadline=None)
def test_instances_can_be_created_in_the_order_of_the_plan(
    situation: tuple[GpuInventory, list[DeviceRequest]],
) -> None:
    """Each is possible beside those before it."""
    gpu, rows = situation
    plan = planned(gpu, rows)
    if plan is None:
        return
    assert gpu.mig is not None
    there = list(gpu.mig.instances)
    for instance in plan.instances:
        assert instance.placement is not None
        assert possible([instance.profile], there, gpu.mig.profiles, [instance.placement])
        there.append(GpuInstance(99, instance.profile.name, instance.placement))
