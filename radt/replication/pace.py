"""How often what is brought, and how long to wait after a failure."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from dataclasses import dataclass

INTERVAL_VARIABLE = "RADT_REPLICATION_S"
_FIRST_BACKOFF_S = 1.0
_LONGEST_BACKOFF_S = 60.0


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds between two pieces of a running run; its beginning and its end come at once.

    Args:
        samples_s: Of what listeners measure. A piece is one row a series with about 200 bytes of
            its own: of 600 points, which is a minute at 10 Hz, that is a quarter of all.
        texts_s: Of what the script logs, parameters, tags and markers.
        look_s: Between two looks at the store, whatever is said of news.
        look_share: Part of the time that looking may take, however many runs there are.
    """

    samples_s: float = 60.0
    texts_s: float = 10.0
    look_s: float = 2.0
    look_share: float = 0.02

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Pace:
        """
        Raises:
            ValueError: ``RADT_REPLICATION_S`` is not a number above 0.
        """
        text = environ.get(INTERVAL_VARIABLE)
        if not text:
            return cls()
        interval_s = float(text)
        if not interval_s > 0:
            raise ValueError(f"{INTERVAL_VARIABLE} is {text}, and must be above 0")
        return cls(interval_s, min(cls().texts_s, interval_s), min(cls().look_s, interval_s))


class Backoff:
    """Delays that double from one failure to the next, with jitter so that many do not line up."""

    def __init__(
        self, first_s: float = _FIRST_BACKOFF_S, longest_s: float = _LONGEST_BACKOFF_S
    ) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._failures = 0

    def next_s(self) -> float:
        """Seconds to wait after one more failure, up to half less than the full delay."""
        delay_s = min(self._first_s * 2.0**self._failures, self._longest_s)
        self._failures = min(self._failures + 1, 32)
        return float(delay_s) * random.uniform(0.5, 1.0)  # noqa: S311 - nothing secret about it

    def reset(self) -> None:
        """It worked."""
        self._failures = 0
