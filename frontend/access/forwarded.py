"""What a reverse proxy says of the visitor, believed only from proxies that are known."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from radt.errors import UsageError

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

#: The address that the connection comes from, whatever headers say.
PEER = "radt.peer"
#: Whether that is a proxy that is trusted.
IS_PROXY = "radt.is_proxy"
_SPOKEN = (
    *("HTTP_X_FORWARDED_FOR", "HTTP_X_FORWARDED_PROTO", "HTTP_X_FORWARDED_HOST"),
    *("HTTP_X_FORWARDED_PORT", "HTTP_X_FORWARDED_PREFIX", "HTTP_X_FORWARDED_BY"),
    *("HTTP_FORWARDED", "HTTP_X_REAL_IP"),
)


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Addresses and networks: ``127.0.0.1``, ``10.1.0.0/16``.

    Raises:
        UsageError: One is none.
    """
    found = []
    for text in texts:
        try:
            found.append(ipaddress.ip_network(text.strip(), strict=False))
        except ValueError as error:
            raise UsageError(
                f"{text} is no address of a proxy: {error}",
                "Give such as --trust-proxy 127.0.0.1 or --trust-proxy 172.18.0.0/16",
            ) from error
    return tuple(found)


class Forwarded:
    """Takes the visitor's address and scheme from trusted proxies, and such headers from others.

    Of ``X-Forwarded-For`` only the last part counts, which the proxy itself has added. The Host
    header is what the proxy passes on: ``X-Forwarded-Host`` may be the visitor's own.
    """

    def __init__(self, application: WSGIApplication, proxies: Sequence[Network]) -> None:
        self._application = application
        self._proxies = proxies

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        peer = str(environ.get("REMOTE_ADDR", ""))
        trusted = self._trusts(peer)
        environ[PEER], environ[IS_PROXY] = peer, trusted
        if trusted:
            visitor = str(environ.get("HTTP_X_FORWARDED_FOR", "")).rpartition(",")[2].strip()
            if visitor:
                environ["REMOTE_ADDR"] = visitor
            scheme = str(environ.get("HTTP_X_FORWARDED_PROTO", "")).rpartition(",")[2].strip()
            if scheme in ("http", "https"):
                environ["wsgi.url_scheme"] = scheme
        for name in _SPOKEN:
            environ.pop(name, None)
        return self._application(environ, start_response)

    def _trusts(self, peer: str) -> bool:
        try:
            address = ipaddress.ip_address(peer.partition("%")[0])
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._proxies)
