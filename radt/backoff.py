"""How long to wait before trying again."""

from __future__ import annotations

import random


class Backoff:
    """Delays that double from one failure to the next, with jitter so that many do not line up."""

    def __init__(self, first_s: float = 0.5, longest_s: float = 15.0) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._failures = 0

    def next_s(self) -> float:
        """Seconds to wait after one more failure, up to a quarter less than the full delay."""
        delay_s = min(self._first_s * 2.0**self._failures, self._longest_s)
        self._failures = min(self._failures + 1, 32)
        return float(delay_s) * random.uniform(0.75, 1.0)  # noqa: S311 - nothing secret about it

    def reset(self) -> None:
        """It worked."""
        self._failures = 0
