"""Runs that cannot be brought for now, while others go on."""

from __future__ import annotations

import math
import time
from collections.abc import Container
from dataclasses import dataclass

from radt.backoff import Backoff

#: How long one waits at most before it is tried again.
_LONGEST_S = 600.0


@dataclass(slots=True)
class _Reason:
    why: str
    until_s: float
    backoff: Backoff


class Aside:
    """Knows which runs wait, until when (monotonic), and why."""

    def __init__(self) -> None:
        self._reasons: dict[str, _Reason] = {}

    def put(self, run_id: str, why: str) -> None:
        """It failed, once more perhaps."""
        known = self._reasons.get(run_id)
        backoff = Backoff(longest_s=_LONGEST_S) if known is None else known.backoff
        until_s = time.monotonic() + backoff.next_s()
        self._reasons[run_id] = _Reason(why, until_s, backoff)

    def drop(self, run_id: str) -> None:
        """It worked."""
        self._reasons.pop(run_id, None)

    def keep(self, run_ids: Container[str]) -> None:
        """Forget all others: nothing of them is left to be brought."""
        self._reasons = {key: one for key, one in self._reasons.items() if key in run_ids}

    def hurry(self) -> None:
        """Try all again now."""
        for one in self._reasons.values():
            one.until_s = 0.0

    def waits(self, run_id: str) -> bool:
        """Whether it is not to be tried yet."""
        known = self._reasons.get(run_id)
        return known is not None and time.monotonic() < known.until_s

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._reasons

    @property
    def next_s(self) -> float:
        """When the first is to be tried again; infinity if there is none."""
        return min((one.until_s for one in self._reasons.values()), default=math.inf)

    @property
    def problem(self) -> str:
        """Of one of them, for people; empty if there is none."""
        for run_id, one in self._reasons.items():
            return f"run {run_id}: {one.why}"
        return ""
