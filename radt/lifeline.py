"""What the collector's helper processes hear from it, by their standard input; whose turn it is.

A newline means that there is something new, the end that it shall finish up and go.
"""

from __future__ import annotations

import fcntl
import os
import select
from enum import Enum

_STDIN = 0
#: How often a process that waits for its turn looks whether it has come.
_TURN_S = 0.2


class Heard(Enum):
    """What standard input says."""

    NOTHING = "nothing"
    NEWS = "news"
    CLOSED = "closed"


def listen(timeout_s: float | None) -> Heard:
    """Wait for news, or until the time is over; None waits for good."""
    readable, _, _ = select.select([_STDIN], [], [], timeout_s)
    if not readable:
        return Heard.NOTHING
    return Heard.NEWS if os.read(_STDIN, 65536) else Heard.CLOSED


def take_turn(lock: int) -> bool:
    """Wait until nobody else holds a lock file; False if our order was withdrawn meanwhile.

    One whose collector was killed may still be finishing the same.
    """
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if listen(_TURN_S) is Heard.CLOSED:
                return False
        else:
            return True
