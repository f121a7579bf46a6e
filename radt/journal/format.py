"""Layout of a journal on disk, shared by its writer and its reader.

::

    journal/                    one a run (`radt.home.RunDir.journal`)
    ├── labels/                 claimed process labels: main, child 1, …
    └── PID-RANDOM/             one a process
        ├── meta.json           who writes here (`JournalMeta`), with a checksum
        ├── events.jsonl        that again; names, params, tags, how it ended: a line each, JSON
        │                       and a checksum
        ├── segment-000000.bin  a head, and 32-byte records in the order of their slots
        └── closed              there once the process has said all: how much it was (`End`)

A record is eight-byte aligned, little-endian: monotonic ns (i64), step (i64), value (f64), name id
(u32), kind (u32). The kind is written last; while it is 0 the record is not there, be it not yet
or, when its writer was killed meanwhile, not ever. What a name id means stands in an event that
is written before the id is used for the first time.

A segment is checked in blocks of 128 records. Its head has a seal for each (u64): the CRC-32 of
the block's first records in the lower half, in the upper one how many records those are. A block
is sealed once its last record is written, the last one of a process as it closes its journal. The
values that a killed process wrote into its last block have no seal; how many slots of the segment
were written, the head says (u32), so that those that are cut off or overwritten are counted.

The head also holds a record in reserve, which readers find behind the last slot: it counts what
could not be written because there was no space for another segment. Its value, and its step too,
grows while its kind is 0, and its kind is given when the process moves on or ends
(`RecordKind.DROPPED`, or `VOID` where all was written). So the count needs no space, and is there
after a kill.

Version 1 had no checksums, no head, and the record in reserve behind the others. Imports the
standard library only.
"""

from __future__ import annotations

import json
import struct
import sys
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import IntEnum, StrEnum
from typing import Any

FORMAT_VERSION = 2
#: Native order, so that a field is one aligned store; that it is little-endian is checked here.
RECORD = struct.Struct("@qqdII")
RECORD_BYTES = 32
if sys.byteorder != "little":  # pragma: no cover - no such machine trains anything
    raise ImportError("radt's journal needs a little-endian machine")

#: 8,192 records, without the head: preparing a segment takes some 0.3 ms, and that is all that
#: logging ever waits.
SEGMENT_BYTES = 256 * 1024
SEGMENT_SLOTS = SEGMENT_BYTES // RECORD_BYTES

#: Sealing a block takes some 3 µs. One call in 128 is less than one in a hundred.
BLOCK_SLOTS = 128
BLOCK_BYTES = BLOCK_SLOTS * RECORD_BYTES
#: One aligned store: a killed process leaves a whole seal or none.
SEAL = struct.Struct("@Q")
SEALS_BYTES = SEGMENT_SLOTS // BLOCK_SLOTS * SEAL.size
#: Where the record in reserve stands: behind the seals.
RESERVE_OFFSET = SEALS_BYTES
#: Where the number of written slots stands.
WRITTEN = struct.Struct("@I")
WRITTEN_OFFSET = RESERVE_OFFSET + RECORD_BYTES
HEAD_BYTES = 4096

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

    META = "meta"  # the first line, a copy of the file: the fields of `JournalMeta`
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
        fields = asdict(self)
        return fields | {_CHECKSUM: _checksum(fields)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> JournalMeta:
        """
        Raises:
            TypeError: Something is missing.
            ValueError: It is damaged. Without a checksum, as in version 1, that is not known.
        """
        fields = {name: value for name, value in data.items() if name != _CHECKSUM}
        if data.get(_CHECKSUM, _checksum(fields)) != _checksum(fields):
            raise ValueError("the checksum is another")
        known = cls.__dataclass_fields__
        return cls(**{name: value for name, value in fields.items() if name in known})


_CHECKSUM = "checksum"


def _checksum(fields: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(fields, sort_keys=True).encode("ascii"))


@dataclass(frozen=True, slots=True)
class End:
    """How much a process had written as it closed its journal.

    ``segment`` is the last one (-1: none), ``slot`` the first of its slots that was not taken,
    ``event_bytes`` the size of the events file.
    """

    segment: int
    slot: int
    event_bytes: int


def seal_of(data: bytes) -> int:
    """Return the seal of a block's records."""
    return zlib.crc32(data) | len(data) // RECORD_BYTES << 32


def sealed_line(fields: Mapping[str, Any]) -> bytes:
    """Return a line of text: JSON, a blank, and the JSON's checksum, without a line end."""
    # ASCII with escapes: any text survives, lone surrogates of odd file names included.
    text = json.dumps(fields, separators=(",", ":")).encode("ascii")
    return text + b" %08x" % zlib.crc32(text)


def read_line(line: bytes, version: int = FORMAT_VERSION) -> dict[str, Any] | None:
    """Return what a line says; None if it is damaged. Lines of version 1 have no checksum."""
    text = line
    if version > 1:
        text, _, checksum = line.rpartition(b" ")
        if checksum != b"%08x" % zlib.crc32(text):
            return None
    try:
        fields = json.loads(text)
    except ValueError:
        return None
    return fields if isinstance(fields, dict) else None


def segment_name(number: int) -> str:
    """File name of a segment."""
    return f"segment-{number:06d}.bin"
