"""How a helper process follows the collector that started it, through its standard input.

A newline means that there is new data; the end of the input, that the helper finishes and ends.
"""

from __future__ import annotations

import fcntl
import os
import select
from enum import Enum

_STDIN = 0
#: How often a process that waits for the lock tries again.
_LOCK_POLL_S = 0.2


class ParentMessage(Enum):
    """What the parent wrote to standard input."""

    NOTHING = "nothing"
    NEWS = "news"
    CLOSED = "closed"


def wait_for_parent(timeout_s: float | None) -> ParentMessage:
    """Wait at most `timeout_s` for a message of the parent; None waits without limit."""
    readable, _, _ = select.select([_STDIN], [], [], timeout_s)
    if not readable:
        return ParentMessage.NOTHING
    return ParentMessage.NEWS if os.read(_STDIN, 65536) else ParentMessage.CLOSED


def take_lock(lock: int) -> bool:
    """Wait for a lock file; return False if the parent closed the input meanwhile.

    A helper of a killed collector may still hold the lock while it finishes the same work.
    """
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if wait_for_parent(_LOCK_POLL_S) is ParentMessage.CLOSED:
                return False
        else:
            return True
