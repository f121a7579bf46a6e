"""The collector's settings, from the environment of whoever started it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """Numbers that a user, or a test, may want different.

    Args:
        idle_s: How long the collector stays with nothing to do (``RADT_COLLECTOR_IDLE_S``).
        flush_s: Seconds between writes to the store (``RADT_FLUSH_S``).
        hang_s: A listener that does not return for this long, and for ten of its intervals, is
            given up (``RADT_COLLECTOR_HANG_S``).
        buffered_points: Points a run keeps in memory while its store cannot be written; later
            ones are missed (``RADT_COLLECTOR_BUFFER``). 16 bytes each.
        delivery_grace_s: How long the delivery to MLflow may take to finish when the collector
            has nothing else to do (``RADT_COLLECTOR_DELIVERY_S``).
    """

    idle_s: float = 10.0
    flush_s: float = 1.0
    hang_s: float = 10.0
    buffered_points: int = 250_000
    delivery_grace_s: float = 120.0

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """
        Raises:
            ValueError: A variable is not a number.
        """
        names = {
            "idle_s": "RADT_COLLECTOR_IDLE_S",
            "flush_s": "RADT_FLUSH_S",
            "hang_s": "RADT_COLLECTOR_HANG_S",
            "buffered_points": "RADT_COLLECTOR_BUFFER",
            "delivery_grace_s": "RADT_COLLECTOR_DELIVERY_S",
        }
        given = {field: environ[name] for field, name in names.items() if environ.get(name)}
        numbers: dict[str, float] = {field: float(text) for field, text in given.items()}
        points = int(numbers.pop("buffered_points", cls().buffered_points))
        return cls(buffered_points=points, **numbers)

    @property
    def supervise_s(self) -> float:
        """Seconds between looks at owners, listeners and deliveries."""
        return min(1.0, self.idle_s / 4, self.hang_s / 4)
