"""The collector's settings, from the environment of whoever started it."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from radt import settings
from radt.settings import Setting

log = logging.getLogger(__name__)

#: Those that the collector inherits, by field of `CollectorSettings`.
_BY_FIELD: Mapping[str, Setting[Any]] = {
    "idle_s": settings.COLLECTOR_IDLE_S,
    "flush_s": settings.FLUSH_S,
    "hang_s": settings.COLLECTOR_HANG_S,
    "buffered_points": settings.COLLECTOR_BUFFER,
    "delivery_grace_s": settings.COLLECTOR_DELIVERY_S,
}
VARIABLES = tuple(name for setting in _BY_FIELD.values() for name in setting.variables)


@dataclass(frozen=True, slots=True)
class CollectorSettings:
    """Numbers that a user, or a test, may want different (`radt.settings` describes them).

    ``buffered_points`` take 16 bytes each.
    """

    idle_s: float = settings.COLLECTOR_IDLE_S.default
    flush_s: float = settings.FLUSH_S.default
    hang_s: float = settings.COLLECTOR_HANG_S.default
    buffered_points: int = settings.COLLECTOR_BUFFER.default
    delivery_grace_s: float = settings.COLLECTOR_DELIVERY_S.default

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> CollectorSettings:
        """Return the settings; one that cannot be parsed is logged and has its default."""
        for problem in problems(environ):
            log.error("%s", problem)
        return cls(
            **{
                field: settings.variable(setting, environ).value
                for field, setting in _BY_FIELD.items()
            }
        )

    @property
    def supervise_s(self) -> float:
        """Seconds between checks of owners, listeners and deliveries."""
        return min(1.0, self.idle_s / 4, self.hang_s / 4)


def problems(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return what is wrong with the collector's variables, one sentence each."""
    found = (settings.variable(setting, environ).problem for setting in _BY_FIELD.values())
    return [f"{problem}" for problem in found if problem is not None]
