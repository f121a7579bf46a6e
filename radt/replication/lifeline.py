"""What a process hears from whoever started it, by its standard input, and where it writes.

A newline means that there is something new, the end that it shall finish up and go.
"""

from __future__ import annotations

import fcntl
import logging
import logging.handlers
import os
import select
from enum import Enum
from pathlib import Path

_STDIN = 0
_LOG_LIMIT_BYTES = 2_000_000
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
    """Wait until nobody else holds a lock file; False if our order was withdrawn meanwhile."""
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if listen(_TURN_S) is Heard.CLOSED:
                return False
        else:
            return True


def log_to(path: Path) -> None:
    """Send what is logged to a file that does not grow without end, and is the user's only."""
    os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600))
    handler = logging.handlers.RotatingFileHandler(
        path, maxBytes=_LOG_LIMIT_BYTES, backupCount=1, encoding="utf-8"
    )
    handler.setFormatter(
        logging.Formatter("%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("radt").setLevel(logging.INFO)
