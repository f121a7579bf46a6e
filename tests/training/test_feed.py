"""Batches come again as they were, from wherever a loader draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from radt.loaders.randomness import RandomState
from radt.training.feed import End, Feed
from radt.training.randomness import OwnRandomness

_DATA = TensorDataset(torch.arange(40))


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


LOADERS: dict[str, Callable[[], DataLoader[Any]]] = {
    "global": lambda: DataLoader(_DATA, 10, shuffle=True),
    "of the loader": lambda: DataLoader(_DATA, 10, shuffle=True, generator=_seeded()),
    "of the sampler": lambda: DataLoader(
        _DATA, 10, sampler=WeightedRandomSampler(torch.ones(40), 40, generator=_seeded())
    ),
    "of the batches' sampler": lambda: DataLoader(
        _DATA,
        batch_sampler=BatchSampler(RandomSampler(_DATA, generator=_seeded()), 10, drop_last=False),
    ),
}


def _next(feed: Feed) -> Tensor:
    batch = feed.next()
    if batch is End.EPOCH:
        batch = feed.next()
    indices: Tensor = batch[0]
    return indices


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("given", [0, 3, 4, 6])
def test_a_feed_goes_on_in_another_process_as_it_would_have(name: str, given: int) -> None:
    feed = Feed(LOADERS[name](), OwnRandomness(RandomState.seeded(1)))
    for _ in range(given):
        _next(feed)
    other = Feed(LOADERS[name](), OwnRandomness(RandomState.seeded(2)))
    other.load_state_dict(feed.state_dict())
    for _ in range(7):
        assert torch.equal(_next(feed), _next(other))


@pytest.mark.parametrize("name", LOADERS)
def test_feeds_of_one_loader_give_what_each_would_give_alone(name: str) -> None:
    alone = Feed(LOADERS[name](), OwnRandomness(RandomState.seeded(1)))
    expected = [_next(alone) for _ in range(10)]
    loader = LOADERS[name]()
    feeds = [Feed(loader, OwnRandomness(RandomState.seeded(1))) for _ in range(2)]
    for batch in expected:
        for feed in feeds:
            assert torch.equal(_next(feed), batch)
