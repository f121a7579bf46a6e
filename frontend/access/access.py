"""Where the dashboard listens and what it asks of visitors: the decision, checked when it is made.

Without anything it is shown to this machine only. For other machines there are three ways: a token
that comes once in the address and then stays in a cookie, users with passwords, or a reverse proxy
that says who it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from radt.errors import UsageError
from radt.frontend.access.forwarded import networks
from radt.frontend.access.names import is_loopback

if TYPE_CHECKING:
    from dash import Dash

TOKEN_VARIABLE = "RADT_DASHBOARD_TOKEN"  # noqa: S105 - the variable's name
MIN_TOKEN_LENGTH = 16
USER_HEADER = "X-Forwarded-User"


class Auth(StrEnum):
    """What visitors are asked for."""

    NONE = "none"
    TOKEN = "token"  # noqa: S105 - a word
    BASIC = "basic"
    PROXY_HEADER = "proxy-header"


@dataclass(frozen=True, slots=True)
class Access:
    """Where the dashboard listens and what it asks of visitors.

    Args:
        host: The address to listen on.
        token: For `Auth.TOKEN`.
        auth: None is `Auth.TOKEN` if there is a token, else `Auth.NONE`.
        users: The file of users (`radt.frontend.access.users`), for `Auth.BASIC`.
        proxies: Addresses or networks whose word on visitors is believed.
        user_header: In which a proxy names the user, for `Auth.PROXY_HEADER`.
        names: Further names by which the dashboard may be called.

    Raises:
        UsageError: These do not go together, or would let in everybody.
    """

    host: str = "127.0.0.1"
    token: str | None = field(default=None, repr=False)
    auth: Auth | None = None
    users: Path | None = None
    proxies: tuple[str, ...] = ()
    user_header: str = USER_HEADER
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.token is not None and len(self.token) < MIN_TOKEN_LENGTH:
            raise UsageError(
                f"the dashboard's token has fewer than {MIN_TOKEN_LENGTH} characters",
                "`--token` makes up a good one",
            )
        networks(self.proxies)
        _CHECKS[self.mode](self)

    @property
    def mode(self) -> Auth:
        """What is asked for."""
        return self.auth or (Auth.NONE if self.token is None else Auth.TOKEN)

    @property
    def is_in_the_clear(self) -> bool:
        """Whether other machines' requests come as HTTP, as far as is known."""
        return not (is_loopback(self.host) or self.proxies)

    def install(self, app: Dash) -> None:
        """Check every request of the application, and say what browsers must not do with it."""
        # Not above: the command line makes an `Access` before the libraries behind this are needed.
        from radt.frontend.access.guard import Guard

        Guard(self).install(app)


def _check_none(access: Access) -> None:
    if not is_loopback(access.host):
        raise UsageError(
            f"{access.host} can be reached from other machines, and no token is set",
            f"Add --token, or set {TOKEN_VARIABLE}; --auth basic and --auth proxy-header are other "
            "ways; or stay on 127.0.0.1 and use an SSH tunnel",
        )


def _check_token(access: Access) -> None:
    if access.token is None:
        raise UsageError("no token is set", f"Add --token, or set {TOKEN_VARIABLE}")


def _check_basic(access: Access) -> None:
    if access.users is None:
        raise UsageError(
            "--auth basic needs a file of users",
            "--users FILE names it, and with --add-user NAME makes it",
        )
    from radt.frontend.access.users import read_users

    read_users(access.users)


def _check_proxy_header(access: Access) -> None:
    if not access.proxies:
        raise UsageError(
            "--auth proxy-header needs the address of the proxy: of others it believes nothing",
            "Add --trust-proxy ADDRESS, as 127.0.0.1 or 172.18.0.0/16",
        )
    if not access.names:
        raise UsageError(
            "--auth proxy-header needs the name by which visitors call the proxy",
            "Add --public-name NAME, as radt.example.org",
        )


_CHECKS = {
    Auth.NONE: _check_none,
    Auth.TOKEN: _check_token,
    Auth.BASIC: _check_basic,
    Auth.PROXY_HEADER: _check_proxy_header,
}
