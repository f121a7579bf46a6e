"""Waiting for states of processes, never for times."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil

TIMEOUT_S = 180.0
#: The longest pause between two looks.
_PAUSE_S = 1.0

T = TypeVar("T")


def wait_until(condition: Callable[[], T], what: str = "", timeout_s: float = TIMEOUT_S) -> T:
    """Return the condition's first true value; fail if there is none in time.

    Looking takes at most a quarter of the time: a condition may read a store or start a command.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        looked_s = time.monotonic()
        if value := condition():
            return value
        now_s = time.monotonic()
        assert now_s < deadline, f"not within {timeout_s:.0f} s: {what or condition}"
        time.sleep(min(max(0.02, 3 * (now_s - looked_s)), _PAUSE_S))


def stands_still(pid: int) -> bool:
    """Whether a process has stopped, as SIGSTOP has it, with all of its threads."""
    try:
        stats = [stat.read_text() for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    except (FileNotFoundError, ProcessLookupError):  # a thread has just ended
        return False
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


def alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
