"""The guardian: starts the worker, and restarts it if it dies or no longer responds.

It does nothing else, imports very little, and sleeps in between. If the guardian itself is killed,
the worker continues, and the next client starts another guardian, which adopts the worker.

Worker and guardian share a mapped file that survives the worker's death. It holds a heartbeat and
marks the listeners that are reading. A listener that crashes the whole process (in a driver's
library) would do so after every restart, so a listener that was reading at three deaths is not
started again.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

from radt.collector.process_limits import reset_limits
from radt.collector.start import guardian_lock, worker_lock
from radt.home import runtime_dir
from radt.processes import Backoff, command, send_signal

#: How often to check the worker's heartbeat; it beats every second.
_LOOK_S = 10.0
#: Without a heartbeat for this long, the worker counts as stuck (a listener's library blocks all
#: threads) and is killed. Far longer than a swapping machine needs.
_STUCK_S = 90.0
_LONGEST_BACKOFF_S = 30.0


class Guardian:
    """Supervises one worker."""

    def __init__(self) -> None:
        self._worker_lock = worker_lock()
        self._heartbeat = Heartbeat(heartbeat_path())
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self._stopping = False
        # A stop request writes to this pipe to interrupt a pause, which a signal alone does not do.
        self._wake_read, self._wake_write = os.pipe()

    def stop(self) -> None:
        """Stop the worker and do not start it again."""
        self._stopping = True
        os.write(self._wake_write, b"s")
        if self._pid:
            send_signal(self._pid, signal.SIGTERM)

    def run(self) -> None:
        """Supervise until the worker exits by itself."""
        backoff = Backoff(longest_s=_LONGEST_BACKOFF_S)
        while not self._stopping:
            begun_s = time.monotonic()
            self._pid = self._worker_lock.holder() or self._start()
            self._watch()
            if self._process is not None:
                self._process.wait()
                self._process = None
            if not unclean_path().exists():
                return  # it exited on purpose
            print(f"worker {self._pid} died", file=sys.stderr, flush=True)  # noqa: T201 - the log
            self._pid = 0
            worked_s = time.monotonic() - begun_s
            delay_s = backoff.next_s(worked_s)
            if worked_s < _LONGEST_BACKOFF_S:  # a worker that ran for long is restarted at once
                select.select([self._wake_read], [], [], delay_s)

    def _start(self) -> int:
        self._process = subprocess.Popen(command("radt.collector.worker"), stdin=subprocess.DEVNULL)
        return self._process.pid

    def _watch(self) -> None:
        """Wait until the worker has exited; kill it if it is stuck."""
        beats, beat_s = self._heartbeat.beats, time.monotonic()
        try:
            fd = os.pidfd_open(self._pid)
        except ProcessLookupError:
            return
        try:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            while not poll.poll(_LOOK_S * 1000):
                if self._heartbeat.beats != beats:
                    beats, beat_s = self._heartbeat.beats, time.monotonic()
                elif time.monotonic() - beat_s > _STUCK_S:
                    send_signal(self._pid, signal.SIGKILL)
        finally:
            os.close(fd)


def main(*, detach: bool) -> int:
    """Run a guardian, unless one is running.

    Args:
        detach: Reset limits, priority and signal masks; in the foreground, keep the inherited ones.
    """
    lock = guardian_lock()
    if not lock.acquire():
        return 0
    if detach:
        reset_limits()
    guardian = Guardian()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: guardian.stop())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    guardian.run()
    lock.close()
    return 0


_SLOTS = 63
_SLOT = struct.Struct("<56sBBxxxxxx")  # name, reading, strikes
_HEARTBEAT = struct.Struct("<q")
_SIZE = 64 * (_SLOTS + 1)

#: Number of worker deaths during a listener's reading after which the listener is not started
#: again.
MAX_STRIKES = 3


class ReadingMark:
    """The mark of one listener; each call writes a byte to memory.

    Listeners read at the same instants, so a death strikes bystanders too. Those with a strike
    therefore read one at a time, so that only the culprit is reading at the next death.
    """

    _suspects = threading.Lock()

    def __init__(self, memory: mmap.mmap, offset: int) -> None:
        self._memory = memory
        self._reading = offset + 56
        self._strikes = offset + 57
        self._alone = False

    def reading(self) -> None:
        """Mark the listener as about to read; may wait briefly for another suspect."""
        if self.strikes and not self._alone:
            # A hanging listener must not keep the others from reading.
            self._alone = self._suspects.acquire(timeout=1.0)
        self._memory[self._reading] = 1

    def idle(self) -> None:
        """Mark the listener as returned or raised."""
        self._memory[self._reading] = 0
        if self._alone:
            self._alone = False
            self._suspects.release()

    def clear(self) -> None:
        """Clear the listener's strikes after enough successful readings."""
        self._memory[self._strikes] = 0

    @property
    def strikes(self) -> int:
        return self._memory[self._strikes]


def heartbeat_path() -> Path:
    """Return the file that worker and guardian share."""
    return runtime_dir() / "heartbeat.bin"


def unclean_path() -> Path:
    """Return the file that exists while a worker runs, and after one has died."""
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
        """Return the number of heartbeats of the worker."""
        return int(_HEARTBEAT.unpack_from(self._memory)[0])

    def beat(self) -> None:
        _HEARTBEAT.pack_into(self._memory, 0, self.beats + 1)

    def count_strikes(self) -> None:
        """Give a strike to every listener that was reading when the worker died."""
        for offset in self._offsets():
            name, reading, strikes = _SLOT.unpack_from(self._memory, offset)
            if reading:
                _SLOT.pack_into(self._memory, offset, name, 0, min(255, strikes + 1))

    def mark(self, listener: str) -> ReadingMark:
        """Return the mark of a listener, creating it if missing."""
        wanted = listener.encode()[:56].ljust(56, b"\0")
        offset = 64
        for offset in self._offsets():
            name = bytes(self._memory[offset : offset + 56])
            if name == wanted:
                break
            if not name.strip(b"\0"):
                self._memory[offset : offset + 56] = wanted
                break
        return ReadingMark(self._memory, offset)  # with 63 listeners, the last mark is shared

    def close(self) -> None:
        self._memory.close()

    def _offsets(self) -> range:
        return range(64, _SIZE, 64)
