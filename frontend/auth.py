"""Access to the dashboard: which visitors may see it, and the authenticator that enforces it.

By default the dashboard serves this machine only. For other machines there are two ways: a token,
given once in the address and then kept in a cookie, or a reverse proxy that identifies its users.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote, urlencode

from flask import Flask, redirect, request
from flask import Response as FlaskResponse
from itsdangerous import BadSignature, TimestampSigner
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.wrappers import Response

from radt.errors import UsageError
from radt.frontend.addresses import from_request, own_path
from radt.frontend.pages.parts import template
from radt.frontend.security import (
    IS_PROXY,
    LOCAL_NAMES,
    REFUSED,
    BelowPath,
    StrictJson,
    TrustedProxies,
    content_policy,
    harden,
    host_name,
    is_from_elsewhere,
    is_loopback,
    is_numeric,
    networks,
    own_names,
    refusal,
)
from radt.settings import DASHBOARD_TOKEN

if TYPE_CHECKING:
    from dash import Dash

MIN_TOKEN_LENGTH = 16
LOGIN_PATH, LOGOUT_PATH = "_login", "_logout"
#: A browser has to present the token again after this time.
SESSION_S = 7 * 24 * 3600
#: The limit on a request's size, 100 times a view with hundreds of charts.
MAX_BODY_BYTES = 4 * 2**20
_MAX_ENDED = 4096
_PARAMETER = "token"
#: The field of the login form with the path and query that the visitor asked for.
_NEXT = "next"
_METHODS = frozenset({"GET", "HEAD", "POST", "OPTIONS"})
#: The key of the guard in the application's configuration.
_KEY = "guard"


class Auth(StrEnum):
    """Authentication that visitors need."""

    NONE = "none"
    TOKEN = "token"  # noqa: S105 - a word
    PROXY_HEADER = "proxy-header"


@dataclass(frozen=True, slots=True)
class DashboardAccess:
    """Address that the dashboard listens on, and the authentication that visitors need.

    Args:
        host: The address to listen on.
        token: The token that visitors must present, if any.
        proxies: Addresses or networks of trusted reverse proxies.
        user_header: The header in which a proxy names the user; only users that it names get in.
        names: Further names by which visitors call the dashboard.
        write_token: The token that visitors must present to change notes and saved views.
        is_read_only: Nobody may change them.
        base_path: As `parse_base_path` returns it.

    Raises:
        UsageError: These arguments conflict, or would admit everybody.
    """

    host: str = "127.0.0.1"
    token: str | None = field(default=None, repr=False)
    proxies: tuple[str, ...] = ()
    user_header: str = ""
    names: tuple[str, ...] = ()
    write_token: str | None = field(default=None, repr=False)
    is_read_only: bool = False
    base_path: str = ""

    def __post_init__(self) -> None:
        networks(self.proxies)
        for token in (self.token, self.write_token):
            if token is not None and len(token) < MIN_TOKEN_LENGTH:
                raise UsageError(
                    f"Expected a dashboard token of at least {MIN_TOKEN_LENGTH} characters, "
                    f"got {len(token)}",
                    "`--token` makes up a good one",
                )
        if self.mode is Auth.NONE and not is_loopback(self.host):
            raise UsageError(
                f"{self.host} can be reached from other machines, and no token is set",
                f"Add --token, or set {DASHBOARD_TOKEN.label}, or stay on 127.0.0.1 and use an SSH "
                "tunnel",
            )
        if self.mode is Auth.PROXY_HEADER and not (self.proxies and self.names):
            raise UsageError(
                "--user-header needs the proxy's address and the name by which visitors call it",
                "Add --trust-proxy ADDRESS (for example 127.0.0.1) and --public-name NAME "
                "(for example radt.example.org)",
            )

    @property
    def mode(self) -> Auth:
        """Authentication that visitors need."""
        if self.user_header:
            return Auth.PROXY_HEADER
        return Auth.NONE if self.token is None else Auth.TOKEN

    def may_write(self, given: str, *, is_own: bool) -> bool:
        """Return whether a visitor with the token ``given`` may change notes and saved views.

        ``is_own`` says that the store is a file of this machine's user. If no other users can
        visit, that user needs no token.
        """
        if self.is_read_only:
            return False
        if self.write_token is None:
            return is_own and self.mode is Auth.NONE
        # Compare in constant time.
        return hmac.compare_digest(given.encode(), self.write_token.encode())

    @property
    def is_in_the_clear(self) -> bool:
        """True if requests of other machines arrive unencrypted, as far as the dashboard knows."""
        return not (is_loopback(self.host) or self.proxies)


class Authenticator(ABC):
    """Admits visitors, or answers with the reason for refusing them."""

    can_log_out = False

    @abstractmethod
    def admit(self) -> Response | None:
        """Return None to admit the request, else the response to send."""

    def visitor(self) -> str:
        """Return the visitor's name; empty if unknown."""
        return ""

    @staticmethod
    def of(access: DashboardAccess) -> Authenticator:
        """Return the authenticator for an access."""
        if access.mode is Auth.PROXY_HEADER:
            return _ProxyHeader(access.user_header)
        return _Open() if access.token is None else _Token(access.token)


class _Open(Authenticator):
    """Admits everybody on this machine."""

    def admit(self) -> Response | None:
        return None


class _Token(Authenticator):
    """Asks for a token once, then for a signed cookie.

    The proof in a cookie is not stored, so a dashboard restarted with the same token still accepts
    it. Proofs revoked by a logout are remembered until the restart.
    """

    can_log_out = True

    def __init__(self, token: str) -> None:
        self._token = token
        self._signer = TimestampSigner(
            token, salt="radt dashboard session", digest_method=hashlib.sha256
        )
        self._ended: OrderedDict[str, None] = OrderedDict()

    def admit(self) -> Response | None:
        if request.path == f"/{LOGOUT_PATH}" and request.method == "POST":
            return self._log_out()
        given, target = request.args.get(_PARAMETER), _asked_page()
        if request.path == f"/{LOGIN_PATH}" and request.method == "POST":
            given = request.form.get(_PARAMETER, "").strip()
            target = request.form.get(_NEXT, "")
        if given is None:
            is_in = self._holds(request.cookies.get(_cookie(), ""))
            if not is_in:
                return _ask_for_token(target)
            return redirect(from_request(), 303) if request.path == f"/{LOGIN_PATH}" else None
        # Compare in constant time.
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            return _ask_for_token(target, wrong=True)
        return self._let_in(target)

    def _holds(self, proof: str) -> bool:
        """Return whether a proof was signed here, has not expired and was not revoked."""
        try:
            nonce = self._signer.unsign(proof, max_age=SESSION_S).decode()
        except (BadSignature, UnicodeError):
            return False
        return nonce not in self._ended

    def _let_in(self, target: str) -> Response:
        """Put a proof into a cookie, and lead to the page without the token in its address."""
        path, _, query = (target if target.isprintable() else "").partition("?")
        response = redirect(from_request(own_path(unquote(path)), query), 303)
        # Lax, so that links in messages work. Harmful requests from other sites are refused by
        # their origin (`radt.frontend.security.is_from_elsewhere`).
        response.set_cookie(
            _cookie(),
            self._signer.sign(secrets.token_hex(16)).decode(),
            max_age=SESSION_S,
            httponly=True,
            path=_cookie_path(),
            samesite="Lax",
            secure=request.is_secure,
        )
        return response

    def _log_out(self) -> Response:
        proof = request.cookies.get(_cookie(), "")
        if self._holds(proof):
            self._ended[self._signer.unsign(proof).decode()] = None
            while len(self._ended) > _MAX_ENDED:
                self._ended.popitem(last=False)
        response = redirect(from_request(), 303)
        response.delete_cookie(
            *(_cookie(), _cookie_path()), httponly=True, samesite="Lax", secure=request.is_secure
        )
        return response


class _ProxyHeader(Authenticator):
    """Takes the user's name from a header of a trusted proxy."""

    def __init__(self, header: str) -> None:
        self._header = header

    def admit(self) -> Response | None:
        if not request.environ.get(IS_PROXY):
            return refusal("This dashboard answers requests through its proxy only.")
        if not self.visitor():
            return refusal(f"The proxy did not name a user in the header {self._header}.", 401)
        return None

    def visitor(self) -> str:
        return request.headers.get(self._header, "").strip()


class Guard:
    """Checks the Host, Origin, sender and size of every request to one application."""

    def __init__(self, access: DashboardAccess) -> None:
        self.access = access
        self.authenticator = Authenticator.of(access)
        self._names = LOCAL_NAMES | {host_name(access.host), *map(host_name, access.names)}
        if access.mode is Auth.TOKEN and not is_loopback(access.host):
            self._names |= own_names()
        self._policy: str | None = None

    @staticmethod
    def of(server: Flask) -> Guard | None:
        """Return the guard of an application, if it has one."""
        return cast("Guard | None", server.config.get(_KEY))

    def install(self, app: Dash) -> None:
        """Check every request of the application, and add security headers to every answer."""
        server = app.server
        server.config[_KEY] = self
        server.json = StrictJson(server)
        server.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES
        server.config["MAX_FORM_MEMORY_SIZE"] = MAX_BODY_BYTES

        def after(response: FlaskResponse) -> FlaskResponse:
            if self._policy is None:  # only after all callbacks are registered
                self._policy = content_policy(app.csp_hashes())
            return harden(response, self._policy)

        server.before_request(self.check)
        server.after_request(after)
        server.register_error_handler(RequestEntityTooLarge, _too_large)
        # Before the page's route, which matches all other paths.
        for path in (LOGIN_PATH, LOGOUT_PATH):
            server.add_url_rule(f"/{path}", path, _nothing_here, methods=["POST"])
        server.wsgi_app = TrustedProxies(
            BelowPath(server.wsgi_app, self.access.base_path), networks(self.access.proxies)
        )

    def check(self) -> Response | None:
        """Return None for a request that may pass, else the answer."""
        if request.method not in _METHODS:
            return refusal("Method not allowed.", 405)
        if (request.content_length or 0) > MAX_BODY_BYTES:
            return _too_large()
        name = host_name(request.host)
        # A numeric address cannot be redirected by DNS.
        is_known = name in self._names or (self.access.mode is Auth.TOKEN and is_numeric(name))
        if not is_known:
            return refusal(
                "This dashboard answers to the names of its own machine only."
                if self.access.mode is Auth.NONE
                else f"This dashboard does not know the name {name[:200]!r}. "
                f"Start it with --public-name {name[:200]}."
            )
        if is_from_elsewhere(request):
            return refusal("This request comes from another site's page.")
        return self.authenticator.admit()


def _cookie() -> str:
    """Return the cookie's name, with the port: a host may have two dashboards."""
    port = request.host.removeprefix(f"[{host_name(request.host)}]").rpartition(":")[2]
    return f"radt-dashboard-{port}" if port.isdigit() else "radt-dashboard"


def _cookie_path() -> str | None:
    """Return the cookie's path: the dashboard's root.

    None leaves it to the browser, which takes the folder of the request: below a path that the
    proxy strips, only the browser knows the root.
    """
    is_below_root = request.path.count("/") == 1
    return None if is_below_root else f"{request.script_root}/"


def _asked_page() -> str:
    """Return the path and query of the page asked for, without the token; "" for the root."""
    if request.path in (f"/{LOGIN_PATH}", f"/{LOGOUT_PATH}"):
        return ""
    rest = [(k, v) for k, v in request.args.items(multi=True) if k != _PARAMETER]
    path = own_path(request.path)
    return f"{path}?{urlencode(rest)}" if rest else path


def _too_large(_: RequestEntityTooLarge | None = None) -> Response:
    return refusal(f"The request is larger than {MAX_BODY_BYTES >> 20} MiB.", 413)


def _nothing_here() -> Response:
    return refusal("This dashboard does not ask for a token.", 404)


def _ask_for_token(target: str, *, wrong: bool = False) -> Response:
    """Answer browsers with a form that leads to the page asked for, programs with a sentence."""
    if request.accept_mimetypes.best_match(["text/plain", "text/html"]) != "text/html":
        return refusal("Open the dashboard's address with ?token=, its RADT_DASHBOARD_TOKEN.")
    macros: Any = template("alone.html")
    page = macros.login(from_request(LOGIN_PATH), target, wrong)
    response = Response(page, status=403, mimetype="text/html")
    response.headers[REFUSED] = "yes"
    return response
