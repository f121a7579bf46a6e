"""Loaders for tests to share: their factories are called in servers."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from radt.loaders import SharedLoader
from radt.loaders.plan import permutation

_numbers = itertools.count()


class Numbered(Dataset[tuple[torch.Tensor, int]]):
    """Sample i is a tensor of four times i, and i."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((4,), float(index)), index


class Planned(Sampler[int]):
    """Another order in every epoch, as of a `DistributedSampler`."""

    def __init__(self, samples: int) -> None:
        self.samples, self.epoch = samples, 0

    def __iter__(self) -> Iterator[int]:
        return iter(permutation(self.samples, 0, self.epoch).tolist())

    def __len__(self) -> int:
        return self.samples

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def make_planned(
    samples: int, batch_size: int, workers: int = 0, drop_last: bool = False
) -> DataLoader[Any]:
    return DataLoader(
        Numbered(samples),
        batch_size,
        sampler=Planned(samples),
        num_workers=workers,
        drop_last=drop_last,
    )


def shared(samples: int, batch_size: int, **options: Any) -> SharedLoader:
    """A shared loader with a server of its own."""
    options = {"name": f"{os.getpid()}-{next(_numbers)}", "linger_s": 0.1} | options
    arguments = {"samples": samples, "batch_size": batch_size}
    return SharedLoader(make_planned, arguments=arguments, **options)
