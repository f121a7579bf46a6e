"""Which store a command is about: the one of a data folder, or a Postgres database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from click.core import ParameterSource

from radt.errors import UsageError
from radt.home import Home
from radt.store.backend import StoreAddress


@dataclass(frozen=True, slots=True)
class ChosenStore:
    """A store; ``home`` is the data folder it is in, None for Postgres."""

    address: StoreAddress
    home: Home | None = None


def given_store(home: Path | None, store_uri: str | None) -> ChosenStore:
    """The one that is named, else that of the data folder.

    Raises:
        UsageError: Both are named, or the address is none.
    """
    return _named(home, store_uri) or _of(Home.resolve(home))


def all_stores(home: Path | None, store_uri: str | None) -> Sequence[ChosenStore]:
    """The one that is named, else that of the data folder, if any, and the shared one, if any.

    Raises:
        UsageError: Both are named, or an address is none.
    """
    if named := _named(home, store_uri):
        return (named,)
    folder = Home.resolve(home)
    shared = shared_store(folder)
    if shared is not None and not folder.store_path.exists():
        return (shared,)
    return (_of(folder),) if shared is None else (_of(folder), shared)


def shared_store(home: Home) -> ChosenStore | None:
    """The Postgres store of a data folder; None if it has none.

    Raises:
        UsageError: The address is none.
    """
    uri = home.store_uri(tracking_uri=home.tracking_uri())
    return ChosenStore(StoreAddress.of(uri)) if uri else None


def _named(home: Path | None, store_uri: str | None) -> ChosenStore | None:
    context = click.get_current_context()
    home_given = context.get_parameter_source("home") is ParameterSource.COMMANDLINE
    if not store_uri:
        return _of(Home.resolve(home)) if home_given else None
    if home_given:
        raise UsageError("Expected --home or --store-uri, got both", "Remove one of them")
    return ChosenStore(StoreAddress.of(store_uri))


def _of(home: Home) -> ChosenStore:
    return ChosenStore(StoreAddress.of(home.store_path), home)
