"""``radt dashboard``: compare runs in the browser."""

from __future__ import annotations

import os
import secrets
import webbrowser

import click

from radt.masking import masked
from radt.settings import STORE_URI, TRACKING_URI


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
    help="Show also the runs that this MLflow server (http://…) knows; those that are opened are "
    "loaded into the data folder.",
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
    help="Ask visitors for a token, made up now; needed for addresses that other machines reach. "
    "RADT_DASHBOARD_TOKEN sets one of your own.",
)
@click.option("--no-browser", is_flag=True, help="Do not open a browser.")
def command(
    home: str | None,
    store_uri: str | None,
    tracking_uri: str | None,
    port: int | None,
    host: str,
    token: bool,
    no_browser: bool,
) -> None:
    """Compare runs in the browser, also while they run."""
    from radt.frontend.access import TOKEN_VARIABLE, Access
    from radt.frontend.serve import Address, serve
    from radt.store.locate import View

    # Not as the value of an option: everybody on the machine can read those.
    secret = os.environ.get(TOKEN_VARIABLE) or (secrets.token_urlsafe(24) if token else None)
    view = View.of(home, store_uri, tracking_uri)

    def ready(address: Address) -> None:
        shown = f"{view.store} and {masked(view.server)}" if view.server else str(view.store)
        click.echo(f"radt dashboard · {shown}\n\n  {address.url}\n\nCtrl-C stops it.")
        if view.store.path is not None and not view.server and not view.store.path.exists():
            click.echo("Nothing is recorded there yet: radt train.py", err=True)
        if not no_browser and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            webbrowser.open(address.url)

    serve(view, Access(host, secret), port, ready)
