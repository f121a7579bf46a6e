"""Access a model's parameters and buffers, wherever they are.

A plain model holds its tensors. Those of an offloaded model are in a store, and its parameters are
empty between steps. Averaging, snapshots, checkpoints and policies all use `weights_of`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from radt.loaders.randomness import RandomState
from radt.training.layout import Layout


class WeightAccess(StrEnum):
    """How weights are used."""

    READ = "read"
    #: They get other values, with which training continues.
    CHANGE = "change"
    #: All of them, and all of the optimiser's states, get other values.
    REPLACE = "replace"


class Weights:
    """Parameters and buffers of a model, each once, including buffers that ``state_dict`` omits.

    Args:
        model: The model.
    """

    #: Why the model's modules cannot be called one by one; empty if they can.
    elsewhere = ""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    @property
    def layout(self) -> Layout:
        """Names, types, shapes and devices, in the order of `in_memory`.

        Raises:
            UsageError: A tensor is sparse, or has no shape yet.
        """
        return Layout.of(model_tensors(self.model))

    @property
    def parameter_count(self) -> int:
        """Number of elements of all parameters."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @contextmanager
    def in_memory(
        self, access: WeightAccess, optimizer: Optimizer | None = None
    ) -> Iterator[dict[str, Tensor]]:
        """Load all weights into the model within the block, and yield them by name.

        Args:
            access: How they are used.
            optimizer: Its states are loaded within the block, too.

        Raises:
            TrainingError: A step was interrupted in the middle, so that the weights are
                inconsistent.
        """
        del access, optimizer
        yield model_tensors(self.model)


#: Weights that are not in their model, by the model's id. They keep the model alive.
_elsewhere: WeakValueDictionary[int, Weights] = WeakValueDictionary()


def weights_of(model: nn.Module) -> Weights:
    """Return the weights of a model."""
    return _elsewhere.get(id(model)) or Weights(model)


def moved_elsewhere(weights: Weights) -> None:
    """Note that weights are not in their model."""
    _elsewhere[id(weights.model)] = weights


def moved_back(model: nn.Module) -> None:
    """Note that a model has its weights again."""
    _elsewhere.pop(id(model), None)


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers that are in a model, by name, each once."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


class BeforeStep:
    """Values that a step changes before the optimiser: buffers, random states and gradients.

    Args:
        model: The model, as it is now.
        with_gradients: Whether the step adds to existing gradients. Otherwise they are ignored.
    """

    def __init__(self, model: nn.Module, with_gradients: bool = False) -> None:
        self._randomness = RandomState.current()
        self._buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
        self._gradients = [
            (parameter, None if parameter.grad is None else parameter.grad.clone())
            for parameter in (model.parameters() if with_gradients else ())
        ]

    def restore(self) -> None:
        """Restore all values."""
        self._randomness.restore()
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, before in self._buffers:
                buffer.copy_(before)


def masters_of(optimizer: Optimizer) -> dict[Tensor, Tensor]:
    """Return the copies in higher precision that an optimiser keeps of parameters in its states.

    The optimiser writes them into the parameters at each step, so changes must go to both. They are
    recognised as states that, when rounded, equal all its parameters of low precision.
    """
    rounded = [p for p in optimizer.state if is_low(p.dtype) and optimizer.state[p]]
    names: set[str] | None = None
    for parameter in rounded:
        equal = {
            name
            for name, state in optimizer.state[parameter].items()
            if isinstance(state, Tensor)
            and state.shape == parameter.shape
            and state.dtype.itemsize > parameter.dtype.itemsize
            and torch.equal(state.to(parameter), parameter)
        }
        names = equal if names is None else names & equal
    # Zeros prove nothing: a sum of gradients may be 0, too.
    if not names or not any(bool(parameter.any()) for parameter in rounded):
        return {}
    name = min(names)
    return {parameter: optimizer.state[parameter][name] for parameter in rounded}


def is_low(dtype: torch.dtype) -> bool:
    """Return True for floating-point types of less than single precision."""
    return dtype.is_floating_point and dtype.itemsize < torch.float32.itemsize
