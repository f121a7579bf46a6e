"""What each way of letting visitors in asks of a request."""

from __future__ import annotations

import hmac
from abc import ABC, abstractmethod
from collections.abc import Callable
from urllib.parse import urlencode

from flask import redirect, request
from werkzeug.wrappers import Response

from radt.frontend.access.access import Access, Auth
from radt.frontend.access.attempts import Attempts
from radt.frontend.access.forwarded import IS_PROXY
from radt.frontend.access.names import host_name
from radt.frontend.access.refusals import ask_for_token, refusal, too_many
from radt.frontend.access.sessions import LIFETIME_S, Sessions
from radt.frontend.access.users import Users

LOGIN_PATH = "/_login"
LOGOUT_PATH = "/_logout"
_PARAMETER = "token"
_REALM = 'Basic realm="radt dashboard", charset="UTF-8"'


class Door(ABC):
    """Lets visitors in, or says why not."""

    can_log_out = False

    @abstractmethod
    def admit(self) -> Response | None:
        """None for who may come in, else what to answer to the request at hand."""

    def visitor(self) -> str:
        """What is known of who makes the request at hand; empty if nothing is."""
        return ""

    @staticmethod
    def of(access: Access) -> Door:
        """The door for what was chosen.

        Raises:
            UsageError: The file of users cannot be used.
        """
        return _DOORS[access.mode](access)


class _Open(Door):
    """For everybody on this machine."""

    def __init__(self, _: Access) -> None:
        pass

    def admit(self) -> Response | None:
        return None


class _Token(Door):
    """A token, shown once; then a cookie."""

    can_log_out = True

    def __init__(self, access: Access) -> None:
        assert access.token is not None
        self._token = access.token
        self._sessions = Sessions(access.token)
        self._attempts = Attempts()

    def admit(self) -> Response | None:
        if request.path == LOGOUT_PATH and request.method == "POST":
            return self._log_out()
        given = request.args.get(_PARAMETER)
        if request.path == LOGIN_PATH and request.method == "POST":
            given = request.form.get(_PARAMETER, "").strip()
        if given is None:
            if self._sessions.holds(request.cookies.get(_cookie(), "")):
                return None
            return ask_for_token()
        if wait_s := self._attempts.wait_s(request.remote_addr or ""):
            return too_many(wait_s)
        if not same(given, self._token):
            self._attempts.failed(request.remote_addr or "")
            return ask_for_token(wrong=True)
        return self._let_in()

    def _let_in(self) -> Response:
        """Put a proof into a cookie, and take the token out of the address bar and history."""
        rest = [(k, v) for k, v in request.args.items(multi=True) if k != _PARAMETER]
        # Only the path of this very request: nothing in it can lead elsewhere.
        path = "/" if request.path == LOGIN_PATH else "/" + request.path.lstrip("/\\")
        response = redirect(f"{path}?{urlencode(rest)}" if rest else path, 303)
        # Lax: a link in a message leads to what it shows. What would do harm is refused to pages of
        # others by its origin (`radt.frontend.access.origin`).
        response.set_cookie(
            _cookie(),
            self._sessions.begin(),
            max_age=LIFETIME_S,
            httponly=True,
            samesite="Lax",
            secure=request.is_secure,
        )
        return response

    def _log_out(self) -> Response:
        self._sessions.end(request.cookies.get(_cookie(), ""))
        response = redirect("/", 303)
        response.delete_cookie(_cookie(), httponly=True, samesite="Lax", secure=request.is_secure)
        return response


class _Basic(Door):
    """Names and passwords, which browsers ask for and then send with each request."""

    def __init__(self, access: Access) -> None:
        assert access.users is not None
        self._users = Users(access.users)
        self._attempts = Attempts()

    def admit(self) -> Response | None:
        given = request.authorization
        if given is None or given.type != "basic":
            return self._ask()
        name, password = given.username or "", given.password or ""
        if self._users.knows(name, password):
            return None
        if wait_s := self._attempts.wait_s(request.remote_addr or ""):
            return too_many(wait_s)
        if self._users.accept(name, password):
            return None
        self._attempts.failed(request.remote_addr or "")
        return self._ask()

    def visitor(self) -> str:
        given = request.authorization
        return (given.username or "") if given is not None else ""

    def _ask(self) -> Response:
        response = refusal("Name and password, please.", 401)
        response.headers["WWW-Authenticate"] = _REALM
        return response


class _ProxyHeader(Door):
    """Whom the proxy names, if it is the proxy."""

    def __init__(self, access: Access) -> None:
        self._header = access.user_header

    def admit(self) -> Response | None:
        if not request.environ.get(IS_PROXY):
            return refusal("This dashboard is shown through its proxy only.")
        if not self.visitor():
            return refusal(f"The proxy names no user (header {self._header}).", 401)
        return None

    def visitor(self) -> str:
        return request.headers.get(self._header, "").strip()


_DOORS: dict[Auth, Callable[[Access], Door]] = {
    Auth.NONE: _Open,
    Auth.TOKEN: _Token,
    Auth.BASIC: _Basic,
    Auth.PROXY_HEADER: _ProxyHeader,
}


def same(given: str, expected: str) -> bool:
    """Whether two secrets are the same, in a time that says nothing of how far they are."""
    return hmac.compare_digest(given.encode(), expected.encode())


def _cookie() -> str:
    """Cookies know no ports: two dashboards of one machine must not take each other's."""
    port = request.host.removeprefix(f"[{host_name(request.host)}]").rpartition(":")[2]
    return f"radt-dashboard-{port}" if port.isdigit() else "radt-dashboard"
