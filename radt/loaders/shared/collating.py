"""Workers of a server's DataLoader collate into slots of its arena, which avoids a copy.

Otherwise, a worker would make each batch in new shared memory, whose pages cost more to allocate
than to fill, and the server would copy it into a slot. The server offers free slots to all workers
through one socket. A worker that finds no offer (at first there is no arena), or whose batch does
not fit, collates as usual: no worker waits for a slot.
"""

from __future__ import annotations

import errno
import mmap
import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate
from torch.utils.data._utils.collate import collate, collate_tensor_fn, default_collate_fn_map

from radt.loaders.arena import Arena
from radt.loaders.layout import LaidOut, Room

#: Errors of a full socket buffer, and of too many descriptors in flight.
_NO_ROOM = (errno.EAGAIN, errno.ETOOMANYREFS)
#: Generation of the arena, slot, bytes of a slot.
_OFFER = struct.Struct("<IIQ")


@dataclass(frozen=True, slots=True)
class Collated:
    """A worker's result for a batch after it received an offer.

    Args:
        generation: Generation of the arena, counted by the server.
        slot: The offered slot.
        description_bytes: Length of the description at the slot's end; 0 if the batch is not there.
        batch: The batch, if it is not in the slot.
    """

    generation: int
    slot: int
    description_bytes: int = 0
    batch: Any = None


class Offers:
    """The server's side.

    Args:
        loader: A loader, whose ``collate_fn`` is replaced.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        #: Maximum number of batches in progress, including the one that the server is handling.
        self.most = loader.num_workers * (loader.prefetch_factor or 0) + 1
        kind = socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK
        self._ours, self._workers = socket.socketpair(socket.AF_UNIX, kind)
        loader.collate_fn = _SlotCollate(loader.collate_fn, self._workers)

    @classmethod
    def to_workers_of(cls, loader: object) -> Offers | None:
        """Return offers to a loader's workers; None if it has none.

        Subclasses of ``DataLoader`` are excluded, as they may inspect the batches.
        """
        return cls(loader) if type(loader) is DataLoader and loader.num_workers else None

    def send(self, generation: int, slot: int, arena: Arena) -> bool:
        """Offer a slot. Return False if the socket is full."""
        offer = _OFFER.pack(generation, slot, arena.slot_bytes)
        try:
            socket.send_fds(self._ours, [offer], [arena.descriptor])
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            return False
        return True

    def withdraw(self) -> None:
        """Withdraw the offers that no worker has received."""
        while (offer := _received(self._workers)) is not None:
            os.close(offer[1])


class _SlotCollate:
    """A worker's side: collates into a slot if one is offered."""

    def __init__(self, collate_fn: Callable[[Any], Any], offers: socket.socket) -> None:
        self._collate, self._offers = collate_fn, offers
        self._generation = 0
        self._map: mmap.mmap | None = None

    def __call__(self, samples: Any) -> Any:
        if (received := _received(self._offers)) is None:
            batch = self._collate(samples)
            LaidOut(batch)  # raise here: the worker's queue would drop the error
            return batch
        generation, slot, slot_bytes = _OFFER.unpack(received[0])
        if self._map is None or generation != self._generation:
            nbytes = os.fstat(received[1]).st_size
            self._map, self._generation = mmap.mmap(received[1], nbytes), generation
        os.close(received[1])
        view = memoryview(self._map)[slot * slot_bytes : (slot + 1) * slot_bytes]
        room = Room(view)
        # A custom collate_fn may keep the tensors that it returns.
        in_place = self._collate is default_collate
        batch = _collated_in(room, samples) if in_place else self._collate(samples)
        if description_bytes := LaidOut(batch, room).write_described(view):
            return Collated(generation, slot, description_bytes)
        if in_place:
            batch = self._collate(samples)
        return Collated(generation, slot, batch=batch)


def _received(offers: socket.socket) -> tuple[bytes, int] | None:
    """Return the next offer and the descriptor of its arena; None if there is none."""
    flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
    try:
        data, descriptors, _, _ = socket.recv_fds(offers, _OFFER.size, 1, flags)
    except BlockingIOError:
        return None
    return data, descriptors[0]


def _collated_in(room: Room, samples: Any) -> Any:
    """Collate like ``default_collate``, with tensors in a slot as far as they fit."""

    def collate_tensors(batch: Any, *, collate_fn_map: Any = None) -> Any:
        first = batch[0]
        if all(type(one) is torch.Tensor for one in batch) and first.layout == torch.strided:
            out = room.tensor((len(batch), *first.shape), first.dtype)
            if out is not None:
                return torch.stack(batch, 0, out=out)
        return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)

    functions = dict(default_collate_fn_map)
    if functions.get(torch.Tensor) is collate_tensor_fn:  # otherwise the script has replaced it
        functions[torch.Tensor] = collate_tensors
    return collate(samples, collate_fn_map=functions)
