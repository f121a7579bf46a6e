"""``radt dashboard``: compare runs in the browser."""

from __future__ import annotations

import os
import secrets
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from radt.errors import UsageError
from radt.masking import masked
from radt.settings import STORE_URI, TRACKING_URI

if TYPE_CHECKING:
    from radt.frontend.access import Access

#: As `radt.frontend.access.Auth`, which is not loaded for other commands' help.
_AUTHS = ("none", "token", "basic", "proxy-header")


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
    help="Show also the runs of this MLflow server (http://…), of which those that are opened are "
    "loaded into the data folder, or of this MLflow database (sqlite:///FILE, postgresql://…).",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port to listen on.  [default: the first free one from 8050]",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--auth",
    type=click.Choice(_AUTHS),
    help="What visitors are asked for; something is needed for addresses that other machines "
    "reach.  [default: token if there is one, else none]",
)
@click.option(
    "--token",
    is_flag=True,
    help="Ask visitors for a token, made up now. RADT_DASHBOARD_TOKEN sets one of your own.",
)
@click.option(
    "--users",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File of users and hashed passwords, for --auth basic.",
)
@click.option(
    "--add-user",
    metavar="NAME",
    help="Write a user into the file of --users, asking for the password, and end.",
)
@click.option(
    "--trust-proxy",
    metavar="ADDRESS",
    multiple=True,
    help="Reverse proxy, or network of such, that is believed who and where visitors are; "
    "repeatable.",
)
@click.option(
    "--user-header",
    metavar="HEADER",
    default="X-Forwarded-User",
    show_default=True,
    help="Header in which the proxy names the user, for --auth proxy-header.",
)
@click.option(
    "--public-name",
    metavar="NAME",
    multiple=True,
    help="Name by which visitors call the dashboard, beside this machine's own; repeatable.",
)
@click.option("--no-browser", is_flag=True, help="Do not open a browser.")
def command(
    home: str | None,
    store_uri: str | None,
    tracking_uri: str | None,
    port: int | None,
    users: Path | None,
    add_user: str | None,
    no_browser: bool,
    **visitors: Any,
) -> None:
    """Compare runs in the browser, also while they run."""
    if add_user is not None:
        _add_user(users, add_user)
        return
    from radt.frontend.serve import Address, serve
    from radt.store.locate import View

    access = _access(users=users, **visitors)
    view = View.of(home, store_uri, tracking_uri)

    def ready(address: Address) -> None:
        beside = view.server or view.mlflow
        is_there = view.store.path is None or view.store.path.exists()
        # What a server has is loaded into the store, which is made then.
        shown = [str(view.store)] if is_there or not beside or view.server else []
        shown += [masked(beside)] if beside else []
        click.echo(f"radt dashboard · {' and '.join(shown)}\n\n  {address.url}\n\nCtrl-C stops it.")
        if access.is_in_the_clear:
            click.echo(
                "Secrets and data go over the network as they are: put HTTPS before it, or use an "
                "SSH tunnel (docs/dashboard.md).",
                err=True,
            )
        if not is_there and not beside:
            click.echo("Nothing is recorded there yet: radt train.py", err=True)
        if not no_browser and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            webbrowser.open(address.url)

    serve(view, access, port, ready)


def _access(
    *,
    host: str,
    auth: str | None,
    token: bool,
    users: Path | None,
    trust_proxy: tuple[str, ...],
    user_header: str,
    public_name: tuple[str, ...],
) -> Access:
    """
    Raises:
        UsageError: The options do not go together, or would let in everybody.
    """
    from radt.frontend.access import TOKEN_VARIABLE, Access, Auth

    mode = None if auth is None else Auth(auth)
    if token and mode not in (None, Auth.TOKEN):
        raise UsageError(f"--token and --auth {mode} are two ways to ask", "Give one of them")
    # Not as the value of an option: everybody on the machine can read those.
    secret = os.environ.get(TOKEN_VARIABLE) or None
    if secret is None and (token or mode is Auth.TOKEN):
        secret = secrets.token_urlsafe(24)
    return Access(host, secret, mode, users, trust_proxy, user_header, public_name)


def _add_user(users: Path | None, name: str) -> None:
    """
    Raises:
        UsageError: There is no file to write to, or name or password cannot be used.
    """
    from radt.frontend.access.users import add_user

    if users is None:
        raise UsageError("--add-user needs a file to write to", "Add --users FILE")
    password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    is_new = add_user(users, name, password)
    click.echo(f"{name} {'is' if is_new else 'has another password'} in {users}")
