"""How much goes into one request: as much as the server takes and answers in time."""

from __future__ import annotations

import threading


class BatchSize:
    """The number of items for the next request. Thread-safe.

    It is halved where a request was refused for its size, which is remembered, and where one was
    not answered in time, from which it recovers.

    Args:
        most: MLflow's own limit.
    """

    def __init__(self, most: int) -> None:
        self._lock = threading.Lock()
        self._most = most
        self._ceiling = most
        self._limit = most

    @property
    def limit(self) -> int:
        """At least 1."""
        return self._limit

    def too_large(self, count: int) -> None:
        """So many were refused for their size."""
        with self._lock:
            self._ceiling = min(self._ceiling, max(1, count // 2))
            self._limit = min(self._limit, self._ceiling)

    def nonsense(self) -> None:
        """What was refused for its size was so small that its size is not why."""
        with self._lock:
            self._ceiling = self._limit = self._most

    def slow(self, count: int) -> None:
        """So many were not answered in time."""
        with self._lock:
            self._limit = min(self._limit, max(1, count // 2))

    def worked(self, count: int) -> None:
        """So many were accepted."""
        with self._lock:
            if count >= self._limit:
                self._limit = min(2 * self._limit, self._ceiling)
