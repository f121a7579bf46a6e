"""Read the segments of one journal: the files that hold its records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from radt.journal.format import (
    HEAD_BYTES,
    RECORD_BYTES,
    RESERVE_OFFSET,
    SEAL,
    SEGMENT_SLOTS,
    WRITTEN,
    WRITTEN_OFFSET,
    segment_name,
)

#: `radt.journal.format.RECORD` as a numpy type.
RECORD_DTYPE = np.dtype(
    [("time_ns", "<i8"), ("step", "<i8"), ("value", "<f8"), ("name_id", "<u4"), ("kind", "<u4")]
)
Records = npt.NDArray[np.void]

#: Slot number of the reserve record, which counts a full segment's losses: the one after the last.
RESERVE_SLOT = SEGMENT_SLOTS


class Segments:
    """The segments in a journal's folder. All returned data are copies.

    A mapping would kill the reader (SIGBUS) if a file were truncated meanwhile.

    Args:
        folder: The journal's folder.
        checked: Whether segments have a head with seals, as since version 2 of the format.
    """

    def __init__(self, folder: Path, *, checked: bool) -> None:
        self._folder = folder
        self._checked = checked

    def numbers(self) -> list[int]:
        """Return the numbers of the segments that exist."""
        # Not `Path.glob`, which hides that it cannot read the folder.
        return [
            int(path.stem.removeprefix("segment-"))
            for path in self._folder.iterdir()
            if path.match("segment-*.bin")
        ]

    def after(self, segment: int) -> int | None:
        """Return the number of the next segment that exists; None at the end."""
        if self.size(segment + 1) is not None:
            return segment + 1
        # A missing segment was lost with its disk, or its number was skipped.
        return min((number for number in self.numbers() if number > segment), default=None)

    def size(self, segment: int) -> int | None:
        """Return a segment's number of slots including the reserve record; None without a file."""
        try:
            size = self._path(segment).stat().st_size
        except FileNotFoundError:
            return None
        return RESERVE_SLOT + 1 if self._checked else size // RECORD_BYTES

    def seals(self, segment: int) -> list[int]:
        """Return the seals of a segment; 0 for a block without one."""
        data = self.read(segment, 0, RESERVE_OFFSET)
        return [seal for (seal,) in SEAL.iter_unpack(data)]

    def written(self, segment: int) -> int:
        """Return the number of written slots according to a segment's head."""
        (slots,) = WRITTEN.unpack(self.read(segment, WRITTEN_OFFSET, WRITTEN.size))
        return int(slots)

    def read(self, segment: int, offset: int, count: int) -> bytes:
        """Return a copy of a part of a segment; zeros where the file is truncated."""
        try:
            with self._path(segment).open("rb", buffering=0) as file:
                file.seek(offset)
                return file.read(count).ljust(count, b"\0")
        except FileNotFoundError:
            return bytes(count)

    def load(self, segment: int, slot: int, count: int) -> Records:
        """Return records; zeros where the file is truncated.

        Records whose kind is set at the first reading are complete at the second, even on
        processors that reorder stores.
        """
        if count <= 0:
            return np.empty(0, RECORD_DTYPE)
        if self._checked and slot + count > SEGMENT_SLOTS > slot:
            parts = [
                self.load(segment, slot, SEGMENT_SLOTS - slot),
                self.load(segment, RESERVE_SLOT, 1),
            ]
            return np.concatenate(parts)
        offset = slot * RECORD_BYTES
        if self._checked:
            offset = RESERVE_OFFSET if slot == RESERVE_SLOT else HEAD_BYTES + offset
        try:
            with self._path(segment).open("rb", buffering=0) as file:
                file.seek(offset)
                kinds = np.frombuffer(_whole(file.read(count * RECORD_BYTES)), RECORD_DTYPE)["kind"]
                file.seek(offset)
                records = np.frombuffer(_whole(file.read(len(kinds) * RECORD_BYTES)), RECORD_DTYPE)
        except FileNotFoundError:
            return np.empty(0, RECORD_DTYPE)
        loaded = np.zeros(count if self._checked else len(records), RECORD_DTYPE)
        loaded[: len(records)] = records
        loaded["kind"][: len(records)] = kinds[: len(records)]
        return loaded

    def _path(self, segment: int) -> Path:
        return self._folder / segment_name(segment)


def _whole(data: bytes) -> bytes:
    return data[: len(data) // RECORD_BYTES * RECORD_BYTES]
