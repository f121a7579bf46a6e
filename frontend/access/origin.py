"""Requests that pages of others make a browser send are refused, whoever the visitor is.

Browsers send along what lets a visitor in (cookies, passwords, a proxy's session), also with
requests that another page has made up ("CSRF"). They say where a request comes from in
Sec-Fetch-Site, where the connection is HTTPS or to this machine, and in Origin. Requests with
neither are from no browser. https://web.dev/articles/fetch-metadata describes the policy.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from werkzeug.wrappers import Request

_DEFAULT_PORTS = {"http": 80, "https": 443}
_SAFE_METHODS = frozenset({"GET", "HEAD"})
#: Where a page would show the dashboard inside of itself.
_EMBEDDED = frozenset({"object", "embed", "iframe", "frame", "fencedframe"})


def is_from_elsewhere(request: Request) -> bool:
    """Whether another site's page makes the browser send this; following a link is not that."""
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        if site in ("same-origin", "none"):
            return False
        is_link = (
            request.method in _SAFE_METHODS
            and request.headers.get("Sec-Fetch-Mode") == "navigate"
            and request.headers.get("Sec-Fetch-Dest") not in _EMBEDDED
        )
        return not is_link
    origin = request.headers.get("Origin")
    if origin is None or request.method in _SAFE_METHODS:
        return False
    return not _is_own(origin, request.host)


def _is_own(origin: str, host: str) -> bool:
    """Whether an Origin is that of the Host; the scheme may be a proxy's."""
    default = _DEFAULT_PORTS.get(origin.partition(":")[0])
    if default is None:  # "null"
        return False
    try:
        given, own = urlsplit(origin), urlsplit(f"//{host}")
        ports = given.port or default, own.port or default
    except ValueError:  # a port that is none
        return False
    return given.hostname is not None and given.hostname == own.hostname and ports[0] == ports[1]
