"""The partition for offloading is the one that trying all cuts finds."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radt.training.offloading.partition import (
    Memory,
    OffloadBlock,
    Partitioner,
    coarsened,
    expected_s,
)

_times = st.integers(0, 20).map(lambda ms: ms / 1000)


@st.composite
def _block(draw: st.DrawFn) -> OffloadBlock:
    parameters = draw(st.integers(0, 20))
    states = draw(st.integers(0, 2)) * parameters
    return OffloadBlock(
        "",
        forward_s=draw(_times),
        backward_s=draw(_times),
        parameter_bytes=parameters,
        output_bytes=draw(st.integers(0, 9)),
        load_s=draw(_times),
        update_s=draw(_times),
        update_compute_s=0.0,
        gradient_bytes=parameters,
        largest_gradient_bytes=parameters // 2,
        update_bytes=2 * parameters + states,
        kept_bytes=draw(st.integers(0, 9)),
    )


def _all_cuts(count: int) -> list[list[int]]:
    return [list(cuts) for size in range(count) for cuts in combinations(range(1, count), size)]


@given(
    st.lists(_block(), min_size=1, max_size=12),
    st.integers(1, 4),
    st.booleans(),
    st.integers(0, 30),
    st.floats(0, 1),
)
def test_no_cuts_are_better(
    blocks: list[OffloadBlock], count: int, recompute: bool, fixed_bytes: int, share: float
) -> None:
    everything = Partitioner(blocks, Memory(1 << 40, fixed_bytes, count, recompute))
    cuts_of_all = _all_cuts(len(blocks))
    needs = [everything.peak_bytes(cuts) for cuts in cuts_of_all]
    smallest = min(needs)
    assert everything.smallest_budget() == smallest

    budget_bytes = smallest + int(share * (max(needs) - smallest))
    partitioner = Partitioner(blocks, Memory(budget_bytes, fixed_bytes, count, recompute))
    found = partitioner.best()
    assert found is not None
    assert partitioner.peak_bytes(found) <= budget_bytes
    fitting = [cuts for cuts, need in zip(cuts_of_all, needs, strict=True) if need <= budget_bytes]
    assert partitioner.cost(found) == min(map(partitioner.cost, fitting))

    too_little = Memory(smallest - 1, fixed_bytes, count, recompute)
    assert Partitioner(blocks, too_little).best() is None


def _equal_blocks(count: int, load_s: float) -> list[OffloadBlock]:
    block = OffloadBlock("block", 0.01, 0.02, 100, 1, load_s, load_s, 0.0, 100, 100, 200, 1)
    return [block] * count


def test_loads_hide_behind_enough_micro_batches() -> None:
    blocks = _equal_blocks(8, load_s=0.03)
    visible = []
    for count in (1, 2, 3):
        memory = Memory(1000, 0, count, recompute=False)
        cuts = Partitioner(blocks, memory).best()
        assert cuts
        segments = [
            OffloadBlock.joined(blocks[begin:end]) for begin, end in pairwise([0, *cuts, 8])
        ]
        visible.append(expected_s(segments, memory) - count * 8 * 0.03)
    assert visible[0] > visible[1] > visible[2]
    # At C·compute >= load, what is left is the update of the first segment.
    assert visible[2] == pytest.approx(0.03)


def test_segments_are_as_large_as_fits() -> None:
    """Where loading is hidden anyway, fewer cuts hand over less."""
    blocks = _equal_blocks(8, load_s=0.001)
    few = Partitioner(blocks, Memory(1700, 0, 2, recompute=False)).best()
    many = Partitioner(blocks, Memory(700, 0, 2, recompute=False)).best()
    assert few is not None
    assert many is not None
    assert len(few) < len(many)


def test_many_small_blocks_are_joined_first() -> None:
    assert coarsened([5, 1, 1, 9, 1], 3) == [3, 4, 5]
    assert coarsened([1, 2], 64) == [1, 2]
