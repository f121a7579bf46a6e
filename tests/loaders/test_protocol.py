"""Properties that every loader has: `LOADERS` has a line for each, and each test runs for all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, Dataset

from radt.errors import LoaderError
from radt.loaders import EchoLoader, ProgressiveLoader
from radt.loaders.plan import permutation
from radt.loaders.protocol import Loader
from tests.support.shared_loading import shared

pytestmark = pytest.mark.usefixtures("forked_servers")

#: Index of each sample of a batch, in its order.
Indices = list[int]


class Numbered(Dataset[tuple[torch.Tensor, int]]):
    """Sample i is a tensor of four times i, and i."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((4,), float(index)), index


def indices_of(batch: Any) -> Indices:
    """Return the indices in a batch of (tensors, indices), and check that the two agree."""
    tensors, indices = batch
    assert tensors.reshape(len(indices), -1)[:, 0].tolist() == indices.tolist()
    return [int(index) for index in indices]


class Plain(Loader[Any]):
    """The least that is a loader: the batches of a `DataLoader` whose order is planned."""

    def __init__(self, samples: int, batch_size: int) -> None:
        self.dataset, self.batch_size = Numbered(samples), batch_size
        self._epoch, self._given, self._begun = 0, 0, False

    def __iter__(self) -> Iterator[Any]:
        if self._begun:  # a loop that was left
            self.set_epoch(self._epoch + 1)
        self._begun = True
        order = permutation(len(self.dataset), 0, self._epoch).tolist()
        batches = list(BatchSampler(order, self.batch_size, drop_last=False))[self._given :]
        for batch in DataLoader(self.dataset, batch_sampler=batches):
            self._given += 1
            yield batch
        self.set_epoch(self._epoch + 1)

    def __len__(self) -> int:
        return -(-len(self.dataset) // self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        if not self._begun and self._given and epoch == self._epoch:
            return
        self._epoch, self._given, self._begun = epoch, 0, False

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "given": self._given, "batch_size": self.batch_size}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state.get("batch_size") != self.batch_size:
            raise LoaderError("the state is of a loader with another batch size", "Use that size")
        self._epoch, self._given, self._begun = state["epoch"], state["given"], False


@dataclass(frozen=True)
class Case:
    """A loader in the test.

    Args:
        name: Of the loader's class.
        make: Returns a new loader of so many samples (`Numbered`) in batches of so many. A second
            one made with the same numbers gives the same batches.
        indices: Returns the indices of a batch.
        uses: How often an epoch uses each sample.
        other_orders: Whether another epoch has another order.
    """

    name: str
    make: Callable[[int, int], Loader[Any]]
    indices: Callable[[Any], Indices] = indices_of
    uses: int = 1
    other_orders: bool = True


def echo(samples: int, batch_size: int) -> EchoLoader:
    return EchoLoader(Numbered(samples), None, batch_size=batch_size, repeats=2, buffer=7)


def progressive(samples: int, batch_size: int) -> ProgressiveLoader:
    """Sizes that the samples do not show: the test is about which ones come when."""
    return ProgressiveLoader(
        Numbered(samples), _unsized, batch_size=batch_size, size=64, min_size=32, step=16
    )


def _unsized(sample: tuple[torch.Tensor, int], size: int) -> tuple[torch.Tensor, int]:
    return sample


LOADERS = [
    Case("Plain", Plain),
    Case("EchoLoader", echo, uses=2),
    Case("ProgressiveLoader", progressive),
    Case("SharedLoader", shared),
]

every_loader = pytest.mark.parametrize("case", LOADERS, ids=lambda case: case.name)
sizes = given(samples=st.integers(0, 40), batch_size=st.integers(1, 12))
#: A loader may start a process; the same examples find the same errors in half of the time.
few = settings(max_examples=max(4, settings().max_examples // 6))


def epoch_of(case: Case, loader: Loader[Any]) -> list[Indices]:
    """Return the indices of the batches of the next epoch."""
    return [case.indices(batch) for batch in loader]


def flat(batches: list[Indices]) -> Indices:
    return [index for batch in batches for index in batch]


@every_loader
@few
@sizes
def test_an_epoch_has_each_sample_and_as_many_batches_as_len_says(
    case: Case, samples: int, batch_size: int
) -> None:
    with case.make(samples, batch_size) as loader:
        for _ in range(2):
            announced = len(loader)
            batches = epoch_of(case, loader)
            assert sorted(flat(batches)) == sorted(list(range(samples)) * case.uses)
            assert len(batches) == announced
            assert all(batches), "a batch without samples"


@every_loader
def test_set_epoch_names_the_epoch_of_the_next_loop(case: Case) -> None:
    with case.make(23, 4) as loader:
        in_turn = [epoch_of(case, loader) for _ in range(3)]
        for epoch in (2, 0, 1):
            loader.set_epoch(epoch)
            assert epoch_of(case, loader) == in_turn[epoch]
        # It goes on from there.
        loader.set_epoch(1)
        assert epoch_of(case, loader) == in_turn[1]
        assert epoch_of(case, loader) == in_turn[2]
    if case.other_orders:
        assert in_turn[0] != in_turn[1] != in_turn[2]


@every_loader
@few
@given(samples=st.integers(1, 30), batch_size=st.integers(1, 12), data=st.data())
def test_a_state_after_any_batch_gives_the_rest(
    case: Case, samples: int, batch_size: int, data: st.DataObject
) -> None:
    with case.make(samples, batch_size) as whole:
        states = [whole.state_dict()]
        batches = []
        for _ in range(2):
            for batch in whole:
                batches.append(case.indices(batch))
                # A script saves its state as JSON, or with torch.save.
                states.append(json.loads(json.dumps(whole.state_dict())))
    given_already = data.draw(st.integers(0, len(batches)), label="batches before the state")
    with case.make(samples, batch_size) as rest:
        rest.load_state_dict(states[given_already])
        if data.draw(st.booleans(), label="the loop names the epoch, too"):
            rest.set_epoch(states[given_already]["epoch"])
        again: list[Indices] = []
        while len(again) < len(batches) - given_already:
            again += epoch_of(case, rest)
        assert again == batches[given_already:]


@every_loader
def test_the_state_at_the_end_of_an_epoch_is_the_next_ones_beginning(case: Case) -> None:
    with case.make(10, 4) as loader:
        epoch_of(case, loader)
        state = json.loads(json.dumps(loader.state_dict()))
        second = epoch_of(case, loader)
    with case.make(10, 4) as loader:
        loader.load_state_dict(state)
        assert epoch_of(case, loader) == second


@every_loader
def test_a_loop_that_was_left_does_not_change_the_epochs_after_it(case: Case) -> None:
    with case.make(20, 4) as loader:
        first, second = epoch_of(case, loader), epoch_of(case, loader)
    with case.make(20, 4) as loader:
        for batch in loader:
            assert case.indices(batch) == first[0]
            break
        assert epoch_of(case, loader) == second
        loader.set_epoch(0)
        assert epoch_of(case, loader) == first


@every_loader
def test_what_was_given_keeps_its_content(case: Case) -> None:
    with case.make(30, 4) as loader:
        kept = list(loader)
        first = [case.indices(batch) for batch in kept]
        epoch_of(case, loader)
        assert [case.indices(batch) for batch in kept] == first
    assert [case.indices(batch) for batch in kept] == first


@every_loader
def test_a_state_of_something_else_is_refused(case: Case) -> None:
    with case.make(10, 4) as loader, pytest.raises(LoaderError):
        loader.load_state_dict({"some": "state"})


@every_loader
def test_it_is_closed_with_its_block_and_may_be_closed_again(case: Case) -> None:
    with case.make(10, 4) as loader:
        for _ in loader:
            break  # in the middle of an epoch
    loader.close()
    loader.close()
    unused = case.make(10, 4)
    unused.close()
    with case.make(10, 4) as other:
        assert sorted(flat(epoch_of(case, other))) == sorted(list(range(10)) * case.uses)
