"""Read the journal of one process."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from radt.errors import JournalError
from radt.files import lock
from radt.home import RunDir
from radt.journal.files import TAKEN_BACK
from radt.journal.format import (
    BLOCK_BYTES,
    BLOCK_SLOTS,
    CLOSED_FILE,
    EVENTS_FILE,
    FORMAT_VERSION,
    HEAD_BYTES,
    META_FILE,
    RECORD_BYTES,
    SEGMENT_BYTES,
    SEGMENT_SLOTS,
    End,
    EventKind,
    JournalMeta,
    RecordKind,
    read_line,
    seal_of,
    segment_name,
)
from radt.journal.segments import RECORD_DTYPE, RESERVE_SLOT, Records, Segments
from radt.procfs import ProcessId, boot_id, is_shortage
from radt.store.records import JournalCursor

#: How long to wait for a slot that was taken but not written while its process lives. Its thread
#: may be suspended at that point; one that was interrupted there (Ctrl-C) never writes it.
PATIENCE_S = 2.0
_BLOCK = 1024
#: A time this much before the journal's creation, or in the future, is implausible.
_TIME_SLACK_NS = 60 * 10**9
#: A wider hole cannot come from threads that were interrupted while logging.
_THREADS_AMID = 16
_MAX_NAMES = 10**7
_KINDS = [kind.value for kind in RecordKind]
#: Errors raised when reading a damaged line.
_DAMAGED_LINE = (ArithmeticError, LookupError, TypeError, ValueError)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Slot:
    segment: int
    slot: int


class JournalSource:
    """Reads forward from a cursor and returns each record once.

    Raises:
        JournalError: The folder is not a journal that this version can read.
        OSError: This process is out of descriptors or memory (`is_shortage`).
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
        #: Slots for which this reader no longer waits, but which may still be written.
        self._late: set[_Slot] = set()
        #: Whether everything was read and nothing more will follow.
        self.exhausted = False
        #: Number of values lost in damaged files; the reader resets it to 0.
        self.lost = 0
        #: Number of lost events, likewise.
        self.lost_events = 0
        self._checked = self.meta.format_version > 1
        self._segments = Segments(folder, checked=self._checked)
        self._kept: set[str] = set()
        #: Amount of written data, once the process has reported it.
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

    @property
    def is_being_written(self) -> bool:
        """Return whether the process is alive and has not closed its journal."""
        if (self._folder / CLOSED_FILE).exists() or self.meta.boot_id != boot_id():
            return False
        alive = ProcessId(self.meta.pid, self.meta.start_ticks).alive
        return alive or _locked(self._folder / EVENTS_FILE)

    def read(self, limit: int, *, final: bool) -> Records:
        """Return up to ``limit`` new records in slot order; ``final`` avoids waiting."""
        # Checked before reading, so that everything a process wrote before its exit is found.
        over = final or not self.is_being_written
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
        """Return new events. Read records first, so that their names are defined afterwards."""
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
        """Return the last event of a kind, even if it was read before."""
        for line in reversed(self._lines(0)):
            try:
                event = self._parsed(line)
            except _DAMAGED_LINE:
                continue
            if event is not None and event["event"] == kind:
                return event
        return None

    def _lines(self, offset: int) -> list[bytes]:
        """Return the complete lines of the events file from an offset on, without line ends."""
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
        """Return a line's event for the caller, or None for a name, which is kept here.

        Raises:
            ArithmeticError, LookupError, TypeError, ValueError: The line is damaged.
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
        """Parse a line; return None for one without an event. Raises as `_event` does."""
        if not line or line + b"\n" == TAKEN_BACK or line.endswith(TAKEN_BACK[:-1]):
            return None  # written only in part on a full disk, then again
        event = read_line(line, self.meta.format_version)
        if event is None:
            if not self._checked:
                return None  # as above, before version 2
            raise ValueError("a damaged line")
        return event

    def segments_before(self, cursor: JournalCursor) -> list[Path]:
        """Return the segments completely before the cursor, except those with late slots."""
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
        if self.exhausted and not self.is_being_written:
            shutil.rmtree(self._folder)

    def _step(self, limit: int, *, over: bool) -> tuple[Records, bool]:
        """Return the next block, and whether more may follow."""
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
            # Read up to the end of this block, or the reserve record.
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
        """Skip unwritten slots, which a live process may still write."""
        if not over:
            self._late |= {_Slot(self._segment, self._slot + i) for i in range(width)}
        elif self._checked:
            # A slot that was taken but not written is all zeros.
            hole = (
                self._segments.load(self._segment, self._slot, width).view(np.uint64).reshape(-1, 4)
            )
            damaged = width if width > _THREADS_AMID else int(hole.any(axis=1).sum())
            self._miss(min(damaged, self._written_from(self._slot)), self._segment)
        self._slot += width
        self._hole = None

    def _go_to(self, segment: int, *, absent: bool) -> None:
        """Go on with a later segment; count skipped ones, and this one's rest if it is absent."""
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
        # Seals are read before the records: a block with a seal is complete.
        seals = self._segments.seals(self._segment)[first : first + blocks]
        offset = HEAD_BYTES + first * BLOCK_BYTES
        records = self._segments.read(self._segment, offset, blocks * BLOCK_BYTES)
        start = stop = self._slot - first * BLOCK_SLOTS
        for block, seal in enumerate(seals):
            slots = min(seal >> 32, BLOCK_SLOTS)
            at = block * BLOCK_BYTES
            if block * BLOCK_SLOTS + slots <= stop:
                break  # no seal, or the seal of a process's last records, which were read already
            if seal_of(records[at : at + slots * RECORD_BYTES]) != seal:
                if stop > start:
                    break  # return the intact blocks first
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
        """Return the maximum number of written slots of this segment from ``slot`` on."""
        end = self._end
        known = end is not None and end.segment == self._segment and slot < SEGMENT_SLOTS
        return (end.slot if known and end is not None else RESERVE_SLOT + 1) - slot

    def _read_end(self) -> End | None:
        """Return the amount of written data as the process recorded it, else from segment heads."""
        if not self._checked:
            return None
        try:
            return End(**(read_line((self._folder / CLOSED_FILE).read_bytes()) or {}))
        except (FileNotFoundError, TypeError):  # it was killed, or had no space for the file
            pass
        for number in sorted(self._segments.numbers(), reverse=True):
            slots = self._segments.written(number)
            if 0 < slots <= SEGMENT_SLOTS:  # otherwise it is a spare one, or is itself damaged
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
        """Count written but missing values, once all existing data was read."""
        if not self._checked or self.exhausted:
            return
        for number in self._segments.numbers():
            if self._size_of(segment_name(number)) < HEAD_BYTES + SEGMENT_BYTES:
                self._keep(segment_name(number))  # its head with the slot count may be lost
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
        """Keep a damaged file outside of the journal, which will be removed."""
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
        """Return the reserve record if the process was killed while counting in it."""
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
        """Return records that were written late, after the reader had skipped their slots."""
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
            return not lock(file.fileno(), shared=True)
    except OSError as error:
        # The file is missing, or the file system has no locks. A shortage counts as locked.
        return is_shortage(error)


def read_meta(folder: Path) -> JournalMeta:
    """Return a journal's metadata, from its file or the copy in the events file.

    Raises:
        JournalError: Neither can be read, or a later version wrote them.
    """
    path = folder / META_FILE
    try:
        meta = JournalMeta.from_json(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        if is_shortage(error):
            raise
        copy = _copied_meta(folder)
        if copy is None:
            raise JournalError(
                f"{path} cannot be read: {error}", "The disk may be damaged"
            ) from error
        log.warning("%s is damaged: its copy is used", path)
        meta = copy
    if meta.format_version > FORMAT_VERSION:
        raise JournalError(
            f"{folder} was written by radt {meta.radt_version}, which is newer",
            "Use one version of radt for training and for collecting",
        )
    return meta


def _copied_meta(folder: Path) -> JournalMeta | None:
    try:
        with (folder / EVENTS_FILE).open("rb") as file:
            fields = read_line(file.readline().rstrip(b"\n")) or {}
        kind = fields.pop("event", "")
        return JournalMeta.from_json(fields) if kind == EventKind.META else None
    except (OSError, ValueError, TypeError):
        return None
