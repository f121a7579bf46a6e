"""The metrics ``loader.*`` of the active run; outside of a run nothing is recorded."""

from __future__ import annotations

import time

from radt.run import active_run

#: Values come with every batch; one a second shows how they change.
_INTERVAL_S = 1.0


class LoaderSeries:
    """Record metrics of a loader in the active run, at most once a second."""

    def __init__(self) -> None:
        self._due_s = 0.0

    def record(self, **values: float) -> bool:
        """Record each value as ``loader.NAME``, unless there was a record a moment ago.

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
        """Record each value as ``loader.NAME`` now: at the end of an epoch, say."""
        run = active_run()
        if run is not None:
            run.log_metrics({f"loader.{name}": value for name, value in values.items()})
