"""Layout of a journal on disk, shared by its writer and its reader.

::

    journal/                    one a run (`radt.home.RunDir.journal`)
    ├── labels/                 claimed process labels: main, child 1, …
    └── PID-RANDOM/             one a process
        ├── meta.json           who writes here (`JournalMeta`)
        ├── events.jsonl        names, params, tags, how it ended: one JSON object a line
        ├── segment-000000.bin  32-byte records, in the order of their slots
        └── closed              there once the process has said all that it had to say

A record is eight-byte aligned, little-endian: monotonic ns (i64), step (i64), value (f64), name id
(u32), kind (u32). The kind is written last; while it is 0 the record is not there, be it not yet
or, when its writer was killed meanwhile, not ever. What a name id means stands in an event that
is written before the id is used for the first time.

Behind the records of a segment stands one in reserve, to count what could not be written because
there was no space for another segment: its value grows while its kind is 0, and its kind is given
when the process moves on or ends (`RecordKind.DROPPED`, or `VOID` where all was written). So the
count needs no space, and is there after a kill. Imports the standard library only.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import IntEnum, StrEnum
from typing import Any

FORMAT_VERSION = 1
#: Native order, so that a field is one aligned store; that it is little-endian is checked here.
RECORD = struct.Struct("@qqdII")
RECORD_BYTES = 32
if sys.byteorder != "little":  # pragma: no cover - no such machine trains anything
    raise ImportError("radt's journal needs a little-endian machine")

#: 8,192 records, without the one in reserve: preparing a segment takes some 0.3 ms, and that is all
#: that logging ever waits.
SEGMENT_BYTES = 256 * 1024

META_FILE = "meta.json"
EVENTS_FILE = "events.jsonl"
CLOSED_FILE = "closed"
LABELS_FOLDER = "labels"


class RecordKind(IntEnum):
    """What a record means. Kinds that a reader does not know are skipped."""

    SCALAR = 1
    EPOCH_BEGIN = 2  # step: the epoch; value: a token that its end repeats
    EPOCH_END = 3
    SPAN_BEGIN = 4  # value: a token that its end repeats
    SPAN_END = 5
    DROPPED = 6  # value: how many records could not be written before this one
    VOID = 7  # a slot that was taken and then not needed


class EventKind(StrEnum):
    """What a line of the events file says, in its field ``event``."""

    NAME = "name"  # id, name
    PARAMS = "params"  # values
    TAGS = "tags"  # values
    EPOCHS = "epochs"  # total
    DROPPED = "dropped"  # count
    FINISH = "finish"  # status, reason


@dataclass(frozen=True, slots=True)
class JournalMeta:
    """Who writes a journal.

    ``label`` names the process within its run: empty for the first, else ``rank 1``, ``child 2``.
    ``start_ticks`` is the process's start time as the kernel counts it, which together with
    ``boot_id`` tells the process from a later one with the same number. ``main`` is False for
    forked children. ``offset_ns`` added to monotonic times makes wall-clock times.
    """

    pid: int
    ppid: int
    start_ticks: int
    boot_id: str
    host: str
    label: str
    main: bool
    rank: int | None
    offset_ns: int
    created_ns: int
    radt_version: str
    format_version: int = FORMAT_VERSION

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> JournalMeta:
        """
        Raises:
            TypeError: Something is missing.
        """
        known = cls.__dataclass_fields__
        return cls(**{name: value for name, value in data.items() if name in known})


def segment_name(number: int) -> str:
    """File name of a segment."""
    return f"segment-{number:06d}.bin"
