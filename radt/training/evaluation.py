"""The interface of ``evaluate`` functions, wherever they run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from radt.errors import UsageError
from radt.training.layout import Layout
from radt.training.snapshot import Snapshot
from radt.training.weights import model_tensors


class Sums:
    """Sums over the samples of one part of the validation data.

    Sums of parts are added in the order of the parts and divided once, so that means are exact even
    if parts differ in size.

    Args:
        count: Number of samples; 0 for an empty part.
        sums: The sum over these samples of each metric: numbers, or tensors of one element.

    Raises:
        TypeError, ValueError: A sum is not a number.
    """

    __slots__ = ("count", "sums")

    def __init__(self, *, count: int, **sums: float | Tensor) -> None:
        self.count = int(count)
        self.sums = {name: float(value) for name, value in sums.items()}

    def __repr__(self) -> str:
        sums = "".join(f", {name}={value!r}" for name, value in self.sums.items())
        return f"Sums(count={self.count}{sums})"

    def to_json(self) -> dict[str, Any]:
        return {"count": self.count, "sums": self.sums}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Sums:
        return cls(count=values["count"], **values["sums"])


def means(parts: Sequence[Sums]) -> dict[str, float]:
    """Return the mean of each metric over all parts.

    Raises:
        UsageError: There are no samples, or parts have different metrics.
    """
    count = sum(part.count for part in parts)
    if count <= 0:
        raise UsageError(
            "evaluate returned sums of 0 samples",
            "Return Sums(count=number of samples, …), with one part that is not empty",
        )
    names = [list(part.sums) for part in parts]
    if any(set(other) != set(names[0]) for other in names):
        raise UsageError(
            f"evaluate returned different metrics for different parts: {names}",
            "Return the same metrics for each part; 0.0 for one without samples",
        )
    return {name: sum(part.sums[name] for part in parts) / count for name in names[0]}


#: ``evaluate(model, part, parts)`` validates, for example, every ``parts``-th batch of the data.
Evaluate = Callable[[nn.Module, int, int], Sums]


class ValidatorDied(Exception):  # noqa: N818 - a result of its epoch, which training survives
    """The validating process has ended. The message says how."""


class ValidationLane(ABC):
    """Runs one part of each validation. All methods except `kill` are called by a single thread."""

    @abstractmethod
    def evaluate(self, snapshot: Snapshot) -> Sums:
        """Validate a part of the data with a snapshot.

        Raises:
            TrainingError: ``evaluate`` raised.
            ValidatorDied: The process was killed.
        """

    def prepare(self) -> None:  # noqa: B027 - a thread has nothing to do here and below
        """Get ready while the first epoch trains."""

    def close(self) -> None:  # noqa: B027
        """End the lane."""

    def kill(self) -> None:  # noqa: B027
        """Make an `evaluate` that runs in another thread end soon, if possible."""


def evaluated(evaluate: Evaluate, replica: nn.Module, part: int, parts: int) -> Sums:
    """Call ``evaluate`` with a copy of the model, in evaluation mode and without gradients.

    Raises:
        UsageError: It did not return `Sums`.
    """
    replica.eval()
    with torch.no_grad():
        sums = evaluate(replica, part, parts)
    if not isinstance(sums, Sums):
        raise UsageError(
            f"evaluate returned {type(sums).__name__}, expected radt.training.Sums",
            "return Sums(count=samples, val_loss=sum_of_losses)",
        )
    return sums


def targets_of(replica: nn.Module, layout: Layout) -> list[Tensor]:
    """Return the tensors of a copy of the model, in the order of the layout."""
    tensors = model_tensors(replica)
    return [tensors[piece.name] for piece in layout.pieces]
