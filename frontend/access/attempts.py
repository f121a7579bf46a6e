"""How often somebody may guess: failed attempts by address, in bounded memory."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

#: So many wrong ones within the window, then none are looked at until it is over.
MAX_FAILURES = 10
WINDOW_S = 300.0
_MAX_ADDRESSES = 4096
#: Whoever has one IPv6 address has a whole network of them.
_IPV6_NETWORK = 64


class Attempts:
    """Counts failures. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        #: When the window began, and failures in it, the latest begun last.
        self._failures: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def wait_s(self, address: str) -> float:
        """Seconds until attempts of an address are looked at again; 0 if they are."""
        with self._lock:
            began_s, count = self._failures.get(_group(address), (0.0, 0))
            if count < MAX_FAILURES:
                return 0.0
            return max(0.0, began_s + WINDOW_S - self._clock())

    def failed(self, address: str) -> None:
        """Somebody there was wrong."""
        group, now_s = _group(address), self._clock()
        with self._lock:
            began_s, count = self._failures.get(group, (now_s, 0))
            if now_s - began_s >= WINDOW_S:
                began_s, count = now_s, 0
                self._failures.pop(group, None)
            self._failures[group] = began_s, count + 1
            while len(self._failures) > _MAX_ADDRESSES:
                self._failures.popitem(last=False)

    def __len__(self) -> int:
        return len(self._failures)


def _group(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return "elsewhere"
    if parsed.version == 6:
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, _IPV6_NETWORK), strict=False))
    return str(parsed)
