"""Call a model with a batch of any structure, and find its loss."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from radt.errors import UsageError
from radt.loaders.batches import Structure, leaves, moved

Loss = Callable[[Any, Any], Tensor]


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of a call of a model."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @classmethod
    def of(cls, model: nn.Module, inputs: Any) -> Call:
        """Return the call for inputs: a mapping gives keyword arguments if the model takes them."""
        if isinstance(inputs, Call):
            return inputs
        if isinstance(inputs, Mapping) and _takes(model, inputs):
            return cls((), dict(inputs))
        return cls((inputs,), {})

    def on(self, device: torch.device) -> Call:
        """Return the call with its tensors on a device."""
        args, kwargs = moved((self.args, self.kwargs), device)
        return Call(args, kwargs)

    def __call__(self, model: nn.Module) -> Any:
        return model(*self.args, **self.kwargs)


class Objective:
    """The loss that a training minimises: a function of output and target, or the model's own.

    | batch | with a loss function | without | |---|---|---| | pair | ``loss(model(batch[0]),
    batch[1])`` | ``model(*batch)`` returns it | | mapping | ``loss(model(**batch), batch)`` |
    ``model(**batch)`` returns it | | other tuple or list | an error | ``model(*batch)`` returns it
    | | dataclass | ``loss(model(batch), batch)`` | ``model(batch)`` returns it | | anything else |
    an error | ``model(batch)`` returns it |

    A model returns its loss as ``output.loss``, ``output["loss"]``, the only tensor of one element
    in a tuple, or the output itself. A mapping is passed as one argument if the model's forward has
    no parameters with the names of its keys.

    Args:
        loss: The function; None for the model's own.
        name: Name of the training in errors.
    """

    def __init__(self, loss: Loss | None, name: str) -> None:
        self.loss = loss
        self._name = name

    def split(self, model: nn.Module, batch: Any) -> tuple[Call, Any]:
        """Return the call of the model for a batch, and the target.

        Raises:
            UsageError: The batch has none of the forms above.
        """
        is_sequence = isinstance(batch, (tuple, list))
        if self.loss is None:
            return (Call(tuple(batch), {}) if is_sequence else Call.of(model, batch)), None
        if not is_sequence and Structure.of(batch) is not None:
            return Call.of(model, batch), batch
        if is_sequence and len(batch) == 2:
            return Call.of(model, batch[0]), batch[1]
        length = f" of {len(batch)}" if is_sequence else ""
        raise UsageError(
            f"{self._name}: a batch is a {type(batch).__name__}{length}, expected (inputs, target) "
            "or a mapping of the model's arguments",
            "Change the loader's collate_fn; or leave out the loss, if the model returns it",
        )

    def value(self, output: Any, target: Any) -> Tensor:
        """Return the loss.

        Raises:
            UsageError: The model returned none, and there is no function.
        """
        if self.loss is not None:
            return self.loss(output, target)
        found = getattr(output, "loss", None)
        if found is None and isinstance(output, Mapping):
            found = output.get("loss")
        if found is None and isinstance(output, (Tensor, tuple, list)):
            candidates = [v for v in leaves(output) if isinstance(v, Tensor) and v.numel() == 1]
            found = candidates[0] if len(candidates) == 1 else None
        if not isinstance(found, Tensor):
            raise UsageError(
                f"{self._name}: no loss was given, and the model returned a "
                f"{type(output).__name__} without one",
                "Give a loss function, or batches with the labels that the model needs",
            )
        return found


def _takes(model: nn.Module, inputs: Mapping[Any, Any]) -> bool:
    """Return True if a model's forward takes a mapping's values as keyword arguments."""
    signature = inspect.signature(_inner(model).forward)
    try:
        signature.bind(**inputs)
    except TypeError:  # if only some names match, let Python's own error list the others
        return any(name in signature.parameters for name in inputs)
    return True


def _inner(model: nn.Module) -> nn.Module:
    """Return the model inside wrappers that take any arguments, such as DDP or a compiled model."""
    kinds = {parameter.kind for parameter in inspect.signature(model.forward).parameters.values()}
    wrapped = getattr(model, "_orig_mod", getattr(model, "module", None))
    takes_any = kinds == {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    if isinstance(wrapped, nn.Module) and (takes_any or hasattr(model, "_orig_mod")):
        return _inner(wrapped)
    return model
