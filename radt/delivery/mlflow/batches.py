"""Requests with many items: as many as the server takes; items that MLflow refuses are left out."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from radt.delivery.mlflow.errors import DeliveryError, ErrorKind

log = logging.getLogger(__name__)

#: What MLflow did not get of a run, in order and each once.
Notes = dict[str, None]

_Item = TypeVar("_Item")

#: No server's limit is below this: who refuses so little for its size is set up wrongly.
_SMALL_BYTES = 1000


class Sender:
    """Sends items as large batches as the server takes. Thread-safe.

    Args:
        before_request: Called before each request; may wait until others are done.
    """

    def __init__(self, before_request: Callable[[], object]) -> None:
        self._before_request = before_request

    def send(
        self,
        items: Sequence[_Item],
        send: Callable[[Sequence[_Item]], None],
        notes: Notes,
        batch: BatchSize,
    ) -> None:
        """Send all that MLflow accepts: of a request that it refuses, each half by itself.

        Args:
            items: What to send.
            send: Sends some of it.
            notes: Gets what was left out.
            batch: Learns how much goes into one request.

        Raises:
            DeliveryError: MLflow failed.
        """
        self._before_request()
        try:
            send(items)
        except DeliveryError as error:
            if error.slow:
                batch.slow(len(items))
            if error.kind is not ErrorKind.REFUSED:
                raise
            if error.too_large:
                batch.too_large(len(items))
            if len(items) == 1:
                if error.too_large and len(repr(items[0])) < _SMALL_BYTES:
                    batch.nonsense()
                    raise DeliveryError(
                        ErrorKind.BUSY, "the server refuses requests of any size as too large (413)"
                    ) from error
                log.warning("MLflow refused %.200r: %s", items[0], error.message)
                notes[f"refused: {items[0]!r:.200}"] = None
                return
            middle = len(items) // 2
            self.send(items[:middle], send, notes, batch)
            self.send(items[middle:], send, notes, batch)
        else:
            batch.worked(len(items))


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
