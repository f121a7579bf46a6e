"""Options of a loader server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of a server: those of the consumer that starts it.

    Args:
        name: Of the loader.
        buffer: How many batches the fastest consumer may be ahead of the slowest.
        window_bytes: Memory for the first batches of an epoch, kept for who comes late.
        linger_s: How long it stays without consumers; for ever if None.
        stall_timeout_s: Evict who holds up others for so long; nobody if None.
    """

    name: str
    buffer: int = 2
    window_bytes: int = 0
    linger_s: float | None = 5.0
    stall_timeout_s: float | None = None
