"""Reproduce random numbers for micro-batches that go through a model segment by segment.

The plain loop draws all numbers of the first micro-batch before those of the second. To give each
micro-batch the same numbers, the operations that draw are recorded once. Repeating only these, on
memory of the same shapes, advances the state from the start of a micro-batch to that of the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map


@dataclass(frozen=True, slots=True)
class _Shape:
    """A tensor's shape, in its place among the arguments."""

    sizes: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """``with draws:`` records operations that draw random numbers; `repeat` draws as many."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operations: list[tuple[Any, Any, Any]] = []

    def __bool__(self) -> bool:
        return bool(self._operations)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags:
            self._operations.append((func, tree_map(_shape, args), tree_map(_shape, kwargs)))
        return func(*args, **kwargs)

    def repeat(self) -> None:
        """Draw as many numbers as were recorded, and discard them."""
        with torch.no_grad():
            for func, args, kwargs in self._operations:
                func(*tree_map(_filled, args), **tree_map(_filled, kwargs))


def _shape(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _Shape(tuple(value.shape), value.dtype, value.device)
    return value


def _filled(value: Any) -> Any:
    if isinstance(value, _Shape):
        return torch.ones(value.sizes, dtype=value.dtype, device=value.device)
    return value
