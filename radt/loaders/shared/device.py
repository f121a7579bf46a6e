"""Batches on a GPU: the server puts each one there once, and all consumers on it read that.

A batch lies in a slot of the arena in any case. Where a consumer has asked for its GPU, the server
copies the slot to a *place* on that GPU and waits for the copy before it hands the batch out. A
consumer that has done with a batch says so when its GPU has, too: then slot and place are free.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from radt.errors import LoaderError
from radt.loaders import layout, wire
from radt.loaders.layout import Layout
from radt.loaders.shared import cuda
from radt.loaders.shared.membership import Filled


def asked_for(device: str | torch.device | None) -> torch.device | None:
    """Return the GPU that an argument names; None for the machine's memory.

    Raises:
        LoaderError: It names something else.
    """
    if device is None:
        return None
    try:
        chosen = torch.device(device)
    except RuntimeError:  # PyTorch does not know it
        chosen = torch.device("meta")
    if chosen.type != "cuda":
        raise LoaderError(f"device is {str(device)!r}", "Expected 'cuda', 'cuda:1', … or None")
    if chosen.index is not None or not torch.cuda.is_available():
        return chosen
    return torch.device("cuda", torch.cuda.current_device())


class Places:
    """The server's side: places on one GPU.

    Args:
        gpu: Its UUID.
        count: How many.
        place_bytes: Size of each.

    Raises:
        cuda.CudaError: The server cannot use this GPU, or share its memory.
    """

    def __init__(self, gpu: str, count: int, place_bytes: int) -> None:
        self._device, self.place_bytes = cuda.device_of(gpu), place_bytes
        self._memory = cuda.Memory(self._device, count * place_bytes)
        #: The number of the batch in each place.
        self._numbers: dict[int, int] = {}

    @property
    def nbytes(self) -> int:
        return self._memory.nbytes

    @property
    def descriptor(self) -> int:
        return self._memory.descriptor

    def fill(self, filled: Filled, slot: memoryview) -> None:
        """Copy a batch from its slot to its place, and wait for it."""
        nbytes = Layout.from_json(slot[len(slot) - filled.json_bytes :]).nbytes
        if nbytes:
            source = torch.frombuffer(slot, dtype=torch.uint8, count=nbytes)
            self._memory.view(filled.place * self.place_bytes, nbytes).copy_(source)
            cuda.finish(self._device)
        self._numbers[filled.place] = filled.number

    def has(self, filled: Filled) -> bool:
        """Whether this batch is in its place: it was filled when there were places."""
        return self._numbers.get(filled.place) == filled.number


@dataclass(frozen=True, slots=True)
class _Done:
    """A slot that is free once the GPU has come to an event."""

    event: Any
    slot: wire.Slot


class Gpu:
    """A consumer's side.

    Args:
        device: Where its batches are to be.
        send: Tells the server that a slot is free.

    Raises:
        LoaderError: There is no such GPU.
    """

    def __init__(self, device: torch.device, send: Callable[[wire.Slot], None]) -> None:
        self.device, self._send = device, send
        try:
            self.identity = cuda.identity(device)
        except cuda.CudaError as error:
            remedy = "Leave device out, or name a GPU of this process"
            raise LoaderError(str(error), remedy) from error
        self._memory: cuda.Memory | None = None
        self._place_bytes = 0
        self._done: deque[_Done] = deque()

    def open(self, descriptor: int, nbytes: int, place_bytes: int) -> None:
        """Map the server's places, of a size each and in all.

        Raises:
            cuda.CudaError: This process cannot.
        """
        self._memory, self._place_bytes = None, place_bytes
        self._memory = cuda.Memory(self.device, nbytes, descriptor)

    @property
    def is_open(self) -> bool:
        """Whether the server's places are mapped."""
        return self._memory is not None

    def read(self, slot: memoryview, placed: wire.Placed, gone: Callable[[], bool]) -> Any:
        """Return the batch in a place, as views; arrays are copies.

        The stream that is current now is to use it.

        Args:
            slot: Where the batch lies in the machine's memory.
            placed: Where it lies on the GPU.
            gone: Called when the last tensor is gone; if it returns true, `release` tells the
                server as soon as the stream has come so far.
        """
        assert self._memory is not None
        work = cuda.stream(self.device)
        ids = wire.Slot(placed.generation, placed.slot, placed.number)

        def done() -> None:
            if gone():
                self._done.append(_Done(cuda.mark(work), ids))

        described = Layout.from_json(slot[len(slot) - placed.json_bytes :])
        begin, nbytes = placed.place * self._place_bytes, max(1, described.nbytes)
        return layout.read_on(described, slot, self._memory.view(begin, nbytes, done))

    def moved(self, batch: Any) -> Any:
        """Return a batch of the machine's memory on the GPU."""
        return layout.mapped(batch, lambda tensor: cuda.moved(tensor, self.device), lambda a: a)

    def release(self, *, wait: bool) -> None:
        """Tell the server which slots are free, and wait for those that will be."""
        while self._done and (wait or self._done[0].event.query()):
            done = self._done.popleft()
            if wait:
                done.event.synchronize()
            self._send(done.slot)
