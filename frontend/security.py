"""Checks of requests and headers of answers, the same for every visitor.

*Names.* A page on the web can make a browser send requests to any address that the browser's
machine reaches. It can read the answers once its own name resolves to that address ("DNS
rebinding"), so the dashboard answers only to its known names. A numeric address cannot be
redirected.

*Origins.* Browsers attach a visitor's credentials (cookies, a proxy's session) even to requests
that another page forged ("CSRF"). They report the origin of a request in Sec-Fetch-Site, if the
connection is HTTPS or to this machine, and in Origin. Requests with neither do not come from a
browser. https://web.dev/articles/fetch-metadata describes the policy.

*Proxies.* A reverse proxy's headers about the visitor are trusted only if the proxy is known.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote_to_bytes, urlsplit

from flask import Response, request
from flask.json.provider import DefaultJSONProvider
from werkzeug.middleware.proxy_fix import ProxyFix
from werkzeug.wrappers import Request
from werkzeug.wrappers import Response as BaseResponse

from radt.errors import UsageError

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
#: Timeout for the resolver, which delays the start.
_RESOLVER_S = 2.0
#: Header of refusals, by which an open page distinguishes them from other errors.
REFUSED = "X-Radt-Refused"
#: WSGI variable: whether the connection comes from a trusted proxy.
IS_PROXY = "radt.is_proxy"

_DEFAULT_PORTS = {"http": 80, "https": 443}
_SAFE_METHODS = frozenset({"GET", "HEAD"})
#: Values of Sec-Fetch-Dest of pages that embed the dashboard.
_EMBEDDED = frozenset({"object", "embed", "iframe", "frame", "fencedframe"})
#: Media types of answers that may differ between visitors.
_OWN = ("text/html", "application/json")
#: Maximum nesting of JSON in requests; a page's layout needs less than half.
_MAX_DEPTH = 100
_STATIC, _OK = "/static/", 200


def refusal(message: str, status: int = 403) -> BaseResponse:
    """Refuse a request with a sentence in plain text."""
    response = BaseResponse(message + "\n", status=status, mimetype="text/plain")
    response.headers[REFUSED] = "yes"
    return response


class StrictJson(DefaultJSONProvider):
    """Parses the JSON of all requests. Malformed content is a bad request, never a failure."""

    def loads(self, s: str | bytes, **kwargs: Any) -> Any:
        """
        Raises:
            ValueError: It is not JSON, nested too deeply, or has text that is not Unicode.
        """
        try:
            content = super().loads(s, **kwargs)
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error
        level, depth = [content], 0
        while level:
            if (depth := depth + 1) > _MAX_DEPTH:
                raise ValueError("it is nested too deeply")
            below: list[object] = []
            for item in level:
                if isinstance(item, str):
                    item.encode()  # a lone surrogate raises UnicodeEncodeError, a ValueError
                elif isinstance(item, dict):
                    below += [*item, *item.values()]
                elif isinstance(item, list):
                    below += item
            level = below
        return content


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_numeric(name: str) -> bool:
    """Return whether this is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def host_name(header: str) -> str:
    """Return the name in a Host header, without port and brackets, in lower case."""
    name = header.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return (name.partition(":")[0] if name.count(":") == 1 else name).rstrip(".")


def own_names() -> frozenset[str]:
    """Return the names of this machine that are found within `_RESOLVER_S`."""
    names = {socket.gethostname().lower()}
    resolver = threading.Thread(target=lambda: names.add(socket.getfqdn().lower()), daemon=True)
    resolver.start()
    resolver.join(_RESOLVER_S)
    return frozenset(names) - {""}


def is_from_elsewhere(received: Request) -> bool:
    """Return whether another site's page caused the request; plain links are allowed."""
    site = received.headers.get("Sec-Fetch-Site")
    if site is not None:
        if site in ("same-origin", "none"):
            return False
        is_link = (
            received.method in _SAFE_METHODS
            and received.headers.get("Sec-Fetch-Mode") == "navigate"
            and received.headers.get("Sec-Fetch-Dest") not in _EMBEDDED
        )
        return not is_link
    origin = received.headers.get("Origin")
    if origin is None or received.method in _SAFE_METHODS:
        return False
    return not _is_own(origin, received.host)


def _is_own(origin: str, host: str) -> bool:
    """Return whether an Origin matches the Host header's name; its scheme may be a proxy's."""
    default = _DEFAULT_PORTS.get(origin.partition(":")[0])
    if default is None:  # "null"
        return False
    try:
        given, own = urlsplit(origin), urlsplit(f"//{host}")
        ports = given.port or default, own.port or default
    except ValueError:  # not a port number
        return False
    return given.hostname is not None and given.hostname == own.hostname and ports[0] == ports[1]


def networks(addresses: Iterable[str]) -> tuple[Network, ...]:
    """Parse addresses and networks: ``127.0.0.1``, ``10.1.0.0/16``.

    Raises:
        UsageError: An item is neither an address nor a network.
    """
    parsed = []
    for address in addresses:
        try:
            parsed.append(ipaddress.ip_network(address.strip(), strict=False))
        except ValueError as error:
            raise UsageError(
                f"Expected the address of a proxy, got {address}: {error}",
                "Use for example --trust-proxy 127.0.0.1 or --trust-proxy 172.18.0.0/16",
            ) from error
    return tuple(parsed)


class TrustedProxies:
    """Applies Werkzeug's `ProxyFix` only to requests from known proxies.

    The visitor's address and scheme, and the path below which the proxy serves the dashboard, are
    those that the proxy itself added. The Host header is the one that the proxy passes on, as
    ``X-Forwarded-Host`` may come from the visitor.
    """

    def __init__(self, application: WSGIApplication, proxies: Sequence[Network]) -> None:
        self._application = application
        self._fixed = ProxyFix(application, x_for=1, x_proto=1, x_host=0, x_prefix=1)
        self._proxies = proxies

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        environ[IS_PROXY] = self._trusts(str(environ.get("REMOTE_ADDR", "")))
        answer = self._fixed if environ[IS_PROXY] else self._application
        return answer(environ, start_response)

    def _trusts(self, peer: str) -> bool:
        try:
            address = ipaddress.ip_address(peer.partition("%")[0])
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._proxies)


def parse_base_path(text: str) -> str:
    """Return a path below which a proxy serves the dashboard, ``/team/radt``; empty for the root.

    Raises:
        UsageError: It is not a path.
    """
    path = text.strip("/")
    if not path.isprintable() or any(character in path for character in "?#:\\ "):
        raise UsageError(
            f"Expected a path for the dashboard's base path, got {text!r}",
            "Use for example --base-path /team/radt",
        )
    return f"/{path}" if path else ""


class BelowPath:
    """Serves an application below a path, whether or not the proxy strips that path.

    The path is that of a trusted proxy's X-Forwarded-Prefix, or the one given.
    """

    def __init__(self, application: WSGIApplication, path: str) -> None:
        self._application = application
        self._path = _wsgi_text(path)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        # TrustedProxies sets SCRIPT_NAME.
        base = str(environ.get("SCRIPT_NAME", "")).rstrip("/") or self._path
        path = str(environ.get("PATH_INFO", ""))
        if base and path == base:  # addresses in pages are relative to the path with a slash
            query = environ.get("QUERY_STRING", "")
            folder = quote(base.rpartition("/")[2], safe="", encoding="latin-1")
            target = f"./{folder}/?{query}" if query else f"./{folder}/"
            start_response("308 Permanent Redirect", [("Location", target)])
            return []
        if base and path.startswith(f"{base}/"):
            environ["PATH_INFO"] = path[len(base) :]
        environ["SCRIPT_NAME"] = base
        return self._application(environ, start_response)


def _wsgi_text(path: str) -> str:
    """Return a path in WSGI's form: decoded, one character for each byte (PEP 3333)."""
    return unquote_to_bytes(path).decode("latin-1")


def content_policy(script_hashes: Sequence[str]) -> str:
    """Return the content security policy: browsers load everything from this server.

    Dash's own inline scripts are allowed by their hashes. Inline styles have to be allowed: Plotly
    sets them.
    """
    scripts = " ".join(["'self'", *script_hashes])
    return (
        f"default-src 'self'; script-src {scripts}; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; "
        "worker-src 'self' blob:; object-src 'none'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    )


def harden(response: Response, policy: str) -> Response:
    """Add the headers that restrict what browsers and caches may do with a response."""
    headers = response.headers
    headers.setdefault("Content-Security-Policy", policy)  # a run's file has a stricter policy
    headers["X-Content-Type-Options"] = "nosniff"
    headers["X-Frame-Options"] = "DENY"
    headers["Referrer-Policy"] = "no-referrer"
    headers["Cross-Origin-Resource-Policy"] = "same-origin"
    headers["Cross-Origin-Opener-Policy"] = "same-origin"
    headers["Permissions-Policy"] = "camera=(), geolocation=(), microphone=()"
    if response.mimetype in _OWN and "no-store" not in headers.get("Cache-Control", ""):
        # Shared caches must not give one visitor's answers to another.
        headers["Cache-Control"] = "private, no-cache"
    if request.path.startswith(_STATIC) and "m" in request.args and response.status_code == _OK:
        # The address contains the modification time (``?m=``), so browsers may cache the file. Dash
        # makes them fetch each file again with every page.
        headers["Cache-Control"] = "private, max-age=31536000, immutable"
    return response
