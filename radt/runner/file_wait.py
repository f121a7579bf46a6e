"""Waits for an experiment file that is away, or no table, while its user edits it."""

from __future__ import annotations

import time
from collections.abc import Callable

from radt import units
from radt.errors import RowsChangedError, StatusError
from radt.runner.active import StopRequest

PAUSE_S = 0.5
#: Rows that their user has changed stay so; one who writes the file piece by piece is done by then.
CHANGED_ROWS_S = 2.0


class FileWait:
    """Tries again to write statuses, for as long as the user is given to put the file back.

    A file that was not put back in all that time is not waited for again until it is there.

    Args:
        longest_s: How long it may be away.
        stop: Ends the waiting.
        say: Told once, when it begins to wait.
    """

    def __init__(self, longest_s: float, stop: StopRequest, say: Callable[[str], None]) -> None:
        self._longest_s = longest_s
        self._left_s = longest_s
        self._stop = stop
        self._say = say

    def write(
        self, write: Callable[[], None], *, changed_rows_s: float = CHANGED_ROWS_S
    ) -> StatusError | None:
        """Write; returns the error if it cannot be done in time, or before radt is to stop.

        Args:
            write: Raises `StatusError`.
            changed_rows_s: How long to try where the file is there and lacks rows.
        """
        begun_s = time.monotonic()
        has_said = False
        while True:
            try:
                write()
            except StatusError as error:
                changed = isinstance(error, RowsChangedError)
                left_s = begun_s - time.monotonic()
                left_s += min(changed_rows_s, self._longest_s) if changed else self._left_s
                if left_s <= 0 or self._stop.wait(min(PAUSE_S, left_s)):
                    self._left_s = self._left_s if changed or self._stop else 0.0
                    return error
                if not has_said and not changed:
                    has_said = True
                    self._say(f"{error.message}; waiting for it, {units.duration(left_s)} at most")
            else:
                self._left_s = self._longest_s
                return None
