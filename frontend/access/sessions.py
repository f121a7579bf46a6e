"""Signed proofs, kept in a cookie, that a browser has shown the token."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

#: A browser has to show the token again after this long.
LIFETIME_S = 7 * 24 * 3600
_MAX_ENDED = 4096


class Sessions:
    """Makes and checks proofs; they hold for as long as the token stays. Thread-safe.

    A proof is ``TIME.NONCE.SIGNATURE``: nothing needs to be kept of it, so that a dashboard that is
    started again with the same token knows its visitors. One that was ended is remembered until
    then.
    """

    def __init__(self, token: str, clock: Callable[[], float] = time.time) -> None:
        self._key = hashlib.sha256(f"radt dashboard session {token}".encode()).digest()
        self._clock = clock
        self._lock = threading.Lock()
        self._ended: OrderedDict[str, None] = OrderedDict()

    def begin(self) -> str:
        """A new proof."""
        body = f"{int(self._clock())}.{secrets.token_hex(16)}"
        return f"{body}.{self._signature(body)}"

    def holds(self, proof: str) -> bool:
        """Whether it is one of ours, young enough, and not ended."""
        body, _, signature = proof.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(body).encode()):
            return False
        age_s = self._clock() - int(body.partition(".")[0])
        with self._lock:
            return age_s < LIFETIME_S and body not in self._ended

    def end(self, proof: str) -> None:
        """Log out; harmless if it does not hold."""
        if not self.holds(proof):
            return
        with self._lock:
            self._ended[proof.rpartition(".")[0]] = None
            while len(self._ended) > _MAX_ENDED:
                self._ended.popitem(last=False)

    def _signature(self, body: str) -> str:
        return hmac.new(self._key, body.encode(), hashlib.sha256).hexdigest()
