"""Options of a loader server."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass

from radt.home import HOME_VARIABLE, runtime_dir

#: A workload's rows share a loader, rows of another workload do not.
_SCOPE_VARIABLES = (HOME_VARIABLE, "RADT_EXPERIMENT", "RADT_WORKLOAD")


#: Long enough for the consumer that starts a server to connect.
DEFAULT_LINGER_S = 0.2


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
    linger_s: float | None = DEFAULT_LINGER_S
    stall_timeout_s: float | None = None

    def scoped_name(self) -> str:
        """Return the name by which consumers find the server: of this user, folder and workload."""
        scope = [self.name, str(os.getuid()), str(runtime_dir().resolve())]
        scope += [os.environ.get(variable, "") for variable in _SCOPE_VARIABLES]
        return hashlib.sha256(json.dumps(scope).encode()).hexdigest()[:32]
