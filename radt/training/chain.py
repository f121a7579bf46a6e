"""Chains of linear layers, of which several equal ones compute their outputs at once.

A linear layer of all models is one batched matrix product; a layer without parameters treats the
samples of all models as one batch. `torch.vmap` does the same for any model, but takes longer to
start each operation than these take to compute it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

#: Layers without parameters that treat each sample alone.
_ALONE = (
    *(nn.Identity, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh),
    *(nn.Softplus, nn.Dropout, nn.AvgPool2d, nn.MaxPool2d),
)


class Chain:
    """The layers of a model that is a chain.

    Args:
        model: The model; `is_chain` is true of it.
        count: The number of models whose parameters are stacked.
    """

    def __init__(self, model: nn.Module, count: int) -> None:
        self._layers = _layers(model)
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._count = count

    def outputs(self, parameters: Mapping[str, Tensor], inputs: Tensor, is_shared: bool) -> Tensor:
        """Return the outputs of all models, in a stack.

        Args:
            parameters: The models' parameters by name, stacked.
            inputs: A batch of each model in a stack, or one batch for all.
            is_shared: Whether it is one for all.
        """
        values = inputs if is_shared else inputs.flatten(0, 1)
        for layer in self._layers:
            if isinstance(layer, nn.Linear):
                weight = parameters[self._names[id(layer.weight)]].mT
                rows = (
                    values.flatten(0, -2) if is_shared else self._of_models(values).flatten(1, -2)
                )
                rows = rows.expand(self._count, -1, -1)
                if layer.bias is None:
                    product = torch.bmm(rows, weight)
                else:
                    bias = parameters[self._names[id(layer.bias)]].unsqueeze(1)
                    product = torch.baddbmm(bias, rows, weight)
                values = product.reshape(-1, *values.shape[1:-1], layer.out_features)
                is_shared = False
            elif isinstance(layer, nn.Dropout) and is_shared:  # each model drops others
                values = layer(values.expand(self._count, *values.shape).flatten(0, 1))
                is_shared = False
            else:
                values = layer(values)
        return self._of_models(values)

    def _of_models(self, values: Tensor) -> Tensor:
        return values.view(self._count, -1, *values.shape[1:])


def is_chain(model: nn.Module) -> bool:
    """Return whether a model has only linear layers and layers that treat each sample alone."""
    own = vars(model)
    if "forward" in own or any(value for key, value in own.items() if key.endswith("_hooks")):
        return False
    if type(model) is nn.Sequential:
        return all(map(is_chain, model))
    if type(model) is nn.Flatten:
        return (model.start_dim, model.end_dim) == (1, -1)
    return type(model) in (nn.Linear, *_ALONE)


def _layers(model: nn.Module) -> Sequence[nn.Module]:
    if isinstance(model, nn.Sequential):
        return [layer for part in model for layer in _layers(part)]
    return [model]
