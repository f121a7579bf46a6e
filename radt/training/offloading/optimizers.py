"""Optimisers of blocks: like that of the whole model, for other parameters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from radt.errors import UsageError

OptimizerClass = Callable[[Iterable[nn.Parameter]], Optimizer]


def optimizer_like(optimizer: Optimizer, groups: Sequence[Sequence[nn.Parameter]]) -> Optimizer:
    """Return an optimiser with the class and settings of another one, for other parameters.

    Args:
        optimizer: The other one. Its constructor is not called again.
        groups: The parameters of each of its groups, which may be empty.
    """
    like: Optimizer = object.__new__(type(optimizer))
    # Without the `step` that schedulers replace, which belongs to the other one.
    like.__dict__ = {key: value for key, value in vars(optimizer).items() if key != "step"}
    like.state = defaultdict(dict)
    like.param_groups = [
        {**group, "params": list(parameters)}
        for group, parameters in zip(optimizer.param_groups, groups, strict=True)
    ]
    return like


class StateNames:
    """Finds the optimiser's states that have the shape of their parameter, by trial.

    Args:
        optimizer: The optimiser of the model.

    Raises:
        UsageError: It cannot make a step.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._groups = {
            parameter: number
            for number, group in enumerate(optimizer.param_groups)
            for parameter in group["params"]
        }
        self._known: dict[tuple[int, torch.dtype, int], list[tuple[str, torch.dtype]]] = {}

    def __call__(self, parameter: nn.Parameter) -> list[tuple[str, torch.dtype]]:
        """Return names and types for parameters with this number of dimensions, type and group."""
        if parameter not in self._groups:
            return []
        kind = parameter.dim(), parameter.dtype, self._groups[parameter]
        if kind not in self._known:
            self._known[kind] = self._tried(*kind)
        return self._known[kind]

    def _tried(
        self, dimensions: int, dtype: torch.dtype, number: int
    ) -> list[tuple[str, torch.dtype]]:
        shape = [2 + at for at in range(dimensions)]  # an unlikely shape for other states
        probe = nn.Parameter(torch.zeros(shape, dtype=dtype))
        probe.grad = torch.zeros_like(probe)
        groups = [
            [probe] if at == number else [] for at in range(len(self._optimizer.param_groups))
        ]
        optimizer = optimizer_like(self._optimizer, groups)
        try:
            optimizer.step()
        except Exception as error:  # user code
            raise cannot_train(error) from error
        return [
            (name, value.dtype)
            for name, value in optimizer.state[probe].items()
            if isinstance(value, Tensor) and value.shape == probe.shape
        ]


def cannot_train(error: Exception) -> UsageError:
    """Return the error for an optimiser that cannot make a step."""
    return UsageError(
        f"offload: optimizer_class cannot train a parameter: {error}",
        "Expected a class or function of parameters alone, whose step takes nothing: "
        "offload(…, optimizer_class=partial(AdamW, lr=1e-3))",
    )
