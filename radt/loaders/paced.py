"""Record spans and paced metrics of techniques (`radt.loaders`, `radt.training`)."""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import AbstractContextManager, nullcontext

from radt.run.run import active_run

#: Values may come with every batch; one per second is enough to show changes.
_INTERVAL_S = 1.0


def span(name: str) -> AbstractContextManager[object]:
    """Return a span of the active run; outside of a run, it does nothing."""
    run = active_run()
    return nullcontext() if run is None else run.span(name)


class PacedMetrics:
    """Record metrics in the active run, at most once a second. Does nothing outside of a run.

    Args:
        prefix: First part of the names: ``loader`` for ``loader.drift``.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._due_s = 0.0
        self._sums: dict[str, float] = defaultdict(float)

    def record(self, **values: float) -> bool:
        """Record each value as ``PREFIX.NAME``, unless the last record is less than a second old.

        Returns:
            True if the values were recorded.
        """
        now_s = time.monotonic()
        if now_s < self._due_s:
            return False
        self._due_s = now_s + _INTERVAL_S
        self.flush(**values)
        return True

    def add(self, **amounts: float) -> None:
        """Add amounts. Their sums since the last record are recorded like values of `record`."""
        for name, amount in amounts.items():
            self._sums[name] += amount
        if self.record(**self._sums):
            self._sums.clear()

    def flush_sums(self) -> None:
        """Record the sums now, if there are any."""
        if any(self._sums.values()):
            self.flush(**self._sums)
        self._sums.clear()

    def flush(self, **values: float) -> None:
        """Record each value as ``PREFIX.NAME`` now, for example at the end of an epoch."""
        run = active_run()
        if run is not None:
            run.log_metrics({f"{self._prefix}.{name}": value for name, value in values.items()})
