"""Checks every request: its name for us, where it comes from, who sends it, how big it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from flask import Flask, Response, request
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.wrappers import Response as BaseResponse

from radt.frontend.access.access import Access, Auth
from radt.frontend.access.doors import LOGIN_PATH, LOGOUT_PATH, Door
from radt.frontend.access.forwarded import Forwarded, networks
from radt.frontend.access.headers import harden, keep_assets, policy
from radt.frontend.access.names import LOCAL_NAMES, host_name, is_loopback, is_numeric, own_names
from radt.frontend.access.origin import is_from_elsewhere
from radt.frontend.access.refusals import refusal

if TYPE_CHECKING:
    from dash import Dash

#: The largest request: a view with hundreds of charts is a hundredth of it.
MAX_BODY_BYTES = 4 * 2**20
_METHODS = frozenset({"GET", "HEAD", "POST", "OPTIONS"})
#: Where visitors may call the machine by all its names, and by its addresses in numbers.
_BY_NUMBER = (Auth.TOKEN, Auth.BASIC)
#: Where an application finds its guard.
_KEY = "guard"


class Guard:
    """Of one application.

    Raises:
        UsageError: The file of users cannot be used.
    """

    def __init__(self, access: Access) -> None:
        self.access = access
        self.door = Door.of(access)
        self._names = LOCAL_NAMES | {host_name(access.host), *map(host_name, access.names)}
        if access.mode in _BY_NUMBER and not is_loopback(access.host):
            self._names |= own_names()
        self._policy: str | None = None

    @staticmethod
    def of(server: Flask) -> Guard | None:
        """That of an application, if it has one."""
        return cast("Guard | None", server.config.get(_KEY))

    def install(self, app: Dash) -> None:
        """Stand before the application."""
        server = app.server
        server.config[_KEY] = self
        server.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES
        server.config["MAX_FORM_MEMORY_SIZE"] = MAX_BODY_BYTES

        def after(response: Response) -> Response:
            if self._policy is None:  # not before all callbacks are there
                self._policy = policy(app.csp_hashes())
            return keep_assets(harden(response, self._policy))

        server.before_request(self.check)
        server.after_request(after)
        server.register_error_handler(RequestEntityTooLarge, _too_large)
        # Paths of ours, so that they are asked for before the page takes all the others.
        for path in (LOGIN_PATH, LOGOUT_PATH):
            server.add_url_rule(path, path, _nothing_here, methods=["POST"])
        server.wsgi_app = Forwarded(server.wsgi_app, networks(self.access.proxies))

    def check(self) -> BaseResponse | None:
        """None for a request that may pass, else the answer."""
        if request.method not in _METHODS:
            return refusal("No such thing can be done here.", 405)
        if (request.content_length or 0) > MAX_BODY_BYTES:
            return _too_large()
        if not self._knows(host_name(request.host)):
            name = host_name(request.host)[:200]
            return refusal(
                "This dashboard is shown under the names of its own machine only."
                if self.access.mode is Auth.NONE
                else f"This dashboard does not know that it is called {name!r}. "
                f"Start it with --public-name {name} to have it answer."
            )
        if is_from_elsewhere(request):
            return refusal("This request comes from another site's page.")
        return self.door.admit()

    def _knows(self, name: str) -> bool:
        if name in self._names:
            return True
        # Nobody can make an address in numbers point elsewhere.
        return self.access.mode in _BY_NUMBER and is_numeric(name)


def _too_large(_: RequestEntityTooLarge | None = None) -> BaseResponse:
    return refusal(f"A request may have {MAX_BODY_BYTES >> 20} MiB.", 413)


def _nothing_here() -> BaseResponse:
    return refusal("There is nothing to log in to.", 404)
