"""Files of one process's journal: its folder, segments of records, and events."""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from itertools import count
from typing import Any

import radt
from radt.clock import Clock
from radt.descriptors import map_shared
from radt.files import identity, lock
from radt.journal.format import (
    BLOCK_BYTES,
    BLOCK_SLOTS,
    CLOSED_FILE,
    EVENTS_FILE,
    HEAD_BYTES,
    LABELS_FOLDER,
    META_FILE,
    RECORD_BYTES,
    RESERVE_OFFSET,
    SEAL,
    SEGMENT_BYTES,
    SEGMENT_SLOTS,
    WRITTEN,
    WRITTEN_OFFSET,
    End,
    EventKind,
    JournalMeta,
    seal_of,
    sealed_line,
    segment_name,
)
from radt.procfs import boot_id, own_start_ticks

#: Offset of the lowest byte of a record's kind; no kind exceeds one byte.
_KIND_OFFSET = RECORD_BYTES - 4
#: Ends a line that was only partly written because the disk was full; the line is written again.
TAKEN_BACK = b"\x18\n"

# Segments -----------------------------------------------------------------------------------------


class Segment:
    """A mapped file of fixed size, filled with records (`radt.journal.format`).

    Its disk blocks are allocated here, so that a full disk is an error of this call: writing to a
    mapping without a block kills the process (SIGBUS). The pages are also loaded here, so that
    logging does not page-fault for each. No descriptor stays open.

    Raises:
        OSError: The disk is full, a quota or file size limit is exceeded, or the folder does not
            exist.
    """

    __slots__ = ("_seals", "_unsealed", "records", "reserve", "take", "written")

    def __init__(self, folder: str, number: int) -> None:
        path = f"{folder}/{segment_name(number)}"
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, HEAD_BYTES + SEGMENT_BYTES)
            whole = map_shared(descriptor, HEAD_BYTES + SEGMENT_BYTES)
        except BaseException:
            os.unlink(path)  # noqa: PTH108 - logging may be waiting for this
            raise
        finally:
            os.close(descriptor)
        self._seals = whole[:RESERVE_OFFSET]
        self.records = whole[HEAD_BYTES:]
        self.reserve = whole[RESERVE_OFFSET : RESERVE_OFFSET + RECORD_BYTES]
        #: One item: the number of written slots.
        self.written = whole[WRITTEN_OFFSET : WRITTEN_OFFSET + WRITTEN.size].cast("I")
        #: Returns the next slot, possibly one beyond the end.
        self.take = count().__next__
        #: Blocks whose last slot was written before another one, whose thread was suspended.
        self._unsealed: list[int] = []

    def seal(self, slot: int) -> None:
        """Seal the block that ends with this slot, which was just written."""
        if slot < SEGMENT_SLOTS:
            self._unsealed.append(slot // BLOCK_SLOTS)
            self._seal_all()

    def seal_rest(self) -> int:
        """Seal the records of the last block of a finished journal; return their number."""
        self._seal_all()
        taken = min(self.take(), SEGMENT_SLOTS)
        if taken % BLOCK_SLOTS:
            self._seal(taken // BLOCK_SLOTS, taken % BLOCK_SLOTS)
        return taken

    def _seal_all(self) -> None:
        for block in self._unsealed.copy():  # other threads and signal handlers seal too
            if self._seal(block, BLOCK_SLOTS):
                with suppress(ValueError):
                    self._unsealed.remove(block)

    def _seal(self, block: int, slots: int) -> bool:
        """Seal a block's first slots; return False if one of them is not written."""
        start = block * BLOCK_BYTES
        data = bytes(self.records[start : start + slots * RECORD_BYTES])
        if 0 in data[_KIND_OFFSET::RECORD_BYTES]:
            return False
        SEAL.pack_into(self._seals, block * SEAL.size, seal_of(data))
        return True


def discard(folder: str, number: int) -> None:
    """Remove a segment that was never written to."""
    try:
        os.unlink(f"{folder}/{segment_name(number)}")  # noqa: PTH108
    except OSError:
        pass  # gone with its folder, or removed with it later


# The events file ----------------------------------------------------------------------------------


class EventLog:
    """Appends lines atomically. Not thread-safe.

    The script may close the descriptor (libraries that daemonize close all) and reuse its number
    for a file of its own, so `reopen` must be called before the descriptor is used.
    """

    def __init__(self, folder: str) -> None:
        self._path = f"{folder}/{EVENTS_FILE}"
        self._torn = False
        self._open()

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(self._path, flags, 0o600)
        self._identity = identity(self._descriptor)
        # The lock shows that the process is alive, even to processes outside its container.
        with suppress(OSError):  # a file system without locks; readers use the process id
            lock(self._descriptor)

    def reopen(self) -> None:
        """Open the file again if the script has closed its descriptor.

        Raises:
            OSError: It cannot be opened.
        """
        if identity(self._descriptor) != self._identity:
            self._open()

    def append(self, kind: EventKind, fields: Mapping[str, Any]) -> None:
        """Write one event.

        Raises:
            OSError: The event could not be written; the file is unchanged.
        """
        line = sealed_line({"event": kind} | dict(fields))
        data = (TAKEN_BACK if self._torn else b"") + line + b"\n"
        before = os.fstat(self._descriptor).st_size
        written = 0
        try:
            while written < len(data):
                written += os.write(self._descriptor, data[written:])
        except OSError:
            if written:
                try:
                    os.ftruncate(self._descriptor, before)
                except OSError:
                    self._torn = True
            raise
        self._torn = False

    def size(self) -> int:
        """Return the size of the file in bytes; 0 if the script has closed it and it is gone."""
        with suppress(OSError):
            self.reopen()
            return os.fstat(self._descriptor).st_size
        return 0

    def close(self) -> None:
        """Close the file unless the script has closed it."""
        if identity(self._descriptor) == self._identity:
            os.close(self._descriptor)


# The folder ---------------------------------------------------------------------------------------


def create_folder(journal: str, *, main: bool, rank: int | None) -> str:
    """Create a folder for the calling process, including its metadata, and return its path.

    Args:
        journal: The run's journal folder (`radt.home.RunDir.journal`); created if missing.
        main: False for a forked child.
        rank: Rank in distributed training, else None.

    Raises:
        OSError: The disk is full or the folder may not be written.
    """
    os.makedirs(journal, exist_ok=True)  # noqa: PTH103 - forked children call this often
    pid = os.getpid()
    meta = JournalMeta(
        pid=pid,
        ppid=os.getppid(),
        start_ticks=own_start_ticks(),
        boot_id=boot_id(),
        host=socket.gethostname(),
        label=_claim_label(journal, main=main, rank=rank),
        main=main,
        rank=rank,
        offset_ns=Clock.at_hand().offset_ns,
        created_ns=time.monotonic_ns(),
        radt_version=radt.__version__,
    )
    name = f"{pid}-{os.urandom(4).hex()}"
    hidden = f"{journal}/.{name}"
    os.mkdir(hidden, 0o700)  # noqa: PTH102
    try:
        fields = meta.to_json()
        with open(f"{hidden}/{META_FILE}", "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump(fields, file)
        with open(f"{hidden}/{EVENTS_FILE}", "wb") as lines:  # noqa: PTH123
            lines.write(sealed_line({"event": EventKind.META} | fields) + b"\n")
        os.rename(hidden, f"{journal}/{name}")  # noqa: PTH104 - atomic for readers
    except OSError:
        shutil.rmtree(hidden, ignore_errors=True)  # on a full disk, this is retried every second
        raise
    return f"{journal}/{name}"


def mark_closed(folder: str, written: End) -> None:
    """Mark a process's folder as complete, with the size of its content."""
    try:
        descriptor = os.open(f"{folder}/{CLOSED_FILE}", os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, sealed_line(asdict(written)))
        finally:
            os.close(descriptor)
    except OSError:
        pass  # the reader then relies on the process's exit and the content itself


def _claim_label(journal: str, *, main: bool, rank: int | None) -> str:
    """Return the process's name within the run, claimed by creating a file of that name."""
    base = f"rank {rank}" if rank else ""
    if main and rank is not None:
        return base  # a restarted rank keeps its name
    labels = f"{journal}/{LABELS_FOLDER}"
    os.makedirs(labels, exist_ok=True)  # noqa: PTH103
    if main and _claim(f"{labels}/main"):
        return base
    prefix = f"{base} child ".lstrip()
    number = 1 + sum(name.startswith(prefix) for name in os.listdir(labels))  # noqa: PTH208
    while not _claim(f"{labels}/{prefix}{number}"):
        number += 1
    return f"{prefix}{number}"


def _claim(path: str) -> bool:
    """Return whether the calling process has the label, from this claim or an earlier one."""
    owner = f"{os.getpid()} {own_start_ticks()}"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        # A script that replaced itself (exec) is still the same process.
        with open(path, encoding="ascii") as file:  # noqa: PTH123
            return file.read() == owner
    try:
        os.write(descriptor, owner.encode("ascii"))
    except OSError:
        os.unlink(path)  # noqa: PTH108 - otherwise, the label would belong to nobody
        raise
    finally:
        os.close(descriptor)
    return True
