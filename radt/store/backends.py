"""The backend of a store's address."""

from __future__ import annotations

from radt.store.address import StoreAddress
from radt.store.backend import Backend
from radt.store.sqlite import SqliteBackend


def backend_of(address: StoreAddress) -> Backend:
    """The database behind an address; nothing is opened."""
    if address.is_postgres:
        # Not above: who uses files only need not load a driver for Postgres.
        from radt.store.postgres import PostgresBackend

        return PostgresBackend(address)
    return SqliteBackend(address)
