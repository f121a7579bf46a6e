"""Small trainings with dropout and batch norm, alone and as jobs, whose losses are kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

from radt.loaders.randomness import RandomState
from radt.training import Job

ROWS, BATCH = 44, 10
#: Batches of an epoch.
BATCHES = 5
_INPUTS = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(1))
_LABELS = torch.randint(0, 3, (ROWS,), generator=torch.Generator().manual_seed(2))

#: Called with the job's name before each loss is returned; may raise, or change it.
Hook = Callable[[str, Tensor], Tensor]


def _unchanged(name: str, loss: Tensor) -> Tensor:
    del name
    return loss


class Counted(Dataset[Any]):
    """Count how often samples are read."""

    def __init__(self) -> None:
        self.reads = 0

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        return _INPUTS[index], _LABELS[index]


def network(seed: int, width: int = 6) -> nn.Sequential:
    """Return a network whose steps draw random numbers and change buffers."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.3), nn.Linear(width, 3)
    )


def shuffled() -> DataLoader[Any]:
    """Return a loader that draws from the global random state."""
    return DataLoader(TensorDataset(_INPUTS, _LABELS), BATCH, shuffle=True)


def own_order(dataset: Dataset[Any] | None = None) -> DataLoader[Any]:
    """Return a loader with a generator of its own."""
    chosen = TensorDataset(_INPUTS, _LABELS) if dataset is None else dataset
    return DataLoader(chosen, BATCH, shuffle=True, generator=torch.Generator().manual_seed(9))


def plain_losses(
    seed: int,
    epochs: int,
    loader: Callable[[], DataLoader[Any]] = shuffled,
    width: int = 6,
) -> list[float]:
    """Return the losses of a plain loop, alone in the process."""
    before = RandomState.current()
    model, batches = network(seed, width), loader()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    RandomState.seeded(seed).restore()
    losses = []
    for _ in range(epochs):
        for inputs, labels in batches:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        scheduler.step()
    before.restore()
    return losses


@dataclass
class Kept:
    """Jobs, and the losses of each of their steps."""

    losses: dict[str, list[float]] = field(default_factory=dict)
    hook: Hook = _unchanged

    def job(
        self,
        name: str,
        seed: int,
        epochs: int = 3,
        loader: DataLoader[Any] | None = None,
        width: int = 6,
        **options: Any,
    ) -> Job:
        """Return the job that trains as `plain_losses` does."""
        self.losses[name] = []

        def loss(output: Tensor, labels: Tensor) -> Tensor:
            value = self.hook(name, functional.cross_entropy(output, labels))
            self.losses[name].append(value.item())
            return value

        model = network(seed, width)
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        return Job(
            name,
            model,
            optimizer,
            loss,
            shuffled() if loader is None else loader,
            epochs=epochs,
            scheduler=torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8),
            seed=seed,
            **options,
        )
