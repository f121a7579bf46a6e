"""Write a process's journal: one record per value, into a mapped file.

The fast path takes a slot with a single call that the interpreter does not interrupt, and packs a
record into it: no lock, no system call, no thread. The pages belong to the kernel, so the logged
values of a killed process survive. When a segment is full, the next one is ready; the thread that
moves on to it prepares the one after.

Disk and folder errors are never raised: records are dropped and counted, and the count is recorded
as soon as there is space again. Imports the standard library only.
"""

from __future__ import annotations

import os
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Protocol, SupportsFloat, SupportsIndex

from radt.journal.files import EventLog, Segment, create_folder, discard, mark_closed
from radt.journal.format import BLOCK_SLOTS, RECORD, RECORD_BYTES, End, EventKind, RecordKind
from radt.journal.unwritten import count_unwritten
from radt.journal.values import checked_name, to_number, to_step
from radt.model import NO_STEP

#: How long to wait before retrying a full disk.
RETRY_S = 1.0
#: Maximum number of events to keep in memory while the disk is full.
MAX_UNSAID = 1000
AFTER_END = "something was logged after its run had ended, and is not recorded"

Number = SupportsFloat | SupportsIndex


class LogScalar(Protocol):
    """The signature of `JournalWriter.scalar`."""

    def __call__(self, name: str, value: Number, step: SupportsIndex | None = None) -> None: ...


#: The segment in use: a call that returns the next slot, possibly one beyond its end; its records;
#: its number of written slots; and a call that seals the block that ends with a slot. A plain
#: tuple, because it is replaced atomically and unpacks faster than a named one.
_Slots = tuple[
    Callable[[], int], memoryview | bytearray, memoryview | bytearray, Callable[[int], None]
]
_LAST = BLOCK_SLOTS - 1


class JournalWriter:
    """The journal of the calling process in one run; its forked children get their own journals.

    All methods are thread-safe and may be called in signal handlers.

    Args:
        journal: The run's journal folder (`radt.home.RunDir.journal`).
        rank: Rank in distributed training, else None.
        warn: Called with the reason each time a record is dropped; it may report it once.
    """

    #: ``scalar(name, value, step=None)`` records one value now. Raises only the TypeError and
    #: UsageError of `radt.journal.values`.
    scalar: LogScalar

    def __init__(
        self, journal: str | os.PathLike[str], *, rank: int | None, warn: Callable[[str], None]
    ) -> None:
        self._journal = os.fspath(journal)
        self._rank = rank
        self._warn = warn
        self._main = True
        self._closed = False
        self._ids: dict[str, int] = {}
        self._next_id = count().__next__
        self._token = count(1).__next__
        self._start_empty()
        self.scalar = self._fast_path()
        _writers.add(self)

    def _start_empty(self) -> None:
        """Start without a folder, a segment, or locks that another thread held during a fork."""
        self._folder = ""
        self._events: EventLog | None = None
        self._unsaid: deque[tuple[EventKind, Mapping[str, Any]]] = deque(maxlen=MAX_UNSAID)
        self._slots: _Slots = _no_slots()
        self._segment: Segment | None = None
        self._spare: Segment | None = None
        self._next_segment = 0
        self._retry_at_s = 0.0
        self._dropped = 0
        # Reentrant, for signal handlers that log. The first lock is never held across a system
        # call; the second may be, but only by callers without a segment or with a rare event.
        self._state_lock = threading.RLock()
        self._disk_lock = threading.RLock()
        self._disk_owner = 0
        self._deferred: deque[Callable[[], None]] = deque()

    # -- logging --------------------------------------------------------------------------------

    def _fast_path(self) -> LogScalar:
        """Return a closure, which finds its variables without attribute look-ups."""
        ids = self._ids
        pack_into = RECORD.pack_into
        clock = time.monotonic_ns
        pack_error = struct.error
        last = _LAST
        kind = int(RecordKind.SCALAR)
        unnumbered = NO_STEP

        def scalar(name: str, value: Number, step: SupportsIndex | None = None) -> None:
            # Everything that can run foreign code or fail comes before a slot is taken.
            if value.__class__ is not float:
                value = to_number(value)
            if step is None:
                step = NO_STEP
            elif step.__class__ is not int or step == unnumbered:
                step = to_step(step, name)
            try:
                name_id = ids[name]
            except (KeyError, TypeError):
                self._record(RecordKind.SCALAR, name, step, value)
                return
            take, records, written, seal = self._slots
            slot = take()
            try:
                pack_into(records, slot << 5, clock(), step, value, name_id, kind)
                written[0] = slot + 1
            except pack_error:
                _void(records, slot)
                self._record(RecordKind.SCALAR, name, step, value)
            if slot & last == last:
                seal(slot)

        return scalar

    def open(self) -> None:
        """Create the journal now instead of with the first record, so that it can be found."""
        with self._disk():
            if self._spare is None:
                self._prepare()

    def begin(self, kind: RecordKind, name: str, step: int | None = None) -> int:
        """Record the beginning of an epoch or span; return the token for `end`."""
        token = self._token()
        self._record(kind, name, NO_STEP if step is None else step, float(token))
        return token

    def end(self, kind: RecordKind, name: str, step: int | None, token: int) -> None:
        """Record the end of an epoch or span."""
        self._record(kind, name, NO_STEP if step is None else step, float(token))

    def sample(
        self, name: str, value: float, step: int | None = None, at_ns: int | None = None
    ) -> None:
        """Record a value of a `radt.journal.values.JournalSeries`, given its ``name``.

        ``at_ns`` is the monotonic time of the measurement; now if None.
        """
        name_id = self._ids.get(name)
        number = NO_STEP if step is None else step
        if name_id is None:
            self._record(RecordKind.SCALAR, name, number, value, at_ns, checked=True)
        elif not self._place(RecordKind.SCALAR, name_id, number, value, at_ns):
            self._drop()

    def say(self, kind: EventKind, **fields: Any) -> None:
        """Record a rare event: params, tags, the outcome of the run."""
        if self._amid_disk():
            self._deferred.append(lambda: self.say(kind, **fields))
            return
        with self._disk():
            if self._closed:
                self._warn(AFTER_END)
            elif not self._append(kind, fields):
                self._unsaid.append((kind, fields))  # written as soon as there is space again

    def close(self) -> None:
        """Close the journal; nothing more will be recorded. Idempotent."""
        with self._disk():
            if self._closed:
                return
            segment = self._segment
            if self._dropped:
                self._settle_dropped()
            if self._unsaid or self._dropped:
                is_recorded = self._append(EventKind.DROPPED, {"count": self._dropped})
                if self._dropped and not (is_recorded or self._count_elsewhere(self._dropped)):
                    self._warn(f"{self._dropped} values were not recorded, and nowhere counted")
            self._closed = True
            self._slots = _no_slots()
            if self._spare is not None:
                self._spare = None
                self._next_segment -= 1
                discard(self._folder, self._next_segment)
            slots = 0 if segment is None else segment.seal_rest()
            if self._events is not None:
                written = End(self._next_segment - 1, slots, self._events.size())
                self._events.close()
                self._events = None
                mark_closed(self._folder, written)

    # The slow path ---------------------------------------------------------------------------

    def _record(
        self,
        kind: RecordKind,
        name: str,
        step: int,
        value: float,
        at_ns: int | None = None,
        *,
        checked: bool = False,
    ) -> None:
        """Record a value with a new name or an unusual step, or one that needs a new segment."""
        if step != NO_STEP:
            step = to_step(step, name)
        if self._amid_disk():
            self._deferred.append(
                lambda: self._record(kind, name, step, value, at_ns, checked=checked)
            )
            return
        name_id = self._id_of(name if checked else checked_name(name))
        if name_id is None or not self._place(kind, name_id, step, value, at_ns):
            self._drop()

    def _place(
        self, kind: RecordKind, name_id: int, step: int, value: float, at_ns: int | None = None
    ) -> bool:
        """Write a record, in a new segment if needed; return False if there is no space."""
        while True:
            slots = self._slots
            take, records, written, seal = slots
            slot = take()
            try:
                time_ns = time.monotonic_ns() if at_ns is None else at_ns
                RECORD.pack_into(records, slot << 5, time_ns, step, value, name_id, kind)
                written[0] = slot + 1
            except struct.error:  # beyond the end
                if not self._advance(slots):
                    return False
            else:
                if slot & _LAST == _LAST:
                    seal(slot)
                return True

    def _advance(self, full: _Slots) -> bool:
        """Replace a full segment; return False if there is no space for another."""
        if not self._swap(full):
            with self._disk():  # another thread may be preparing one
                if self._slots is full and self._spare is None:
                    self._prepare()
            if not self._swap(full):
                return False
        if self._spare is None and self._disk_lock.acquire(blocking=False):
            try:
                with self._disk():
                    if self._spare is None:
                        self._prepare()
            finally:
                self._disk_lock.release()
        return True

    def _swap(self, full: _Slots) -> bool:
        """Use the spare segment unless another thread did; return False if there is none."""
        with self._state_lock:
            if self._slots is not full:
                return True
            spare = self._spare
            if spare is None:
                return False
            self._settle_dropped()
            self._segment = spare
            self._slots = spare.take, spare.records, spare.written, spare.seal
            if self._dropped:  # dropped before any segment existed, and not counted elsewhere
                _count(spare.reserve, self._dropped, 0)
            if self._spare is spare:  # otherwise a signal handler has already done this
                self._spare = None
        return True

    def _settle_dropped(self) -> None:
        """Finish the segment in use with the count of records dropped after it."""
        with self._state_lock:
            if self._segment is not None:
                kind = RecordKind.DROPPED if self._dropped else RecordKind.VOID
                _count(self._segment.reserve, self._dropped, kind)
                self._segment = None
                self._dropped = 0

    @contextmanager
    def _disk(self) -> Iterator[None]:
        """Hold the lock on files. Records of a signal handler are deferred until it is released."""
        with self._disk_lock:
            self._disk_owner = threading.get_ident()
            try:
                yield
            finally:
                self._disk_owner = 0
        while self._deferred:
            self._deferred.popleft()()

    def _amid_disk(self) -> bool:
        """Return whether this is a signal handler that interrupted `_disk` in the same thread."""
        return self._disk_owner == threading.get_ident()

    def _prepare(self) -> None:
        """Create a spare segment if possible; the disk lock is held."""
        if self._closed or time.monotonic() < self._retry_at_s:
            return
        try:
            self._open()
            spare = Segment(self._folder, self._next_segment)
        except OSError as error:
            self._trouble(error)
            return
        self._next_segment += 1
        self._spare = spare

    def _open(self) -> EventLog:
        if not self._folder:
            self._folder = create_folder(self._journal, main=self._main, rank=self._rank)
        if self._events is None:
            self._events = EventLog(self._folder)
        else:
            self._events.reopen()
        return self._events

    def _id_of(self, name: str) -> int | None:
        """Return the number of a name, defining it if needed; None if it cannot be written."""
        with self._disk():
            known = self._ids.get(name)
            if known is not None:
                return known
            if self._closed or time.monotonic() < self._retry_at_s:
                return None
            number = self._next_id()
            if not self._append(EventKind.NAME, {"id": number, "name": name}):
                return None
            self._ids[name] = number
            return number

    def _append(self, kind: EventKind, fields: Mapping[str, Any]) -> bool:
        """Write an event after those that failed before; the lock is held."""
        try:
            events = self._open()
            while self._unsaid:
                events.append(*self._unsaid[0])
                self._unsaid.popleft()
            events.append(kind, fields)
        except OSError as error:
            self._trouble(error)
            return False
        return True

    def _trouble(self, error: OSError) -> None:
        self._retry_at_s = time.monotonic() + RETRY_S
        self._warn(
            f"not everything that the script logs is recorded: {error.strerror} in "
            f"{self._folder or self._journal}. Training goes on, and recording too as soon as "
            "the folder can be written again"
        )

    def _drop(self) -> None:
        if self._closed:
            self._warn(AFTER_END)
            return
        if self._segment is None and self._count_elsewhere(1):
            return
        with self._state_lock:
            self._dropped += 1
            if self._segment is not None:
                _count(self._segment.reserve, self._dropped, 0)

    def _count_elsewhere(self, count: int) -> bool:
        return count_unwritten(Path(self._journal).parent.name, count)

    def start_child(self) -> None:
        """Reset in a forked child, because the open files belong to the parent."""
        if self._events is not None:
            self._events.close()
        self._main = False
        self._ids.clear()
        self._next_id = count().__next__
        self._start_empty()


def _no_slots() -> _Slots:
    """Return a placeholder for a missing segment."""
    return count().__next__, bytearray(), bytearray(), lambda _: None


def _count(reserve: memoryview, dropped: int, kind: int) -> None:
    """Write the reserve record, which is not final as long as its kind is 0."""
    # Both as step and as value: the record has no seal, so the two must match.
    RECORD.pack_into(reserve, 0, time.monotonic_ns(), dropped, float(dropped), 0, kind)


def _void(records: memoryview | bytearray, slot: int) -> None:
    """Mark a slot as not needed, if it exists."""
    offset = slot * RECORD_BYTES
    if offset < len(records):
        RECORD.pack_into(records, offset, time.monotonic_ns(), NO_STEP, 0.0, 0, RecordKind.VOID)


def _start_children() -> None:
    for writer in list(_writers):
        writer.start_child()


_writers: weakref.WeakSet[JournalWriter] = weakref.WeakSet()
os.register_at_fork(after_in_child=_start_children)
