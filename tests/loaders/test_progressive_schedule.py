"""Schedules of progressive resizing: which sample is trained at which size, in which batch."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from radt.errors import LoaderError
from radt.loaders.progressive.progress import Progress
from radt.loaders.progressive.schedule import (
    PlannedBatch,
    Schedule,
    Select,
    Strategy,
    batch_lengths,
    planned,
    upgraded,
)


@st.composite
def schedules(draw: DrawFn, strategy: Strategy | None = None, most_ranks: int = 4) -> Schedule:
    step, count = draw(st.integers(1, 40)), draw(st.integers(0, 6))
    min_size = draw(st.integers(1, 200))
    return Schedule(
        size=min_size + step * count,
        min_size=min_size,
        step=step,
        batch_size=draw(st.integers(1, 20)),
        upgrade_rate=draw(st.sampled_from([0.1, 0.25, 1 / 3, 0.5, 0.7, 1.0])),
        strategy=strategy or draw(st.sampled_from(Strategy)),
        seed=draw(st.integers(0, 5)),
        world_size=draw(st.integers(1, most_ranks)),
    )


@st.composite
def epochs(
    draw: DrawFn, strategy: Strategy | None = None
) -> tuple[Schedule, np.ndarray, list[PlannedBatch]]:
    """A schedule, any steps that samples may have, and the plan for them."""
    schedule = draw(schedules(strategy))
    samples = draw(st.integers(schedule.world_size, 300))
    highest = draw(st.integers(0, schedule.largest))
    steps = np.random.default_rng(draw(st.integers(0, 100))).integers(0, highest + 1, samples)
    steps = steps.astype(np.uint8)
    return schedule, steps, planned(schedule, steps, draw(st.integers(0, 3)))


def least(schedule: Schedule) -> int:
    return min(2, schedule.batch_size) * schedule.world_size


def sizes_of(plan: list[PlannedBatch]) -> dict[int, int]:
    """The size at which each sample is trained."""
    return {int(index): batch.size for batch in plan for index in batch.indices}


@given(epochs(Strategy.MIXED))
def test_a_mixed_epoch_has_each_sample_once_at_its_size(
    drawn: tuple[Schedule, np.ndarray, list[PlannedBatch]],
) -> None:
    schedule, steps, plan = drawn
    assert sorted(index for batch in plan for index in batch.indices) == list(range(len(steps)))
    counts, trained = Counter(steps.tolist()), sizes_of(plan)
    for index, step in enumerate(steps.tolist()):
        if counts[step] >= least(schedule):
            assert trained[index] == schedule.size_at(step)


@given(epochs(Strategy.MIXED))
def test_too_few_samples_of_a_size_are_trained_at_the_next_one(
    drawn: tuple[Schedule, np.ndarray, list[PlannedBatch]],
) -> None:
    schedule, steps, plan = drawn
    trained = sizes_of(plan)
    enough = [step for step, n in Counter(steps.tolist()).items() if n >= least(schedule)]
    for index, step in enumerate(steps.tolist()):
        if trained[index] < schedule.size_at(step):  # only where nothing larger takes it
            assert not any(other > step for other in enough)


def test_a_single_sample_of_a_size_goes_to_the_next_larger_one() -> None:
    schedule = Schedule(64, 32, 16, 8, 0.5)
    trained = sizes_of(planned(schedule, np.array([0, 0, 1, 2, 2], np.uint8), 0))
    assert trained == {0: 32, 1: 32, 2: 64, 3: 64, 4: 64}
    trained = sizes_of(planned(schedule, np.array([0, 0, 1, 1, 2], np.uint8), 0))
    assert trained == {0: 32, 1: 32, 2: 48, 3: 48, 4: 48}  # nothing is larger


@given(epochs(Strategy.EXHAUSTIVE))
def test_an_exhaustive_epoch_has_the_samples_of_the_smallest_size(
    drawn: tuple[Schedule, np.ndarray, list[PlannedBatch]],
) -> None:
    schedule, steps, plan = drawn
    visited = sorted(index for batch in plan for index in batch.indices)
    assert len({batch.size for batch in plan}) == 1
    smallest = np.flatnonzero(steps == steps.min()).tolist()
    assert set(smallest) <= set(visited)
    if len(smallest) >= least(schedule):
        assert visited == smallest
        assert plan[0].size == schedule.size_at(int(steps.min()))


@given(epochs())
def test_batches_have_no_more_pixels_than_one_at_full_size(
    drawn: tuple[Schedule, np.ndarray, list[PlannedBatch]],
) -> None:
    schedule, _, plan = drawn
    world = schedule.world_size
    limit = schedule.batch_size * schedule.size**2
    for batch in plan:
        most = limit * world
        if schedule.batch_at(batch.size) < 4:  # a rest may have joined it
            most += (least(schedule) - 1) * batch.size**2
        assert len(batch.indices) * batch.size**2 <= most


@given(epochs())
def test_no_rank_has_a_batch_of_one_sample(
    drawn: tuple[Schedule, np.ndarray, list[PlannedBatch]],
) -> None:
    schedule, _, plan = drawn
    world = schedule.world_size
    if sum(len(batch.indices) for batch in plan) < least(schedule):
        return  # fewer samples than that altogether
    for batch in plan:
        parts = [batch.part(rank, world) for rank in range(world)]
        assert np.concatenate(parts).tolist() == batch.indices.tolist()
        lengths = [len(part) for part in parts]
        assert min(lengths) >= min(2, schedule.batch_size)
        assert max(lengths) - min(lengths) <= 1


@given(epochs(Strategy.MIXED))
def test_all_batches_but_a_sizes_last_two_are_full(
    drawn: tuple[Schedule, np.ndarray, list[PlannedBatch]],
) -> None:
    schedule, _, plan = drawn
    for size in {batch.size for batch in plan}:
        lengths = [len(batch.indices) for batch in plan if batch.size == size]
        full = schedule.batch_at(size) * schedule.world_size
        assert all(length == full for length in lengths[:-2])
        assert sum(lengths[-2:]) > full or len(lengths) == 1


def test_sizes_alternate_within_a_mixed_epoch() -> None:
    schedule = Schedule(64, 32, 32, 8, 0.5)
    steps = np.repeat(np.array([0, 1], np.uint8), 512)
    sizes = [batch.size for batch in planned(schedule, steps, 0)]
    changes = sum(before != after for before, after in pairwise(sizes))
    assert changes >= len(sizes) // 8, "one size after another is not mixed"


@given(st.integers(0, 400), st.integers(1, 50), st.integers(1, 8))
def test_batch_lengths_use_all_samples(samples: int, most: int, smallest: int) -> None:
    lengths = batch_lengths(samples, most, smallest).tolist()
    assert sum(lengths) == samples
    if samples >= smallest and most >= 2 * smallest - 1:
        assert all(smallest <= length <= most for length in lengths)


@given(st.integers(1, 500), st.integers(0, 9))
def test_sizes_from_128_to_320_take_24_epochs_at_25_percent_and_12_at_50(
    samples: int, seed: int
) -> None:
    for rate, epochs_needed in ((0.25, 24), (0.5, 12)):
        schedule = Schedule(320, 128, 32, 64, rate, seed=seed)
        assert schedule.sizes == (128, 160, 192, 224, 256, 288, 320)
        progress = Progress(schedule, samples)
        assert progress.steps(epochs_needed - 1).min() < schedule.largest
        assert progress.steps(epochs_needed).min() == schedule.largest
        assert progress.steps(epochs_needed + 5).max() == schedule.largest


@given(schedules(), st.integers(1, 200), st.integers(0, 12))
def test_the_lowest_samples_move_up_one_step_at_a_time(
    schedule: Schedule, samples: int, epoch: int
) -> None:
    progress = Progress(schedule, samples)
    before = progress.steps(epoch).astype(int)
    after = progress.steps(epoch + 1).astype(int)
    moved = after > before
    assert set((after - before).tolist()) <= {0, 1}
    below = int(np.sum(before < schedule.largest))
    assert moved.sum() == min(below, schedule.upgrades(samples, epoch))
    if moved.any() and not moved.all():
        assert before[moved].max() <= before[~moved].min()
    assert after.max() - after.min() <= 1


@given(schedules(), st.integers(1, 100), st.lists(st.integers(0, 10), max_size=4))
def test_steps_and_plan_depend_on_the_epoch_alone(
    schedule: Schedule, samples: int, visited: list[int]
) -> None:
    wandering = Progress(schedule, samples)
    for epoch in [*visited, 3]:
        wandering.plan(epoch)
    direct = Progress(schedule, samples)
    assert wandering.steps(3).tolist() == direct.steps(3).tolist()
    plans = [
        [(batch.size, batch.indices.tolist()) for batch in one.plan(3)]
        for one in (wandering, direct)
    ]
    assert plans[0] == plans[1]


def test_another_seed_and_another_epoch_have_another_order() -> None:
    steps = np.zeros(100, np.uint8)
    first, second = (
        planned(Schedule(64, 32, 32, 8, 0.5, seed=seed), steps, epoch)[0].indices.tolist()
        for seed, epoch in ((0, 0), (0, 1))
    )
    other = planned(Schedule(64, 32, 32, 8, 0.5, seed=1), steps, 0)[0].indices.tolist()
    assert first != second
    assert first != other
    # Who moves up is not who is trained first.
    moved = upgraded(Schedule(64, 32, 32, 8, 0.5), steps, 0)
    assert set(np.flatnonzero(moved).tolist()) != set(first[:50])


@given(st.lists(st.floats(0, 9) | st.just(float("nan")), min_size=2, max_size=60), st.data())
def test_samples_with_the_smallest_loss_move_up_first(
    losses: list[float], data: st.DataObject
) -> None:
    rate = data.draw(st.sampled_from([0.25, 0.5]))
    schedule = Schedule(64, 32, 32, 8, rate, select=Select.LOSS)
    values = np.array(losses, np.float32)
    moved = upgraded(schedule, np.zeros(len(values), np.uint8), 0, values) == 1
    assert moved.sum() == schedule.upgrades(len(values), 0)
    if moved.any():
        ranked = np.nan_to_num(values, nan=np.inf)
        assert ranked[moved].max() <= ranked[~moved].min()


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"min_size": 0}, "from min_size up to size"),
    ({"min_size": 321}, "from min_size up to size"),
    ({"step": 0}, "do not lead from 128 to 320"),
    ({"step": 50}, "do not lead from 128 to 320"),
    ({"min_size": 1, "size": 300, "step": 1}, "up to 256 sizes, got 300"),
    ({"batch_size": 0}, "batch_size and world_size"),
    ({"world_size": 0}, "batch_size and world_size"),
    ({"upgrade_rate": 0}, "upgrade_rate above 0 and up to 1, got 0"),
    ({"upgrade_rate": 1.5}, "upgrade_rate above 0 and up to 1, got 1.5"),
    ({"select": Select.LOSS, "world_size": 2}, "one rank only"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_numbers_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    fitting = {"size": 320, "min_size": 128, "step": 32, "batch_size": 64, "upgrade_rate": 0.25}
    Schedule(**fitting)  # type: ignore[arg-type]
    with pytest.raises(LoaderError, match=message):
        Schedule(**(fitting | options))
