"""Metrics of techniques (`radt.loaders`, `radt.training`) in the active run, at an even pace."""

from __future__ import annotations

import time

from radt.run.run import active_run

#: Values may come with every batch; one a second shows how they change.
_INTERVAL_S = 1.0


class PacedMetrics:
    """Record metrics in the active run, at most once a second; nothing outside of a run.

    Args:
        prefix: First part of their names: ``loader`` for ``loader.drift``.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._due_s = 0.0

    def record(self, **values: float) -> bool:
        """Record each value as ``PREFIX.NAME``, unless there was a record a moment ago.

        Returns:
            Whether the values were recorded.
        """
        now_s = time.monotonic()
        if now_s < self._due_s:
            return False
        self._due_s = now_s + _INTERVAL_S
        self.flush(**values)
        return True

    def flush(self, **values: float) -> None:
        """Record each value as ``PREFIX.NAME`` now: at the end of an epoch, say."""
        run = active_run()
        if run is not None:
            run.log_metrics({f"{self._prefix}.{name}": value for name, value in values.items()})
