"""Tells processes apart beyond their numbers, which the kernel uses again."""

from __future__ import annotations

import os

_START_TICKS_FIELD = 21
_STATE_FIELD = 2


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - called at every fork
            text = file.read()
    except OSError:
        return None
    # The name, in parentheses, may hold anything, parentheses and spaces included.
    fields = text[text.rindex(b")") + 2 :].split()
    if fields[_STATE_FIELD - 2] in (b"Z", b"X"):
        return None
    return int(fields[_START_TICKS_FIELD - 2])


def own_start_ticks() -> int:
    """When this process started, in clock ticks since boot; 0 where ``/proc`` is not there."""
    return start_ticks(os.getpid()) or 0


def boot_id() -> str:
    """The kernel's id of this boot; empty where ``/proc`` is not there."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123
            return file.read().strip()
    except OSError:
        return ""
