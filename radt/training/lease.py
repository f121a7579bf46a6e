"""A lease: exclusive use of a device among threads and processes, with preemption by priority.

SwitchFlow (chapter 2 of its thesis) never has two executors on one device. Here, each device has a
small file in the runtime folder, with three kernel locks (open-file-description locks, fcntl(2))
and two marks in shared memory::

    lock 0   the device: its owner uses the device
    lock 1   the first waiter with high priority    mark 0   since when it waits
    lock 2   the first waiter with low priority     mark 1   when it must have its turn

The kernel queues waiters, wakes the next one, and releases the locks of processes that die. The
marks tell a holder with one memory read that somebody waits. A mark left by a dead process is
detected by taking its lock.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
import weakref
from collections import deque
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Self

import torch

from radt.errors import TrainingError, UsageError
from radt.files import lock_byte, unlock_byte
from radt.home import RUNTIME_VARIABLE, runtime_dir
from radt.loaders.paced import PacedMetrics, span
from radt.loaders.protocol import chosen
from radt.loaders.randomness import RandomState
from radt.loaders.shared.cuda import identity


class Priority(StrEnum):
    """Order of turns: high goes first, until low must have its share."""

    LOW = "low"
    HIGH = "high"


class _Lock(IntEnum):
    """Bytes of the file that are locked."""

    DEVICE = 0
    HIGH = 1
    LOW = 2


#: Indices of the marks in the file, which are monotonic times; 0 if nobody waits.
_HIGH_SINCE_NS, _LOW_DUE_NS = 0, 1
#: Shorter turns count as this long, to limit the number of handovers.
_SHORTEST_TURN_NS = 10**6


class DeviceLease:
    """Exclusive use of a device: ``with lease:`` waits for it and holds it.

    Every user of the device, a thread or a process, has its own lease and holds it while it works
    there. Within the block, the holder calls `boundary` where it can be interrupted, as
    `preemptible` does at modules. There the device goes to a higher priority and comes back. Equal
    priorities take turns at the ends of blocks.

    Args:
        device: A device of PyTorch: ``"cuda:0"``, ``"cpu"``.
        priority: ``"high"`` goes first.
        share: Minimum share of the time for low priority, while both want the device.

    Raises:
        UsageError: An argument is invalid, or there is no such device.
        TrainingError: The disk with the runtime folder is full.
    """

    def __init__(
        self,
        device: torch.device | str,
        priority: Priority | str = Priority.LOW,
        *,
        share: float = 0.1,
    ) -> None:
        self._descriptor = -1
        self.priority = chosen(Priority, "the priority of a lease", priority)
        if not 0 < share < 1:
            raise UsageError(
                f"the share of a lease is {share}, expected more than 0 and less than 1"
            )
        self.device = _known(device)
        self.held = False
        self._share = share
        self._user = threading.Lock()
        self._turn_ns = 0
        self._held_since_ns = 0
        self._ahead = _Ahead(self.device) if self.device.type == "cuda" else None
        self._paced = PacedMetrics("lease")
        self._wait_s, self._handovers = 0.0, 0
        self._other = _HIGH_SINCE_NS if self.priority is Priority.LOW else _LOW_DUE_NS
        path = _lease_file(self.device)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:  # allocate now; otherwise writing a mark could raise SIGBUS
            os.posix_fallocate(self._descriptor, 0, mmap.PAGESIZE)
        except OSError as error:
            raise TrainingError(
                f"the lease of {self.device} cannot have its file {path}: {error.strerror}",
                f"Free space there, or set {RUNTIME_VARIABLE} to a folder on another disk",
            ) from error
        # Opened again: mmap keeps a duplicate of its descriptor, which would keep the locks, too.
        with path.open("r+b") as file:
            self._marks = memoryview(mmap.mmap(file.fileno(), mmap.PAGESIZE)).cast("Q")
        _open_leases.add(self)

    def acquire(self) -> None:
        """Wait for the device and hold it.

        Raises:
            UsageError: The lease is closed, or in use by another thread.
        """
        self._begin_use()
        try:
            self._wait()
        except BaseException:
            self._user.release()
            raise

    def try_acquire(self) -> bool:
        """Acquire the device if it is free and not due to the other priority. Return True if held.

        Raises:
            UsageError: The lease is closed, or in use by another thread.
        """
        self._begin_use()
        try:
            if lock_byte(self._descriptor, _Lock.DEVICE):
                self.held = True
                self._held_since_ns = time.monotonic_ns()
                if not self.is_wanted:
                    return True
                self._give_up()
        finally:
            if not self.held:
                self._user.release()
        return False

    def release(self) -> None:
        """Wait for launched work, then pass the device to the next waiter. Harmless if not held."""
        if not self.held:
            return
        try:
            if self._ahead is not None:
                self._ahead.finish()
        finally:
            self._give_up()
            self._user.release()
        self._paced.add(wait=self._wait_s, handovers=self._handovers)
        self._wait_s, self._handovers = 0.0, 0

    def boundary(self) -> None:
        """Let the other priority use the device, if it waits and may have it, and take it back.

        Limits how far the host runs ahead of CUDA: all work launched before the last boundary but
        one has finished.

        Raises:
            TrainingError: The lease is not held.
        """
        if not self.held:
            raise TrainingError(
                f"the device {self.device} is used without its lease",
                "Do what uses the device within `with lease:`",
            )
        if self._ahead is not None:
            self._ahead.mark()
        if self._marks[self._other] and self._other_waits():  # `is_wanted`, inlined to save a call
            self._hand_over()

    def close(self) -> None:
        """Release the device and the file. Harmless if repeated."""
        self.release()
        if self._descriptor >= 0:
            self._forget()
            self._paced.flush_sums()

    def __del__(self) -> None:
        self._forget()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    @property
    def is_wanted(self) -> bool:
        """True if the other priority waits and may have the device now."""
        return bool(self._marks[self._other]) and self._other_waits()

    def _begin_use(self) -> None:
        if self._descriptor < 0:
            raise UsageError("the lease is closed", "Make a new one")
        if not self._user.acquire(blocking=False):
            raise UsageError(
                f"the lease of {self.device} is in use already", "Give each thread its own lease"
            )

    # Handing over ----------------------------------------------------------------------------

    def _other_waits(self) -> bool:
        """Return True if the process that set a mark is alive and may have the device."""
        if self.priority is Priority.HIGH and time.monotonic_ns() < self._marks[_LOW_DUE_NS]:
            return False
        lock = _Lock.HIGH if self.priority is Priority.LOW else _Lock.LOW
        if not lock_byte(self._descriptor, lock):
            return True
        self._marks[self._other] = 0  # the process that set it is dead
        unlock_byte(self._descriptor, lock)
        return False

    def _hand_over(self) -> None:
        """Give the device away and take it back. The random states are as before."""
        randomness = RandomState.current()
        if self._ahead is not None:
            self._ahead.finish()
        with span("preempted"):
            self._give_up()
            try:
                self._wait()
            except BaseException:
                self._user.release()
                raise
        self._handovers += 1
        randomness.restore()

    def _give_up(self) -> None:
        waiting_since_ns = self._marks[_HIGH_SINCE_NS]
        self._turn_ns = 0
        if waiting_since_ns:
            began_ns = max(self._held_since_ns, waiting_since_ns)
            self._turn_ns = time.monotonic_ns() - began_ns
        self.held = False
        unlock_byte(self._descriptor, _Lock.DEVICE)

    def _wait(self) -> None:
        begin_ns = time.monotonic_ns()
        try:
            if self.priority is Priority.LOW:
                self._wait_low(begin_ns)
            else:
                self._wait_high(begin_ns)
            self.held = True
        except BaseException:  # Ctrl-C: before a lock was taken, or just after
            for lock in _Lock:
                unlock_byte(self._descriptor, lock)
            raise
        self._held_since_ns = time.monotonic_ns()
        self._wait_s += (self._held_since_ns - begin_ns) / 1e9

    def _wait_high(self, begin_ns: int) -> None:
        if 0 < self._marks[_LOW_DUE_NS] <= begin_ns:
            # Low has waited long enough: queue behind it.
            lock_byte(self._descriptor, _Lock.LOW, wait=True)
            self._marks[_LOW_DUE_NS] = 0
            unlock_byte(self._descriptor, _Lock.LOW)
        lock_byte(self._descriptor, _Lock.HIGH, wait=True)
        try:
            self._marks[_HIGH_SINCE_NS] = begin_ns
            lock_byte(self._descriptor, _Lock.DEVICE, wait=True)
        finally:
            self._marks[_HIGH_SINCE_NS] = 0
            unlock_byte(self._descriptor, _Lock.HIGH)

    def _wait_low(self, begin_ns: int) -> None:
        lock_byte(self._descriptor, _Lock.LOW, wait=True)
        try:
            turn_ns = max(self._turn_ns, _SHORTEST_TURN_NS)
            due_ns = begin_ns + int(turn_ns * (1 - self._share) / self._share)
            self._marks[_LOW_DUE_NS] = due_ns
            while True:
                if self._high_goes_first(due_ns):
                    # The high waiter keeps this lock until it has the device. High waiters that
                    # arrive after low's due time wait for low, which holds no lock that they wait
                    # for earlier.
                    lock_byte(self._descriptor, _Lock.HIGH, wait=True)
                    self._marks[_HIGH_SINCE_NS] = 0
                    unlock_byte(self._descriptor, _Lock.HIGH)
                lock_byte(self._descriptor, _Lock.DEVICE, wait=True)
                if not self._high_goes_first(due_ns):
                    return
                unlock_byte(self._descriptor, _Lock.DEVICE)
        finally:
            self._marks[_LOW_DUE_NS] = 0
            unlock_byte(self._descriptor, _Lock.LOW)

    def _high_goes_first(self, due_ns: int) -> bool:
        return self._marks[_HIGH_SINCE_NS] > 0 and time.monotonic_ns() < due_ns

    def _forget(self) -> None:
        """Close the descriptor. A forked child would otherwise keep the parent's locks."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor, self.held = -1, False


class _Ahead:
    """Limits how far the host runs ahead of a CUDA device: two segments."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: deque[torch.cuda.Event] = deque()

    def mark(self) -> None:
        """Wait for all work launched before the last mark but one."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        self._events.append(event)
        if len(self._events) > 2:
            self._events.popleft().synchronize()

    def finish(self) -> None:
        """Wait for all work that this process has launched on the device."""
        self._events.clear()
        torch.cuda.synchronize(self._device)


_open_leases: weakref.WeakSet[DeviceLease] = weakref.WeakSet()


def _forget_all() -> None:
    for lease in list(_open_leases):
        lease._forget()  # noqa: SLF001 - same module


os.register_at_fork(after_in_child=_forget_all)


def _known(device: torch.device | str) -> torch.device:
    try:
        known = torch.device(device)
    except RuntimeError as error:
        raise UsageError(
            f'"{device}" is not a device', 'Use one such as "cuda:0" or "cpu"'
        ) from error
    if known.type != "cuda":
        return known
    count = torch.cuda.device_count()
    index = (
        known.index if known.index is not None else (torch.cuda.current_device() if count else 0)
    )
    if index >= count:
        raise UsageError(f"there is no device cuda:{index}", f"PyTorch sees {count} CUDA devices")
    return torch.device("cuda", index)


def _lease_file(device: torch.device) -> Path:
    """Return the file of a device. A GPU's has its UUID, as processes may number GPUs differently.

    MIG devices of one GPU have separate UUIDs and therefore separate leases.

    Raises:
        UsageError: The runtime folder cannot be used.
    """
    name = str(device).replace(":", "-")
    if device.type == "cuda":
        name = f"cuda-{identity(device)}"
    return runtime_dir() / f"lease-{name}"
