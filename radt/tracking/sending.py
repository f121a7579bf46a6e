"""Requests with many items: what MLflow refuses is found and left out, the rest gets there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from radt.tracking.batches import BatchSize
from radt.tracking.trouble import DeliveryError, Trouble

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
            if error.trouble is not Trouble.REFUSED:
                raise
            if error.too_large:
                batch.too_large(len(items))
            if len(items) == 1:
                if error.too_large and len(repr(items[0])) < _SMALL_BYTES:
                    batch.nonsense()
                    raise DeliveryError(
                        Trouble.BUSY, "it refuses requests of any size as too large (413)"
                    ) from error
                log.warning("MLflow refused %.200r: %s", items[0], error.message)
                notes[f"refused: {items[0]!r:.200}"] = None
                return
            middle = len(items) // 2
            self.send(items[:middle], send, notes, batch)
            self.send(items[middle:], send, notes, batch)
        else:
            batch.worked(len(items))
