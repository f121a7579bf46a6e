"""radt.loaders.echo.fills: what is decoded and used when, in any order of work."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import given, settings

from radt.loaders.echo.fills import Action, Epoch, EpochPlan, Sizes

sizes_of_loaders = st.builds(
    Sizes,
    samples=st.integers(0, 60),
    batch_size=st.integers(1, 20),
    buffer=st.integers(1, 25),
    seed=st.integers(0, 3),
    drop_last=st.booleans(),
)
repeat_counts = st.integers(1, 5)


def batches_of(sizes: Sizes, epoch: Epoch) -> list[list[Action]]:
    plan = EpochPlan(sizes, epoch)
    count = sizes.batches(epoch.repeats)
    return [list(plan.actions(number)) for number in range(epoch.first_batch, count)]


def uses_of(batches: list[list[Action]]) -> list[tuple[int, int]]:
    return [(a.index, a.use) for batch in batches for a in batch if a.use is not None]


@given(sizes_of_loaders, repeat_counts, st.integers(0, 2))
def test_each_sample_of_a_fill_is_used_exactly_as_often_as_asked(
    sizes: Sizes, repeats: int, number: int
) -> None:
    sizes = Sizes(sizes.samples, sizes.batch_size, sizes.buffer, sizes.seed, drop_last=False)
    batches = batches_of(sizes, Epoch(number, repeats, 0))
    uses = uses_of(batches)
    assert len(uses) == sizes.samples * repeats
    fill = sizes.buffer if repeats > 1 else max(1, sizes.samples)
    seen: Counter[int] = Counter()
    for first in range(0, len(uses), fill * repeats):
        of_fill = uses[first : first + fill * repeats]
        count = Counter(index for index, _ in of_fill)
        assert set(count.values()) == {repeats}
        assert len(count) == min(fill, sizes.samples - first // repeats)
        for index in count:  # uses are numbered in their order
            assert [use for i, use in of_fill if i == index] == list(range(repeats))
        seen.update(count)
    assert set(seen) == set(range(sizes.samples))


@given(sizes_of_loaders, repeat_counts)
def test_each_sample_is_decoded_once_and_an_epoch_differs_from_the_next(
    sizes: Sizes, repeats: int
) -> None:
    epochs = [batches_of(sizes, Epoch(number, repeats, 0)) for number in (0, 1)]
    for batches in epochs:
        decoded = [a.index for batch in batches for a in batch if a.decode]
        assert len(decoded) == len(set(decoded))
        assert all(a.counted for batch in batches for a in batch if a.decode)
        if not sizes.drop_last:
            assert sorted(decoded) == list(range(sizes.samples))
    assert epochs[0] == batches_of(sizes, Epoch(0, repeats, 0))  # the same every time
    if sizes.samples > 20 and not sizes.drop_last:
        assert uses_of(epochs[0]) != uses_of(epochs[1])


@given(sizes_of_loaders, repeat_counts.filter(lambda repeats: repeats > 1))
def test_the_next_fill_is_decoded_evenly_while_one_is_used(sizes: Sizes, repeats: int) -> None:
    actions = [a for batch in batches_of(sizes, Epoch(0, repeats, 0)) for a in batch]
    ahead = [0]  # decodings before each use of a fill that has a whole one behind it
    for action in actions:
        if action.use is None:
            ahead[-1] += 1
        else:
            ahead.append(0)
    whole = sizes.samples // sizes.buffer - 1
    for count in ahead[: max(0, whole) * sizes.buffer * repeats]:
        assert count <= 1  # 1/repeats on average
    if whole > 0 and not sizes.drop_last:
        assert sum(ahead[: sizes.buffer * repeats]) == sizes.buffer


@given(sizes_of_loaders, repeat_counts, st.data())
def test_a_resumed_epoch_has_the_same_rest_and_counts_nothing_twice(
    sizes: Sizes, repeats: int, data: st.DataObject
) -> None:
    whole = batches_of(sizes, Epoch(1, repeats, 0))
    first = data.draw(st.integers(0, len(whole)))
    rest = batches_of(sizes, Epoch(1, repeats, first))
    assert uses_of(rest) == uses_of(whole[first:])

    def counted(batches: list[list[Action]]) -> list[int]:
        return [a.index for batch in batches for a in batch if a.decode and a.counted]

    assert sorted(counted(whole[:first]) + counted(rest)) == sorted(counted(whole))
    again = {a.index for batch in rest for a in batch if a.decode and not a.counted}
    assert again <= set(counted(whole[:first]))
    assert len(again) <= sizes.slots


@dataclass
class Slot:
    """What a slot of the buffer holds."""

    fill: int = -1
    index: int = -1
    left: int = 0


@dataclass
class Workers:
    """Any number of workers, each of which performs its batches in order, as far as it can."""

    sizes: Sizes
    queues: list[deque[Action]]
    slots: dict[int, Slot] = field(default_factory=dict)

    def can(self, action: Action) -> bool:
        slot = self._slot(action)
        if action.decode:
            free = action.after is None or (slot.fill == action.after and not slot.left)
            return free or not self._is_kept(action)
        return slot.fill == action.fill

    def perform(self, action: Action) -> None:
        slot = self._slot(action)
        if action.decode:
            if self._is_kept(action):
                assert slot.left == 0
                left = action.uses_left - (action.use is not None)
                slot.fill, slot.index, slot.left = action.fill, action.index, left
        else:
            assert slot.index == action.index
            assert slot.left > 0
            slot.left -= 1
        assert len(self.slots) <= self.sizes.slots

    def _slot(self, action: Action) -> Slot:
        number = action.fill % 2 * self.sizes.buffer + action.place
        return self.slots.setdefault(number, Slot()) if self._is_kept(action) else Slot()

    @staticmethod
    def _is_kept(action: Action) -> bool:
        return not action.decode or action.uses_left > (action.use is not None)


@settings(max_examples=settings().max_examples * 10)
@given(sizes_of_loaders, repeat_counts, st.integers(1, 4), st.data())
def test_workers_never_block_each_other_nor_take_a_slot_in_use(
    sizes: Sizes, repeats: int, count: int, data: st.DataObject
) -> None:
    """In whatever order the workers come to run: each as long as it can, the last ones rarely."""
    first = data.draw(st.integers(0, sizes.batches(repeats)))
    batches = batches_of(sizes, Epoch(0, repeats, first))
    queues = [deque(a for batch in batches[w::count] for a in batch) for w in range(count)]
    workers = Workers(sizes, queues)
    ranked = data.draw(st.permutations(queues))
    while busy := [queue for queue in ranked if queue]:
        able = [queue for queue in busy if workers.can(queue[0])]
        assert able, "all workers wait"
        while able[0] and workers.can(able[0][0]):
            workers.perform(able[0].popleft())
