"""Memory for decoded samples that the worker processes of a loader share.

One anonymous file in memory: a page of state, then slots of equal size. Nothing of it has a name,
so nothing is left behind, however a process ends. A slot is written by one worker, read by all of
them, and written anew when every use has been made; whoever is early waits.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

from radt.errors import LoaderError
from radt.loaders.layout import LaidOut, Layout, copy
from radt.units import size

_WORD = 8
#: A slot begins with the length of the sample's layout; its tensors begin at a multiple of 64.
_LENGTH, _ALIGNMENT = struct.Struct("=Q"), 64
#: Words of state before those of the slots.
_SLOT_BYTES, _WAITING, _FAILED_PASS, _FAILED_BATCH, _FIRST_SLOT = range(5)
#: Who waits looks after this time whether the loader's process is still there.
_LOOK_S = 1.0
_MAX_FILLS = 1 << 32


class GivenUpError(Exception):
    """What a worker waits for will never come: an earlier batch failed, or the loop has ended."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Whose turn it is: a batch of one pass over the data.

    Args:
        loop: Number of the loop over the loader, from 1.
        batch: Number of the batch in its epoch.
    """

    loop: int
    batch: int


class PackedSample:
    """A sample that is ready to be written.

    Raises:
        LoaderError: Something in it is neither a tensor or array nor a number or text.
    """

    def __init__(self, sample: Any) -> None:
        self._laid_out = LaidOut(sample)
        self._layout = self._laid_out.layout.to_json()
        self._begin = _aligned(_LENGTH.size + len(self._layout))

    @property
    def nbytes(self) -> int:
        """Bytes that it takes in a slot."""
        return self._begin + self._laid_out.layout.nbytes

    def write(self, slot: memoryview) -> None:
        """Write it to the beginning of a slot."""
        _LENGTH.pack_into(slot, 0, len(self._layout))
        slot[_LENGTH.size : _LENGTH.size + len(self._layout)] = self._layout
        self._laid_out.write(slot[self._begin :])


def _unpacked(slot: memoryview) -> Any:
    """Return a copy of the sample in a slot."""
    (length,) = _LENGTH.unpack_from(slot)
    end = _LENGTH.size + length
    return copy(Layout.from_json(slot[_LENGTH.size : end]), slot[_aligned(end) :])


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


class SampleBuffer:
    """Slots for decoded samples.

    Args:
        slots: Number of samples.
        slot_bytes: Size of a slot; None for the size of the first sample.
        context: Makes locks for its processes.

    Raises:
        LoaderError: There is not enough memory.
    """

    def __init__(self, slots: int, slot_bytes: int | None, context: BaseContext) -> None:
        self._slots, self._asked_bytes = slots, slot_bytes
        self._lock, self._news = context.Lock(), context.Semaphore(0)
        self._owner = os.getpid()
        self._file = os.memfd_create("radt-echo-buffer")
        words = _FIRST_SLOT + 2 * slots
        self._state_bytes = -(-words * _WORD // mmap.PAGESIZE) * mmap.PAGESIZE
        os.ftruncate(self._file, self._state_bytes)
        self._map_state()
        if slot_bytes is not None:
            try:
                self._size_slots(_aligned(slot_bytes))
            except LoaderError:
                self.close()
                raise

    def _map_state(self) -> None:
        self._state = memoryview(mmap.mmap(self._file, self._state_bytes)).cast("q")
        self._data = memoryview(b"")

    def __getstate__(self) -> dict[str, Any]:
        """Return what a worker needs that is started with another method than ``fork``."""
        names = ("_slots", "_asked_bytes", "_lock", "_news", "_owner", "_state_bytes")
        return {**{name: getattr(self, name) for name in names}, "_file": DupFd(self._file)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _file=state["_file"].detach())
        self._map_state()

    @property
    def slot_bytes(self) -> int:
        """Size of a slot; 0 while it is unknown."""
        return self._state[_SLOT_BYTES]

    @property
    def total_bytes(self) -> int:
        """Size of all slots; 0 while it is unknown."""
        return self._slots * self.slot_bytes

    def write(
        self,
        slot: int,
        fill: int,
        sample: PackedSample,
        uses: int,
        turn: Turn,
        *,
        after: int | None,
        sizes: bool,
    ) -> None:
        """Put a sample into a slot as soon as the uses of the one before it have been made.

        Args:
            slot: Number of the slot.
            fill: Number of the fill that the sample belongs to.
            sample: What to write.
            uses: How many reads follow.
            turn: Of the batch that writes.
            after: Fill whose sample must have been there before, and have been used up.
            sizes: Whether the sample is the first one, whose size is that of the slots.

        Raises:
            LoaderError: The sample is larger than a slot, or there is no memory for the slots.
            GivenUpError: The slot will never be free.
        """
        label, left = self._words(slot)
        with self._locked():
            if sizes and not self.slot_bytes:
                self._size_slots(_aligned(self._asked_bytes or sample.nbytes))
                self._tell()
            self._wait(lambda: self.slot_bytes > 0, turn)
            if sample.nbytes > self.slot_bytes:
                raise LoaderError(
                    f"it has {sample.nbytes:,} bytes, and a slot of the buffer {self.slot_bytes:,}",
                    f"EchoLoader(…, max_bytes={sample.nbytes}), or the size of the largest sample: "
                    "without max_bytes, slots have the size of the first one",
                )
            if after is not None:
                before = _label(turn, after)
                self._wait(lambda: self._state[label] == before and not self._state[left], turn)
        sample.write(self._slot(slot))
        with self._locked():
            self._state[label], self._state[left] = _label(turn, fill), uses
            self._tell()

    def read(self, slot: int, fill: int, turn: Turn) -> Any:
        """Return a copy of a sample as soon as it is there; this is one of its uses.

        Raises:
            GivenUpError: It will never be there.
        """
        label, left = self._words(slot)
        with self._locked():
            self._wait(lambda: self._state[label] == _label(turn, fill), turn)
        sample = _unpacked(self._slot(slot))
        with self._locked():
            self._state[left] -= 1
            if not self._state[left]:
                self._tell()
        return sample

    def give_up(self, turn: Turn) -> None:
        """Have no batch after this one wait for another any more."""
        if os.getpid() != self._owner:
            self._take_lock()
        elif not self._lock.acquire(timeout=_LOOK_S):
            return  # a worker was killed with the lock; `DataLoader` ends the others
        try:
            if self._state[_FAILED_PASS] == turn.loop:
                self._state[_FAILED_BATCH] = min(self._state[_FAILED_BATCH], turn.batch)
            else:
                self._state[_FAILED_PASS], self._state[_FAILED_BATCH] = turn.loop, turn.batch
            self._tell()
        finally:
            self._lock.release()

    def empty(self) -> None:
        """Give the memory of the slots back, while no worker uses them."""
        self._state[_SLOT_BYTES] = 0
        os.ftruncate(self._file, self._state_bytes)

    def close(self) -> None:
        """Give the memory back, when the workers have ended."""
        # An error that a script holds may refer to a slot; the mappings go with the last reference.
        self._state, self._data = memoryview(b""), memoryview(b"")
        os.close(self._file)

    def _words(self, slot: int) -> tuple[int, int]:
        """Return where the state has what is in a slot, and how many of its uses are left."""
        return _FIRST_SLOT + 2 * slot, _FIRST_SLOT + 2 * slot + 1

    def _size_slots(self, slot_bytes: int) -> None:
        total = self._slots * slot_bytes
        available = _available_bytes()
        if total > available:
            raise LoaderError(
                f"The buffer needs {size(total)} ({self._slots:,} samples of "
                f"{slot_bytes:,} bytes), but {size(available)} of memory are available",
                "Make the buffer smaller: EchoLoader(…, buffer=…)",
            )
        os.ftruncate(self._file, self._state_bytes + total)
        self._state[_SLOT_BYTES] = slot_bytes

    def _slot(self, slot: int) -> memoryview:
        if len(self._data) != self.total_bytes:
            data = mmap.mmap(self._file, self.total_bytes, offset=self._state_bytes)
            self._data = memoryview(data)
        return self._data[slot * self.slot_bytes : (slot + 1) * self.slot_bytes]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._take_lock()
        try:
            yield
        finally:
            self._lock.release()

    def _take_lock(self) -> None:
        while not self._lock.acquire(timeout=_LOOK_S):
            self._end_as_orphan()

    def _wait(self, ready: Callable[[], bool], turn: Turn) -> None:
        """Wait until something is so; the lock, which is held, is given away meanwhile.

        A condition of the standard library would hang when a process that waits is killed. Here,
        that costs another one a needless look.
        """
        while not ready():
            if self._state[_FAILED_PASS] == turn.loop and self._state[_FAILED_BATCH] < turn.batch:
                raise GivenUpError
            self._state[_WAITING] += 1
            self._lock.release()
            try:
                if not self._news.acquire(timeout=_LOOK_S):
                    self._end_as_orphan()
            finally:
                self._take_lock()

    def _tell(self) -> None:
        """Wake all who wait; the lock is held."""
        waiting, self._state[_WAITING] = self._state[_WAITING], 0
        for _ in range(waiting):
            self._news.release()

    def _end_as_orphan(self) -> None:
        parent = multiprocessing.parent_process()
        if os.getpid() != self._owner and parent is not None and not parent.is_alive():
            os._exit(1)


def _label(turn: Turn, fill: int) -> int:
    """Return what the state has of a slot with a sample of a fill."""
    return turn.loop * _MAX_FILLS + fill


def _available_bytes() -> int:
    """Return how much memory the kernel says programs can have without swapping."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
