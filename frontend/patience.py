"""Waitress with an end to its patience: visitors who send or take slowly hold nothing for long.

Waitress reads and writes in one thread and gives whole requests to its workers, so that slow
visitors cost a connection each, and no worker; but it waits for as long as a byte comes now and
then, or while an answer is not taken. There are only so many connections.
"""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Any, cast

from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer, create_server

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

#: A page asks for all of its charts at once; reading and thinning happen outside the GIL.
THREADS = 8
#: Ten browsers with six connections each, and room.
_CONNECTIONS = 200
#: The longest address (`radt.frontend.view.MAX_QUERY`) and cookies.
_MAX_HEADER_BYTES = 96 * 1024
#: From its first byte a request has to be complete within this time.
REQUEST_S = 30.0
#: Somebody who takes nothing of an answer for so long has gone.
STALLED_S = 60.0
#: A connection without a request is kept for the next one.
_IDLE_S = 120
_LOOK_INTERVAL_S = 5


class _Channel(HTTPChannel):
    """A connection that knows since when a request is on its way."""

    begun_s: float | None = None

    def received(self, data: bytes) -> bool:
        taken = super().received(data)
        if self.request is None:
            self.begun_s = None
        elif self.begun_s is None:
            self.begun_s = time.time()
        return bool(taken)

    def is_too_slow(self, now_s: float) -> bool:
        sends = self.begun_s is not None and not self.requests
        if sends and now_s - (self.begun_s or now_s) > REQUEST_S:
            return True
        return bool(self.total_outbufs_len) and now_s - self.last_activity > STALLED_S


def patient_server(
    application: WSGIApplication,
    listener: socket.socket,
    max_body_bytes: int,
    sockets: dict[int, Any] | None = None,
) -> TcpWSGIServer:
    """A server for one bound socket; ``run()`` serves.

    ``sockets`` keeps those that it waits for; None: as all servers of the process.
    """
    # The types of its stubs are not those of its code.
    server: Any = create_server(
        application,
        sockets,
        sockets=[listener],
        threads=THREADS,
        ident=None,
        connection_limit=_CONNECTIONS,
        # select() knows no file above 1024.
        asyncore_use_poll=True,
        channel_timeout=_IDLE_S,
        cleanup_interval=_LOOK_INTERVAL_S,
        max_request_header_size=_MAX_HEADER_BYTES,
        max_request_body_size=max_body_bytes,
        # `radt.frontend.access.forwarded` knows whom to believe.
        clear_untrusted_proxy_headers=False,
    )
    usual = server.maintenance

    def maintenance(now: float) -> None:
        usual(now)
        for channel in list(server.active_channels.values()):
            if isinstance(channel, _Channel) and channel.is_too_slow(now):
                # At once: to say so would mean to wait for who does not listen.
                channel.handle_close()

    server.channel_class = _Channel
    server.maintenance = maintenance
    return cast(TcpWSGIServer, server)
