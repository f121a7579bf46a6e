"""``radt dashboard``: compare runs in the browser."""

from __future__ import annotations

import os
import secrets
import webbrowser
from pathlib import Path

import click

from radt.cli.options import home_option
from radt.home import Home


@click.command("dashboard")
@home_option
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
def command(home: Path | None, port: int | None, host: str, token: bool, no_browser: bool) -> None:
    """Compare runs in the browser, also while they run."""
    from radt.frontend.access import TOKEN_VARIABLE, Access
    from radt.frontend.serve import Address, serve

    # Not as the value of an option: everybody on the machine can read those.
    secret = os.environ.get(TOKEN_VARIABLE) or (secrets.token_urlsafe(24) if token else None)
    store = Home.resolve(home).store_path

    def ready(address: Address) -> None:
        click.echo(f"radt dashboard · {store}\n\n  {address.url}\n\nCtrl-C stops it.")
        if not store.exists():
            click.echo("Nothing is recorded there yet: radt train.py", err=True)
        if not no_browser and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            webbrowser.open(address.url)

    serve(store, Access(host, secret), port, ready)
