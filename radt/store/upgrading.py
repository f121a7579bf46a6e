"""Bring a store up to date on purpose (``radt db upgrade``)."""

from __future__ import annotations

from dataclasses import dataclass

from radt.store.address import StoreAddress
from radt.store.backend import Backend, Dialect
from radt.store.backends import backend_of
from radt.store.front_end_views import Source, put_views
from radt.store.migrations import check_not_newer, current_version, latest_version
from radt.store.writer import StoreWriter


@dataclass(frozen=True, slots=True)
class Upgraded:
    """From which schema version to which; 0 before there was any. ``source`` is what the views of
    the first front-end read, None in SQLite, which has none."""

    before: int
    after: int
    source: Source | None = None


def upgrade(address: StoreAddress, *, public_views: bool = False) -> Upgraded:
    """Apply the migrations that are missing; an empty Postgres database becomes a store.

    In Postgres the views of the first front-end are made anew as well.

    Args:
        public_views: Have these views in schema ``public``, too.

    Raises:
        StoreError: There is no such file, or it cannot be written.
        SchemaTooNewError: It was written by a later radt.
    """
    backend = backend_of(address)
    backend.check_there()
    before = _version(backend)
    check_not_newer(backend, before)
    StoreWriter(address, upgrade=True).close()
    source = None
    if backend.dialect is Dialect.POSTGRES:
        engine = backend.writer_engine()
        try:
            with backend.translated_errors(), engine.begin() as connection:
                backend.begin_migration(connection)
                source = put_views(connection, public=public_views)
        finally:
            engine.dispose()
    return Upgraded(before, latest_version(), source)


def _version(backend: Backend) -> int:
    reader = backend.reader_engine()
    try:
        with backend.translated_errors(), reader.begin() as connection:
            return current_version(backend, connection)
    finally:
        reader.dispose()
