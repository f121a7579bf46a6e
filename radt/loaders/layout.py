"""A batch as bytes, and the JSON that says where each tensor lies in them.

A batch is a tensor or NumPy array, a string, number, boolean or None, or a tuple, list or dict of
such. Tensors and arrays are bytes, the rest is in the JSON. Nothing is pickled: a process that
reads a layout runs no code of the one that wrote it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import torch

from radt.errors import LoaderError

#: Where a tensor may begin: a cache line, more than any type of element needs.
_ALIGNMENT_BYTES = 64

_REMEDY = (
    "A batch may have tensors and NumPy arrays on the CPU, strings, numbers, booleans and None, in "
    "tuples, lists and dicts. Convert it in the loader's collate_fn"
)


class Kind(StrEnum):
    """What a node of a layout's JSON is: its first element."""

    TENSOR = "tensor"
    ARRAY = "array"
    TUPLE = "tuple"
    LIST = "list"
    DICT = "dict"
    VALUE = "value"


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the tensors of a batch lie.

    ``nbytes`` is the length of the bytes, ``tree`` the batch in JSON values, which holds for each
    tensor its type, shape, strides (in elements) and offset (in bytes).
    """

    nbytes: int
    tree: list[Any]

    def to_json(self) -> bytes:
        return json.dumps([self.nbytes, self.tree], separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, text: bytes | bytearray | memoryview) -> Layout:
        nbytes, tree = json.loads(bytes(text))
        return cls(nbytes, tree)


@dataclass(frozen=True, slots=True)
class _Part:
    """A tensor or array of a batch, and where it goes."""

    source: torch.Tensor | np.ndarray
    stride: tuple[int, ...]
    offset: int


class LaidOut:
    """A batch with its layout, ready to be written.

    Raises:
        LoaderError: There is something else in the batch than described above.
    """

    def __init__(self, batch: Any) -> None:
        self._parts: list[_Part] = []
        self._nbytes = 0
        self.layout = Layout(tree=self._node(batch, "batch"), nbytes=self._nbytes)
        # The dataclass was made before the tensors were counted.
        self.layout = Layout(self._nbytes, self.layout.tree)

    def write(self, buffer: memoryview) -> None:
        """Copy the tensors to the beginning of a buffer, of ``layout.nbytes`` or more."""
        for part in self._parts:
            if isinstance(part.source, torch.Tensor):
                shape = tuple(part.source.shape)
                target = _tensor(buffer, part.source.dtype, shape, part.stride, part.offset)
                target.copy_(part.source)
            else:
                _array(buffer, part.source.dtype, part.source.shape, part.offset)[...] = part.source

    def _node(self, value: Any, place: str) -> list[Any]:
        if isinstance(value, torch.Tensor):
            return self._tensor_node(value, place)
        if isinstance(value, np.ndarray):
            return self._array_node(value, place)
        if value is None or isinstance(value, (bool, int, float, str)):
            if isinstance(value, np.generic):
                return [Kind.VALUE, value.item()]
            return [Kind.VALUE, value]
        if type(value) in (tuple, list):
            kind = Kind.TUPLE if isinstance(value, tuple) else Kind.LIST
            return [kind, [self._node(v, f"{place}[{i}]") for i, v in enumerate(value)]]
        if type(value) is dict:
            items = []
            for key, item in value.items():
                if type(key) not in (str, int):
                    raise LoaderError(f"the key {key!r} of {place} is not a string or int", _REMEDY)
                items.append([key, self._node(item, f"{place}[{key!r}]")])
            return [Kind.DICT, items]
        raise LoaderError(f"{place} is a {type(value).__name__}, which cannot be shared", _REMEDY)

    def _tensor_node(self, tensor: torch.Tensor, place: str) -> list[Any]:
        if tensor.device.type != "cpu":
            raise LoaderError(
                f"{place} is a tensor on {tensor.device}; a shared loader gives tensors on the CPU",
                "Leave them on the CPU in the loader, and move them to the device in the script",
            )
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise LoaderError(f"{place} is a sparse or quantized tensor", _REMEDY)
        tensor = tensor.detach()
        # As dense as the source allows: channels_last stays channels_last.
        stride = tuple(torch.empty_like(tensor, device="meta").stride())
        offset = self._reserve(tensor.numel() * tensor.element_size())
        self._parts.append(_Part(tensor, stride, offset))
        name = str(tensor.dtype).removeprefix("torch.")
        return [Kind.TENSOR, name, list(tensor.shape), list(stride), offset]

    def _array_node(self, array: np.ndarray, place: str) -> list[Any]:
        if array.dtype.hasobject or array.dtype.fields is not None:
            raise LoaderError(f"{place} is an array of {array.dtype}", _REMEDY)
        offset = self._reserve(array.nbytes)
        self._parts.append(_Part(array, (), offset))
        return [Kind.ARRAY, array.dtype.str, list(array.shape), offset]

    def _reserve(self, nbytes: int) -> int:
        offset = -(-self._nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        self._nbytes = offset + nbytes
        return offset


def read(layout: Layout, buffer: memoryview) -> Any:
    """Return the batch whose tensors are views of a buffer; each of them keeps the buffer."""
    return _built(layout.tree, buffer)


def copy(layout: Layout, buffer: memoryview) -> Any:
    """Return the batch with tensors and arrays of its own."""
    return mapped(_built(layout.tree, buffer), torch.Tensor.clone, np.ndarray.copy)


def mapped(
    batch: Any,
    tensor: Callable[[torch.Tensor], Any],
    array: Callable[[np.ndarray], Any],
    value: Callable[[Any], Any] = lambda value: value,
) -> Any:
    """Return a batch with each tensor, array and other value replaced by a function's result."""
    if isinstance(batch, torch.Tensor):
        return tensor(batch)
    if isinstance(batch, np.ndarray):
        return array(batch)
    if isinstance(batch, (tuple, list)):
        return type(batch)(mapped(part, tensor, array, value) for part in batch)
    if isinstance(batch, dict):
        return {key: mapped(part, tensor, array, value) for key, part in batch.items()}
    return value(batch)


def _built(node: list[Any], buffer: memoryview) -> Any:
    match node:
        case [Kind.TENSOR, dtype, shape, stride, offset]:
            return _tensor(buffer, getattr(torch, dtype), tuple(shape), tuple(stride), offset)
        case [Kind.ARRAY, dtype, shape, offset]:
            return _array(buffer, np.dtype(dtype), tuple(shape), offset)
        case [Kind.TUPLE, parts]:
            return tuple(_built(part, buffer) for part in parts)
        case [Kind.LIST, parts]:
            return [_built(part, buffer) for part in parts]
        case [Kind.DICT, items]:
            return {key: _built(part, buffer) for key, part in items}
    return node[1]


def _tensor(
    buffer: memoryview,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
) -> torch.Tensor:
    count = math.prod(shape)
    if not count:
        return torch.empty_strided(shape, stride, dtype=dtype)
    flat = torch.frombuffer(buffer, dtype=dtype, count=count, offset=offset)
    return flat.as_strided(shape, stride)


def _array(
    buffer: memoryview, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int
) -> np.ndarray:
    count = math.prod(shape)
    if not count or not dtype.itemsize:
        return np.empty(shape, dtype)
    return np.frombuffer(buffer, dtype=dtype, count=count, offset=offset).reshape(shape)
