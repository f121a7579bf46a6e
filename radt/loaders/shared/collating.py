"""Workers of a server's DataLoader collate into slots of its arena, so that nobody copies batches.

Without it, a worker would make each batch in new shared memory, whose pages cost more to get than
to fill, and the server would copy it into a slot. The server offers free slots to all workers
through one socket. A worker that finds no offer there (at first there is no arena), or whose batch
does not fit, collates as it always does: nobody waits for a slot.
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

from radt.errors import LoaderError
from radt.loaders.arena import Arena
from radt.loaders.layout import LaidOut, Room

#: Of the socket's buffer, and of descriptors that are on their way.
_NO_ROOM = (errno.EAGAIN, errno.ETOOMANYREFS)
#: Generation of the arena, slot, bytes of a slot.
_OFFER = struct.Struct("<IIQ")


@dataclass(frozen=True, slots=True)
class Collated:
    """What a worker that had an offer gives for a batch.

    Args:
        generation: Of the arena, counted by the server.
        slot: That was offered.
        json_bytes: Length of the layout's JSON at its end; 0 if the batch is not in the slot.
        batch: If it is not.
    """

    generation: int
    slot: int
    json_bytes: int = 0
    batch: Any = None


class Offers:
    """The server's side.

    Args:
        loader: Its ``collate_fn`` is replaced.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        #: How many batches are under way at most, with the one that the server has in its hands.
        self.most = loader.num_workers * (loader.prefetch_factor or 0) + 1
        kind = socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK
        self._ours, self._workers = socket.socketpair(socket.AF_UNIX, kind)
        loader.collate_fn = _SlotCollate(loader.collate_fn, self._workers)

    @classmethod
    def to_workers_of(cls, loader: object) -> Offers | None:
        """Return offers to a loader's workers; None if it has none.

        A subclass of ``DataLoader`` might look at the batches.
        """
        return cls(loader) if type(loader) is DataLoader and loader.num_workers else None

    def send(self, generation: int, slot: int, arena: Arena) -> bool:
        """Offer a slot; return whether there was room for the message."""
        offer = _OFFER.pack(generation, slot, arena.slot_bytes)
        try:
            socket.send_fds(self._ours, [offer], [arena.descriptor])
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            return False
        return True

    def withdraw(self) -> None:
        """Take back what no worker has taken."""
        while (offer := _received(self._workers)) is not None:
            os.close(offer[1])


class _SlotCollate:
    """A worker's side: collates in a slot if one is offered."""

    def __init__(self, collate_fn: Callable[[Any], Any], offers: socket.socket) -> None:
        self._collate, self._offers = collate_fn, offers
        self._generation = 0
        self._map: mmap.mmap | None = None

    def __call__(self, samples: Any) -> Any:
        if (received := _received(self._offers)) is None:
            return self._collate(samples)
        generation, slot, slot_bytes = _OFFER.unpack(received[0])
        if self._map is None or generation != self._generation:
            nbytes = os.fstat(received[1]).st_size
            self._map, self._generation = mmap.mmap(received[1], nbytes), generation
        os.close(received[1])
        view = memoryview(self._map)[slot * slot_bytes : (slot + 1) * slot_bytes]
        room = Room(view)
        # Another collate_fn may keep what it returns.
        in_place = self._collate is default_collate
        batch = _collated_in(room, samples) if in_place else self._collate(samples)
        try:
            json_bytes = LaidOut(batch, room).write_described(view)
        except LoaderError:
            json_bytes = 0  # the server says what is wrong
        if json_bytes:
            return Collated(generation, slot, json_bytes)
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
    """Return what ``default_collate`` does, with tensors made in a slot as far as there is room."""

    def collate_tensors(batch: Any, *, collate_fn_map: Any = None) -> Any:
        first = batch[0]
        if all(type(one) is torch.Tensor for one in batch) and first.layout == torch.strided:
            out = room.tensor((len(batch), *first.shape), first.dtype)
            if out is not None:
                return torch.stack(batch, 0, out=out)
        return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)

    functions = dict(default_collate_fn_map)
    if functions.get(torch.Tensor) is collate_tensor_fn:  # else the script has its own
        functions[torch.Tensor] = collate_tensors
    return collate(samples, collate_fn_map=functions)
