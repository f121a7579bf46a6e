"""Copies of a model's parameters and buffers, in memory that other processes can map.

The memory is a memfd (memfd_create(2)): it has no name, so nothing is left of it when its last
process is gone. It is allocated once, with a *slot* for each copy.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from radt.errors import TrainingError, UsageError
from radt.units import size

#: Slots and tensors begin at multiples of this: a cache line, and aligned for every dtype.
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Place:
    """One parameter or buffer of a model, and where it lies in a slot.

    Attributes:
        name: Its first name in the model; a tied parameter has one place.
        dtype: Name of its type: ``float32``.
        shape: Its shape.
        stride: Its strides in the model. Kernels, and so the last bits, may depend on them.
        device: Its device in the model.
        offset: Its first byte in a slot.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    device: str
    offset: int

    def empty(self) -> Tensor:
        """Return a tensor like the model's, with arbitrary values."""
        dtype = getattr(torch, self.dtype)
        return torch.empty_strided(self.shape, self.stride, dtype=dtype, device=self.device)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a model's parameters and buffers lie in a slot.

    Args:
        places: In the order of the model.
        slot_bytes: Size of a slot.
    """

    places: tuple[Place, ...]
    slot_bytes: int

    @classmethod
    def of(cls, model: nn.Module) -> Layout:
        """Lay out a model.

        Raises:
            UsageError: A tensor of the model is sparse or has no values yet.
        """
        places, offset = [], 0
        for name, tensor in tensors_of(model).items():
            if tensor.layout is not torch.strided or tensor.is_meta or not _has_shape(tensor):
                raise UsageError(
                    f"{name} of the model cannot be copied: it is sparse, on the device meta, or "
                    "has no shape before the first batch",
                    "Pass a model with dense tensors, after its first batch if it is lazy",
                )
            dtype = str(tensor.dtype).removeprefix("torch.")
            stride = torch.empty_like(tensor, device="meta").stride()
            place = Place(name, dtype, tuple(tensor.shape), stride, str(tensor.device), offset)
            places.append(place)
            offset += _aligned(tensor.numel() * tensor.element_size())
        return cls(tuple(places), max(offset, _ALIGNMENT))

    def views(self, memory: mmap.mmap, slot: int) -> list[Tensor]:
        """Return the tensors of a slot; they keep the mapping alive."""
        begin = slot * self.slot_bytes
        return [_view(memory, begin + place.offset, place) for place in self.places]


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return all parameters and buffers, each once, also buffers that ``state_dict`` leaves out."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


class SnapshotMemory:
    """Slots for copies of one model, allocated once.

    Copying does not wait for a GPU: the copy is enqueued after what trains, into memory that is
    pinned, and `Snapshot.wait` returns when it has arrived.

    Args:
        model: The model.
        slots: Number of copies.

    Raises:
        UsageError: The model has something that cannot be copied.
        TrainingError: There is not enough memory.
    """

    def __init__(self, model: nn.Module, slots: int) -> None:
        self.layout = Layout.of(model)
        self._model = model
        self._keys = _state_keys(model)
        self._expected = _described(tensors_of(model))
        nbytes = slots * self.layout.slot_bytes
        self.descriptor = os.memfd_create("radt-snapshots", os.MFD_CLOEXEC)
        try:
            # Now rather than by SIGBUS when a page is first written.
            os.posix_fallocate(self.descriptor, 0, nbytes)
            memory = mmap.mmap(self.descriptor, nbytes)
        except OSError as error:
            os.close(self.descriptor)
            raise TrainingError(
                f"{slots} copies of the model need {size(nbytes)} of memory: {error.strerror}",
                "Free memory on this machine, or validate a smaller model",
            ) from error
        self._slots = [self.layout.views(memory, slot) for slot in range(slots)]
        self._taken: list[Snapshot | None] = [None] * slots
        cuda = {place.device for place in self.layout.places if place.device.startswith("cuda")}
        self._devices = sorted(cuda)
        self._pinned = _pin(memory, nbytes) if cuda else 0

    def take(self, slot: int, epoch: int) -> Snapshot:
        """Copy the model as it is now; the slot's copy before loses its values.

        Raises:
            TrainingError: The model has other tensors than before.
        """
        sources = tensors_of(self._model)
        if (found := _described(sources)) != self._expected:
            changed = ", ".join(sorted(found ^ self._expected)[:4])
            raise TrainingError(
                f"the model has changed since its validator was made: {changed}",
                "Keep names, shapes, dtypes and devices, or make a new OverlappedValidator",
            )
        before = self._taken[slot]
        if before is not None:
            before.expire()
        copy_all(list(sources.values()), self._slots[slot])
        arrived = [torch.cuda.current_stream(device).record_event() for device in self._devices]
        snapshot = Snapshot(epoch, slot, self._slots[slot], self._keys, arrived)
        self._taken[slot] = snapshot
        return snapshot

    def close(self) -> None:
        """Let go of the memory; it stays until the last snapshot is gone that was not expired."""
        if self.descriptor >= 0:
            if self._pinned:
                torch.cuda.cudart().cudaHostUnregister(self._pinned)  # type: ignore[no-untyped-call]
            os.close(self.descriptor)
            self.descriptor = -1
            self._slots, self._taken = [], []


class Snapshot:
    """A model's parameters and buffers as they were when an epoch was submitted.

    Attributes:
        epoch: The epoch.
        slot: Which slot of the memory has it.
    """

    def __init__(
        self,
        epoch: int,
        slot: int,
        tensors: Sequence[Tensor],
        keys: dict[str, int],
        arrived: Sequence[torch.cuda.Event],
    ) -> None:
        self.epoch, self.slot = epoch, slot
        self._tensors: Sequence[Tensor] = tensors
        self._keys, self._arrived = keys, arrived
        self._expired = False

    def wait(self) -> None:
        """Return when a GPU has copied it."""
        for event in self._arrived:
            event.synchronize()

    def copy_to(self, targets: Sequence[Tensor]) -> None:
        """Copy it into the tensors of a model with the same layout, in the model's order."""
        self.wait()
        copy_all(self._tensors, targets)

    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy of it, on the CPU, with the keys of the model's ``state_dict()``.

        Raises:
            TrainingError: A later epoch has taken its memory.
        """
        if self._expired:
            raise TrainingError(
                f"the snapshot of epoch {self.epoch} has been overwritten by a later one",
                "Take its state_dict() as soon as its result is there, before the next submit",
            )
        self.wait()
        return {key: self._tensors[place].clone() for key, place in self._keys.items()}

    def expire(self) -> None:
        """Its memory is about to be used for another one."""
        self._expired, self._tensors = True, ()


def copy_all(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    """Copy tensors; on a GPU in order with what is enqueued next."""
    with torch.no_grad():
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source, non_blocking=True)


def _state_keys(model: nn.Module) -> dict[str, int]:
    """Return which place has each entry of the model's ``state_dict()``."""
    places = {id(tensor): place for place, tensor in enumerate(tensors_of(model).values())}
    keys = {}
    for key, value in model.state_dict(keep_vars=True).items():
        if id(value) not in places:
            raise UsageError(
                f"state_dict() of the model has {key}, which is neither a parameter nor a buffer",
                "Register it as a buffer, so that it is copied with the others",
            )
        keys[key] = places[id(value)]
    return keys


def _described(tensors: dict[str, Tensor]) -> set[str]:
    return {
        f"{name}: {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"
        for name, tensor in tensors.items()
    }


def _view(memory: mmap.mmap, offset: int, place: Place) -> Tensor:
    count = math.prod(place.shape)
    if not count:  # `frombuffer` refuses it
        return torch.empty(place.shape, dtype=getattr(torch, place.dtype))
    flat = torch.frombuffer(memory, dtype=getattr(torch, place.dtype), count=count, offset=offset)
    # Strides as in the model, which are dense: the copy is then one of contiguous bytes.
    return flat.as_strided(place.shape, place.stride)


def _pin(memory: mmap.mmap, nbytes: int) -> int:
    """Pin the memory for copies that do not make the CPU wait; return its address."""
    address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(address, nbytes, 0))  # type: ignore[no-untyped-call]
    return address


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _has_shape(tensor: Tensor) -> bool:
    return not isinstance(tensor, (nn.UninitializedParameter, nn.UninitializedBuffer))
