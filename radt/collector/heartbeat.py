"""What survives the death of the worker: a heartbeat, and which listener was reading at the time.

A listener that takes the whole process down (a crash in a driver's library) would do so again
after every restart. The mark that it is reading is one byte in a mapped file, which costs nothing
and outlives the process; a listener that was reading at three deaths is not started again.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from pathlib import Path

from radt.home import runtime_dir

_SLOTS = 63
_SLOT = struct.Struct("<56sBBxxxxxx")  # name, reading, strikes
_HEARTBEAT = struct.Struct("<q")
_SIZE = 64 * (_SLOTS + 1)

#: Deaths of the worker during a listener's reading after which it is not started again.
MAX_STRIKES = 3


class ReadingMark:
    """The mark of one listener; each call writes a byte to memory.

    Listeners read at the same instants, so a death strikes bystanders too. Those with a strike
    therefore read one at a time: at the next death only the culprit is found reading.
    """

    _suspects = threading.Lock()

    def __init__(self, memory: mmap.mmap, offset: int) -> None:
        self._memory = memory
        self._reading = offset + 56
        self._strikes = offset + 57
        self._alone = False

    def reading(self) -> None:
        """It is about to read; may wait a moment for another suspect."""
        if self.strikes and not self._alone:
            # One that hangs must not keep the others from reading.
            self._alone = self._suspects.acquire(timeout=1.0)
        self._memory[self._reading] = 1

    def idle(self) -> None:
        """It returned, or raised."""
        self._memory[self._reading] = 0
        if self._alone:
            self._alone = False
            self._suspects.release()

    def clear(self) -> None:
        """It has proved itself; what happened before does not count any longer."""
        self._memory[self._strikes] = 0

    @property
    def strikes(self) -> int:
        return self._memory[self._strikes]


def heartbeat_path() -> Path:
    """Where worker and guardian share the heartbeat."""
    return runtime_dir() / "heartbeat.bin"


def unclean_path() -> Path:
    """A file that is there while a worker runs, and after one that died."""
    return runtime_dir() / "worker.running"


class Heartbeat:
    """The mapped file, shared by worker and guardian."""

    def __init__(self, path: Path) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, _SIZE)  # a full disk is an error here, not a signal later
            self._memory = mmap.mmap(fd, _SIZE)
        finally:
            os.close(fd)

    @property
    def beats(self) -> int:
        """How often the worker has said that it is alive."""
        return int(_HEARTBEAT.unpack_from(self._memory)[0])

    def beat(self) -> None:
        _HEARTBEAT.pack_into(self._memory, 0, self.beats + 1)

    def count_strikes(self) -> None:
        """After a death: a strike for every listener that was reading."""
        for offset in self._offsets():
            name, reading, strikes = _SLOT.unpack_from(self._memory, offset)
            if reading:
                _SLOT.pack_into(self._memory, offset, name, 0, min(255, strikes + 1))

    def mark(self, listener: str) -> ReadingMark:
        """The mark of a listener, a new one if it has none."""
        wanted = listener.encode()[:56].ljust(56, b"\0")
        offset = 64
        for offset in self._offsets():
            name = bytes(self._memory[offset : offset + 56])
            if name == wanted:
                break
            if not name.strip(b"\0"):
                self._memory[offset : offset + 56] = wanted
                break
        return ReadingMark(self._memory, offset)  # with 63 listeners, the last is shared

    def close(self) -> None:
        self._memory.close()

    def _offsets(self) -> range:
        return range(64, _SIZE, 64)
