"""A server's threads, workers and signals."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import sys
import threading
import traceback

_PR_SET_PDEATHSIG = 1


def ignore_workers() -> None:
    """Have the ends of workers raise nothing any more, as torch's handler does for each of them."""
    with contextlib.suppress(RuntimeError):  # of one that has just ended
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def die_with_parent() -> None:
    """In a worker that was just forked: the kernel ends it with the server, whatever it is at."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


def main_thread() -> str:
    """Return where the main thread is, as a traceback."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001
    return "".join(traceback.format_stack(frame)) if frame is not None else ""
