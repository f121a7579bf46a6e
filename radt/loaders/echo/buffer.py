"""Memory for decoded samples that the worker processes of a loader share.

It is one anonymous memory file: a page of state, then slots of equal size. It has no name, so
nothing is left behind, however a process ends. A slot is written by one worker, read by all of
them, and overwritten once it has had all its uses; workers that are early wait.
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
from typing import Any

from radt.errors import LoaderError
from radt.loaders.arena import available_bytes
from radt.loaders.layout import LaidOut, Packed
from radt.units import size

_WORD = 8
#: A slot begins with the length of the sample's description; its tensors begin at byte 64.
_LENGTH, _ALIGNMENT = struct.Struct("=Q"), 64
#: Indices of the words of state that precede those of the slots.
_SLOT_BYTES, _WAITING, _FAILED_PASS, _FAILED_BATCH, _FIRST_SLOT = range(5)
#: Interval at which waiting workers check that the loader's process is alive.
_LOOK_S = 1.0
_MAX_FILLS = 1 << 32


class GivenUpError(Exception):
    """A worker need not wait any longer: an earlier batch failed, or the loop has ended."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The turn of a batch in one pass over the data.

    Args:
        loop: Number of the loop over the loader, from 1.
        batch: Number of the batch in its epoch.
    """

    loop: int
    batch: int


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
        """Return the state for a worker that is started with another method than ``fork``."""
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
        sample: LaidOut,
        uses: int,
        turn: Turn,
        *,
        after: int | None,
        sizes: bool,
    ) -> None:
        """Put a sample into a slot once all uses of the previous sample are done.

        Args:
            slot: Number of the slot.
            fill: Number of the fill that the sample belongs to.
            sample: What to write.
            uses: Number of reads that follow.
            turn: Turn of the batch that writes.
            after: Fill whose sample must have been there before, with all its uses done.
            sizes: Whether the sample is the first one, which determines the size of the slots.

        Raises:
            LoaderError: The sample is larger than a slot, or there is no memory for the slots.
            GivenUpError: The slot will never be free.
        """
        label, left = self._words(slot)
        needed = _ALIGNMENT + sample.nbytes
        with self._locked():
            if sizes and not self.slot_bytes:  # descriptions differ by a few bytes
                self._size_slots(_aligned(self._asked_bytes or needed + _ALIGNMENT))
                self._tell()
            self._wait(lambda: self.slot_bytes > 0, turn)
            if needed > self.slot_bytes:
                raise LoaderError(
                    f"it has {needed:,} bytes, and a slot of the buffer {self.slot_bytes:,}",
                    f"EchoLoader(…, max_bytes={needed}), or the size of the largest sample: "
                    "without max_bytes, slots have the size of the first one",
                )
            if after is not None:
                before = _label(turn, after)
                self._wait(lambda: self._state[label] == before and not self._state[left], turn)
        memory = self._slot(slot)
        _LENGTH.pack_into(memory, 0, sample.write_described(memory[_ALIGNMENT:]))
        with self._locked():
            self._state[label], self._state[left] = _label(turn, fill), uses
            self._tell()

    def read(self, slot: int, fill: int, turn: Turn) -> Any:
        """Wait for a sample and return a copy of it, which is one of its uses.

        Raises:
            GivenUpError: It will never be there.
        """
        label, left = self._words(slot)
        with self._locked():
            self._wait(lambda: self._state[label] == _label(turn, fill), turn)
        memory = self._slot(slot)
        (length,) = _LENGTH.unpack_from(memory)
        sample = Packed.in_slot(memory[_ALIGNMENT:], length).copy()
        with self._locked():
            self._state[left] -= 1
            if not self._state[left]:
                self._tell()
        return sample

    def give_up(self, turn: Turn) -> None:
        """Let no batch after this one wait for others any more."""
        if os.getpid() != self._owner:
            self._take_lock()
        elif not self._lock.acquire(timeout=_LOOK_S):
            return  # a worker was killed while holding the lock; `DataLoader` ends the others
        try:
            if self._state[_FAILED_PASS] == turn.loop:
                self._state[_FAILED_BATCH] = min(self._state[_FAILED_BATCH], turn.batch)
            else:
                self._state[_FAILED_PASS], self._state[_FAILED_BATCH] = turn.loop, turn.batch
            self._tell()
        finally:
            self._lock.release()

    def empty(self) -> None:
        """Free the memory of the slots while no worker uses them."""
        self._state[_SLOT_BYTES] = 0
        os.ftruncate(self._file, self._state_bytes)

    def close(self) -> None:
        """Free the memory after the workers have ended."""
        # An error that a script holds may refer to a slot. The mappings go with the last reference.
        self._state, self._data = memoryview(b""), memoryview(b"")
        os.close(self._file)

    def _words(self, slot: int) -> tuple[int, int]:
        """Return the indices of a slot's words of state: its content, and its remaining uses."""
        return _FIRST_SLOT + 2 * slot, _FIRST_SLOT + 2 * slot + 1

    def _size_slots(self, slot_bytes: int) -> None:
        total = self._slots * slot_bytes
        available = available_bytes()
        if available is not None and total > available:
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
        """Wait for a condition. The lock, which is held, is released meanwhile.

        A condition variable of the standard library would hang if a waiting process is killed.
        Here, the only effect is an unnecessary wake-up of another one.
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
        """Wake all waiting processes. The lock is held."""
        waiting, self._state[_WAITING] = self._state[_WAITING], 0
        for _ in range(waiting):
            self._news.release()

    def _end_as_orphan(self) -> None:
        parent = multiprocessing.parent_process()
        if os.getpid() != self._owner and parent is not None and not parent.is_alive():
            os._exit(1)


def _label(turn: Turn, fill: int) -> int:
    """Return the word of state of a slot with a sample of a fill."""
    return turn.loop * _MAX_FILLS + fill
