"""Define a batch for all techniques: tensors and other values in a structure of any depth.

A structure is a mapping (``dict``, ``OrderedDict``, ``transformers.BatchEncoding``), a list, a
tuple, a named tuple or an instance of a dataclass. Anything else is a leaf.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Structure:
    """One level of a batch.

    Args:
        value: The mapping, list, tuple or dataclass instance.
        names: Keys, field names, or indices.
        parts: The contained values, in the order of the names.
    """

    value: Any
    names: list[Any]
    parts: list[Any]

    @classmethod
    def of(cls, value: Any) -> Structure | None:
        """Return the structure of a value; None for a leaf."""
        if isinstance(value, Mapping):
            return cls(value, list(value), list(value.values()))
        if isinstance(value, (list, tuple)):
            return cls(value, list(range(len(value))), list(value))
        if is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in fields(value) if hasattr(value, field.name)]
            return cls(value, names, [getattr(value, name) for name in names])
        return None

    def rebuilt(self, parts: Sequence[Any]) -> Any:
        """Return a structure like this one with other parts.

        The result has the same class and the same other attributes. If all parts are the same
        objects, it is this value itself.
        """
        if all(new is old for new, old in zip(parts, self.parts, strict=True)):
            return self.value
        kind: Any = type(self.value)
        named = list(zip(self.names, parts, strict=True))
        if isinstance(self.value, tuple):
            return getattr(kind, "_make", kind)(parts)  # named tuples have `_make`
        if isinstance(self.value, Mapping) and not (
            isinstance(self.value, dict) or hasattr(kind, "__copy__")
        ):
            return kind(dict(named))  # a shallow copy might share its items
        rebuilt = copy.copy(self.value)
        for name, part in named:
            if isinstance(self.value, (Mapping, list)):
                rebuilt[name] = part
            else:
                object.__setattr__(rebuilt, name, part)  # also works for frozen dataclasses
        return rebuilt


def mapped(batch: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Return a batch with each tensor replaced by ``change(tensor)``."""
    import torch

    return mapped_leaves(
        batch, lambda leaf: change(leaf) if isinstance(leaf, torch.Tensor) else leaf
    )


def mapped_leaves(batch: Any, change: Callable[[Any], Any]) -> Any:
    """Return a batch with each leaf replaced by ``change(leaf)``."""
    structure = Structure.of(batch)
    if structure is None:
        return change(batch)
    return structure.rebuilt([mapped_leaves(part, change) for part in structure.parts])


def leaves(batch: Any) -> Iterator[Any]:
    """Return the leaves of a batch in their order."""
    structure = Structure.of(batch)
    if structure is None:
        yield batch
    else:
        for part in structure.parts:
            yield from leaves(part)


def tensors_of(batch: Any) -> Iterator[torch.Tensor]:
    """Return the tensors of a batch in their order."""
    import torch

    return (leaf for leaf in leaves(batch) if isinstance(leaf, torch.Tensor))


def moved(batch: Any, device: torch.device | str) -> Any:
    """Return a batch on a device. Tensors that are already there are not copied.

    Copies from pinned memory to a GPU are asynchronous, in the order of the current stream; PyTorch
    keeps the memory until they are done. All other copies are complete on return. Leaves with a
    ``to`` method use it.
    """
    import torch
    from torch.nn.utils.rnn import PackedSequence

    target = torch.device(device)

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.to(target, non_blocking=target.type == "cuda" and leaf.is_pinned())
        own = getattr(leaf, "to", None)
        return own(target) if callable(own) and not isinstance(leaf, type) else leaf

    def walk(part: Any) -> Any:
        # `PackedSequence` is a named tuple, but one of its tensors must stay on the CPU.
        structure = None if isinstance(part, PackedSequence) else Structure.of(part)
        return move(part) if structure is None else structure.rebuilt([*map(walk, structure.parts)])

    return walk(batch)
