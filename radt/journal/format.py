"""Layout of a journal on disk, shared by its writer and its reader.

::

    journal/                    one per run (`radt.home.RunDir.journal`)
    ├── labels/                 claimed process labels: main, child 1, …
    └── PID-RANDOM/             one per process
        ├── meta.json           the process (`JournalMeta`), with a checksum
        ├── events.jsonl        a copy of it, then names, params, tags and the outcome;
        │                       each line is JSON and a checksum
        ├── segment-000000.bin  a head, and 32-byte records in the order of their slots
        └── closed              written last: the size of the content (`End`)

A record is eight-byte aligned, little-endian: monotonic ns (i64), step (i64), value (f64), name id
(u32), kind (u32). The kind is written last. While it is 0 the record does not exist: it is
unfinished, or its writer was killed. An event that is written before the first use of a name id
defines its name.

A segment is checked in blocks of 128 records. Its head has a seal for each block (u64): the lower
half is the CRC-32 of the block's first records, the upper half their number. A block is sealed once
its last record is written; a process's last block is sealed when it closes its journal. If a
process is killed, the values in its last block have no seal. Their number follows from the number
of written slots in the head (u32), so that values that are cut off or overwritten are counted as
lost.

The head also holds a reserve record, which readers see after the last slot: it counts the records
that were not written because there was no space for another segment. Its value and step grow while
its kind is 0; the kind is set when the process moves on or ends (`RecordKind.DROPPED`, or `VOID` if
everything was written). So the count needs no space and survives a kill.

Version 1 had no checksums and no head; its reserve record followed the others. Imports the standard
library only.
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
#: Native byte order, so that a field is one aligned store; checked to be little-endian here.
RECORD = struct.Struct("@qqdII")
RECORD_BYTES = 32
if sys.byteorder != "little":  # pragma: no cover - no big-endian machine runs training
    raise ImportError("radt's journal needs a little-endian machine")

#: 8,192 records, without the head. Preparing a segment takes about 0.3 ms, the longest that logging
#: ever waits.
SEGMENT_BYTES = 256 * 1024
SEGMENT_SLOTS = SEGMENT_BYTES // RECORD_BYTES

#: Sealing a block takes about 3 µs, in less than 1 % of the calls.
BLOCK_SLOTS = 128
BLOCK_BYTES = BLOCK_SLOTS * RECORD_BYTES
#: One aligned store: a killed process leaves either a whole seal or none.
SEAL = struct.Struct("@Q")
SEALS_BYTES = SEGMENT_SLOTS // BLOCK_SLOTS * SEAL.size
#: Offset of the reserve record: after the seals.
RESERVE_OFFSET = SEALS_BYTES
#: Offset and format of the number of written slots.
WRITTEN = struct.Struct("@I")
WRITTEN_OFFSET = RESERVE_OFFSET + RECORD_BYTES
HEAD_BYTES = 4096

META_FILE = "meta.json"
EVENTS_FILE = "events.jsonl"
CLOSED_FILE = "closed"
LABELS_FOLDER = "labels"


class RecordKind(IntEnum):
    """Kind of a record. Readers skip unknown kinds."""

    SCALAR = 1
    EPOCH_BEGIN = 2  # step: the epoch; value: a token that its end repeats
    EPOCH_END = 3
    SPAN_BEGIN = 4  # value: a token that its end repeats
    SPAN_END = 5
    DROPPED = 6  # value: number of preceding records that could not be written
    VOID = 7  # a slot that was taken but not needed


class EventKind(StrEnum):
    """Kind of a line of the events file, in its field ``event``."""

    META = "meta"  # the first line, a copy of the metadata file: the fields of `JournalMeta`
    NAME = "name"  # id, name
    PARAMS = "params"  # values
    TAGS = "tags"  # values
    EPOCHS = "epochs"  # total
    DROPPED = "dropped"  # count
    FINISH = "finish"  # status, reason; for a child also ended_ns


@dataclass(frozen=True, slots=True)
class JournalMeta:
    """Metadata of the process that writes a journal.

    ``label`` names the process within its run: empty for the first, else ``rank 1``, ``child 2``.
    ``start_ticks`` is the kernel's start time of the process, which together with ``boot_id``
    distinguishes it from a later process with the same id. ``main`` is False for forked children.
    ``offset_ns`` added to monotonic times gives wall-clock times.
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
        """Build the metadata from JSON. In version 1, without a checksum, damage goes undetected.

        Raises:
            TypeError: A field is missing.
            ValueError: The checksum does not match.
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
    """Amount of data that a process had written when it closed its journal.

    ``segment`` is the last segment (-1: none), ``slot`` the first unused slot in it,
    ``event_bytes`` the size of the events file.
    """

    segment: int
    slot: int
    event_bytes: int


def seal_of(data: bytes) -> int:
    """Return the seal of a block's records."""
    return zlib.crc32(data) | len(data) // RECORD_BYTES << 32


def sealed_line(fields: Mapping[str, Any]) -> bytes:
    """Encode an event as a line: JSON, a space and the JSON's checksum, without a line end."""
    # ASCII with escapes preserves any text, including lone surrogates in file names.
    text = json.dumps(fields, separators=(",", ":")).encode("ascii")
    return text + b" %08x" % zlib.crc32(text)


def read_line(line: bytes, version: int = FORMAT_VERSION) -> dict[str, Any] | None:
    """Parse a line; return None if it is damaged. Lines of version 1 have no checksum."""
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
    """Return the file name of a segment."""
    return f"segment-{number:06d}.bin"
