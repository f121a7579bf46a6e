"""``radt db``: upgrade and check the store, and manage who can read it."""

from __future__ import annotations

import os
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from radt.cli.db_check import check
from radt.cli.options import home_option, setting_option
from radt.cli.stores import all_stores, given_store, shared_store
from radt.errors import UsageError
from radt.home import Home
from radt.settings import STORE_URI
from radt.store.backend import StoreAddress

_PASSWORD_BYTES = 24


@click.group("db")
def command() -> None:
    """Upgrade and check the store, and manage who can read it."""


command.add_command(check)


@command.command("upgrade")
@click.option(
    "--public-views",
    is_flag=True,
    help="Also create the fe_* views in schema public, replacing existing ones.",
)
@setting_option(STORE_URI)
@home_option
def upgrade(public_views: bool, store_uri: str | None, home: Path | None) -> None:
    """Upgrade the schema of the data folder's store and of the shared store.

    An empty Postgres database becomes a store. Older versions of radt cannot use an upgraded
    store.
    """
    from radt.store.admin import Source
    from radt.store.admin import upgrade as upgrade_store

    console = Console(highlight=False)
    for store in all_stores(home, store_uri):
        done = upgrade_store(store.address, public_views=public_views)
        if done.before == 0:
            text = f"set up, schema version {done.after}"
        elif done.before == done.after:
            text = f"schema version {done.after}, nothing to do"
        else:
            text = f"schema version {done.before} → {done.after}"
        console.print(Text(f"{store.address}  {text}"), soft_wrap=True)
        if done.source is not None:
            where = "in schemas radt and public" if public_views else "in schema radt"
            what = f"views fe_* {where} read {done.source}"
            if done.source is Source.CHUNKS:
                what += ": MLflow's tables are not in this database"
            console.print(Text(f"  {what}", "dim"), soft_wrap=True)


@command.command("grant-reader")
@click.argument("name")
@click.option(
    "--password-variable",
    metavar="VARIABLE",
    help="Take the password from this environment variable.",
)
@click.option("--ask", is_flag=True, help="Prompt for the password.")
@click.option("--new-password", is_flag=True, help="Set a new password for an existing role.")
@setting_option(STORE_URI)
@home_option
def grant_reader(
    name: str,
    password_variable: str | None,
    ask: bool,
    new_password: bool,
    store_uri: str | None,
    home: Path | None,
) -> None:
    """Give the role NAME read access to the shared store, creating the role if needed.

    For the dashboard and for SQL. Without --ask or --password-variable a new role gets a random
    password, which is shown once.
    """
    import secrets

    from radt.store.admin import grant_reader as grant
    from radt.store.admin import has_role

    address = _shared(home, store_uri)
    password: str | None = None
    generated = False
    if password_variable is not None:
        password = os.environ.get(password_variable)
        if not password:
            raise UsageError(f"the variable {password_variable} is not set", "Set it, or use --ask")
    elif ask:
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    elif new_password or not has_role(address, name):
        password, generated = secrets.token_urlsafe(_PASSWORD_BYTES), True
    done = grant(address, name, password)
    console = Console(highlight=False)
    role = f"role {name} {'made' if done.created else 'was there'}"
    tables = "" if done.mlflow_schema is None else " and MLflow's tables"
    console.print(Text(f"{role}, reads schema radt{tables} of {address}"), soft_wrap=True)
    console.print(Text(f"  RADT_STORE_URI={done.uri}", "dim"), soft_wrap=True)
    if generated:
        console.print(Text.assemble("  PGPASSWORD=", (str(password), "bold")), soft_wrap=True)
        console.print(Text("  shown only once; store it in ~/.pgpass", "dim"), soft_wrap=True)


@command.command("revoke-reader")
@click.argument("name")
@setting_option(STORE_URI)
@home_option
def revoke_reader(name: str, store_uri: str | None, home: Path | None) -> None:
    """Revoke NAME's access to the shared store; drop the role if radt created it."""
    from radt.store.admin import revoke_reader as revoke

    address = _shared(home, store_uri)
    removed = revoke(address, name)
    what = "removed" if removed else "reads no more; it was not made by radt and stays"
    click.echo(f"role {name}: {what}")


def _shared(home: Path | None, store_uri: str | None) -> StoreAddress:
    """The Postgres store that is given or set."""
    chosen = given_store(home, store_uri)
    if chosen.home is None:
        return chosen.address
    shared = shared_store(Home.resolve(home))
    if shared is None:
        raise UsageError(
            f"Expected a Postgres store, got the file {chosen.address}",
            "Give a Postgres database with --store-uri, RADT_STORE_URI or store-uri in radt.toml",
        )
    return shared.address
