"""Batches on a GPU: the server copies each one there once, and all consumers on this GPU read it.

A batch is always in a slot of the arena, too. If a consumer has asked for its GPU, the server
copies the batch to a *place* on that GPU and waits for the copy before it hands the batch out. The
source is the pinned slot; another GPU whose memory this one can read; or the tensors that the
loader made on this GPU. A consumer reports that it is done with a batch when its GPU is done, too.
Then slot and place are free.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from radt.errors import LoaderError
from radt.loaders import wire
from radt.loaders.layout import LaidOut, Packed
from radt.loaders.shared import cuda
from radt.loaders.shared.membership import Filled


def asked_for(device: str | torch.device | None) -> torch.device | None:
    """Return the GPU that an argument names; None for host memory.

    Raises:
        LoaderError: It names something else.
    """
    if device is None:
        return None
    try:
        chosen = torch.device(device)
    except RuntimeError:  # not known to PyTorch
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
        count: Number of places.
        place_bytes: Size of each place.

    Raises:
        cuda.CudaError: The server cannot use this GPU, or share its memory.
    """

    def __init__(self, gpu: str, count: int, place_bytes: int) -> None:
        self.gpu, self.device, self.place_bytes = gpu, cuda.device_of(gpu), place_bytes
        self._memory = cuda.GpuMemory(
            self.device, count * place_bytes, peers=cuda.peers_of(self.device)
        )
        self.copies = cuda.side_stream(self.device)
        #: Number of the batch in each place.
        self._numbers: dict[int, int] = {}

    @property
    def nbytes(self) -> int:
        return self._memory.nbytes

    @property
    def descriptor(self) -> int:
        return self._memory.descriptor

    def begin(
        self, filled: Filled, slot: memoryview, batch: LaidOut | None, others: Sequence[Places]
    ) -> None:
        """Start copying a batch to its place, from the fastest source.

        Args:
            filled: Where the batch is.
            slot: Its slot in host memory.
            batch: The batch, if this process made it; perhaps on this GPU.
            others: Places on other GPUs to which this batch is being copied.

        Raises:
            cuda.CudaError: The GPU fails.
        """
        nbytes = Packed.in_slot(slot, filled.description_bytes).tensor_bytes
        if not nbytes:
            return
        target = self.bytes_of(filled, nbytes)
        peer = next((each for each in others if cuda.can_access(self.device, each.device)), None)
        if batch is not None and batch.is_on(self.device):
            for part, source in batch.parts_in(target):
                cuda.copy(part, source, self.copies)
        elif peer is not None:
            cuda.copy(target, peer.bytes_of(filled, nbytes), peer.copies, self.copies)
        else:
            source = torch.frombuffer(slot, dtype=torch.uint8, count=nbytes)
            cuda.copy(target, source, self.copies)

    def finish(self, filled: Filled) -> None:
        """Wait until a batch is in its place.

        Raises:
            cuda.CudaError: The GPU fails.
        """
        cuda.finish(self.copies)
        self._numbers[filled.place] = filled.number

    def bytes_of(self, filled: Filled, nbytes: int) -> torch.Tensor:
        """Return the first bytes of a batch's place."""
        return self._memory.view(filled.place * self.place_bytes, nbytes)

    def has(self, filled: Filled) -> bool:
        """Return True if this batch is in its place, and not older than the places."""
        return self._numbers.get(filled.place) == filled.number


@dataclass(frozen=True, slots=True)
class _Done:
    """A slot that is free once the GPU has reached an event."""

    event: Any
    slot: wire.Slot


class GpuConsumer:
    """A consumer's side.

    Args:
        device: The GPU for its batches.
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
        self._memory: cuda.GpuMemory | None = None
        self._place_bytes = 0
        self._done: deque[_Done] = deque()

    def open(self, descriptor: int, nbytes: int, place_bytes: int) -> None:
        """Map the server's places, given their total size and the size of each.

        Raises:
            cuda.CudaError: This process cannot map them.
        """
        self._memory, self._place_bytes = None, place_bytes
        self._memory = cuda.GpuMemory(self.device, nbytes, descriptor)

    @property
    def is_open(self) -> bool:
        """True if the server's places are mapped."""
        return self._memory is not None

    def close(self) -> None:
        """Stop using the server's places. Tensors that were read there stay valid."""
        self._memory = None

    def read(self, placed: wire.Slot, gone: Callable[[], bool]) -> torch.Tensor:
        """Return the bytes of a place, for use on the current stream.

        Args:
            placed: The server's message.
            gone: Called when the last tensor is gone. If it returns True, `release` tells the
                server as soon as the stream has reached this point.

        Raises:
            cuda.CudaError: PyTorch cannot use them; `gone` is not called.
        """
        assert self._memory is not None and placed.place is not None
        work = cuda.stream(self.device)

        def done() -> None:
            if gone():
                self._done.append(_Done(cuda.mark(work), placed))

        return self._memory.view(placed.place * self._place_bytes, self._place_bytes, done)

    def moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a tensor from host memory to the GPU."""
        return cuda.moved(tensor, self.device)

    def release(self, *, wait: bool) -> None:
        """Tell the server which slots are free, and wait for the others if ``wait``."""
        while self._done and (wait or self._done[0].event.query()):
            done = self._done.popleft()
            if wait:
                done.event.synchronize()
            self._send(done.slot)
