"""A learning rate that follows the size of each batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

import torch

from radt.errors import LoaderError
from radt.loaders.protocol import chosen


class RescaleRule(StrEnum):
    """Growth of the learning rate with the batch size."""

    #: Proportional (equation 6.10 of the thesis): for SGD.
    LINEAR = "linear"
    #: Square root: for Adam and other optimisers that normalise gradients.
    SQRT = "sqrt"


class BatchScaledLR:
    """Step an optimiser with learning rates scaled by the batch size relative to a base size.

    Rates are changed only for the step. Schedulers, logs and checkpoints see those of
    ``base_batch``, and nothing needs to be saved. With several ranks, both numbers are per rank.

    Args:
        optimizer: The optimiser whose step is scaled.
        base_batch: Samples in a batch to which its learning rates refer.
        rule: ``"linear"`` or ``"sqrt"``.

    Raises:
        LoaderError: ``base_batch`` is below 1.
        UsageError: The rule is unknown.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, base_batch: int, rule: str = "linear"
    ) -> None:
        if base_batch < 1:
            raise LoaderError(f"expected a base_batch of 1 or more, got {base_batch}")
        self.optimizer, self._base_batch = optimizer, base_batch
        self._rule = chosen(RescaleRule, "rule", rule)

    def factor(self, samples: int) -> float:
        """Return the factor of learning rates for a batch of this size.

        Raises:
            LoaderError: The batch has no samples.
        """
        if samples < 1:
            raise LoaderError(f"expected a batch of 1 sample or more, got {samples}")
        ratio = samples / self._base_batch
        return ratio if self._rule is RescaleRule.LINEAR else math.sqrt(ratio)

    def step(self, samples: int) -> None:
        """Step the optimiser for a batch of this size.

        Raises:
            LoaderError: The batch has no samples.
        """
        with self.scaled(samples):
            self.optimizer.step()

    @contextmanager
    def scaled(self, samples: int) -> Iterator[None]:
        """Scale the learning rates within the block, for steps made by other code.

        With mixed precision: ``with scaled.scaled(len(images)): scaler.step(optimizer)``.

        Raises:
            LoaderError: The batch has no samples.
        """
        factor = self.factor(samples)
        groups = self.optimizer.param_groups
        before = [_copied(group["lr"]) for group in groups]
        try:
            for group in groups:
                _set(group, group["lr"] * factor)
            yield
        finally:
            for group, rate in zip(groups, before, strict=True):
                _set(group, rate)


def _copied(rate: float | torch.Tensor) -> float | torch.Tensor:
    return rate.clone() if isinstance(rate, torch.Tensor) else rate


def _set(group: dict[str, object], rate: float | torch.Tensor) -> None:
    """Set a rate. A tensor is changed in place, as captured graphs and compiled steps hold it."""
    if isinstance(held := group["lr"], torch.Tensor):
        held.copy_(torch.as_tensor(rate))
    else:
        group["lr"] = rate
