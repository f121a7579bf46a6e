"""A lease: exclusive use of a device among threads and processes, which higher priorities take.

SwitchFlow (chapter 2 of its thesis) never has two executors on one device. Here, each device has
a small file in the runtime folder, with three locks of the kernel (open-file-description locks,
fcntl(2)) and two marks in shared memory::

    lock 0   the device: whoever holds it uses the device
    lock 1   the first of those who wait with high priority   mark 0   since when it waits
    lock 2   the first of those who wait with low priority    mark 1   when it must have its turn

The kernel queues who waits, wakes who is next, and releases the locks of whoever dies. The marks
let a holder see with one read of memory that somebody waits. A mark of a process that died is
found by taking its lock.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
import time
import weakref
from collections import deque
from contextlib import nullcontext
from enum import IntEnum, StrEnum
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from radt.errors import TrainingError, UsageError
from radt.home import RUNTIME_VARIABLE, runtime_dir
from radt.loaders.paced import PacedMetrics
from radt.run.run import active_run
from radt.training.randomness import RandomState


class Priority(StrEnum):
    """Whose turn it is: high goes first, until low must have its share."""

    LOW = "low"
    HIGH = "high"


class _Lock(IntEnum):
    """Bytes of the file that are locked."""

    DEVICE = 0
    HIGH = 1
    LOW = 2


#: Marks in the file; 0 if nobody waits.
_HIGH_SINCE_NS, _LOW_DUE_NS = 0, 1
#: Shorter turns count as this long, so that little is handed over for little.
_SHORTEST_TURN_NS = 10**6


class DeviceLease:
    """Exclusive use of a device: ``with lease:`` waits for it and holds it.

    Every user of the device, a thread or a process, has a lease of its own and holds it while it
    works there. Within the block, the holder calls `boundary` where it can be interrupted, as
    `preemptible` does at modules; there the device goes to a higher priority and comes back.
    Equal priorities take turns at the ends of blocks.

    Args:
        device: A device of PyTorch: ``"cuda:0"``, ``"cpu"``.
        priority: ``"high"`` goes first.
        share: Share of the time that low priority gets at least, while both want the device.

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
        if priority not in list(Priority):
            expected = " or ".join(f'"{each}"' for each in Priority)
            raise UsageError(f'the priority of a lease is "{priority}", expected {expected}')
        if not 0 < share < 1:
            raise UsageError(
                f"the share of a lease is {share}, expected more than 0 and less than 1"
            )
        self.device = _known(device)
        self.priority = Priority(priority)
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
        try:  # now rather than by SIGBUS when a mark is first written
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
        """Hold the device if it is free and no higher priority waits; return whether it is held.

        Raises:
            UsageError: The lease is closed, or in use by another thread.
        """
        self._begin_use()
        try:
            if self._try_lock(_Lock.DEVICE):
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
        """Wait for what was launched on the device, and give it to who is next; or do nothing."""
        if not self.held:
            return
        try:
            if self._ahead is not None:
                self._ahead.finish()
        finally:
            self._give_up()
            self._user.release()
        if self._paced.record(wait=self._wait_s, handovers=self._handovers):
            self._wait_s, self._handovers = 0.0, 0

    def boundary(self) -> None:
        """Let a higher priority have the device, and wait until it is back; at once if none waits.

        Launches of CUDA are bounded: what was launched before the last boundary but one has ended.

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
        if self._marks[self._other] and self._other_waits():  # `is_wanted`, without a call
            self._hand_over()

    def close(self) -> None:
        """Release the device and the file. A second call does nothing."""
        self.release()
        if self._descriptor >= 0:
            self._forget()
            if self._handovers or self._wait_s:
                self._paced.flush(wait=self._wait_s, handovers=self._handovers)

    def __del__(self) -> None:
        """Close the file of a lease that was not closed."""
        self._forget()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    @property
    def is_wanted(self) -> bool:
        """Whether the other priority waits, and may have the device now."""
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
        """Return what a mark means."""
        if self.priority is Priority.HIGH and time.monotonic_ns() < self._marks[_LOW_DUE_NS]:
            return False
        lock = _Lock.HIGH if self.priority is Priority.LOW else _Lock.LOW
        if not self._try_lock(lock):
            return True
        self._marks[self._other] = 0  # whoever set it is dead
        self._unlock(lock)
        return False

    def _hand_over(self) -> None:
        """Give the device away, and take it back with the random states of now."""
        randomness = RandomState.current()
        if self._ahead is not None:
            self._ahead.finish()
        run = active_run()
        with nullcontext() if run is None else run.span("preempted"):
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
        self._unlock(_Lock.DEVICE)

    def _wait(self) -> None:
        begin_ns = time.monotonic_ns()
        try:
            if self.priority is Priority.LOW:
                self._wait_low(begin_ns)
            else:
                self._wait_high(begin_ns)
            self.held = True
        except BaseException:  # Ctrl-C: before it had a lock, or just after
            for lock in _Lock:
                self._unlock(lock)
            raise
        self._held_since_ns = time.monotonic_ns()
        self._wait_s += (self._held_since_ns - begin_ns) / 1e9

    def _wait_high(self, begin_ns: int) -> None:
        if 0 < self._marks[_LOW_DUE_NS] <= begin_ns:
            # Low waited long enough: queue up after it has the device.
            self._lock(_Lock.LOW)
            self._marks[_LOW_DUE_NS] = 0
            self._unlock(_Lock.LOW)
        self._lock(_Lock.HIGH)
        try:
            self._marks[_HIGH_SINCE_NS] = begin_ns
            self._lock(_Lock.DEVICE)
        finally:
            self._marks[_HIGH_SINCE_NS] = 0
            self._unlock(_Lock.HIGH)

    def _wait_low(self, begin_ns: int) -> None:
        self._lock(_Lock.LOW)
        try:
            turn_ns = max(self._turn_ns, _SHORTEST_TURN_NS)
            due_ns = begin_ns + int(turn_ns * (1 - self._share) / self._share)
            self._marks[_LOW_DUE_NS] = due_ns
            while True:
                if self._high_goes_first(due_ns):
                    # It has this lock until it has the device. Those with high priority that come
                    # after low's time wait for low, which holds nothing that they wait for before.
                    self._lock(_Lock.HIGH)
                    self._marks[_HIGH_SINCE_NS] = 0
                    self._unlock(_Lock.HIGH)
                self._lock(_Lock.DEVICE)
                if not self._high_goes_first(due_ns):
                    return
                self._unlock(_Lock.DEVICE)
        finally:
            self._marks[_LOW_DUE_NS] = 0
            self._unlock(_Lock.LOW)

    def _high_goes_first(self, due_ns: int) -> bool:
        return self._marks[_HIGH_SINCE_NS] > 0 and time.monotonic_ns() < due_ns

    # Locks -----------------------------------------------------------------------------------

    def _lock(self, lock: _Lock) -> None:
        fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLKW, _flock(fcntl.F_WRLCK, lock))

    def _try_lock(self, lock: _Lock) -> bool:
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, lock))
        except BlockingIOError:
            return False
        return True

    def _unlock(self, lock: _Lock) -> None:
        fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _flock(fcntl.F_UNLCK, lock))

    def _forget(self) -> None:
        """Close the descriptor, which in a forked child would keep the parent's locks."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor, self.held = -1, False


class _Ahead:
    """How far the host may be ahead of a CUDA device: two segments."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: deque[torch.cuda.Event] = deque()

    def mark(self) -> None:
        """Wait for what was launched before the last mark but one."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        self._events.append(event)
        if len(self._events) > 2:
            self._events.popleft().synchronize()

    def finish(self) -> None:
        """Wait for all that this process has launched there."""
        self._events.clear()
        torch.cuda.synchronize(self._device)


_open_leases: weakref.WeakSet[DeviceLease] = weakref.WeakSet()


def _forget_all() -> None:
    for lease in list(_open_leases):
        lease._forget()  # noqa: SLF001 - of this module


os.register_at_fork(after_in_child=_forget_all)


def _flock(kind: int, lock: _Lock) -> bytes:
    """Return a ``struct flock`` (fcntl(2)) for one byte."""
    return struct.pack("hhqqi", kind, os.SEEK_SET, lock, 1, 0)


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
    """Return the file of a device; a GPU's has its UUID, as processes may number GPUs differently.

    Raises:
        UsageError: The runtime folder cannot be used.
    """
    name = str(device).replace(":", "-")
    if device.type == "cuda":
        name = f"cuda-{torch.cuda.get_device_properties(device).uuid}"
    return runtime_dir() / f"lease-{name}"
