"""How much may be taken away at once: downloads occupy a thread each, pictures a browser."""

from __future__ import annotations

import threading
from collections import Counter

from radt.errors import RadtError

#: Downloads at once, of all and of one address; others keep being answered meanwhile.
MAX_DOWNLOADS = 4
MAX_DOWNLOADS_EACH = 2


class BusyError(RadtError):
    """Too much is being exported already."""


class Turnstile:
    """Lets a few in at once, and of each visitor fewer. Thread-safe."""

    def __init__(self, most: int = MAX_DOWNLOADS, most_each: int = MAX_DOWNLOADS_EACH) -> None:
        self._most = most
        self._most_each = most_each
        self._inside: Counter[str] = Counter()
        self._lock = threading.Lock()

    def enter(self, visitor: str) -> Pass:
        """Go in; `Pass.leave` has to be called in the end.

        Raises:
            BusyError: Too many are inside.
        """
        with self._lock:
            if self._inside[visitor] >= self._most_each:
                raise BusyError(
                    f"{self._most_each} files are on their way to you already",
                    "Try again when one of them has come",
                )
            if self._inside.total() >= self._most:
                raise BusyError(
                    f"{self._most} files are being made for others already",
                    "Try again in a minute",
                )
            self._inside[visitor] += 1
        return Pass(self, visitor)

    def left(self, visitor: str) -> None:
        """A visitor has gone, as its `Pass` says."""
        with self._lock:
            self._inside[visitor] -= 1
            if not self._inside[visitor]:
                del self._inside[visitor]


class Pass:
    """One visit. `leave` may be called more than once."""

    def __init__(self, turnstile: Turnstile, visitor: str) -> None:
        self._turnstile = turnstile
        self._visitor = visitor
        self._lock = threading.Lock()
        self._is_inside = True

    def leave(self) -> None:
        """Make room for the next."""
        with self._lock:
            was_inside, self._is_inside = self._is_inside, False
        if was_inside:
            self._turnstile.left(self._visitor)
