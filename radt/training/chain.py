"""Chains of linear layers; several equal chains compute their outputs at once.

The linear layers of all models become one batched matrix product; a layer without parameters treats
the samples of all models as one batch. `torch.vmap` does the same for any model, but launching its
operations takes longer than these take to compute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from radt.training.calling import Loss

#: Layers without parameters that treat each sample independently.
_ALONE = (
    *(nn.Identity, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh),
    *(nn.Softplus, nn.Dropout, nn.AvgPool2d, nn.MaxPool2d),
)
#: Target of samples to ignore (PyTorch's default ``ignore_index``).
_IGNORED = -100


class Chain:
    """The layers of a model that is a chain.

    Args:
        model: A model for which `is_chain` is true.
        count: Number of models with stacked parameters.
    """

    def __init__(self, model: nn.Module, count: int) -> None:
        self._layers = _layers(model)
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._count = count

    def outputs(self, parameters: Mapping[str, Tensor], inputs: Tensor, is_shared: bool) -> Tensor:
        """Return the outputs of all models, stacked.

        Args:
            parameters: The models' parameters by name, stacked.
            inputs: A stack with a batch for each model, or one batch for all.
            is_shared: Whether there is one batch for all.
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
            elif isinstance(layer, nn.Dropout) and is_shared:  # each model drops different elements
                values = layer(values.expand(self._count, *values.shape).flatten(0, 1))
                is_shared = False
            else:
                values = layer(values)
        return self._of_models(values)

    def _of_models(self, values: Tensor) -> Tensor:
        return values.view(self._count, -1, *values.shape[1:])


def is_chain(model: nn.Module) -> bool:
    """Return True if a model has only linear layers and layers that treat samples independently."""
    if _is_changed(model):
        return False
    if type(model) is nn.Sequential:
        return all(map(is_chain, model))
    if type(model) is nn.Flatten:
        return (model.start_dim, model.end_dim) == (1, -1)
    return type(model) in (nn.Linear, *_ALONE)


def _is_changed(module: nn.Module) -> bool:
    """Return True if an instance overrides the behaviour of its class."""
    own = vars(module)
    return "forward" in own or any(own[key] for key in own if key.endswith("_hooks"))


def _layers(model: nn.Module) -> Sequence[nn.Module]:
    if isinstance(model, nn.Sequential):
        return [layer for part in model for layer in _layers(part)]
    return [model]


def has_fast_losses(loss: Loss, target: Tensor) -> bool:
    """Return True if `cross_entropies` can compute this loss."""
    if target.is_floating_point():  # class probabilities
        return False
    if type(loss) is not nn.CrossEntropyLoss:
        return loss is functional.cross_entropy
    is_plain = loss.weight is None and loss.label_smoothing == 0 and loss.reduction == "mean"
    return is_plain and loss.ignore_index == _IGNORED and not _is_changed(loss)


def cross_entropies(outputs: Tensor, target: Tensor, is_shared: bool) -> Tensor:
    """Return the mean cross entropy of each model, computed like ``functional.cross_entropy``."""
    count = len(outputs)
    labels = target.expand(count, *target.shape) if is_shared else target
    losses = functional.cross_entropy(outputs.flatten(0, 1), labels.flatten(0, 1), reduction="none")
    return losses.view(count, -1).sum(1) / (labels != _IGNORED).flatten(1).sum(1)
