"""The journal of one process, as its reader sees it."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from radt.errors import JournalError
from radt.journal.format import (
    CLOSED_FILE,
    EVENTS_FILE,
    FORMAT_VERSION,
    META_FILE,
    RECORD_BYTES,
    SEGMENT_BYTES,
    EventKind,
    JournalMeta,
    RecordKind,
    segment_name,
)
from radt.procfs import boot_id, start_ticks
from radt.store.records import JournalCursor

#: `radt.journal.format.RECORD`, as an array.
RECORD_DTYPE = np.dtype(
    [("time_ns", "<i8"), ("step", "<i8"), ("value", "<f8"), ("name_id", "<u4"), ("kind", "<u4")]
)
Records = npt.NDArray[np.void]

#: How long to wait for a slot that was taken and is not written, while its process lives. A thread
#: may lose its turn at that point; one that was interrupted there (Ctrl-C) never comes back.
PATIENCE_S = 2.0
_BLOCK = 1024


class Writing(Enum):
    """Whether more may come from a process."""

    LIVE = auto()
    OVER = auto()


@dataclass(frozen=True, slots=True)
class _Slot:
    segment: int
    slot: int


class JournalSource:
    """Reads forward from a cursor; what it returned it returns no second time.

    Raises:
        JournalError: The folder is not a journal that this version can read.
    """

    def __init__(self, folder: Path, cursor: JournalCursor | None) -> None:
        self.name = folder.name
        self.meta = _read_meta(folder)
        self._folder = folder
        cursor = cursor or JournalCursor(folder.name)
        self._segment, self._slot = cursor.segment, cursor.slot
        self._event_offset = cursor.event_offset
        self._names = list(cursor.names)
        self._hole: tuple[_Slot, float] | None = None
        #: Slots that were not waited for any longer and may be written yet.
        self._late: set[_Slot] = set()
        #: All is read, and nothing more will come.
        self.exhausted = False

    @property
    def cursor(self) -> JournalCursor:
        """Where reading goes on."""
        return JournalCursor(
            self.name, self._segment, self._slot, self._event_offset, tuple(self._names)
        )

    def name_of(self, name_id: int) -> str:
        """What a record's name id means; a made-up name where a damaged disk lost the real one."""
        name = self._names[name_id] if name_id < len(self._names) else ""
        return name or f"unnamed {name_id}"

    def writing(self) -> Writing:
        """Return whether the process is there and has not closed its journal."""
        if (self._folder / CLOSED_FILE).exists():
            return Writing.OVER
        if self.meta.boot_id != boot_id() or start_ticks(self.meta.pid) != self.meta.start_ticks:
            return Writing.OVER
        return Writing.LIVE

    def read(self, limit: int, *, final: bool) -> Records:
        """Up to ``limit`` new records, in slot order; with ``final`` nothing is waited for."""
        # Asked before anything is read: what a process wrote before its end is then there.
        over = final or self.writing() is Writing.OVER
        parts = [self._read_late()] if self._late else []
        count = sum(len(part) for part in parts)
        while count < limit:
            part, go_on = self._step(min(_BLOCK, limit - count), over=over)
            parts.append(part)
            count += len(part)
            if not go_on:
                self.exhausted = over
                break
        return np.concatenate(parts) if parts else np.empty(0, RECORD_DTYPE)

    def read_events(self) -> list[dict[str, Any]]:
        """New events. Read records first: their names are then defined."""
        try:
            with (self._folder / EVENTS_FILE).open("rb") as file:
                file.seek(self._event_offset)
                data = file.read()
        except FileNotFoundError:
            return []
        end = data.rfind(b"\n") + 1
        self._event_offset += end
        events = []
        for line in data[:end].splitlines():
            event = _parsed(line)
            if event is None:
                continue
            if event["event"] == EventKind.NAME:
                number = int(event["id"])  # not always in order, and some are never used
                self._names += [""] * (number + 1 - len(self._names))
                self._names[number] = str(event["name"])
            else:
                events.append(event)
        return events

    def segments_before(self, cursor: JournalCursor) -> list[Path]:
        """Segments that lie wholly before the cursor."""
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
            OSError: The disk refuses.
        """
        if self.exhausted and self.writing() is Writing.OVER:
            shutil.rmtree(self._folder)

    def _step(self, limit: int, *, over: bool) -> tuple[Records, bool]:
        """Return the next block, and whether there may be more behind it."""
        size = self._size(self._segment)
        if size is None or self._slot >= size:
            following = self._next_segment()
            if following is None:
                return np.empty(0, RECORD_DTYPE), False
            if self._size(self._segment) != size:
                # A process that begins makes two at once: what was missing may be there by now.
                return np.empty(0, RECORD_DTYPE), True
            self._segment, self._slot, self._hole = following, 0, None
            return np.empty(0, RECORD_DTYPE), True
        block = self._load(self._segment, self._slot, min(limit, size - self._slot))
        missing = np.flatnonzero(block["kind"] == 0)
        if not len(missing):
            self._slot += len(block)
            return block, True
        first = int(missing[0])
        self._slot += first
        if first:
            return block[:first], True  # look again from the hole on
        written = np.flatnonzero(block["kind"])
        if len(written):
            width = int(written[0])
        elif self._anything_after(self._slot + len(block)):
            width = len(block)
        else:  # not a hole but the end
            return (self._left_counting(size) if over else block[:0]), False
        if not over and not self._waited_enough():
            return block[:0], False
        if not over:
            self._late |= {_Slot(self._segment, self._slot + i) for i in range(width)}
        self._slot += width
        self._hole = None
        return block[:0], True

    def _left_counting(self, size: int) -> Records:
        """Return the record in reserve, if its process was killed while it counted there."""
        last = self._load(self._segment, size - 1, 1)
        if size != SEGMENT_BYTES // RECORD_BYTES + 1 or not (last["value"] > 0).any():
            return np.empty(0, RECORD_DTYPE)
        last["kind"] = RecordKind.DROPPED
        self._slot = size
        return last

    def _waited_enough(self) -> bool:
        here = _Slot(self._segment, self._slot)
        now_s = time.monotonic()
        if self._hole is None or self._hole[0] != here:
            self._hole = (here, now_s)
        return now_s - self._hole[1] >= PATIENCE_S

    def _read_late(self) -> Records:
        """Records that came after their turn."""
        blocks = []
        for slot in sorted(self._late, key=lambda late: (late.segment, late.slot)):
            block = self._load(slot.segment, slot.slot, 1)
            if len(block) and block["kind"][0]:
                blocks.append(block)
                self._late.discard(slot)
        return np.concatenate(blocks) if blocks else np.empty(0, RECORD_DTYPE)

    def _anything_after(self, slot: int) -> bool:
        """Whether something is written in this segment from a slot on, or in a later segment."""
        size = self._size(self._segment) or 0
        if self._load(self._segment, slot, size - slot)["kind"].any():
            return True
        following = self._next_segment()
        return following is not None and bool(self._load(following, 0, _BLOCK)["kind"].any())

    def _next_segment(self) -> int | None:
        """Return the number of the next segment that exists."""
        if self._size(self._segment + 1) is not None:
            return self._segment + 1
        # A segment that is missing was lost with its disk, or the numbers went on after one.
        later = [
            number
            for path in self._folder.glob("segment-*.bin")
            if (number := int(path.stem.removeprefix("segment-"))) > self._segment
        ]
        return min(later, default=None)

    def _path(self, segment: int) -> Path:
        return self._folder / segment_name(segment)

    def _size(self, segment: int) -> int | None:
        try:
            return self._path(segment).stat().st_size // RECORD_BYTES
        except FileNotFoundError:
            return None

    def _load(self, segment: int, slot: int, count: int) -> Records:
        """Return a copy: a mapping would kill the reader (SIGBUS) if somebody cut the file.

        Records whose kind is there at the first reading are complete at the second, on processors
        too that make stores visible in another order than they were made in.
        """
        if count <= 0:
            return np.empty(0, RECORD_DTYPE)
        try:
            with self._path(segment).open("rb", buffering=0) as file:
                file.seek(slot * RECORD_BYTES)
                kinds = np.frombuffer(_whole(file.read(count * RECORD_BYTES)), RECORD_DTYPE)["kind"]
                file.seek(slot * RECORD_BYTES)
                records = np.frombuffer(_whole(file.read(len(kinds) * RECORD_BYTES)), RECORD_DTYPE)
        except FileNotFoundError:
            return np.empty(0, RECORD_DTYPE)
        records = records.copy()
        records["kind"] = kinds[: len(records)]
        return records


def _whole(data: bytes) -> bytes:
    return data[: len(data) // RECORD_BYTES * RECORD_BYTES]


def _parsed(line: bytes) -> dict[str, Any] | None:
    """Return an event; None for what a full disk has left of one."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None


def _read_meta(folder: Path) -> JournalMeta:
    path = folder / META_FILE
    try:
        meta = JournalMeta.from_json(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise JournalError(f"{path} cannot be read: {error}", "The disk may be damaged") from error
    if meta.format_version > FORMAT_VERSION:
        raise JournalError(
            f"{folder} was written by radt {meta.radt_version}, which is newer",
            "Use one version of radt for training and for collecting",
        )
    return meta
