"""A batch as bytes: its tensors and arrays, and a description with their offsets.

The description is a pickle with offsets in place of tensors and arrays, so a batch may have any
structure and any leaves that workers of a ``DataLoader`` may return. Writer and readers belong to
the same user, which `radt.loaders.wire` checks, and run the same script.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
import sys
from collections import UserDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from radt.errors import LoaderError
from radt.loaders.batches import Structure

#: Alignment of tensors: a cache line, which is more than any element type needs.
_ALIGNMENT_BYTES = 64
#: Precedes the pickle of a description: number of bytes of the tensors and arrays.
_TENSOR_BYTES = struct.Struct("<Q")

_REMEDY = (
    "Return tensors on the CPU or a GPU, NumPy arrays and other values that pickle accepts, in any "
    "structure. Convert the rest in the loader's collate_fn"
)


@dataclass(frozen=True, slots=True)
class TensorAt:
    """The place of a tensor: strides in elements, without gaps; offset in bytes."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def within(self, memory: memoryview | torch.Tensor) -> torch.Tensor:
        """Return the tensor as a view of memory. Memory of another device is a uint8 tensor."""
        count = math.prod(self.shape)
        if not count:
            device = memory.device if isinstance(memory, torch.Tensor) else None
            return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device)
        if isinstance(memory, torch.Tensor):
            flat = memory[self.offset : self.offset + count * self.dtype.itemsize].view(self.dtype)
        else:
            flat = torch.frombuffer(memory, dtype=self.dtype, count=count, offset=self.offset)
        return flat.as_strided(self.shape, self.stride)


@dataclass(frozen=True, slots=True)
class _ArrayAt:
    """The place of an array; offset in bytes."""

    dtype: str
    shape: tuple[int, ...]
    offset: int

    def within(self, buffer: memoryview) -> np.ndarray:
        """Return the array as a view of a buffer."""
        dtype, count = np.dtype(self.dtype), math.prod(self.shape)
        if not count or not dtype.itemsize:
            return np.empty(self.shape, dtype)
        flat = np.frombuffer(buffer, dtype=dtype, count=count, offset=self.offset)
        return flat.reshape(self.shape)


class Room:
    """Space for tensors, one after another.

    Args:
        buffer: Memory for new tensors. Without it, offsets are reserved but no tensor is created.
    """

    def __init__(self, buffer: memoryview | None = None) -> None:
        self._buffer = buffer
        #: Keyed by id. Keeps the tensors alive, so that no id is reused.
        self._made: dict[int, tuple[torch.Tensor, TensorAt]] = {}
        self.nbytes = 0

    def reserve(self, nbytes: int) -> int:
        """Return the offset of the next part."""
        offset = -(-self.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        self.nbytes = offset + nbytes
        return offset

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
        """Return a contiguous tensor in the buffer; None if it does not fit."""
        count = math.prod(shape)
        offset = self.reserve(count * dtype.itemsize)
        if self._buffer is None or not count or self.nbytes > len(self._buffer):
            return None
        made = torch.frombuffer(self._buffer, dtype=dtype, count=count, offset=offset).view(shape)
        self._made[id(made)] = made, TensorAt(dtype, shape, made.stride(), offset)
        return made

    def made(self, tensor: torch.Tensor) -> TensorAt | None:
        """Return the place of a tensor that was created here; None for others."""
        found = self._made.get(id(tensor))
        return None if found is None else found[1]


class LaidOut:
    """A batch with its description, ready to be written.

    Args:
        batch: A batch.
        room: Space in which some of its tensors may already lie.

    Raises:
        LoaderError: The batch contains a value that cannot be sent to another process.
    """

    def __init__(self, batch: Any, room: Room | None = None) -> None:
        self._tensors: list[tuple[torch.Tensor, TensorAt]] = []
        self._arrays: list[tuple[np.ndarray, _ArrayAt]] = []
        self._room = Room() if room is None else room
        try:
            pickled = _pickled(batch, self._place_of)
        except Exception as error:  # pickling may raise anything
            raise LoaderError(f"{_unfit(batch)} cannot be shared: {error}", _REMEDY) from error
        self.tensor_bytes = self._room.nbytes
        self.description = _TENSOR_BYTES.pack(self.tensor_bytes) + pickled

    @property
    def nbytes(self) -> int:
        """Size of the tensors and the description."""
        return self.tensor_bytes + len(self.description)

    def write_described(self, buffer: memoryview) -> int:
        """Write the tensors to the start of a buffer and the description to its end.

        Returns:
            The length of the description, or 0 with nothing written if the buffer is too small.
        """
        if self.nbytes > len(buffer):
            return 0
        self.write(buffer)
        buffer[len(buffer) - len(self.description) :] = self.description
        return len(self.description)

    def is_on(self, device: torch.device) -> bool:
        """Return True if all tensors are on this GPU and there are no arrays."""
        return not self._arrays and all(tensor.device == device for tensor, _ in self._tensors)

    def parts_in(self, memory: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield each tensor's view of memory on its device (uint8), and the tensor."""
        return ((place.within(memory), tensor) for tensor, place in self._tensors)

    def write(self, buffer: memoryview) -> None:
        """Copy the tensors to the start of a buffer of at least ``tensor_bytes``."""
        for tensor, its_place in self._tensors:
            its_place.within(buffer).copy_(tensor)
        for array, place in self._arrays:
            place.within(buffer)[...] = array

    def _place_of(self, value: Any) -> TensorAt | _ArrayAt | None:
        """Return the place of a tensor or array; None for values to pickle."""
        if isinstance(value, torch.Tensor):
            if value.layout != torch.strided or value.is_quantized:
                return None
            return self._tensor(value)
        if type(value) in (np.ndarray, np.memmap) and not value.dtype.hasobject:
            if value.dtype.fields is not None:
                return None
            place = _ArrayAt(value.dtype.str, value.shape, self._room.reserve(value.nbytes))
            self._arrays.append((value, place))
            return place
        return None

    def _tensor(self, tensor: torch.Tensor) -> TensorAt:
        if tensor.device.type not in ("cpu", "cuda"):
            raise ValueError(f"it is on the device {tensor.device}")
        if (place := self._room.made(tensor)) is None:
            tensor = tensor.detach()
            # Keep a dense memory format: channels_last stays channels_last.
            stride = tuple(torch.empty_like(tensor, device="meta").stride())
            offset = self._room.reserve(tensor.numel() * tensor.element_size())
            place = TensorAt(tensor.dtype, tuple(tensor.shape), stride, offset)
            self._tensors.append((tensor, place))
        return place


def _same(part: Any) -> Any:
    return part


@dataclass(frozen=True, slots=True)
class Packed:
    """A written batch: a buffer that starts with its tensors, and its description."""

    buffer: memoryview
    description: memoryview

    @classmethod
    def in_slot(cls, slot: memoryview, description_bytes: int) -> Packed:
        """Return the batch that `LaidOut.write_described` wrote to a slot."""
        return cls(slot, slot[len(slot) - description_bytes :])

    @property
    def tensor_bytes(self) -> int:
        """Size of the tensors and arrays."""
        return int(_TENSOR_BYTES.unpack_from(self.description)[0])

    def read(
        self,
        tensor: Callable[[torch.Tensor], Any] = _same,
        array: Callable[[np.ndarray], Any] = _same,
        memory: torch.Tensor | None = None,
    ) -> Any:
        """Return the batch. Tensors and arrays that are views keep the buffer alive.

        Args:
            tensor: Called with each tensor (a view); returns what takes its place.
            array: The same for arrays.
            memory: The buffer's bytes on another device, for the tensors to view.
        """

        def part(place: TensorAt | _ArrayAt) -> Any:
            if isinstance(place, _ArrayAt):
                return array(place.within(self.buffer))
            return tensor(place.within(self.buffer if memory is None else memory))

        return _Unpickler(io.BytesIO(self.description[_TENSOR_BYTES.size :]), part).load()

    def copy(self) -> Any:
        """Return the batch with copies of its tensors and arrays."""
        return self.read(torch.Tensor.clone, np.ndarray.copy)


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, place_of: Callable[[Any], Any]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._place_of = place_of

    def persistent_id(self, value: Any) -> Any:
        return self._place_of(value)

    def reducer_override(self, value: Any) -> Any:
        """Pickle a ``UserDict`` by its attributes.

        Many subclasses have a ``__getattr__`` that reads ``data``, which pickle calls before
        ``data`` exists.
        """
        if isinstance(value, UserDict) and not hasattr(type(value), "__setstate__"):
            return _with_attributes, (type(value), vars(value))
        return NotImplemented


def _with_attributes(kind: type, attributes: dict[str, Any]) -> Any:
    value: Any = object.__new__(kind)
    vars(value).update(attributes)
    return value


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, part: Callable[[Any], Any]) -> None:
        super().__init__(file)
        self._part = part

    def persistent_load(self, place: Any) -> Any:
        return self._part(place)

    def find_class(self, module: str, name: str) -> Any:
        """Return a class. The main script's classes have another module name in the server."""
        main = sys.modules["__main__"]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        known_as = spec.name if spec is not None else Path(file or "").stem
        if module == known_as and hasattr(main, name.partition(".")[0]):
            module = "__main__"
        return super().find_class(module, name)


def _pickled(batch: Any, place_of: Callable[[Any], Any]) -> bytes:
    file = io.BytesIO()
    _Pickler(file, place_of).dump(batch)
    return file.getvalue()


def _unfit(value: Any, place: str = "batch") -> str:
    """Describe the part of a value that cannot be pickled."""
    structure = Structure.of(value)
    if structure is not None:
        for name, part in zip(structure.names, structure.parts, strict=True):
            try:
                _pickled(part, LaidOut(None)._place_of)  # noqa: SLF001 - same module
            except Exception:  # noqa: BLE001 - see LaidOut
                return _unfit(part, f"{place}[{name!r}]")
    return f"{place}, a {type(value).__name__},"
