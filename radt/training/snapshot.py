"""Copies of a model's parameters and buffers, in memory that other processes can map.

The memory is a memfd (memfd_create(2)). It has no name, so the kernel frees it when its last
process ends. It is allocated once, with a *slot* for each copy.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from radt.errors import TrainingError, UsageError
from radt.loaders.pinned import unpin
from radt.training.layout import Layout
from radt.training.pinned import pin
from radt.training.weights import WeightAccess, model_tensors, weights_of
from radt.units import size

#: Minimum size of the mapping: a model may have no tensors.
_LEAST_BYTES = 64


class SnapshotMemory:
    """Slots for copies of one model, allocated once.

    Copies are asynchronous on a GPU: they are enqueued after the training's work, into pinned
    memory, and `Snapshot.wait` returns when a copy is complete.

    Args:
        model: The model.
        slots: Number of copies.

    Raises:
        UsageError: The model has a tensor that cannot be copied.
        TrainingError: There is not enough memory.
    """

    def __init__(self, model: nn.Module, slots: int) -> None:
        self._weights = weights_of(model)
        self.layout = self._weights.layout
        self._keys = _state_keys(model)
        if unmade := [piece.name for piece in self.layout.pieces if piece.device == "meta"]:
            raise UsageError(
                f"{unmade[0]} of the model cannot be copied: it is on the device meta",
                "Pass a model that has values",
            )
        nbytes = slots * _slot_bytes(self.layout)
        self.descriptor = os.memfd_create("radt-snapshots", os.MFD_CLOEXEC)
        try:
            # Allocate now: otherwise a first write to a page could raise SIGBUS.
            os.posix_fallocate(self.descriptor, 0, nbytes)
            memory = mmap.mmap(self.descriptor, nbytes)
        except OSError as error:
            os.close(self.descriptor)
            raise TrainingError(
                f"{slots} copies of the model need {size(nbytes)} of memory: {error.strerror}",
                "Free memory on this machine, or validate a smaller model",
            ) from error
        self._slots = slots_in(memory, self.layout)
        self._taken: list[Snapshot | None] = [None] * slots
        cuda = {piece.device for piece in self.layout.pieces if piece.device.startswith("cuda")}
        self._devices = sorted(cuda)
        self._pinned = torch.frombuffer(memory, dtype=torch.uint8) if cuda else None
        if self._pinned is not None:
            pin(self._pinned)

    def take(self, slot: int, epoch: int) -> Snapshot:
        """Copy the model as it is now. The slot's previous copy is lost.

        Raises:
            TrainingError: The model has other tensors than before.
        """
        if changed := self.layout.difference(self._weights.layout):
            raise TrainingError(
                f"the model has changed since its validator was made: {', '.join(changed[:4])}",
                "Keep names, shapes, dtypes and devices, or make a new OverlappedValidator",
            )
        before = self._taken[slot]
        if before is not None:
            before.expire()
        with self._weights.in_memory(WeightAccess.READ) as sources:
            copy_all(list(sources.values()), self._slots[slot])
        arrived = [torch.cuda.current_stream(device).record_event() for device in self._devices]
        snapshot = Snapshot(epoch, slot, self._slots[slot], self._keys, arrived)
        self._taken[slot] = snapshot
        return snapshot

    def close(self) -> None:
        """Release the memory. It stays until the last snapshot that has not expired is gone."""
        if self.descriptor >= 0:
            if self._pinned is not None:
                unpin(self._pinned)
                self._pinned = None
            os.close(self.descriptor)
            self.descriptor = -1
            self._slots, self._taken = [], []


class Snapshot:
    """A model's parameters and buffers as they were when an epoch was submitted.

    Attributes:
        epoch: The epoch.
        slot: Slot of the memory that holds it.
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
        """Wait until a GPU has copied it."""
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
        """Mark it as invalid: its memory is about to be reused."""
        self._expired, self._tensors = True, ()


def copy_all(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    """Copy tensors. On a GPU, the copies are in order with the work enqueued next."""
    with torch.no_grad():
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source, non_blocking=True)


def _state_keys(model: nn.Module) -> dict[str, int]:
    """Return the position of each entry of the model's ``state_dict()``."""
    places = {id(tensor): place for place, tensor in enumerate(model_tensors(model).values())}
    keys = {}
    for key, value in model.state_dict(keep_vars=True).items():
        if id(value) not in places:
            raise UsageError(
                f"state_dict() of the model has {key}, which is neither a parameter nor a buffer",
                "Register it as a buffer, so that it is copied with the others",
            )
        keys[key] = places[id(value)]
    return keys


def slots_in(memory: mmap.mmap, layout: Layout) -> list[list[Tensor]]:
    """Return the tensors of each slot. They keep the mapping alive."""
    slot_bytes = _slot_bytes(layout)
    flat = torch.frombuffer(memory, dtype=torch.uint8)
    return [layout.tensors(slot) for slot in torch.split(flat, slot_bytes)]


def _slot_bytes(layout: Layout) -> int:
    return max(layout.byte_count, _LEAST_BYTES)
