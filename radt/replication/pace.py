"""How often what is brought."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

INTERVAL_VARIABLE = "RADT_REPLICATION_S"


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
