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


class Room:
    """A place for tensors, one after another.

    Args:
        buffer: To make them in; without it, nothing can be made.
    """

    def __init__(self, buffer: memoryview | None = None) -> None:
        self._buffer = buffer
        #: By id; it keeps them, so that no other gets the id of one.
        self._made: dict[int, _Part] = {}
        self.nbytes = 0

    def reserve(self, nbytes: int) -> int:
        """Return where the next part begins."""
        offset = -(-self.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        self.nbytes = offset + nbytes
        return offset

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
        """Return a contiguous tensor in the buffer; None if there is not so much room."""
        count = math.prod(shape)
        offset = self.reserve(count * dtype.itemsize)
        if self._buffer is None or not count or self.nbytes > len(self._buffer):
            return None
        made = torch.frombuffer(self._buffer, dtype=dtype, count=count, offset=offset).view(shape)
        self._made[id(made)] = _Part(made, made.stride(), offset)
        return made

    def made(self, tensor: torch.Tensor) -> _Part | None:
        """Return where a tensor is that was made here; None for others."""
        return self._made.get(id(tensor))


class LaidOut:
    """A batch with its layout, ready to be written.

    Args:
        batch: See above.
        room: Where some of its tensors may have been made already.

    Raises:
        LoaderError: There is something else in the batch than described above.
    """

    def __init__(self, batch: Any, room: Room | None = None) -> None:
        self._parts: list[_Part] = []
        self._room = Room() if room is None else room
        tree = self._node(batch, "batch")
        self.layout = Layout(self._room.nbytes, tree)
        self.description = self.layout.to_json()

    @property
    def nbytes(self) -> int:
        """Bytes of tensors and description."""
        return self.layout.nbytes + len(self.description)

    def write_described(self, buffer: memoryview) -> int:
        """Write the tensors to a buffer's beginning and the layout's JSON to its end.

        Returns:
            The length of the JSON; 0, and nothing is written, if the buffer is too small.
        """
        if self.nbytes > len(buffer):
            return 0
        self.write(buffer)
        buffer[len(buffer) - len(self.description) :] = self.description
        return len(self.description)

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
        name = str(tensor.dtype).removeprefix("torch.")
        if (part := self._room.made(tensor)) is None:
            tensor = tensor.detach()
            # As dense as the source allows: channels_last stays channels_last.
            stride = tuple(torch.empty_like(tensor, device="meta").stride())
            offset = self._room.reserve(tensor.numel() * tensor.element_size())
            part = _Part(tensor, stride, offset)
            self._parts.append(part)
        return [Kind.TENSOR, name, list(tensor.shape), list(part.stride), part.offset]

    def _array_node(self, array: np.ndarray, place: str) -> list[Any]:
        if array.dtype.hasobject or array.dtype.fields is not None:
            raise LoaderError(f"{place} is an array of {array.dtype}", _REMEDY)
        offset = self._room.reserve(array.nbytes)
        self._parts.append(_Part(array, (), offset))
        return [Kind.ARRAY, array.dtype.str, list(array.shape), offset]


def read(layout: Layout, buffer: memoryview) -> Any:
    """Return the batch whose tensors are views of a buffer; each of them keeps the buffer."""
    return _built(layout.tree, buffer, buffer)


def read_on(layout: Layout, buffer: memoryview, tensors: torch.Tensor) -> Any:
    """Return the batch whose tensors are views of bytes on another device; arrays are copies.

    Args:
        layout: Of the batch.
        buffer: The bytes in the machine's memory.
        tensors: The same bytes on the device, uint8.
    """
    return mapped(_built(layout.tree, buffer, tensors), lambda tensor: tensor, np.ndarray.copy)


def copy(layout: Layout, buffer: memoryview) -> Any:
    """Return the batch with tensors and arrays of its own."""
    return mapped(_built(layout.tree, buffer, buffer), torch.Tensor.clone, np.ndarray.copy)


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


def _built(node: list[Any], buffer: memoryview, tensors: memoryview | torch.Tensor) -> Any:
    match node:
        case [Kind.TENSOR, dtype, shape, stride, offset]:
            return _tensor(tensors, getattr(torch, dtype), tuple(shape), tuple(stride), offset)
        case [Kind.ARRAY, dtype, shape, offset]:
            return _array(buffer, np.dtype(dtype), tuple(shape), offset)
        case [Kind.TUPLE, parts]:
            return tuple(_built(part, buffer, tensors) for part in parts)
        case [Kind.LIST, parts]:
            return [_built(part, buffer, tensors) for part in parts]
        case [Kind.DICT, items]:
            return {key: _built(part, buffer, tensors) for key, part in items}
    return node[1]


def _tensor(
    buffer: memoryview | torch.Tensor,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
) -> torch.Tensor:
    count = math.prod(shape)
    if not count:
        device = buffer.device if isinstance(buffer, torch.Tensor) else None
        return torch.empty_strided(shape, stride, dtype=dtype, device=device)
    if isinstance(buffer, torch.Tensor):
        flat = buffer[offset : offset + count * dtype.itemsize].view(dtype)
    else:
        flat = torch.frombuffer(buffer, dtype=dtype, count=count, offset=offset)
    return flat.as_strided(shape, stride)


def _array(
    buffer: memoryview, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int
) -> np.ndarray:
    count = math.prod(shape)
    if not count or not dtype.itemsize:
        return np.empty(shape, dtype)
    return np.frombuffer(buffer, dtype=dtype, count=count, offset=offset).reshape(shape)
