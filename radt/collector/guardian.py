"""The guardian: starts the worker, and starts it again if it dies or no longer answers.

It does nothing else, imports next to nothing, and sleeps until something happens. If the guardian
itself is killed the worker goes on; the next client starts another guardian, which adopts it.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time

from radt.collector.heartbeat import Heartbeat, heartbeat_path, unclean_path
from radt.collector.start import guardian_lock, worker_lock

#: How often to look whether the worker's heart beats; it does every second.
_LOOK_S = 10.0
#: Without a heartbeat for this long the worker is stuck (a listener's library that blocks all
#: threads) and is killed. Far more than a machine that swaps needs.
_STUCK_S = 90.0
_STABLE_S = 30.0
_MAX_BACKOFF_S = 30.0


class Guardian:
    """Looks after one worker."""

    def __init__(self) -> None:
        self._worker_lock = worker_lock()
        self._heartbeat = Heartbeat(heartbeat_path())
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self._stopping = False
        # Written to when asked to stop: wakes up a pause, which a signal alone does not.
        self._wake_read, self._wake_write = os.pipe()

    def stop(self) -> None:
        """Stop the worker and do not start it again."""
        self._stopping = True
        os.write(self._wake_write, b"s")
        if self._pid:
            _signal(self._pid, signal.SIGTERM)

    def run(self) -> None:
        """Until the worker ends by itself."""
        backoff_s = 0.0
        while not self._stopping:
            begun_s = time.monotonic()
            self._pid = self._worker_lock.holder() or self._start()
            self._watch()
            if self._process is not None:
                self._process.wait()
                self._process = None
            if not unclean_path().exists():
                return  # it ended on purpose
            print(f"worker {self._pid} died", file=sys.stderr, flush=True)  # noqa: T201 - the log
            self._pid = 0
            # The first restart is at once; one that dies again and again gets slower.
            if time.monotonic() - begun_s > _STABLE_S:
                backoff_s = 0.0
            select.select([self._wake_read], [], [], backoff_s)
            backoff_s = min(_MAX_BACKOFF_S, 2 * backoff_s + 0.5)

    def _start(self) -> int:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "radt.collector.worker"], stdin=subprocess.DEVNULL
        )
        return self._process.pid

    def _watch(self) -> None:
        """Return when the worker has ended."""
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
                    _signal(self._pid, signal.SIGKILL)
        finally:
            os.close(fd)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it has ended


def main(*, detach: bool) -> int:
    """Run a guardian, unless there is one.

    Args:
        detach: Return at once and go on in a child, so that whoever starts a collector neither
            waits for it nor becomes its parent (a run's process tree must not contain it).
    """
    if detach and os.fork():
        return 0
    lock = guardian_lock()
    if not lock.acquire():
        return 0
    guardian = Guardian()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: guardian.stop())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    guardian.run()
    lock.close()
    return 0
