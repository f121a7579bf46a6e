"""Who may look: only this machine, unless a token is set.

A page on the web can make a browser send requests to loopback addresses. It cannot read the
answers, unless its own name is made to point there ("DNS rebinding"); so without a token only
names of this machine are accepted as the address. With a token, other machines may look: the token
comes once in the address and then stays in a cookie.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from dataclasses import dataclass
from urllib.parse import urlencode

from flask import Flask, Response, redirect, request
from werkzeug.wrappers import Response as BaseResponse

from radt.errors import UsageError

TOKEN_VARIABLE = "RADT_DASHBOARD_TOKEN"  # noqa: S105 - the variable's name
_PARAMETER = "token"
_COOKIE = "radt-dashboard"
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
MIN_TOKEN_LENGTH = 16


@dataclass(frozen=True, slots=True)
class Access:
    """Where the dashboard listens and what it asks of visitors.

    Raises:
        UsageError: The address can be reached from elsewhere and no token is set, or it is short.
    """

    host: str = "127.0.0.1"
    token: str | None = None

    def __post_init__(self) -> None:
        if self.token is not None and len(self.token) < MIN_TOKEN_LENGTH:
            raise UsageError(
                f"the dashboard's token has fewer than {MIN_TOKEN_LENGTH} characters",
                "`--token` makes up a good one",
            )
        if self.token is None and not is_loopback(self.host):
            raise UsageError(
                f"{self.host} can be reached from other machines, and no token is set",
                f"Add --token, or set {TOKEN_VARIABLE}; or stay on 127.0.0.1 and use an SSH tunnel",
            )

    def install(self, server: Flask) -> None:
        """Check every request of the application, and say what browsers must not do with it."""
        server.before_request(self._refuse_strangers)
        server.after_request(_harden)

    def _refuse_strangers(self) -> BaseResponse | None:
        if self.token is None:
            if _host_name(request.host) in _LOCAL_NAMES | {self.host.lower()}:
                return None
            return _refusal("This dashboard is shown under the names of its own machine only.")
        given = request.args.get(_PARAMETER)
        if given is not None and _same(given, self.token):
            return self._let_in()
        if _same(request.cookies.get(_COOKIE, ""), _proof(self.token)):
            return None
        return _refusal("Open the address that `radt dashboard` printed, with its token.")

    def _let_in(self) -> BaseResponse:
        """Put the proof into a cookie, and take the token out of the address bar and history."""
        assert self.token is not None
        rest = [(k, v) for k, v in request.args.items(multi=True) if k != _PARAMETER]
        # Only the path of this very request: nothing in it can lead elsewhere.
        path = "/" + request.path.lstrip("/\\")
        response = redirect(f"{path}?{urlencode(rest)}" if rest else path)
        response.set_cookie(
            _COOKIE, _proof(self.token), httponly=True, samesite="Strict", secure=request.is_secure
        )
        return response


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_name(header: str) -> str:
    """The name in a Host header, without port and brackets, in lower case."""
    name = header.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0] if name.count(":") == 1 else name


def _proof(token: str) -> str:
    return hashlib.sha256(f"radt dashboard {token}".encode()).hexdigest()


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(), expected.encode())


def _refusal(text: str) -> Response:
    return Response(text + "\n", status=403, mimetype="text/plain")


def _harden(response: Response) -> Response:
    # Dash starts itself with inline scripts; everything else comes from here, nothing from afar.
    response.headers["Content-Security-Policy"] = (
        "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; object-src 'none'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["X-Frame-Options"] = "DENY"
    response.headers["Referrer-Policy"] = "no-referrer"
    response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
    return response
