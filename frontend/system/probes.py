"""Looks at things that may take their time, without anybody waiting for them.

Each is read by a thread of its own, only while somebody asks, and one at a time: a driver that
hangs or a server that does not answer holds that thread, and the page says since when.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from radt.errors import RadtError

ValueT = TypeVar("ValueT")

#: Reading may take one part in this many of the time.
_SHARE = 20
#: What takes longer counts as not answering.
LATE_S = 5.0

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reading(Generic[ValueT]):
    """What a look came to: ``value`` None and no ``error`` before the first is there.

    ``waited_s`` is for how long the next has been on its way; 0 if none is.
    """

    value: ValueT | None = None
    error: RadtError | None = None
    waited_s: float = 0.0

    @property
    def is_late(self) -> bool:
        """Whether it looks as if there will be no answer."""
        return self.waited_s >= LATE_S


class Probe(Generic[ValueT]):
    """One thing to look at. Thread-safe.

    Args:
        name: For the log.
        read: Looks; may raise `RadtError`.
        interval_s: No more often than this, and less often if looking takes long.
    """

    def __init__(self, name: str, read: Callable[[], ValueT], interval_s: float) -> None:
        self._name = name
        self._read = read
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._value: ValueT | None = None
        self._error: RadtError | None = None
        self._due_s = 0.0
        self._began_s: float | None = None

    def look(self, wait_s: float = 0.0) -> Reading[ValueT]:
        """The newest there is; looks again if it is time.

        Args:
            wait_s: How long to wait where nothing is known yet.
        """
        with self._lock:
            if self._began_s is None and time.monotonic() >= self._due_s:
                self._begin()
            known = self._value is not None or self._error is not None
        if not known:
            self._done.wait(wait_s)
        with self._lock:
            waited_s = 0.0 if self._began_s is None else time.monotonic() - self._began_s
            return Reading(self._value, self._error, waited_s)

    def _begin(self) -> None:
        self._began_s = time.monotonic()
        threading.Thread(target=self._run, name=f"system-{self._name}", daemon=True).start()

    def _run(self) -> None:
        value: ValueT | None = None
        error: RadtError | None = None
        began_s = time.monotonic()
        try:
            value = self._read()
        except RadtError as known:
            error = known
        except Exception as unknown:  # noqa: BLE001 - logged; a page of many parts shows the others
            _LOG.exception("looking at %s failed", self._name)
            error = RadtError(
                f"this could not be looked at: {type(unknown).__name__}",
                "The terminal of `radt dashboard` says more",
            )
        ended_s = time.monotonic()
        with self._lock:
            self._value, self._error, self._began_s = value, error, None
            self._due_s = ended_s + max(self._interval_s, (ended_s - began_s) * _SHARE)
        self._done.set()
