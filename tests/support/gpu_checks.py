"""Checks that go wrong, for `benchmarks.gpu_check`."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from benchmarks.gpu_check.model import Result, Setting


def crashes(_: Setting) -> Result:
    os.abort()


def fails(_: Setting) -> Result:
    raise ValueError("a|b")


def hangs(_: Setting) -> Result:
    while True:
        signal.pause()


def leaves_a_daemon(setting: Setting) -> Result:
    """Leave a process of another session that does not end on SIGTERM, and write down its id."""
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        daemon = os.fork()
        if daemon == 0:
            hangs(setting)
        Path(setting.folder).with_suffix(".daemon").write_text(str(daemon))
        os._exit(0)
    os.wait()
    return Result.of("fine")
