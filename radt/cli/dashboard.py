"""``radt dashboard``: compare runs in the browser."""

from __future__ import annotations

import os
import secrets
import webbrowser
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from radt.errors import UsageError
from radt.masking import masked
from radt.settings import (
    DASHBOARD_BASE_PATH,
    DASHBOARD_TOKEN,
    DASHBOARD_WRITE_TOKEN,
    STORE_URI,
    TRACKING_URI,
)

if TYPE_CHECKING:
    from radt.frontend.auth import DashboardAccess

#: Range of user ids for people's accounts, as assigned by useradd and systemd.
_FIRST_PERSON, _NOBODY = 1000, 65534
_NO_SHELLS = frozenset({"nologin", "false", "sync"})


@click.command("dashboard")
@click.option(
    "--home",
    metavar="FOLDER",
    default=None,
    help="Show the store of this data folder.  [default: the Postgres store if there is one, else "
    "the usual data folder]",
)
@click.option(
    f"--{STORE_URI.name}",
    metavar=STORE_URI.kind.metavar,
    default=None,
    help=f"Show this Postgres store.  [default: ${STORE_URI.variables[0]}]",
)
@click.option(
    f"--{TRACKING_URI.name}",
    metavar=TRACKING_URI.kind.metavar,
    default=None,
    help="Import the runs of this MLflow server (http://…), database (sqlite:///FILE, "
    "postgresql://…) or folder into the store, at the start and then every minute.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port to listen on.  [default: the first free one from 8050]",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--token",
    is_flag=True,
    help="Ask visitors for a token, which is generated now. RADT_DASHBOARD_TOKEN sets your own. "
    "Addresses that other machines can reach need a token or a proxy.",
)
@click.option(
    "--read-only",
    is_flag=True,
    help="Let nobody change notes and saved views. Without it and without a token, everybody who "
    "can log in to this machine may change those of your own store.",
)
@click.option(
    "--trust-proxy",
    metavar="ADDRESS",
    multiple=True,
    help="Address or network of a reverse proxy whose X-Forwarded headers are trusted: about "
    "visitors, and with the path below which it serves the dashboard; repeatable.",
)
@click.option(
    "--user-header",
    metavar="HEADER",
    default="",
    help="Let in only users that the trusted proxy names in this header, for example "
    "X-Forwarded-User.",
)
@click.option(
    "--public-name",
    metavar="NAME[:PORT]",
    multiple=True,
    help="Host name of the dashboard, in addition to this machine's own; repeatable. With a port, "
    "it is also the address that is printed, for example of a container's published port.",
)
@click.option(
    "--base-path",
    metavar="PATH",
    envvar=DASHBOARD_BASE_PATH.label,
    default="",
    help="Path below which a reverse proxy serves the dashboard, for example /user/ada/proxy/8050. "
    f"Needed if the proxy passes the whole path on.  [default: ${DASHBOARD_BASE_PATH.label}]",
)
@click.option("--no-browser", is_flag=True, help="Do not open a browser.")
def command(
    home: str | None,
    store_uri: str | None,
    tracking_uri: str | None,
    port: int | None,
    no_browser: bool,
    **visitors: Any,
) -> None:
    """Compare runs in the browser, including running ones."""
    from radt.frontend.auth import Auth
    from radt.frontend.serve import Address, serve
    from radt.store.locate import ShownStore

    access = _access(**visitors)
    view = ShownStore.of(home, store_uri, tracking_uri)

    def ready(address: Address) -> None:
        is_there = view.store.path is None or view.store.path.exists()
        shown, note = address.published(access.names), "Ctrl-C stops it."
        if address.token and os.environ.get(DASHBOARD_TOKEN.label):  # the output may go to a log
            shown = replace(shown, token=None)
            note = f"Log in with the token of {DASHBOARD_TOKEN.label}. {note}"
        click.echo(f"radt dashboard · {view.store}\n\n  {shown.url}\n\n{note}")
        if access.mode is Auth.NONE and _has_other_users():
            may = "read this store" if access.is_read_only else "read this store and edit its notes"
            click.echo(
                f"Other users of this machine can {may} through this port: --token keeps them "
                "out, --read-only keeps the notes as they are.",
                err=True,
            )
        if view.import_from:
            click.echo(
                f"Importing from {masked(view.import_from)}; the System page shows the progress."
            )
        if access.is_in_the_clear:
            click.echo(
                "Token and data cross the network unencrypted: put an HTTPS proxy in front, or use "
                "an SSH tunnel.",
                err=True,
            )
        if not is_there:
            click.echo("The store has no runs yet. Run `radt train.py`.", err=True)
        if not no_browser and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            webbrowser.open(address.url)

    serve(view, access, port, ready)


def _access(
    *,
    host: str,
    token: bool,
    read_only: bool,
    trust_proxy: tuple[str, ...],
    user_header: str,
    public_name: tuple[str, ...],
    base_path: str,
) -> DashboardAccess:
    """Return the access options.

    Raises:
        UsageError: The options contradict each other, or would admit everybody.
    """
    from radt.frontend.auth import DashboardAccess
    from radt.frontend.security import parse_base_path

    if token and user_header:
        raise UsageError(
            "--token and --user-header exclude each other", "Use one of them to let visitors in"
        )
    # No option takes the token: everybody on the machine can read command lines.
    secret = os.environ.get(DASHBOARD_TOKEN.label) or None
    if secret is None and token:
        secret = secrets.token_urlsafe(24)
    return DashboardAccess(
        host,
        None if user_header else secret,
        trust_proxy,
        user_header,
        public_name,
        os.environ.get(DASHBOARD_WRITE_TOKEN.label) or None,
        read_only,
        parse_base_path(base_path),
    )


def _has_other_users() -> bool:
    """Return whether other people have accounts on this machine that they can log in to."""
    try:
        import pwd
    except ImportError:  # not every system has the pwd module
        return False
    names = {
        user.pw_name
        for user in pwd.getpwall()
        if _FIRST_PERSON <= user.pw_uid < _NOBODY
        and Path(user.pw_shell or "/bin/sh").name not in _NO_SHELLS
    }
    return len(names) > 1
