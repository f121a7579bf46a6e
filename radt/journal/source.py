"""Read the journal of one process."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import time
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from radt.home import RunDir
from radt.journal.files import TAKEN_BACK
from radt.journal.format import (
    BLOCK_BYTES,
    BLOCK_SLOTS,
    CLOSED_FILE,
    EVENTS_FILE,
    HEAD_BYTES,
    META_FILE,
    RECORD_BYTES,
    SEGMENT_BYTES,
    SEGMENT_SLOTS,
    End,
    EventKind,
    RecordKind,
    read_line,
    seal_of,
    segment_name,
)
from radt.journal.meta import read_meta
from radt.journal.segments import RECORD_DTYPE, RESERVE_SLOT, Records, Segments
from radt.procfs import ProcessId, boot_id, is_shortage
from radt.store.records import JournalCursor

#: How long to wait for a taken but unwritten slot while its process lives. A thread may be
#: suspended at that point; one that was interrupted there (Ctrl-C) never writes it.
PATIENCE_S = 2.0
_BLOCK = 1024
#: A time this much before the journal's creation, or in the future, is implausible.
_TIME_SLACK_NS = 60 * 10**9
#: A wider hole cannot come from threads that were interrupted while they logged.
_THREADS_AMID = 16
_MAX_NAMES = 10**7
_KINDS = [kind.value for kind in RecordKind]
#: What reading a line raises that is not as it was written.
_DAMAGED_LINE = (ArithmeticError, LookupError, TypeError, ValueError)

log = logging.getLogger(__name__)


class Writing(Enum):
    """Whether a process may write more."""

    LIVE = auto()
    OVER = auto()


@dataclass(frozen=True, slots=True)
class _Slot:
    segment: int
    slot: int


class JournalSource:
    """Reads forward from a cursor and returns each record once.

    Raises:
        JournalError: The folder is not a journal that this version can read.
        OSError: There is no free descriptor to look with (`is_shortage`).
    """

    def __init__(self, folder: Path, cursor: JournalCursor | None) -> None:
        self.name = folder.name
        self.meta = read_meta(folder)
        self._folder = folder
        cursor = cursor or JournalCursor(folder.name)
        self._segment, self._slot = cursor.segment, cursor.slot
        self._event_offset = cursor.event_offset
        self._names = list(cursor.names)
        self._hole: tuple[_Slot, float] | None = None
        #: Slots given up waiting for, which may still be written.
        self._late: set[_Slot] = set()
        #: Everything is read, and nothing more will follow.
        self.exhausted = False
        #: Number of values lost in damaged files; the reader resets it to 0.
        self.lost = 0
        #: Number of events lost, likewise.
        self.lost_events = 0
        self._checked = self.meta.format_version > 1
        self._segments = Segments(folder, checked=self._checked)
        self._kept: set[str] = set()
        #: Amount of data written, once the process has reported it.
        self._end: End | None = None

    @property
    def cursor(self) -> JournalCursor:
        """Return the position of the next read."""
        return JournalCursor(
            self.name, self._segment, self._slot, self._event_offset, tuple(self._names)
        )

    def name_of(self, name_id: int) -> str | None:
        """Return the name of a record's name id; None if the line that defines it is damaged."""
        name = self._names[name_id] if name_id < len(self._names) else ""
        return name or None

    def writing(self) -> Writing:
        """Return whether the process is alive and has not closed its journal."""
        if (self._folder / CLOSED_FILE).exists():
            return Writing.OVER
        if self.meta.boot_id != boot_id():
            return Writing.OVER
        alive = ProcessId(self.meta.pid, self.meta.start_ticks).alive
        return Writing.LIVE if alive or _locked(self._folder / EVENTS_FILE) else Writing.OVER

    def read(self, limit: int, *, final: bool) -> Records:
        """Return up to ``limit`` new records in slot order; ``final`` avoids waiting."""
        # Checked before reading, so that everything a process wrote before its exit is found.
        over = final or self.writing() is Writing.OVER
        self._end = self._read_end() if over else None
        parts = [self._read_late()] if self._late else []
        count = sum(len(part) for part in parts)
        while count < limit:
            part, go_on = self._step(min(_BLOCK, limit - count), over=over)
            parts.append(part)
            count += len(part)
            if not go_on:
                if over:
                    self._miss_rest()
                self.exhausted = over
                break
        return np.concatenate(parts) if parts else np.empty(0, RECORD_DTYPE)

    def read_events(self) -> list[dict[str, Any]]:
        """Return new events. Read records first: their names are then defined."""
        events: list[dict[str, Any]] = []
        for line in self._lines(self._event_offset):
            self._event_offset += len(line) + 1
            try:
                event = self._event(line)
            except _DAMAGED_LINE:
                self.miss_event()
            else:
                events += [] if event is None else [event]
        return events

    def last_event(self, kind: EventKind) -> dict[str, Any] | None:
        """Return the last event of a kind, whether it was read before or not."""
        for line in reversed(self._lines(0)):
            try:
                event = self._parsed(line)
            except _DAMAGED_LINE:
                continue
            if event is not None and event["event"] == kind:
                return event
        return None

    def _lines(self, offset: int) -> list[bytes]:
        """Return the whole lines of the events file from an offset on, without their ends."""
        try:
            with (self._folder / EVENTS_FILE).open("rb") as file:
                file.seek(offset)
                return file.read().split(b"\n")[:-1]
        except FileNotFoundError:
            return []

    def miss_event(self) -> None:
        """Count an unreadable line."""
        self.lost_events += 1
        self._keep(EVENTS_FILE)

    def _event(self, line: bytes) -> dict[str, Any] | None:
        """Return a line's event for the caller; names are kept here.

        Raises:
            ArithmeticError, LookupError, TypeError, ValueError: It is damaged.
        """
        event = self._parsed(line)
        if event is None or event["event"] != EventKind.NAME:
            return event
        number = int(event["id"])  # not always in order, and some remain unused
        if not 0 <= number < _MAX_NAMES:
            raise ValueError("a damaged number")
        self._names += [""] * (number + 1 - len(self._names))
        self._names[number] = str(event["name"])
        return None

    def _parsed(self, line: bytes) -> dict[str, Any] | None:
        """Return a line as an event; None if it counts for nothing. Raises as `_event` does."""
        if not line or line + b"\n" == TAKEN_BACK or line.endswith(TAKEN_BACK[:-1]):
            return None  # a full disk had room for a part of it: it was written again
        event = read_line(line, self.meta.format_version)
        if event is None:
            if not self._checked:
                return None  # as above, before version 2
            raise ValueError("a damaged line")
        return event

    def segments_before(self, cursor: JournalCursor) -> list[Path]:
        """Return the segments that lie wholly before the cursor."""
        waiting = {slot.segment for slot in self._late}
        return [
            path
            for path in self._folder.glob("segment-*.bin")
            if (number := int(path.stem.removeprefix("segment-"))) < cursor.segment
            and number not in waiting
        ]

    def remove(self) -> None:
        """Remove the journal, unless its process may still write.

        Raises:
            OSError: The files cannot be removed.
        """
        if self.exhausted and self.writing() is Writing.OVER:
            shutil.rmtree(self._folder)

    def _step(self, limit: int, *, over: bool) -> tuple[Records, bool]:
        """Return the next block, and whether there may be more after it."""
        size = self._segments.size(self._segment)
        if size is None or self._slot >= size:
            following = self._segments.after(self._segment)
            if following is None:
                return np.empty(0, RECORD_DTYPE), False
            if self._segments.size(self._segment) != size:
                # A starting process creates two at once: a missing one may exist by now.
                return np.empty(0, RECORD_DTYPE), True
            self._go_to(following, absent=size is None)
            return np.empty(0, RECORD_DTYPE), True
        if self._checked:
            sealed = self._sealed(limit)
            if sealed is not None:
                self._hole = None
                return sealed, True
            # Up to the end of this block, or the reserve record.
            limit = min(limit, BLOCK_SLOTS - self._slot % BLOCK_SLOTS)
        block = self._segments.load(self._segment, self._slot, min(limit, size - self._slot))
        missing = np.flatnonzero(block["kind"] == 0)
        if not len(missing):
            self._slot += len(block)
            return self._plausible(block), True
        first = int(missing[0])
        self._slot += first
        if first:
            return self._plausible(block[:first]), True  # continue at the hole
        written = np.flatnonzero(block["kind"])
        if len(written):
            width = int(written[0])
        elif self._anything_after(self._slot + len(block)):
            width = len(block)
        else:  # the end, not a hole
            return (self._left_counting(size) if over else block[:0]), False
        if not over and not self._waited_enough():
            return block[:0], False
        self._pass_over(width, over=over)
        return block[:0], True

    def _pass_over(self, width: int, *, over: bool) -> None:
        """Skip slots that are not written; a living process may still write them."""
        if not over:
            self._late |= {_Slot(self._segment, self._slot + i) for i in range(width)}
        elif self._checked:
            # Of a slot that was taken and not written, all is zero.
            hole = (
                self._segments.load(self._segment, self._slot, width).view(np.uint64).reshape(-1, 4)
            )
            damaged = width if width > _THREADS_AMID else int(hole.any(axis=1).sum())
            self._miss(min(damaged, self._written_from(self._slot)), self._segment)
        self._slot += width
        self._hole = None

    def _go_to(self, segment: int, *, absent: bool) -> None:
        """Continue with a later segment; count those skipped, and this one's rest if absent."""
        if self._checked:
            skipped = (segment - self._segment - 1) * SEGMENT_SLOTS
            self._miss(skipped + (max(0, SEGMENT_SLOTS - self._slot) if absent else 0))
        self._segment, self._slot, self._hole = segment, 0, None

    def _sealed(self, limit: int) -> Records | None:
        """Return the next sealed blocks, at least one; None if this block has no seal."""
        if self._slot >= SEGMENT_SLOTS:
            return None
        first = self._slot // BLOCK_SLOTS
        blocks = min(1 + limit // BLOCK_SLOTS, SEGMENT_SLOTS // BLOCK_SLOTS - first)
        # Read before the records: a block with a seal is complete.
        seals = self._segments.seals(self._segment)[first : first + blocks]
        offset = HEAD_BYTES + first * BLOCK_BYTES
        records = self._segments.read(self._segment, offset, blocks * BLOCK_BYTES)
        start = stop = self._slot - first * BLOCK_SLOTS
        for block, seal in enumerate(seals):
            slots = min(seal >> 32, BLOCK_SLOTS)
            at = block * BLOCK_BYTES
            if block * BLOCK_SLOTS + slots <= stop:
                break  # no seal, or that of a process's last records, which are read
            if seal_of(records[at : at + slots * RECORD_BYTES]) != seal:
                if stop > start:
                    break  # return the good blocks first
                self._slot = (first + block) * BLOCK_SLOTS + slots
                self._miss(slots - start % BLOCK_SLOTS, self._segment)
                return np.empty(0, RECORD_DTYPE)
            stop = block * BLOCK_SLOTS + slots
            if slots < BLOCK_SLOTS:
                break
        if stop == start:
            return None
        self._slot = first * BLOCK_SLOTS + stop
        part = np.frombuffer(records[start * RECORD_BYTES : stop * RECORD_BYTES], RECORD_DTYPE)
        return self._in_life(part)

    def _plausible(self, records: Records) -> Records:
        """Return the plausible records of an unsealed block; count the others."""
        if not self._checked:
            return self._in_life(records)
        known = np.isin(records["kind"], _KINDS)
        counts = records["kind"] == RecordKind.DROPPED
        known &= ~counts | (records["step"] == records["value"])
        self._miss_some(~known)
        return self._in_life(records[known])

    def _in_life(self, records: Records) -> Records:
        """Return the records whose times are within the run's life; count the others."""
        created_ns, offset_ns = self.meta.created_ns, self.meta.offset_ns
        if self.meta.boot_id == boot_id():
            now_ns = time.monotonic_ns()
        else:
            now_ns = time.time_ns() - offset_ns
        times_ns = records["time_ns"]
        known = (times_ns >= created_ns - _TIME_SLACK_NS) & (times_ns <= now_ns + _TIME_SLACK_NS)
        known |= records["kind"] == RecordKind.VOID
        if not known.all():
            self._miss_some(~known)
            records = records[known]
        return records

    def _miss_some(self, wrong: npt.NDArray[np.bool_]) -> None:
        """Count the wrong records just before the current slot, unless they were never written."""
        if self._written_from(self._slot - len(wrong)) > 0:
            self._miss(int(wrong.sum()), self._segment)

    def _written_from(self, slot: int) -> int:
        """Return how many slots of this segment, starting at ``slot``, were written at most."""
        end = self._end
        known = end is not None and end.segment == self._segment and slot < SEGMENT_SLOTS
        return (end.slot if known and end is not None else RESERVE_SLOT + 1) - slot

    def _read_end(self) -> End | None:
        """Return how much there was, as its process said at its end, else as its segments say."""
        if not self._checked:
            return None
        try:
            return End(**(read_line((self._folder / CLOSED_FILE).read_bytes()) or {}))
        except (FileNotFoundError, TypeError):  # it was killed, or had no space to say so
            pass
        for number in sorted(self._segments.numbers(), reverse=True):
            slots = self._segments.written(number)
            if 0 < slots <= SEGMENT_SLOTS:  # else it is a spare one, or damaged itself
                return End(number, slots, 0)
        return None

    def _miss(self, count: int, segment: int | None = None) -> None:
        """Count values lost to damage, and keep the damaged file."""
        if count <= 0:
            return
        self.lost += count
        if segment is not None:
            self._keep(segment_name(segment))

    def _miss_rest(self) -> None:
        """Count written but missing values, once everything present was read."""
        if not self._checked or self.exhausted:
            return
        for number in self._segments.numbers():
            if self._size_of(segment_name(number)) < HEAD_BYTES + SEGMENT_BYTES:
                self._keep(segment_name(number))  # how much it held may be gone with its head
        end = self._end
        if end is None:
            return
        missing = (end.segment - self._segment) * SEGMENT_SLOTS + end.slot
        self._miss(missing - min(self._slot, SEGMENT_SLOTS))
        if end.segment >= 0 and missing > self._slot:
            self._segment, self._slot = end.segment, end.slot
        if self._size_of(EVENTS_FILE) < end.event_bytes:
            self.miss_event()

    def _size_of(self, name: str) -> int:
        try:
            return (self._folder / name).stat().st_size
        except FileNotFoundError:
            return 0

    def _keep(self, name: str) -> None:
        """Keep a damaged file beside the journal, where it is not removed."""
        if name in self._kept:
            return
        self._kept.add(name)
        kept = RunDir(self._folder.parent.parent).damaged / self.name
        log.warning("%s is damaged: it is kept in %s", self._folder / name, kept)
        try:
            kept.mkdir(mode=0o700, parents=True, exist_ok=True)
            for part in (META_FILE, EVENTS_FILE, name):
                source = self._folder / part
                if source.exists() and not (kept / part).exists():
                    os.link(source, kept / part)
        except OSError as error:
            log.warning("%s could not be kept: %s", self._folder / name, error)

    def _left_counting(self, size: int) -> Records:
        """Return the reserve record if its process was killed while it counted there."""
        last = self._segments.load(self._segment, size - 1, 1)
        if size != RESERVE_SLOT + 1 or not (last["value"] > 0).any():
            return np.empty(0, RECORD_DTYPE)
        last["kind"] = RecordKind.DROPPED
        self._slot = size
        return self._plausible(last)

    def _waited_enough(self) -> bool:
        here = _Slot(self._segment, self._slot)
        now_s = time.monotonic()
        if self._hole is None or self._hole[0] != here:
            self._hole = (here, now_s)
        return now_s - self._hole[1] >= PATIENCE_S

    def _read_late(self) -> Records:
        """Return records that were written after their turn."""
        blocks = []
        for slot in sorted(self._late, key=lambda late: (late.segment, late.slot)):
            block = self._segments.load(slot.segment, slot.slot, 1)
            if len(block) and block["kind"][0]:
                blocks.append(self._plausible(block))
                self._late.discard(slot)
        return np.concatenate(blocks) if blocks else np.empty(0, RECORD_DTYPE)

    def _anything_after(self, slot: int) -> bool:
        """Return whether this segment from a slot on, or a later segment, has records."""
        size = self._segments.size(self._segment) or 0
        if self._segments.load(self._segment, slot, size - slot)["kind"].any():
            return True
        following = self._segments.after(self._segment)
        return following is not None and bool(
            self._segments.load(following, 0, _BLOCK)["kind"].any()
        )


def _locked(path: Path) -> bool:
    """Return whether a process holds the lock on its events, as it does while it lives."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        # There is none, or the file system knows no locks. Who cannot look takes it for held.
        return is_shortage(error)
    return False
